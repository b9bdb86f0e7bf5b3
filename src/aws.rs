//! The AWS SDK's sleep on a wheel.

use std::time::Duration;

use aws_smithy_async::rt::sleep::{AsyncSleep, Sleep};

use crate::wheel::Wheel;

/// Lets clients of the AWS SDK, and others that smithy-rs generates, wait on a wheel: operation and attempt timeouts, pauses
/// between retries, and the watch over streams that stall.
///
/// Sleeps are as precise as [`Wheel::sleep`]: never early, and less than one tick late plus what the runtime adds. A client
/// starts one for each timeout of each request, and cancels nearly all of them.
///
/// The SDK has nowhere to report a refusal. Where the wheel is full or has been shut down, a sleep waits on Tokio's own timer
/// instead: no request times out early. The guide has, under "When the wheel refuses", what each
/// integration does.
///
/// Only the sleeps move: what a client reads as the time of day is its `time_source`.
///
/// # Cancel safety
///
/// Dropping a sleep cancels it at once.
///
/// # Panics
///
/// The first poll of a sleep panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
///
/// # Examples
///
/// With an SDK it is one line, `aws_config::defaults(BehaviorVersion::latest()).sleep_impl(wheel.clone())`; a client's own
/// `Config::builder()` has the same method. What it is given to:
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
#[cfg_attr(docsrs, doc(cfg(feature = "aws")))]
impl AsyncSleep for Wheel {
    fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::new(self.sleep_or_tokio(duration))
    }
}
