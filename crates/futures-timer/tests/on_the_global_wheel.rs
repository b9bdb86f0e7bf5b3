//! Which wheel a delay is on. A test program of its own, because other tests have timers on that wheel too.

use std::time::Duration;

use futures_timer::Delay;
use tickwheel::Wheel;
use tokio_test::{assert_pending, task};

#[tokio::test(start_paused = true)]
async fn a_delay_in_a_runtime_is_on_the_global_wheel_until_it_is_dropped() {
    let mut delay = task::spawn(Delay::new(Duration::from_millis(100)));
    assert_pending!(delay.poll());
    assert_eq!(Wheel::global().pending(), 1);
    drop(delay);
    assert_eq!(Wheel::global().pending(), 0);
}
