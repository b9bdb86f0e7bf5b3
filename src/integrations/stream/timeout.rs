//! `Timeout` and `TimeoutRepeating`: yield an error when the next item takes too long.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use pin_project_lite::pin_project;
use tokio_stream::adapters::Fuse;

use crate::{
    error::Elapsed,
    timers::{interval::Interval, sleep::Sleep},
};

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
        pub(super) stream: Fuse<S>,
        pub(super) sleep: Sleep,
        pub(super) duration: Duration,
        // An error has been yielded since the last item.
        pub(super) reported: bool,
    }
}

impl<S: Stream> Stream for Timeout<S> {
    type Item = Result<S::Item, Elapsed>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if let Poll::Ready(item) = this.stream.poll_next(cx) {
            if item.is_some() {
                this.sleep.reset_after(*this.duration);
            } else {
                drop(this.sleep.timer.cancel());
            }
            *this.reported = false;
            return Poll::Ready(item.map(Ok));
        }
        if *this.reported {
            return Poll::Pending;
        }
        ready!(Pin::new(this.sleep).poll(cx));
        *this.reported = true;
        Poll::Ready(Some(Err(Elapsed(()))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let (lower, upper) = self.stream.size_hint();
        // There can be an error before each item and one after the last.
        let most = upper.and_then(|upper| upper.checked_mul(2)?.checked_add(1));
        (lower, most)
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
        pub(super) stream: Fuse<S>,
        // `None` once the stream has ended.
        pub(super) interval: Option<Interval>,
    }
}

impl<S: Stream> Stream for TimeoutRepeating<S> {
    type Item = Result<S::Item, Elapsed>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if let Poll::Ready(item) = this.stream.poll_next(cx) {
            match this.interval {
                Some(interval) if item.is_some() => interval.reset(),
                _ => *this.interval = None,
            }
            return Poll::Ready(item.map(Ok));
        }
        let Some(interval) = this.interval else {
            return Poll::Pending;
        };
        interval.poll_tick(cx).map(|_| Some(Err(Elapsed(()))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.stream.size_hint().0, None)
    }
}
