//! backon's `Sleeper` on a wheel.

use std::time::Duration;

use backon::Sleeper;

use crate::{timers::sleep::Sleep, wheel::Wheel};

/// Runs the pauses of backon's retries on a wheel, with `.sleep(wheel.clone())`.
///
/// Pauses are as precise as [`Wheel::sleep`]: never early, and less than one tick late plus the runtime's own delay.
///
/// If the wheel is full or has been shut down, a pause waits on Tokio's own timer, so no retry comes early. Where that is not
/// available, outside a Tokio runtime with timers, the pause ends at once. The guide lists the behaviour of each integration
/// under "Handle refusals".
///
/// Retries therefore continue after the wheel has been shut down. With `.when(|_| !wheel.is_shutdown())` they end at the first
/// attempt that fails after the shutdown. The guide also shows how to end a pause in progress at the shutdown.
///
/// # Cancellation
///
/// Dropping the retry cancels its pause at once.
///
/// # Panics
///
/// The first pause panics outside a Tokio runtime, as the first poll of [`Wheel::sleep`] does.
///
/// # Examples
///
/// ```
/// use backon::{ExponentialBuilder, Retryable};
/// use std::time::Duration;
/// use tickwheel::Wheel;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let mut attempts = 0;
/// let answer = (|| {
///     attempts += 1;
///     std::future::ready(if attempts < 3 { Err("not yet") } else { Ok("done") })
/// })
/// .retry(ExponentialBuilder::default().with_min_delay(Duration::from_millis(10)))
/// .sleep(wheel.clone())
/// .when(|_| !wheel.is_shutdown())
/// .await;
///
/// assert_eq!(answer, Ok("done"));
/// assert_eq!(wheel.metrics().expired, 2);
/// # }
/// ```
impl Sleeper for Wheel {
    type Sleep = Sleep;

    fn sleep(&self, duration: Duration) -> Sleep {
        Wheel::sleep(self, duration)
    }
}
