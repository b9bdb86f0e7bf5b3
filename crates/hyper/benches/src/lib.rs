//! What the programs share.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::body::{Body, Bytes, Frame};
use tickwheel::Wheel;
use tickwheel_hyper::ConnectionLimits;

/// The limits of a server on the internet.
pub fn usual_limits(wheel: &Wheel) -> ConnectionLimits {
    ConnectionLimits::new(wheel)
        .header(Duration::from_secs(10))
        .idle(Duration::from_secs(60))
        .body_progress(Duration::from_secs(10), 1_000)
        .lifetime(Duration::from_secs(3_600), Duration::from_secs(600))
}

/// A body of so many frames of 16 KB.
#[derive(Debug)]
pub struct Frames(pub u32);

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        const DATA: Bytes = Bytes::from_static(&[b'x'; 16_384]);
        let Some(left) = self.0.checked_sub(1) else {
            return Poll::Ready(None);
        };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(DATA))))
    }
}
