//! `DeadlineLayer`: runs each request in a deadline scope.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Layered,
    answer::{Answer, Answered, Fail, RespondWith},
    body::{HeadOnly, InScope, LimitBody},
};
use crate::{
    deadline::{Within, within_from_now},
    error::Elapsed,
};

/// A layer that wraps services in a [`Deadline`], which limits each request to the time that its caller has
/// left.
///
/// # Examples
///
/// ```
/// use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
/// use tickwheel::{deadline, tower::{DeadlineHeader, DeadlineLayer}};
///
/// let header = DeadlineHeader::grpc_timeout();
/// let layer = DeadlineLayer::from_request(header.reader())
///     .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response());
/// let app: Router = Router::new()
///     .route("/", get(async || format!("{:?} left", deadline::remaining())))
///     .layer(layer);
/// ```
///
/// # Untrusted callers
///
/// A header is the caller's choice, and of several the first counts. Limit what callers outside your own
/// system may ask for, and give requests without a deadline a budget too:
///
/// ```
/// use std::time::Duration;
/// use axum::extract::Request;
/// use tickwheel::tower::{DeadlineHeader, DeadlineLayer};
///
/// const MAX: Duration = Duration::from_secs(5);
///
/// let header = DeadlineHeader::grpc_timeout();
/// let layer = DeadlineLayer::from_request(move |request: &Request| {
///     Some(header.read(request.headers()).unwrap_or(MAX).min(MAX))
/// });
/// ```
#[derive(Clone)]
pub struct DeadlineLayer<D, A = Fail, L = HeadOnly> {
    left: D,
    answer: A,
    /// Returns what limits the bodies of a request whose time counts from this instant.
    bodies: fn(Option<Instant>) -> L,
}

impl<D> DeadlineLayer<D> {
    /// Creates a layer that calls `left` with each request to get the remaining time of its caller.
    ///
    /// `None` means no deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::tower::DeadlineLayer;
    ///
    /// let layer = DeadlineLayer::from_request(|request: &String| Some(Duration::from_secs(request.len() as u64)));
    /// ```
    pub fn from_request<Request>(left: D) -> DeadlineLayer<D>
    where
        D: Fn(&Request) -> Option<Duration> + Clone,
    {
        DeadlineLayer {
            left,
            answer: Fail,
            bodies: |_| HeadOnly,
        }
    }
}

impl<D, L> DeadlineLayer<D, Fail, L> {
    /// Returns a layer whose services answer a late request with what `respond` returns for the [`Elapsed`].
    ///
    /// The only errors of these services are those of the inner service.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::tower::DeadlineLayer;
    ///
    /// let layer = DeadlineLayer::from_request(|_: &String| None).respond_with(|_| "too late");
    /// ```
    pub fn respond_with<F, Response>(self, respond: F) -> DeadlineLayer<D, RespondWith<F>, L>
    where
        F: Fn(Elapsed) -> Response + Clone,
    {
        DeadlineLayer {
            left: self.left,
            answer: RespondWith(respond),
            bodies: self.bodies,
        }
    }
}

impl<D, A, L> DeadlineLayer<D, A, L> {
    /// Sets whether the deadline of a request holds for its bodies too.
    ///
    /// Without this call, it holds until the head of the response. With it, the layer wraps services of
    /// `http` requests and responses, and gives both bodies the type [`DeadlineBody`](super::DeadlineBody):
    /// each is inside the scope of its request wherever and whenever it is polled, and ends with a
    /// [`BodyElapsed`](super::BodyElapsed) at the deadline. With `false`, the bodies have that type and no
    /// deadline, so that a setting can decide at run time.
    ///
    /// A body elapses when it is polled. An HTTP server does not poll it while the client does not read, so a
    /// client that stops reading keeps its response, with all that the response holds, until its connection
    /// ends: over HTTP/1 limit that by the [write timeout](crate::io::TimeoutStream::set_write_timeout) of
    /// the stream.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, body::{Body, Bytes}, extract::Request, http::StatusCode, response::IntoResponse, routing::get};
    /// use futures::stream;
    /// use http_body_util::BodyExt;
    /// use std::{convert::Infallible, time::Duration};
    /// use tickwheel::tower::DeadlineLayer;
    /// use tower::ServiceExt;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Infallible> {
    /// let layer = DeadlineLayer::from_request(|_: &Request| Some(Duration::from_millis(2_500)))
    ///     .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
    ///     .bodies(true);
    /// let endless = async || Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    /// let app: Router = Router::new().route("/", get(endless)).layer(layer);
    ///
    /// let response = app.oneshot(Request::new(Body::empty())).await?;
    /// let error = response.into_body().collect().await.unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "deadline has elapsed: the response body did not end within the 2.5s of its request",
    /// );
    /// # Ok(())
    /// # }
    /// ```
    pub fn bodies(self, limited: bool) -> DeadlineLayer<D, A, InScope> {
        DeadlineLayer {
            left: self.left,
            answer: self.answer,
            bodies: InScope::of_bodies(limited),
        }
    }
}

