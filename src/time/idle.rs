//! `idle_timer` on the global wheel.

use super::{Duration, home};
use crate::{timers::idle::IdleTimer, wheel::Wheel};

/// Waits until the timer has not been touched for `duration`, on the global wheel.
///
/// It is [`Wheel::idle_timer`](crate::Wheel::idle_timer) on that wheel, and as precise. Tokio has no such timer.
///
/// # Cancellation
///
/// Dropping the timer cancels it at once, after which its handles have no effect on it.
///
/// # Panics
///
/// Panics outside a Tokio runtime, with Tokio's message. On one without timers it is the first poll that panics.
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
    let _ = home();
    Wheel::global().idle_timer(duration)
}
