//! Timeout and throttle for any [`Stream`], on a wheel: what `tokio_stream::StreamExt` does on Tokio's timer.

use std::{
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::{assured::AssuredSleep, error::TimeoutError, interval::Interval, sleep::Sleep, wheel::Wheel};

/// Time for streams, after `tokio_stream::StreamExt`, whose methods these follow.
///
/// The name leaves room for the other `StreamExt` that most programs import.
///
/// # Examples
///
/// ```
/// use futures::{StreamExt, stream};
/// use std::time::Duration;
/// use tickwheel::{TimeoutError, Wheel, stream::WheelStreamExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let mut numbers = stream::iter([1, 2]).chain(stream::pending()).timeout(&wheel, Duration::from_millis(20));
/// assert_eq!(numbers.next().await, Some(Ok(1)));
/// assert_eq!(numbers.next().await, Some(Ok(2)));
/// assert_eq!(numbers.next().await, Some(Err(TimeoutError::Elapsed)));
/// # }
/// ```
pub trait WheelStreamExt: Stream {
    /// Yields an error when an item takes longer than `duration`, as tokio-stream's `timeout` does.
    ///
    /// The time counts from the call, and then from each item. After an error there is none until the next item has come.
    /// Timeouts are never early, and less than one tick late plus what the runtime adds; an item that is ready wins over
    /// them.
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next item loses nothing when dropped. Dropping the stream cancels the timer at once.
    ///
    /// # Panics
    ///
    /// The first pending poll panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
    ///
    /// # Errors
    ///
    /// The stream yields [`TimeoutError::Elapsed`], or once until the next item the reason for which the wheel refused the
    /// timer.
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
    /// assert!(silent.next().await.unwrap().unwrap_err().is_elapsed());
    /// # }
    /// ```
    fn timeout(self, wheel: &Wheel, duration: Duration) -> Timeout<Self>
    where
        Self: Sized,
    {
        Timeout {
            stream: Fuse::new(self),
            sleep: wheel.sleep(duration),
            duration,
            reported: false,
        }
    }

    /// Yields an error at every tick of `interval` at which no item has come, as tokio-stream's `timeout_repeating` does.
    ///
    /// Each item resets the interval. Its first tick completes at once, unless it was made by
    /// [`Wheel::interval_at`]. Errors are as precise as the interval's ticks.
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next item loses nothing when dropped. Dropping the stream cancels the timer at once.
    ///
    /// # Panics
    ///
    /// The first tick that has to wait panics outside a Tokio runtime, as that of [`Wheel::interval`] does.
    ///
    /// # Errors
    ///
    /// The stream yields [`TimeoutError::Elapsed`], or once until the next item the reason for which the wheel refused the
    /// timer.
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
            stream: Fuse::new(self),
            interval,
            refused: false,
        }
    }

    /// Yields items at least `duration` apart, as tokio-stream's `throttle` does.
    ///
    /// The first item comes as soon as it is ready. A later one comes never before the duration has passed since the one
    /// before it was taken, and less than one tick after that plus what the runtime adds. Where the wheel is full or has
    /// been shut down, the pauses wait on Tokio's own timer: nothing comes early. (On an executor other than Tokio's, a
    /// refused pause ends at once.)
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next item loses nothing when dropped. Dropping the stream cancels the timer at once.
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
    fn throttle(self, wheel: &Wheel, duration: Duration) -> Throttle<Self>
    where
        Self: Sized,
    {
        Throttle {
            stream: self,
            sleep: AssuredSleep::new(wheel.sleep(duration)),
            duration,
            pausing: false,
        }
    }

    /// Collects items into chunks of `max_size`, and of fewer when `duration` has passed since the first of them, as
    /// tokio-stream's `chunks_timeout` does.
    ///
    /// A chunk is never empty. One that is not full comes never before its duration, and less than one tick after it plus
    /// what the runtime adds; or as soon as the stream ends. Where the wheel is full or has been shut down, the duration
    /// waits on Tokio's own timer. (On an executor other than Tokio's, a refused one ends at once.)
    ///
    /// # Cancel safety
    ///
    /// Waiting for the next chunk loses nothing when dropped. Dropping the stream cancels the timer at once, and drops the
    /// items collected so far: [`into_remainder`](ChunksTimeout::into_remainder) saves them.
    ///
    /// # Panics
    ///
    /// Panics if `max_size` is zero. The first pending poll of a chunk begun panics outside a Tokio runtime, as
    /// [`Wheel::sleep`] does.
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
            stream: Fuse::new(self),
            sleep: AssuredSleep::new(wheel.sleep(duration)),
            duration,
            items: Vec::new(),
            max_size,
        }
    }
}

