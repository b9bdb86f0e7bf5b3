//! `timeout` and `timeout_at` on the global wheel.

use tokio::task;

use super::{Duration, GLOBAL, Instant};
use crate::{
    engine::clock::overflows,
    timers::{sleep::Sleep, timeout::Timeout},
};

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
/// Dropping the timeout drops the future and cancels the timer at once. The entries of two cancelled timers of
/// a task may stay in the wheel on each thread for the task's next timers, until they are due at the latest.
/// While they stay, they keep a clone of the task's waker, and no metric counts them.
///
/// # Panics
///
/// Panics outside a Tokio runtime, and on one without timers, with Tokio's message. In a task it is the first
/// pending poll that panics.
///
/// # Errors
///
/// The timeout resolves to [`Elapsed`](super::error::Elapsed) when the time runs out.
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
    Timeout::new(Sleep::of_timeout(GLOBAL, duration, "Wheel::timeout"), future)
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
    let sleep = Sleep::of_timeout_at(GLOBAL, deadline, "Wheel::timeout_at");
    Timeout::new(sleep, future)
}

/// Returns whether the caller is in no task. A task is in a runtime, which is not asked, because that costs a
/// count that all workers share.
#[inline]
fn is_outside_tasks() -> bool {
    task::try_id().is_none()
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
