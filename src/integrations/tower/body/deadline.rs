//! `DeadlineBody`: keeps a body inside the scope of its request.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::{BodyElapsed, has_ended};
use crate::{
    deadline::{LimitError, Scoped, current},
    integrations::tower::BoxError,
};

/// The scope of a request, which its bodies keep, or none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BodyScope {
    /// For the error, which says how long the request had.
    start: Option<Instant>,
    deadline: Option<Instant>,
}

impl BodyScope {
    /// Returns the current scope, for the bodies of a request whose time counts from `start`, or else from
    /// now.
    pub(crate) fn current(start: Option<Instant>) -> BodyScope {
        let deadline = current();
        let start = deadline.map(|_| start.unwrap_or_else(Instant::now));
        BodyScope { start, deadline }
    }

    pub(crate) fn of_request<B>(self, request: Request<B>) -> Request<DeadlineBody<B>> {
        request.map(|body| DeadlineBody::new(body, self, "request body"))
    }

    pub(crate) fn of_response<B>(self, response: Response<B>) -> Response<DeadlineBody<B>> {
        response.map(|body| DeadlineBody::new(body, self, "response body"))
    }
}

pin_project! {
    /// A body that has until the deadline of its request, created by [`DeadlineLayer::bodies`] and
    /// [`PropagateLayer::bodies`].
    ///
    /// The body is polled and dropped inside the scope of its request, so code that produces frames may ask
    /// for [`deadline::remaining`](crate::deadline::remaining). Frames, trailers and size hints pass through
    /// unchanged, and nothing is buffered.
    ///
    /// A frame that comes after the deadline counts only if it is the last one, so a body that is always
    /// ready elapses too. Otherwise the inner body is dropped, with all that it holds, after the pending
    /// [`shield`](crate::deadline::shield())s inside have completed, and this body ends with an error.
    ///
    /// [`DeadlineLayer::bodies`]: crate::tower::DeadlineLayer::bodies
    /// [`PropagateLayer::bodies`]: crate::tower::PropagateLayer::bodies
    ///
    /// # Cancellation
    ///
    /// Dropping the body drops the inner one inside the scope and cancels the timer at once.
    ///
    /// # Panics
    ///
    /// A poll that has to wait for the deadline panics outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// The error is boxed, and is either that of the inner body or a [`BodyElapsed`].
    ///
    /// # Examples
    ///
    /// A handler that names the type of its request:
    ///
    /// ```
    /// use http_body_util::{BodyExt, Full};
    /// use hyper::{Request, Response, body::{Bytes, Incoming}};
    /// use tickwheel::tower::{DeadlineBody, DeadlineHeader, DeadlineLayer};
    /// use tower::{BoxError, Layer, service_fn};
    ///
    /// async fn count(request: Request<DeadlineBody<Incoming>>) -> Result<Response<Full<Bytes>>, BoxError> {
    ///     let body = request.into_body().collect().await?;
    ///     Ok(Response::new(Full::from(format!("{} bytes", body.to_bytes().len()))))
    /// }
    ///
    /// let header = DeadlineHeader::grpc_timeout();
    /// let service = DeadlineLayer::from_request(header.reader::<Incoming>()).bodies(true).layer(service_fn(count));
    /// ```
    #[derive(Debug)]
    pub struct DeadlineBody<B> {
        #[pin]
        body: Scoped<B>,
        start: Option<Instant>,
        name: &'static str,
    }
}

impl<B> DeadlineBody<B> {
    fn new(body: B, scope: BodyScope, name: &'static str) -> DeadlineBody<B> {
        DeadlineBody {
            body: Scoped::new(Some(body), scope.deadline),
            start: scope.start,
            name,
        }
    }
}

impl<B> Body for DeadlineBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.project();
        if this.body.get().is_none() {
            return Poll::Ready(None);
        }
        let deadline = this.body.deadline;
        let polled = this.body.poll_with(cx, deadline, |mut body, cx| {
            let next = ready!(body.as_mut().poll_frame(cx));
            let is_last = has_ended(&*body, &next);
            Poll::Ready((next, is_last))
        });
        Poll::Ready(match ready!(polled) {
            Ok(next) => next.map(|frame| frame.map_err(Into::into)),
            Err(deadline) => {
                let start = this.start.unwrap_or(deadline);
                let had = deadline.saturating_duration_since(start);
                Some(Err(BodyElapsed::new(LimitError::Deadline, had, this.name).into()))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.get().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.get().map_or(SizeHint::with_exact(0), B::size_hint)
    }
}
