//! `advance` for a paused clock.

use super::Duration;
use crate::wheel::Wheel;

/// Advances a paused clock, and lets the current wheel wake what has come due.
///
/// `tokio::time::advance` yields once, so that Tokio's timer can wake the tasks that wait for it. One of them is the wheel's driver,
/// which this lets work too. When this completes, the tasks of all timers that are due have been woken.
///
/// # Panics
///
/// Panics if the clock is not paused, and outside a Tokio runtime, in Tokio's words.
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
pub async fn advance(duration: Duration) {
    tokio::time::advance(duration).await;
    loop {
        tokio::task::yield_now().await;
        if !Wheel::current().is_behind() {
            return;
        }
    }
}
