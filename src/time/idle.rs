//! `idle_timer` on the current wheel.

use super::Duration;
use crate::{
    timers::idle::IdleTimer,
    wheel::{Wheel, current},
};

/// Waits until the timer has not been touched for `duration`, on the wheel of the current runtime.
///
/// It is [`Wheel::idle_timer`](crate::Wheel::idle_timer) on that wheel, and as precise. Tokio has no such timer.
///
/// # Cancellation
///
/// Dropping the timer cancels it at once, after which its handles have no effect on it.
///
/// # Panics
///
/// Panics outside a Tokio runtime, and on one without timers, with Tokio's message.
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
    current::with_wheel(Wheel::clone).idle_timer(duration)
}
