//! The bodies of responses and their buffers.

use std::{
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::in_flight::{BufferToken, RequestToken};

pin_project! {
    /// The body of a response on a connection under limits.
    ///
    /// A response is in flight until hyper drops its body: at its end, or at once if it is empty or answers a
    /// `HEAD`.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        body: B,
        token: RequestToken,
    }
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(body: B, token: RequestToken) -> ResponseBody<B> {
        ResponseBody { body, token }
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = ResponseData<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        let connection = this.token.connection();
        let is_http2 = connection.is_http2();
        let wrap = |data| ResponseData {
            data,
            token: is_http2.then(|| BufferToken::new(connection)),
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(wrap))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A buffer of a response on a connection under limits.
///
/// h2 takes whole buffers and writes them as the client's window lets it, so the buffer is in flight until h2
/// drops it. On HTTP/1, the writes to the IO tell as much.
#[derive(Debug)]
pub struct ResponseData<D> {
    data: D,
    /// `None` on HTTP/1.
    token: Option<BufferToken>,
}

impl<D> ResponseData<D> {
    fn note(&self, bytes: usize) {
        if let Some(token) = &self.token {
            token.connection().send(bytes);
        }
    }
}

impl<D: Buf> Buf for ResponseData<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, dst: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(dst)
    }

    fn advance(&mut self, bytes: usize) {
        self.note(bytes);
        self.data.advance(bytes);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.note(len);
        self.data.copy_to_bytes(len)
    }
}
