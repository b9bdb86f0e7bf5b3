//! `ChunksTimeout`: collects items into chunks that are limited in size and time.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use pin_project_lite::pin_project;
use tokio_stream::adapters::Fuse;

use crate::timers::sleep::Sleep;

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
        pub(super) stream: Fuse<S>,
        // A full chunk leaves it pending for the next chunk, whose first item resets it.
        pub(super) sleep: Sleep,
        pub(super) duration: Duration,
        pub(super) items: Vec<S::Item>,
        pub(super) max_size: usize,
    }
}

impl<S: Stream> ChunksTimeout<S> {
    /// Takes the items collected so far, which the stream then does not yield.
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
        let this = self.project();
        drop(this.sleep.timer.cancel());
        mem::take(this.items)
    }
}

impl<S: Stream> Stream for ChunksTimeout<S> {
    type Item = Vec<S::Item>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        while let Poll::Ready(next) = this.stream.as_mut().poll_next(cx) {
            let Some(item) = next else {
                drop(this.sleep.timer.cancel());
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
        let most = upper.and_then(|upper| upper.checked_add(begun));
        (items.div_ceil(self.max_size), most)
    }
}