impl<S: Stream + ?Sized> WheelStreamExt for S {}

pin_project! {
    /// The stream returned by [`WheelStreamExt::timeout`].
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use tickwheel::{Wheel, stream::{Timeout, WheelStreamExt}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut one: Timeout<_> = stream::iter([1]).timeout(&Wheel::new(), std::time::Duration::from_secs(1));
    /// assert_eq!(one.next().await, Some(Ok(1)));
    /// assert_eq!(one.next().await, None);
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct Timeout<S> {
        #[pin]
        stream: Fuse<S>,
        sleep: Sleep,
        duration: Duration,
        // There was an error since the last item.
        reported: bool,
    }
}

impl<S: Stream> Stream for Timeout<S> {
    type Item = Result<S::Item, TimeoutError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if let Poll::Ready(item) = this.stream.poll_next(cx) {
            if item.is_some() {
                this.sleep.reset_after(*this.duration);
                *this.reported = false;
            }
            return Poll::Ready(item.map(Ok));
        }
        if *this.reported {
            return Poll::Pending;
        }
        let outcome = ready!(Pin::new(this.sleep).poll(cx));
        *this.reported = true;
        Poll::Ready(Some(Err(missed(outcome))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, upper) = self.stream.size_hint();
        // An error before each item, and one after the last.
        (
            lower,
            upper.and_then(|upper| upper.checked_mul(2)?.checked_add(1)),
        )
    }
}

pin_project! {
    /// The stream returned by [`WheelStreamExt::timeout_repeating`].
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use tickwheel::{Wheel, stream::{TimeoutRepeating, WheelStreamExt}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let interval = Wheel::new().interval(std::time::Duration::from_secs(1));
    /// let mut one: TimeoutRepeating<_> = stream::iter([1]).timeout_repeating(interval);
    /// assert_eq!(one.next().await, Some(Ok(1)));
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct TimeoutRepeating<S> {
        #[pin]
        stream: Fuse<S>,
        interval: Interval,
        // The wheel refused the interval, and no item has come since: asked again, it would refuse at once.
        refused: bool,
    }
}

impl<S: Stream> Stream for TimeoutRepeating<S> {
    type Item = Result<S::Item, TimeoutError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if let Poll::Ready(item) = this.stream.poll_next(cx) {
            if item.is_some() {
                this.interval.reset();
                *this.refused = false;
            }
            return Poll::Ready(item.map(Ok));
        }
        if *this.refused {
            return Poll::Pending;
        }
        let outcome = ready!(this.interval.poll_tick(cx));
        *this.refused = outcome.is_err();
        Poll::Ready(Some(Err(missed(outcome))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.stream.size_hint().0, None)
    }
}

pin_project! {
    /// The stream returned by [`WheelStreamExt::throttle`].
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::stream;
    /// use tickwheel::{Wheel, stream::{Throttle, WheelStreamExt}};
    ///
    /// let slowly: Throttle<_> = stream::iter(0..3).throttle(&Wheel::new(), std::time::Duration::from_secs(1));
    /// ```
    #[must_use = "streams do nothing unless polled"]
    pub struct Throttle<S> {
        #[pin]
        stream: S,
        sleep: AssuredSleep,
        duration: Duration,
        pausing: bool,
    }
}

impl<S> Throttle<S> {
    /// Returns the stream inside.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, stream::WheelStreamExt};
    /// let slowly = futures::stream::iter([1]).throttle(&Wheel::new(), std::time::Duration::from_secs(1));
    /// let inside = slowly.get_ref();
    /// ```
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Returns the stream inside, to be changed; items taken from it there are not throttled.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, stream::WheelStreamExt};
    /// let mut slowly = futures::stream::iter([1]).throttle(&Wheel::new(), std::time::Duration::from_secs(1));
    /// *slowly.get_mut() = futures::stream::iter([2]);
    /// ```
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }

    /// Gives back the stream inside, and cancels the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, stream::WheelStreamExt};
    /// let slowly = futures::stream::iter([1]).throttle(&Wheel::new(), std::time::Duration::from_secs(1));
    /// let at_once = slowly.into_inner();
    /// ```
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: Stream> Stream for Throttle<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.project();
        if *this.pausing {
            ready!(Pin::new(&mut *this.sleep).poll(cx));
            *this.pausing = false;
        }
        let item = ready!(this.stream.poll_next(cx));
        if item.is_some() && !this.duration.is_zero() {
            this.sleep.reset_after(*this.duration);
            *this.pausing = true;
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.stream.size_hint()
    }
}

