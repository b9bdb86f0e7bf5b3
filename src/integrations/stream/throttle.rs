//! `Throttle`: enforces a pause between two items.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use pin_project_lite::pin_project;

use crate::timers::sleep::Sleep;

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
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct Throttle<S> {
        #[pin]
        pub(super) stream: S,
        pub(super) sleep: Sleep,
        pub(super) duration: Duration,
        // An item has been taken, and the pause after it has not ended.
        pub(super) pausing: bool,
    }
}

impl<S> Throttle<S> {
    /// Returns a reference to the inner stream.
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

    /// Returns a mutable reference to the inner stream.
    ///
    /// Items taken through this reference are not throttled.
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

    /// Consumes the throttle, cancels its timer, and returns the inner stream.
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
