//! `interval` and `interval_at` on the global wheel.

use super::{Duration, Instant, home};
use crate::{
    engine::moment::Moment,
    timers::{console::Resource, interval::Interval, sleep},
};

/// Creates an interval that ticks every `period`, on the global wheel.
///
/// The first tick completes at once. Each later tick completes at the first tick of the wheel that begins at or after its
/// instant: never early, and less than one tick of the wheel late plus its slack and the runtime's own delay. It counts as missed if it is, beyond its
/// slack, later than both 5 ms and one tick of the wheel. In every other respect the interval behaves as `tokio::time::interval`.
///
/// An interval is never refused.
///
/// # Cancellation
///
/// Dropping the interval cancels its timer at once.
///
/// # Panics
///
/// Panics if `period` is zero, and outside a Tokio runtime, with Tokio's message. On one without timers it is the first poll that has to wait that
/// panics.
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
    Interval::new(sleep::Sleep::after(home(), Moment::now(), Duration::ZERO), period)
}

/// Creates an interval that first ticks at `start` and then every `period`, on the global wheel.
///
/// Ticks are as precise as those of [`interval`]. If `start` is in the past, the first tick completes at the first poll.
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
    let resource = Resource::new("Sleep", "Wheel::sleep_until");
    Interval::new(sleep::Sleep::until(home(), start, resource), period)
}
