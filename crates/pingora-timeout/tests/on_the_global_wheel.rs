//! Which timers are on the wheel. A test program of its own, because other tests have timers on that wheel
//! too.

use std::{future::pending, time::Duration};

use pingora_timeout::{fast_timeout::DEFAULT_FAST_TIMEOUT_TO_TOKIO_THRESHOLD, timeout, tokio_timeout};
use tickwheel::Wheel;
use tokio_test::{assert_pending, task};

#[tokio::test(start_paused = true)]
async fn a_timeout_is_on_the_global_wheel_while_it_waits_unless_it_is_above_the_threshold() {
    assert_eq!(timeout(Duration::ZERO, async { 7 }).await.unwrap(), 7);
    assert_eq!(Wheel::global().metrics().registered, 0, "its future was ready");

    let short = Duration::from_millis(5);
    let mut limited = task::spawn(timeout(short, pending::<()>()));
    assert_pending!(limited.poll());
    assert_eq!(Wheel::global().pending(), 1);
    drop(limited);
    assert_eq!(Wheel::global().pending(), 0);

    for limit in [
        DEFAULT_FAST_TIMEOUT_TO_TOKIO_THRESHOLD + Duration::from_secs(1),
        Duration::MAX,
    ] {
        let mut limited = task::spawn(timeout(limit, pending::<()>()));
        assert_pending!(limited.poll());
        assert_eq!(Wheel::global().pending(), 0);
    }
    let mut limited = task::spawn(tokio_timeout(short, pending::<()>()));
    assert_pending!(limited.poll());
    assert_eq!(Wheel::global().pending(), 0);
    assert!(limited.await.is_err());
}