impl<S: fmt::Debug> fmt::Debug for Throttle<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle")
            .field("stream", &self.stream)
            .field("duration", &self.duration)
            .field("pausing", &self.pausing)
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// The stream returned by [`WheelStreamExt::chunks_timeout`].
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::{StreamExt, stream};
    /// use tickwheel::{Wheel, stream::{ChunksTimeout, WheelStreamExt}};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let chunks: ChunksTimeout<_> = stream::iter(0..5).chunks_timeout(&wheel, 2, std::time::Duration::from_secs(1));
    /// assert_eq!(chunks.collect::<Vec<_>>().await, [vec![0, 1], vec![2, 3], vec![4]]);
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct ChunksTimeout<S: Stream> {
        #[pin]
        stream: Fuse<S>,
        sleep: AssuredSleep,
        duration: Duration,
        items: Vec<S::Item>,
        max_size: usize,
    }
}

impl<S: Stream> ChunksTimeout<S> {
    /// Gives back the items of the chunk begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use futures::{StreamExt, stream};
    /// # use std::{pin::pin, time::Duration};
    /// # use tickwheel::{Wheel, stream::WheelStreamExt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let numbers = stream::iter([1]).chain(stream::pending());
    /// let mut chunks = pin!(numbers.chunks_timeout(&Wheel::new(), 2, Duration::from_secs(60)));
    /// assert!(futures::poll!(chunks.next()).is_pending());
    /// assert_eq!(chunks.into_remainder(), [1]);
    /// # }
    /// ```
    pub fn into_remainder(self: Pin<&mut Self>) -> Vec<S::Item> {
        mem::take(self.project().items)
    }
}

impl<S: Stream> Stream for ChunksTimeout<S> {
    type Item = Vec<S::Item>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        while let Poll::Ready(next) = this.stream.as_mut().poll_next(cx) {
            let Some(item) = next else {
                let last = mem::take(this.items);
                return Poll::Ready((!last.is_empty()).then_some(last));
            };
            if this.items.is_empty() {
                this.sleep.reset_after(*this.duration);
            }
            this.items.push(item);
            if this.items.len() == *this.max_size {
                return Poll::Ready(Some(mem::take(this.items)));
            }
        }
        if this.items.is_empty() {
            return Poll::Pending;
        }
        ready!(Pin::new(this.sleep).poll(cx));
        Poll::Ready(Some(mem::take(this.items)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let begun = usize::from(!self.items.is_empty());
        let (lower, upper) = self.stream.size_hint();
        let items = lower.saturating_add(self.items.len());
        (
            items.div_ceil(self.max_size),
            upper.and_then(|upper| upper.checked_add(begun)),
        )
    }
}

/// Why a stream yields an error instead of an item: its time ran out, or the wheel refused.
fn missed<T>(outcome: Result<T, crate::SleepError>) -> TimeoutError {
    outcome.map_or_else(TimeoutError::from, |_| TimeoutError::Elapsed)
}

pin_project! {
    // A stream that may be polled after its end, and is dropped when it gets there.
    #[derive(Debug)]
    struct Fuse<S> {
        #[pin]
        stream: Option<S>,
    }
}

impl<S> Fuse<S> {
    fn new(stream: S) -> Fuse<S> {
        Fuse { stream: Some(stream) }
    }
}

impl<S: Stream> Stream for Fuse<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let mut stream = self.project().stream;
        let item = match stream.as_mut().as_pin_mut() {
            Some(stream) => ready!(stream.poll_next(cx)),
            None => None,
        };
        if item.is_none() {
            stream.set(None);
        }
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.stream.as_ref().map_or((0, Some(0)), Stream::size_hint)
    }
}
