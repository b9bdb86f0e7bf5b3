//! `LimitedResponse`: limits the body of a response.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use http::Response;
use pin_project_lite::pin_project;

/// Limits the body of a response. This trait cannot be implemented outside this crate.
pub trait LimitBody {
    /// The body type with the limit.
    type Body<B>;

    /// Returns the body with the limit.
    fn limit<B>(&self, body: B) -> Self::Body<B>;
}

pin_project! {
    /// The response future of a service that limits the bodies of its responses.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct LimitedResponse<F, L> {
        #[pin]
        response: F,
        limit: L,
    }
}

impl<F, L> LimitedResponse<F, L> {
    pub(in crate::integrations::tower) fn new(response: F, limit: L) -> LimitedResponse<F, L> {
        LimitedResponse { response, limit }
    }
}

impl<F, L, B, E> Future for LimitedResponse<F, L>
where
    F: Future<Output = Result<Response<B>, E>>,
    L: LimitBody,
{
    type Output = Result<Response<L::Body<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let limited = |response: Response<B>| response.map(|body| this.limit.limit(body));
        this.response.poll(cx).map_ok(limited)
    }
}