impl<S, D: Clone, A: Clone, L: Clone> Layer<S> for DeadlineLayer<D, A, L> {
    type Service = Deadline<S, D, A, L>;

    fn layer(&self, inner: S) -> Deadline<S, D, A, L> {
        let layer = self.clone();
        Layered { inner, layer }
    }
}

impl<D, A, L> fmt::Debug for DeadlineLayer<D, A, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineLayer").finish_non_exhaustive()
    }
}

/// A service that handles each request inside a [`deadline`](crate::deadline) scope, created by a
/// [`DeadlineLayer`].
///
/// The time counts from the call. Both the call of the inner service and its response future are in the
/// scope, so a client inside may be wrapped in a [`PropagateLayer`](super::PropagateLayer). The scope is on
/// the global wheel. It does not include the time until the service is ready, and includes the bodies only if
/// [`bodies`](DeadlineLayer::bodies) says so.
///
/// A request that arrives with no time left is refused without calling the inner service. What the inner
/// service reserved in `poll_ready`, such as the permit of a concurrency limit, stays reserved for the next
/// call of this service, or until it is dropped.
///
/// # Cancellation
///
/// Dropping the response future drops that of the inner service. If the scope elapses, the inner future is
/// dropped before the answer is returned.
///
/// # Panics
///
/// The first poll of a response that has to wait for the deadline panics outside a Tokio runtime.
///
/// # Errors
///
/// The error is boxed, and is either that of the inner service or an [`Elapsed`], which `downcast_ref` finds.
/// With [`respond_with`](DeadlineLayer::respond_with), all errors are those of the inner service.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{deadline, time::error::Elapsed, tower::DeadlineLayer};
/// use tower::{BoxError, Layer, Service, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut service = DeadlineLayer::from_request(|millis: &u64| Some(Duration::from_millis(*millis)))
///     .layer(service_fn(async |_| Ok::<_, BoxError>(deadline::remaining())));
///
/// assert!(service.call(500).await? <= Some(Duration::from_millis(500)));
/// assert!(service.call(0).await.unwrap_err().is::<Elapsed>());
/// # Ok(())
/// # }
/// ```
pub type Deadline<S, D, A = Fail, L = HeadOnly> = Layered<S, DeadlineLayer<D, A, L>>;

impl<S, D, A, L, Sent> Service<Sent> for Layered<S, DeadlineLayer<D, A, L>>
where
    L: LimitBody<Sent> + LimitBody<S::Response> + Default,
    S: Service<<L as LimitBody<Sent>>::Limited>,
    D: Fn(&Sent) -> Option<Duration>,
    A: Answer<Elapsed, S::Response, S::Error> + Clone,
{
    type Response = <L as LimitBody<S::Response>>::Limited;
    type Error = A::Error;
    type Future = DeadlineFuture<S::Future, A, L>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), A::Error>> {
        self.inner.poll_ready(cx).map_err(A::pass)
    }

    fn call(&mut self, request: Sent) -> Self::Future {
        let left = (self.layer.left)(&request);
        let mut bodies = L::default();
        let response = within_from_now(left, |start| {
            bodies = (self.layer.bodies)(start);
            self.inner.call(bodies.limit(request))
        });
        Answered {
            response,
            answer: self.layer.answer.clone(),
            bodies,
        }
    }
}

/// The response future of a [`Deadline`].
pub type DeadlineFuture<F, A, L = HeadOnly> = Answered<Within<F>, A, L>;
