//! `RequestBody`: the body of a request.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::{connection::Connection, uploads::Upload};

/// The body of a request on a connection under limits, in place of hyper's [`Incoming`].
///
/// It passes on what comes, and its trailers. A connection that
/// [`body_progress`](crate::ConnectionLimits::body_progress) cuts off is one that hyper has lost: the body
/// then fails with hyper's error, if the handler has not been dropped.
///
/// # Examples
///
/// A handler for hyper:
///
/// ```
/// use http_body_util::BodyExt;
/// use hyper::{Request, Response};
/// use tickwheel_hyper::RequestBody;
///
/// async fn length(request: Request<RequestBody>) -> hyper::Result<Response<String>> {
///     let body = request.into_body().collect().await?.to_bytes();
///     Ok(Response::new(format!("{} bytes", body.len())))
/// }
/// ```
pub struct RequestBody {
    body: Incoming,
    upload: Upload,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, connection: &Arc<Connection>) -> RequestBody {
        let upload = if expects_no_bytes(&body) {
            Upload::empty(connection)
        } else {
            Upload::new(connection)
        };
        RequestBody { body, upload }
    }
}

fn expects_no_bytes(body: &Incoming) -> bool {
    body.size_hint().exact() == Some(0)
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let RequestBody { body, upload } = self.get_mut();
        let polled = Pin::new(&mut *body).poll_frame(cx);
        match &polled {
            Poll::Pending => upload.wait(),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                // Older versions of h2 pass on empty frames, after which the client still owes the end.
                let is_last = bytes > 0 && expects_no_bytes(body);
                upload.receive(bytes, is_last);
            }
            Poll::Ready(None | Some(Err(_))) => upload.complete(),
        }
        polled
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody")
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
