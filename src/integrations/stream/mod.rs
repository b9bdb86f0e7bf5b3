//! Timeout, throttle and timed chunks for any [`Stream`], on a wheel. `tokio_stream::StreamExt` has the same
//! methods on Tokio's timer.

mod chunks;
mod throttle;
mod timeout;

use std::time::Duration;

use futures_core::Stream;
use tokio_stream::StreamExt;

use crate::{timers::interval::Interval, wheel::Wheel};

pub use chunks::ChunksTimeout;
pub use throttle::Throttle;
pub use timeout::{Timeout, TimeoutRepeating};

/// The timed methods of `tokio_stream::StreamExt`, on a wheel.
///
/// Its name differs from `StreamExt`, which most programs import.
///
/// # Examples
///
/// ```
/// use futures::{StreamExt, stream};
/// use std::time::Duration;
/// use tickwheel::{Wheel, stream::WheelStreamExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let mut numbers = stream::iter([1, 2]).chain(stream::pending()).timeout(&wheel, Duration::from_millis(20));
/// assert_eq!(numbers.next().await, Some(Ok(1)));
/// assert_eq!(numbers.next().await, Some(Ok(2)));
/// assert!(numbers.next().await.unwrap().is_err());
/// # }
/// ```
pub trait WheelStreamExt: Stream {
    /// Yields an error when an item takes longer than `duration`, as tokio-stream's `timeout` does.
    ///
    /// The time counts from the call, and then from each item. After an error, there is no further error
    /// until the next item has come. Timeouts are never early, and less than one tick late plus their slack
    /// and the runtime's own delay. A poll that finds an item ready yields the item, even past the deadline.
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next item is cancel safe: no item is lost. The timer is freed at once when the stream
    /// ends or is dropped.
    ///
    /// # Panics
    ///
    /// The first pending poll panics outside a Tokio runtime, as the first poll of [`Wheel::sleep`] does.
    ///
    /// # Errors
    ///
    /// The stream yields [`Elapsed`](crate::time::error::Elapsed) when the time runs out. Its timer is never
    /// refused.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, stream::WheelStreamExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let silent = stream::pending::<u8>();
    /// let mut silent = silent.timeout(&Wheel::new(), Duration::from_millis(20));
    /// assert!(silent.next().await.unwrap().is_err());
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    fn timeout(self, wheel: &Wheel, duration: Duration) -> Timeout<Self>
    where
        Self: Sized,
    {
        Timeout {
            stream: StreamExt::fuse(self),
            sleep: wheel.sleep(duration),
            duration,
            reported: false,
        }
    }

    /// Yields an error at every tick of `interval` at which no item has come, as tokio-stream's
    /// `timeout_repeating` does.
    ///
    /// Each item resets the interval. The interval's first tick completes at the next tick of the wheel,
    /// unless the interval was created by [`Wheel::interval_at`]. Errors are as precise as the interval's
    /// ticks.
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next item is cancel safe: no item is lost. The timer is freed at once when the stream
    /// ends or is dropped.
    ///
    /// # Panics
    ///
    /// The first tick that has to wait panics outside a Tokio runtime, as with [`Wheel::interval`].
    ///
    /// # Errors
    ///
    /// The stream yields [`Elapsed`](crate::time::error::Elapsed) at each such tick.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, stream::WheelStreamExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let interval = Wheel::new().interval(Duration::from_millis(10));
    /// let silent = stream::pending::<u8>().timeout_repeating(interval);
    /// assert_eq!(silent.take(3).filter(|item| std::future::ready(item.is_err())).count().await, 3);
    /// # }
    /// ```
    fn timeout_repeating(self, interval: Interval) -> TimeoutRepeating<Self>
    where
        Self: Sized,
    {
        TimeoutRepeating {
            stream: StreamExt::fuse(self),
            interval: Some(interval),
        }
    }

    /// Yields items at least `duration` apart, as tokio-stream's `throttle` does.
    ///
    /// The first item is yielded as soon as it is ready. Each later item waits until `duration` has passed
    /// since the last one was taken: it is never early, and less than one tick late plus its slack and the
    /// runtime's own delay. With a `duration` of zero there is no pause. The pauses are never refused.
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next item is cancel safe: no item is lost. Dropping the stream cancels the timer at
    /// once.
    ///
    /// # Panics
    ///
    /// The first pause panics outside a Tokio runtime, as [`Wheel::sleep`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use std::time::{Duration, Instant};
    /// use tickwheel::{Wheel, stream::WheelStreamExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let start = Instant::now();
    /// let slowly = stream::iter(0..3).throttle(&Wheel::new(), Duration::from_millis(10));
    /// assert_eq!(slowly.count().await, 3);
    /// assert!(start.elapsed() >= Duration::from_millis(20));
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    fn throttle(self, wheel: &Wheel, duration: Duration) -> Throttle<Self>
    where
        Self: Sized,
    {
        Throttle {
            stream: self,
            sleep: wheel.sleep(duration),
            duration,
            pausing: false,
        }
    }

    /// Collects items into chunks of `max_size`, or fewer if `duration` has passed since the chunk's first
    /// item, as tokio-stream's `chunks_timeout` does.
    ///
    /// A chunk is never empty. A chunk that is not full is never early, and less than one tick late plus its
    /// slack and the runtime's own delay. The last chunk is yielded as soon as the stream ends. Its timer is
    /// never refused.
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next chunk is cancel safe: no item is lost. The timer is freed at once when the stream
    /// ends or is dropped. Dropping it also drops the items collected so far, unless
    /// [`into_remainder`](ChunksTimeout::into_remainder) has returned them.
    ///
    /// # Panics
    ///
    /// Panics if `max_size` is zero. The first pending poll after an item has been collected panics outside a
    /// Tokio runtime, as the first poll of [`Wheel::sleep`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, stream::WheelStreamExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let numbers = stream::iter([1, 2, 3]).chain(stream::pending());
    /// let mut chunks = numbers.chunks_timeout(&Wheel::new(), 2, Duration::from_millis(20));
    /// assert_eq!(chunks.next().await, Some(vec![1, 2]));
    /// assert_eq!(chunks.next().await, Some(vec![3])); // 20 ms later
    /// # }
    /// ```
    #[track_caller]
    fn chunks_timeout(self, wheel: &Wheel, max_size: usize, duration: Duration) -> ChunksTimeout<Self>
    where
        Self: Sized,
    {
        assert!(max_size > 0, "`max_size` must be non-zero.");
        ChunksTimeout {
            stream: StreamExt::fuse(self),
            sleep: wheel.sleep(duration),
            duration,
            items: Vec::new(),
            max_size,
        }
    }
}

impl<S: Stream + ?Sized> WheelStreamExt for S {}
