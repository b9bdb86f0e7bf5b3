//! The answers to a late request: an error or a response.

use std::{
    any::type_name,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::{
    BoxError,
    body::{HeadOnly, LimitBody},
};

/// Answers a late request with the boxed error, as the layers do by default.
#[derive(Clone, Copy, Debug)]
pub struct Fail;

/// Answers a late request with the response that the closure given to `respond_with` returns for the error.
#[derive(Clone, Copy)]
pub struct RespondWith<F>(pub(super) F);

/// How a service answers a request that is too late. This trait cannot be implemented outside this crate.
pub trait Answer<Late, Response, E> {
    /// The error type of the service.
    type Error;

    /// Returns the outcome for a request that is too late.
    fn late(&self, late: Late) -> Result<Response, Self::Error>;

    /// Converts an error of the inner service.
    fn pass(error: E) -> Self::Error;
}

impl<Late: Into<BoxError>, Response, E: Into<BoxError>> Answer<Late, Response, E> for Fail {
    type Error = BoxError;

    fn late(&self, late: Late) -> Result<Response, BoxError> {
        Err(late.into())
    }

    fn pass(error: E) -> BoxError {
        error.into()
    }
}

impl<Late, Response, E, F: Fn(Late) -> Response> Answer<Late, Response, E> for RespondWith<F> {
    type Error = E;

    fn late(&self, late: Late) -> Result<Response, E> {
        Ok(self.0(late))
    }

    fn pass(error: E) -> E {
        error
    }
}

impl<F> fmt::Debug for RespondWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(type_name::<F>())
    }
}

pin_project! {
    /// The response future of a [`Timeout`](super::Timeout) or a [`Deadline`](super::Deadline).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Answered<R, A, L = HeadOnly> {
        #[pin]
        pub(super) response: R,
        pub(super) answer: A,
        pub(super) bodies: L,
    }
}

impl<R, A, L, T, E, Late> Future for Answered<R, A, L>
where
    R: Future<Output = Result<Result<T, E>, Late>>,
    A: Answer<Late, T, E>,
    L: LimitBody<T> + Default,
{
    type Output = Result<L::Limited, A::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        this.response.poll(cx).map(|outcome| match outcome {
            Ok(Ok(response)) => Ok(this.bodies.limit(response)),
            Ok(Err(error)) => Err(A::pass(error)),
            // The deadline has passed, and does not limit the answer to that.
            Err(late) => this.answer.late(late).map(|answer| L::default().limit(answer)),
        })
    }
}
