//! Tokio's `time` on the global wheel: change `use tokio::time` to `use tickwheel::time`.
//!
//! Names, arguments and outputs are those of [`tokio::time`], so the rest of a program stays as it is. Timers are on
//! [`Wheel::global`](crate::Wheel::global), whose ticks are 1 ms, like Tokio's, unless
//! [`Builder::build_global`](crate::Builder::build_global) changes them. Each runtime turns a part of its own, and a future waits on the runtime that
//! first polls it. Once that has ended, it goes on for the same instant on the one that polls it, or panics as Tokio's does where there is none.
//!
//! No timer of this module is refused: a shutdown of the global wheel does not concern them.
//!
//! This module differs from Tokio's in these points:
//!
//! - Timers fire at ticks of the wheel, which begin with Tokio's milliseconds, never early and less than one tick late. A timer of more than two
//!   seconds may in addition be late by a thousandth of its duration, up to 100 ms, so that it fires in company.
//!   [`Builder::slack`](crate::Builder::slack) changes that. A clock that a test controls has no slack.
//! - On the real clock a zero duration completes at the first poll. Where a test's clock stands between two milliseconds, it waits for the
//!   next one, as Tokio's does.
//! - A [`timeout()`] counts from the first poll that finds its future pending, not from the call.
//! - In a runtime without timers it is not the call that panics but the first poll, and a [`timeout()`] in a task whose future is ready at its
//!   first poll does not panic at all. Outside tasks the call of [`timeout()`] panics, as Tokio's does.
//! - A tick of an [`Interval`] counts as missed when it is more than 5 ms, and more than one tick of the wheel and its slack, late.
//! - A task may be woken once at a deadline that it has since moved, or whose timer it has dropped. The future then keeps waiting.
//! - A runtime in which a timer of this module has waited has one more task, which `RuntimeMetrics::num_alive_tasks` counts.
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

use tokio::{runtime::Handle, task};

use crate::engine::shard::Home;

/// Returns what stands for the global wheel in a new timer.
///
/// # Panics
///
/// Panics outside a runtime, where Tokio's functions panic too. To ask for the runtime costs a count that all workers share, so a task, which is in
/// one, is not asked.
#[track_caller]
#[inline]
fn home() -> Home {
    if task::try_id().is_none() {
        drop(Handle::current());
    }
    None
}
