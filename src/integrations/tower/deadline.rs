//! `DeadlineLayer`: runs each request in a deadline scope.

use std::{
    fmt,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    BoxError,
    body::{BodyScope, DeadlineBody},
    responds_in_time, serves_in_time, wraps_a_service,
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
///
/// # Type parameters
///
/// `D` is the closure given to [`from_request`](DeadlineLayer::from_request). `R` is the closure given to
/// [`respond_with`](DeadlineLayer::respond_with), and `B` the `bool` given to
/// [`bodies`](DeadlineLayer::bodies); each is `()` until then.
#[derive(Clone)]
pub struct DeadlineLayer<D, R = (), B = ()> {
    left: D,
    respond: R,
    bodies: B,
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
            respond: (),
            bodies: (),
        }
    }
}

impl<D, B> DeadlineLayer<D, (), B> {
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
    pub fn respond_with<R, Response>(self, respond: R) -> DeadlineLayer<D, R, B>
    where
        R: Fn(Elapsed) -> Response + Clone,
    {
        DeadlineLayer {
            left: self.left,
            respond,
            bodies: self.bodies,
        }
    }
}

impl<D, R, B> DeadlineLayer<D, R, B> {
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
    pub fn bodies(self, limited: bool) -> DeadlineLayer<D, R, bool> {
        DeadlineLayer {
            left: self.left,
            respond: self.respond,
            bodies: limited,
        }
    }
}

impl<D, R, B> fmt::Debug for DeadlineLayer<D, R, B> {
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
#[derive(Clone)]
pub struct Deadline<S, D, R = (), B = ()> {
    inner: S,
    layer: DeadlineLayer<D, R, B>,
}

wraps_a_service! {
    Deadline by DeadlineLayer<D, R, B>,
    "tickwheel::tower::DeadlineLayer::from_request(|_: &String| None).layer(\"a service\")"
}

impl<S, D, R: Clone, B> Deadline<S, D, R, B> {
    /// Returns the future of a request whose response body is to keep `scope`.
    fn answer<F>(&self, response: Within<F>, scope: BodyScope) -> DeadlineFuture<F, R, B> {
        DeadlineFuture {
            response,
            respond: self.layer.respond.clone(),
            scope,
            bodies: PhantomData,
        }
    }
}

serves_in_time! {
    impl[D: Option<Duration>] Deadline<S, D> => DeadlineFuture,
    |service, request| {
        let left = (service.layer.left)(&request);
        let response = within_from_now(left, |_| service.inner.call(request));
        service.answer(response, BodyScope::default())
    }
}

impl<S, D, R: Clone> Deadline<S, D, R, bool> {
    /// Calls the inner service inside the scope of `request`, which both bodies keep if they are limited.
    fn call_with_bodies<Sent>(&mut self, request: Request<Sent>) -> DeadlineFuture<S::Future, R, bool>
    where
        S: Service<Request<DeadlineBody<Sent>>>,
        D: Fn(&Request<Sent>) -> Option<Duration>,
    {
        let mut scope = BodyScope::default();
        let response = within_from_now((self.layer.left)(&request), |start| {
            if self.layer.bodies {
                scope = BodyScope::current(start);
            }
            self.inner.call(scope.of_request(request))
        });
        self.answer(response, scope)
    }
}

impl<S, D, Sent, Answered> Service<Request<Sent>> for Deadline<S, D, (), bool>
where
    S: Service<Request<DeadlineBody<Sent>>, Response = Response<Answered>, Error: Into<BoxError>>,
    D: Fn(&Request<Sent>) -> Option<Duration>,
{
    type Response = Response<DeadlineBody<Answered>>;
    type Error = BoxError;
    type Future = DeadlineFuture<S::Future, (), bool>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        self.call_with_bodies(request)
    }
}

impl<S, D, R, Sent, Answered> Service<Request<Sent>> for Deadline<S, D, R, bool>
where
    S: Service<Request<DeadlineBody<Sent>>, Response = Response<Answered>>,
    D: Fn(&Request<Sent>) -> Option<Duration>,
    R: Fn(Elapsed) -> Response<Answered> + Clone,
{
    type Response = Response<DeadlineBody<Answered>>;
    type Error = S::Error;
    type Future = DeadlineFuture<S::Future, R, bool>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Sent>) -> Self::Future {
        self.call_with_bodies(request)
    }
}

pin_project! {
    /// The response future of a [`Deadline`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{deadline, tower::DeadlineLayer};
    /// use tower::{BoxError, Layer, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let left = service_fn(async |_| Ok::<_, BoxError>(deadline::remaining()));
    /// let mut service = DeadlineLayer::from_request(|_: &u8| None).layer(left);
    /// assert_eq!(service.call(7).await?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct DeadlineFuture<F, R = (), B = ()> {
        #[pin]
        response: Within<F>,
        respond: R,
        scope: BodyScope,
        bodies: PhantomData<B>,
    }
}

responds_in_time!(DeadlineFuture);

impl<F, Answered, E> Future for DeadlineFuture<F, (), bool>
where
    F: Future<Output = Result<Response<Answered>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<DeadlineBody<Answered>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(cx))?.map_err(Into::into)?;
        Poll::Ready(Ok(this.scope.of_response(response)))
    }
}

impl<F, R, Answered, E> Future for DeadlineFuture<F, R, bool>
where
    F: Future<Output = Result<Response<Answered>, E>>,
    R: Fn(Elapsed) -> Response<Answered>,
{
    type Output = Result<Response<DeadlineBody<Answered>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.response.poll(cx)) {
            Ok(outcome) => outcome.map(|response| this.scope.of_response(response)),
            // The body of this answer has no deadline, because that of the request has passed.
            Err(elapsed) => Ok(BodyScope::default().of_response((this.respond)(elapsed))),
        })
    }
}

impl<F: fmt::Debug, R, B> fmt::Debug for DeadlineFuture<F, R, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadlineFuture")
            .field("response", &self.response)
            .finish_non_exhaustive()
    }
}
