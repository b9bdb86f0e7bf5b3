//! `advance` for a paused clock.

use super::Duration;
use crate::engine::engines;

/// Advances a paused clock, and waits until the global wheel has woken the tasks of all timers that are due.
///
/// `tokio::time::advance` yields once, so that Tokio's timer can wake the tasks that wait for it. One of these tasks wakes those whose timers are
/// on the wheel, once it runs itself. This function also waits for that.
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
pub async fn advance(duration: Duration) {
    tokio::time::advance(duration).await;
    loop {
        tokio::task::yield_now().await;
        if !engines::global_is_behind() {
            return;
        }
    }
}
