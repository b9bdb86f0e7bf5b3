//! The pause around a `fork`. It is a test program of its own, because it stops the timers of the whole
//! process.

use std::{future::pending, time::Duration};

use pingora_timeout::{
    fast_timeout::{pause_for_fork, unpause},
    sleep, timeout,
};
use tickwheel::Wheel;

#[tokio::test(start_paused = true)]
async fn between_pause_and_unpause_timers_expire_at_once() {
    let start = tokio::time::Instant::now();
    pause_for_fork();
    sleep(Duration::from_secs(9)).await;
    assert!(timeout(Duration::from_secs(9), pending::<()>()).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(Wheel::global().metrics().registered, 0);
    unpause();
    sleep(Duration::from_secs(9)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(9));
}
