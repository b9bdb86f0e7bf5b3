//! Tokio's `time` on the global wheel: change `use tokio::time` to `use tickwheel::time`.
//!
//! Names, arguments and outputs are those of [`tokio::time`], so the rest of a program stays as it is. Timers
//! are on [`Wheel::global`](crate::Wheel::global), whose ticks are 1 ms, like Tokio's, unless
//! [`Builder::build_global`](crate::Builder::build_global) changes them. Each runtime turns a part of its
//! own, and a future waits on the runtime that first polls it. Once that has ended, it goes on for the same
//! instant on the one that polls it, or panics as Tokio's does where there is none.
//!
//! No timer of this module is refused: a shutdown of the global wheel does not concern them.
//!
//! This module differs from Tokio's in these points:
//!
//! - Timers fire at ticks of the wheel, which begin with Tokio's milliseconds, never early and less than one
//!   tick late. A timer of more than two seconds may in addition be late by a thousandth of its duration, up
//!   to 100 ms, so that it fires in company. [`Builder::slack`](crate::Builder::slack) changes that. A clock
//!   that a test controls has no slack.
//! - A zero duration, and an instant that has just passed, end at the wheel's next tick: when Tokio's would
//!   with ticks of 1 ms, and later with longer ones.
//! - A [`timeout()`] counts from the first poll that finds its future pending, not from the call.
//! - In a runtime without timers it is not the call that panics but the first poll, and a [`timeout()`] in a
//!   task whose future is ready at its first poll does not panic at all. Outside tasks the call of
//!   [`timeout()`] panics, as Tokio's does.
//! - A tick of an [`Interval`] counts as missed when it is more than 5 ms, and more than one tick of the
//!   wheel and its slack, late.
//! - A task may be woken once before its deadline, and the future then keeps waiting: at a deadline that it
//!   has since moved, or at that of a timer that it has dropped. So a task has to poll its timer whenever it
//!   is woken. One that then only looks at the clock may not be woken at the deadline.
//! - A future that was first polled in one runtime and is awaited in another waits while nobody drives the
//!   first one. Tokio's ends.
//! - A process that has run for 448 years has no clock for new timers.
//! - The timers of a runtime wait for one timer of Tokio's. If Tokio loses its wake-up, or delays it by more
//!   than 100 ms, they go on when the next timer of this module starts in that runtime. A poll of a timer
//!   that is waiting notices nothing.
//! - A runtime in which a timer of this module has waited has one more task, which
//!   `RuntimeMetrics::num_alive_tasks` counts.
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
mod label;
mod sleep;
mod timeout;

pub use label::Label;
pub use sleep::{sleep, sleep_until};
pub use timeout::{timeout, timeout_at};
#[doc(no_inline)]
pub use tokio::time::{Duration, Instant, MissedTickBehavior};
#[cfg(feature = "test-util")]
#[doc(no_inline)]
pub use tokio::time::{pause, resume};

pub use crate::timers::{interval::Interval, sleep::Sleep, timeout::Timeout};

use tokio::{runtime::Handle, task};

use crate::{engine::shared::WheelRef, timers::idle::IdleTimer, wheel::Wheel};

/// Creates an interval that ticks every `period`, on the global wheel.
///
/// The first tick completes at once. Each later tick completes at the first tick of the wheel that begins at
/// or after its instant: never early, and less than one tick of the wheel late plus its slack and the
/// runtime's own delay. It counts as missed if it is, beyond its slack, later than both 5 ms and one tick of
/// the wheel. In every other respect the interval behaves as `tokio::time::interval`.
///
/// An interval is never refused.
///
/// # Cancellation
///
/// Dropping the interval cancels its timer at once.
///
/// # Panics
///
/// Panics if `period` is zero, and outside a Tokio runtime, with Tokio's message. On one without timers it is
/// the first poll that has to wait that panics.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, interval};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut interval = interval(Duration::from_millis(10));
/// interval.tick().await; // at once
/// interval.tick().await; // 10 ms later
/// # }
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    assert!(period > Duration::ZERO, "`period` must be non-zero.");
    Interval::new(sleep(Duration::ZERO), period)
}

/// Creates an interval that first ticks at `start` and then every `period`, on the global wheel.
///
/// Ticks are as precise as those of [`interval`]. If `start` is in the past, the first tick completes at the
/// first poll.
///
/// # Cancellation
///
/// Dropping the interval cancels its timer at once.
///
/// # Panics
///
/// Panics in the same cases as [`interval`].
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, interval_at};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let start = Instant::now() + Duration::from_millis(20);
/// let mut interval = interval_at(start, Duration::from_millis(10));
/// assert_eq!(interval.tick().await, start);
/// # }
/// ```
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(period > Duration::ZERO, "`period` must be non-zero.");
    Interval::new(sleep_until(start), period)
}

/// Waits until `duration` has passed without a [`touch`](crate::IdleHandle::touch), on the global wheel.
///
/// It is [`Wheel::idle_timer`] on that wheel, and as precise. Tokio has no such timer.
///
/// # Cancellation
///
/// Dropping the timer cancels it at once, after which its handles have no effect on it.
///
/// # Panics
///
/// Panics outside a Tokio runtime, with Tokio's message. On one without timers it is the first poll that
/// panics.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, idle_timer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let idle = idle_timer(Duration::from_millis(30));
/// let traffic = idle.handle();
/// tokio::spawn(async move { traffic.touch() });
/// idle.await; // 30 ms after the touch
/// # }
/// ```
#[track_caller]
pub fn idle_timer(duration: Duration) -> IdleTimer {
    require_runtime();
    Wheel::global().idle_timer(duration)
}

/// Advances a paused clock, and waits until the global wheel has woken the tasks of all timers that are due.
///
/// `tokio::time::advance` yields once, so that Tokio's timer can wake the tasks that wait for it. One of them
/// is a task of the wheel, which wakes the tasks of the wheel's timers when it runs. This function also waits
/// until it has run.
///
/// # Panics
///
/// Panics if the clock is not paused, or outside a Tokio runtime, with Tokio's message.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, advance, sleep};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let sleeping = tokio::spawn(sleep(Duration::from_secs(60)));
/// tokio::task::yield_now().await;
/// advance(Duration::from_secs(60)).await;
/// sleeping.await.unwrap();
/// # }
/// ```
#[cfg(feature = "test-util")]
pub async fn advance(duration: Duration) {
    // Enough for ten million timers, because a turn between two yields wakes a thousand. In a runtime that
    // nobody drives no turn comes, and Tokio's `advance` returns there too.
    const YIELDS: usize = 10_000;
    tokio::time::advance(duration).await;
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
        if !crate::engine::registry::global_is_behind() {
            return;
        }
    }
}

/// The wheel of this module's timers.
const GLOBAL: WheelRef = WheelRef::GLOBAL;

/// Checks that the caller is in a runtime.
///
/// # Panics
///
/// Panics outside one, where Tokio's functions panic too. To ask for the runtime costs a count that all
/// workers share, so a task, which is in one, is not asked.
#[track_caller]
#[inline]
fn require_runtime() {
    if task::try_id().is_none() {
        drop(Handle::current());
    }
}
