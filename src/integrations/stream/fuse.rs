//! `Fuse`: a stream that may be polled after it has ended.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::Stream;
use pin_project_lite::pin_project;

pin_project! {
    // The stream is dropped when it ends.
    #[derive(Debug)]
    pub(super) struct Fuse<S> {
        #[pin]
        stream: Option<S>,
    }
}

impl<S> Fuse<S> {
    pub(super) fn new(stream: S) -> Fuse<S> {
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
