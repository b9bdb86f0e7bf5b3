//! The AWS SDK's `AsyncSleep` on a wheel.

use std::time::Duration;

use aws_smithy_async::rt::sleep::{AsyncSleep, Sleep};

use crate::wheel::Wheel;

/// Runs the sleeps of AWS SDK clients, and of other clients that smithy-rs generates, on a wheel: operation
/// and attempt timeouts, pauses between retries, and stalled-stream protection.
///
/// Sleeps are as precise as [`Wheel::sleep`]: never early, and less than one tick late plus their slack and
/// the runtime's own delay. A client starts one sleep for each timeout of each request, and cancels nearly
/// all of them.
///
/// No sleep is refused, so requests keep their timeouts on a wheel that is full or has been shut down.
///
/// Only the sleeps move to the wheel. A client still reads the time of day from its `time_source`.
///
/// # Cancellation
///
/// Dropping a sleep cancels it at once.
///
/// # Panics
///
/// The first poll of a sleep panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
///
/// # Examples
///
/// With an SDK, one line is enough:
/// `aws_config::defaults(BehaviorVersion::latest()).sleep_impl(wheel.clone())`. A client's own
/// `Config::builder()` has the same method. The SDK uses the sleeper like this:
///
/// ```
/// use aws_smithy_async::rt::sleep::{AsyncSleep, SharedAsyncSleep};
/// use std::time::Duration;
/// use tickwheel::Wheel;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let sleeper = SharedAsyncSleep::new(wheel.clone());
/// sleeper.sleep(Duration::from_millis(10)).await;
/// assert_eq!(wheel.metrics().expired, 1);
/// # }
/// ```
impl AsyncSleep for Wheel {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(Wheel::sleep(self, duration))
    }
}
