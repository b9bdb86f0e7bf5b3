//! Tokio's `time` on the wheel of the current runtime: change `use tokio::time` to `use tickwheel::time`.
//!
//! Names, arguments and outputs are those of [`tokio::time`], so the rest of a program stays as it is. Timers run on
//! [`Wheel::current`](crate::Wheel::current), the wheel of the current runtime, whose ticks are 1 ms, like Tokio's, unless
//! [`Builder::set_default`](crate::Builder::set_default) changes them. A future that is made in a task belongs to the runtime that first
//! polls it, and any other to the runtime that it was made in. Once that runtime is gone, the future completes on the runtime that polls
//! it, or panics as Tokio's does.
//!
//! No timer of this module can be refused. If the wheel is full or has been shut down, timers wait on Tokio's own timer, and those that were
//! pending at the shutdown wait there for the rest of their time, even if the runtime that polls them follows another clock.
//!
//! This module differs from Tokio's in these points:
//!
//! - Timers fire at ticks of the wheel, which begin with Tokio's milliseconds, never early and less than one tick late. A
//!   [`timeout()`] of a second or more that elapses on a wheel busy with timeouts may be up to 10 ms later. If a tick is
//!   longer than 5 ms, that is a timeout of 100 ticks or more, and one tick.
//! - On the real clock a zero duration completes at the first poll. Where a test's clock stands between two milliseconds, it waits for the
//!   next one, as Tokio's does. If the test moves the clock and polls a timer before the runtime has come round, the timer may be ready one
//!   poll earlier or later than Tokio's.
//! - A [`timeout()`] counts from the first poll that finds its future pending, not from the call.
//! - In a task of a runtime without timers it is not the call that panics but the first poll, and a [`timeout()`] whose future is ready
//!   at its first poll does not panic at all.
//! - A tick of an [`Interval`] counts as missed when it is more than 5 ms and more than one tick of the wheel late.
//! - A task may be woken once at a deadline that it has since moved, or whose timer it has dropped. The future then keeps waiting.
//! - A runtime in which a timer of this module has waited has two more tasks, which `RuntimeMetrics::num_alive_tasks` counts.
//! - [`Sleep`] and [`Timeout`] are `Unpin` if their contents are, and [`Interval`] is a `Stream`.
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
mod idle;
mod interval;
mod label;
mod sleep;
#[cfg(feature = "test-util")]
mod test_clock;
mod timeout;

pub use idle::idle_timer;
pub use interval::{interval, interval_at};
pub use label::Label;
pub use sleep::{Sleep, sleep, sleep_until};
#[cfg(feature = "test-util")]
pub use test_clock::advance;
pub use timeout::{timeout, timeout_at};
#[doc(no_inline)]
pub use tokio::time::{Duration, Instant, MissedTickBehavior};
#[cfg(feature = "test-util")]
#[doc(no_inline)]
pub use tokio::time::{pause, resume};

pub use crate::timers::{interval::Interval, timeout::Timeout};
