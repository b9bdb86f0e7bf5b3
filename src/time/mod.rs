//! Tokio's `time` on the wheel of the current runtime: change `use tokio::time` to `use tickwheel::time`.
//!
//! Names, arguments and outputs are those of [`tokio::time`], so the rest of a program stays as it is. Timers are on
//! [`Wheel::current`](crate::Wheel::current), the wheel of the runtime. Its ticks are 1 ms, as Tokio's are, unless
//! [`Builder::set_default`](crate::Builder::set_default) says otherwise. A future belongs to the runtime that it was made in. When
//! that has gone, the future completes on the runtime that polls it, or panics as Tokio's does.
//!
//! Nothing here can be refused. If the wheel is full or has been shut down, timers wait on Tokio's own timer. Timers that were
//! pending at the shutdown wait there for the rest of their time. Their polling runtime may even go by another clock.
//!
//! What differs from Tokio's:
//!
//! - Timers come due at ticks of the wheel: never early, less than one tick late, a [`timeout()`] less than two.
//! - A [`timeout()`] counts from the first poll that finds its future pending, not from the call.
//! - A tick of an [`Interval`] counts as missed when it is later than 5 ms and than one tick of the wheel.
//! - A task may be woken once at a deadline that it has moved, or whose timer it has dropped. The future then goes on waiting.
//! - A runtime that has used it has two tasks more, which `RuntimeMetrics::num_alive_tasks` counts.
//! - [`Sleep`] and [`Timeout`] are `Unpin` where they can be, and [`Interval`] is a `Stream`.
//!
//! # Examples
//!
//! ```
//! use tickwheel::time::{self, Duration, Instant};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let start = Instant::now();
//! time::sleep(Duration::from_millis(20)).await;
//! assert!(start.elapsed() >= Duration::from_millis(20));
//!
//! let answer = time::timeout(Duration::from_secs(1), async { 42 }).await;
//! assert_eq!(answer, Ok(42));
//! # }
//! ```

pub mod error;
mod interval;
mod sleep;
#[cfg(feature = "test-util")]
mod test_clock;
mod timeout;

pub use interval::{Interval, interval, interval_at};
pub use sleep::{Sleep, sleep, sleep_until};
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
pub use test_clock::advance;
pub use timeout::{Timeout, timeout, timeout_at};
#[doc(no_inline)]
pub use tokio::time::{Duration, Instant, MissedTickBehavior};
#[cfg(feature = "test-util")]
#[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
#[doc(no_inline)]
pub use tokio::time::{pause, resume};
