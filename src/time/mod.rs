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

pub use label::Label;
#[doc(no_inline)]
pub use tokio::time::{Duration, Instant, MissedTickBehavior};
#[cfg(feature = "test-util")]
#[doc(no_inline)]
pub use tokio::time::{pause, resume};

pub use crate::timers::{interval::Interval, sleep::Sleep, timeout::Timeout};

use tokio::{runtime::Handle, task};

use crate::{
    engine::{
        clock::{Moment, overflows},
        shared::WheelRef,
    },
    timers::idle::IdleTimer,
    wheel::Wheel,
};

/// Waits until `duration` has elapsed, on the global wheel.
///
/// The sleep is never early, and less than one tick of the wheel late plus its slack and the runtime's own
/// delay. A zero duration completes at the next tick. A duration of more than 30 years is taken as 30 years.
/// In every other respect it behaves as `tokio::time::sleep`.
///
/// A sleep is never refused, and goes on for the same instant on the runtime that polls it if the one on
/// which it waits ends.
///
/// # Cancellation
///
/// Dropping the future cancels the sleep at once. As with a [`timeout()`], the entry of a
/// cancelled timer may stay in the wheel, uncounted, for the next timer of its task.
///
/// # Panics
///
/// Panics outside a Tokio runtime, with Tokio's message. On one without timers it is the first poll that
/// panics.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, sleep};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// sleep(Duration::from_millis(20)).await;
/// # }
/// ```
#[track_caller]
#[inline]
pub fn sleep(duration: Duration) -> Sleep {
    require_runtime();
    Sleep::after(WheelRef::GLOBAL, Moment::now(), duration)
}

/// Waits until `deadline`, on the global wheel.
///
/// It is as precise as [`sleep`]. If the deadline is in the past, the sleep completes at the first poll. In
/// every other respect it behaves as `tokio::time::sleep_until`.
///
/// # Cancellation
///
/// Dropping the future cancels the sleep, as for [`sleep`].
///
/// # Panics
///
/// Panics in the same cases as [`sleep`].
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, sleep_until};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let deadline = Instant::now() + Duration::from_millis(20);
/// sleep_until(deadline).await;
/// assert!(Instant::now() >= deadline);
/// # }
/// ```
#[track_caller]
#[inline]
pub fn sleep_until(deadline: Instant) -> Sleep {
    require_runtime();
    Sleep::until(WheelRef::GLOBAL, deadline)
}

/// Requires `future` to complete before `duration` has elapsed, on the global wheel.
///
/// As in `tokio::time::timeout`, the future is polled first, and if it is ready, the timeout succeeds
/// whatever the duration. Unlike there, the duration counts from the first pending poll. The timeout elapses
/// at a tick of the wheel: never early, and less than one tick late plus its slack and the runtime's own
/// delay. A zero duration elapses at the next tick. A duration of more than 30 years is taken as 30
/// years, and one that overflows the clock makes no timer and never elapses.
///
/// A timeout is never refused, and goes on for the same instant on the runtime that polls it if the one on
/// which it waits ends.
///
/// # Cancellation
///
/// Dropping the timeout drops the future and cancels the timer at once. The entries of two cancelled timers
/// of a task may stay in the wheel on each thread for the task's next timers, until they are due at the
/// latest. While they stay, they keep a clone of the task's waker, and no metric counts them.
///
/// # Panics
///
/// Panics outside a Tokio runtime, and on one without timers, with Tokio's message. In a task it is the first
/// pending poll that panics.
///
/// # Errors
///
/// The timeout resolves to [`Elapsed`](error::Elapsed) when the time runs out.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, timeout};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sender, receiver) = tokio::sync::oneshot::channel::<&str>();
///
/// if let Err(_) = timeout(Duration::from_millis(10), receiver).await {
///     println!("no answer");
/// }
/// # drop(sender);
/// # }
/// ```
#[track_caller]
#[inline]
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    if is_outside_tasks() && !overflows(duration) {
        require_timers();
    }
    Timeout::new(
        Sleep::of_timeout(WheelRef::GLOBAL, duration, "Wheel::timeout"),
        future,
    )
}

/// Requires `future` to complete before `deadline`, on the global wheel.
///
/// As in `tokio::time::timeout_at`, the future is polled first, and succeeds if it is ready, even past the
/// deadline. The timeout is never early, and less than one tick late plus its slack and the runtime's own
/// delay.
///
/// # Cancellation
///
/// Dropping the timeout drops the future and cancels the timer at once.
///
/// # Panics
///
/// Panics in the same cases as [`timeout`].
///
/// # Errors
///
/// Fails in the same cases as [`timeout`].
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, timeout_at};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let deadline = Instant::now() + Duration::from_millis(20);
/// assert!(timeout_at(deadline, std::future::pending::<()>()).await.is_err());
/// assert!(Instant::now() >= deadline);
/// # }
/// ```
#[track_caller]
pub fn timeout_at<F: IntoFuture>(deadline: Instant, future: F) -> Timeout<F::IntoFuture> {
    if is_outside_tasks() {
        require_timers();
    }
    let sleep = Sleep::of_timeout_at(WheelRef::GLOBAL, deadline, "Wheel::timeout_at");
    Timeout::new(sleep, future)
}

/// Creates an interval that ticks every `period`, on the global wheel.
///
/// The first tick completes at the next tick of the wheel, as Tokio's does at the next millisecond. Each
/// later tick completes at the first tick of the wheel that begins at or after its instant: never early, and
/// less than one tick of the wheel late plus its slack and the runtime's own delay. It counts as missed if it
/// is, beyond its slack, later than both 5 ms and one tick of the wheel. In every other respect the interval
/// behaves as `tokio::time::interval`.
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

/// Returns whether the caller is in no task. A task is in a runtime, which is not asked, because that costs a
/// count that all workers share.
#[inline]
fn is_outside_tasks() -> bool {
    task::try_id().is_none()
}

/// Checks that the caller is in a runtime.
///
/// # Panics
///
/// Panics outside one, where Tokio's functions panic too.
#[track_caller]
#[inline]
fn require_runtime() {
    if is_outside_tasks() {
        drop(Handle::current());
    }
}

/// Checks that the caller is in a runtime with timers.
///
/// # Panics
///
/// Panics at the caller's place, as Tokio's functions do, if it is not.
#[track_caller]
#[cold]
fn require_timers() {
    drop(tokio::time::sleep(Duration::ZERO));
}
