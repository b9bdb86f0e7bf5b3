//! `advance`.

use super::Duration;
use crate::wheel::Wheel;

/// Advances a paused clock, and lets the current wheel wake what has come due.
///
/// As `tokio::time::advance`. That one yields once, so that Tokio's timer can wake the tasks that wait for it; the wheel's driver
/// is one of these, and is given its turn too: the tasks of timers that are due have been woken when this completes.
///
/// # Panics
///
/// Panics where the clock is not paused, and outside a Tokio runtime, in Tokio's words.
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
