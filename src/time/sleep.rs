//! `sleep` and `sleep_until` on the global wheel.

use super::{Duration, GLOBAL, Instant, require_runtime};
use crate::{engine::clock::Moment, timers::sleep::Sleep};

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
/// Dropping the future cancels the sleep at once. As with a [`timeout()`](super::timeout()), the entry of a
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
    Sleep::after(GLOBAL, Moment::now(), duration)
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
    Sleep::until(GLOBAL, deadline)
}
