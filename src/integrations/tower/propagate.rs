//! `PropagateLayer`: a client layer that sends the remaining time with each request.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::{BodyScope, DeadlineBody},
    wraps_a_service,
};
use crate::deadline::remaining;

/// A layer that wraps clients in a [`Propagate`], which writes the remaining time into each request.
///
/// # Examples
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use axum::{body::Body, http::Request};
/// use tickwheel::{deadline, tower::{DeadlineHeader, PropagateLayer}};
/// use tower::{Layer, Service, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let header = DeadlineHeader::connect_timeout_ms();
/// let mut client = PropagateLayer::new(header.writer())
///     .layer(service_fn(async |request: Request<Body>| Ok::<_, Infallible>(request)));
///
/// let sent = deadline::within(Duration::from_millis(300), async {
///     tokio::time::sleep(Duration::from_millis(100)).await;
///     client.call(Request::new(Body::empty())).await.unwrap()
/// });
/// assert_eq!(sent.await.unwrap().headers()["connect-timeout-ms"], "200");
/// # }
/// ```
///
/// # Type parameters
///
/// `W` is the closure given to [`new`](PropagateLayer::new), and `B` the `bool` given to
/// [`bodies`](PropagateLayer::bodies), or `()` until then.
#[derive(Clone)]
pub struct PropagateLayer<W, B = ()> {
    write: W,
    bodies: B,
}

impl<W> PropagateLayer<W> {
    /// Creates a layer that calls `write` with each request made inside a scope, and with the remaining time
    /// of that scope.
    ///
    /// A request may have a sooner deadline of its own, which `write` should keep, as
    /// [`DeadlineHeader::writer`] does.
    ///
    /// [`DeadlineHeader::writer`]: super::DeadlineHeader::writer
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::tower::PropagateLayer;
    ///
    /// struct Query {
    ///     statement: &'static str,
    ///     timeout: Option<Duration>,
    /// }
    ///
    /// let layer = PropagateLayer::new(|query: &mut Query, remaining| {
    ///     query.timeout = Some(query.timeout.map_or(remaining, |timeout| timeout.min(remaining)));
    /// });
    /// ```
    pub fn new<Request>(write: W) -> PropagateLayer<W>
    where
        W: Fn(&mut Request, Duration) + Clone,
    {
        PropagateLayer { write, bodies: () }
    }
}

impl<W, B> PropagateLayer<W, B> {
    /// Sets whether the bodies of a request keep the scope in which the request was made.
    ///
    /// Without this call, the caller's scope reaches a body only where the caller itself polls it. With it,
    /// the layer wraps clients of `http` requests and responses, and gives both bodies the type
    /// [`DeadlineBody`](super::DeadlineBody), which carries the scope along: the HTTP library that polls the
    /// request body in a task of its own is inside it, and so is whoever reads the response later. At the
    /// deadline, the body ends with a [`BodyElapsed`](super::BodyElapsed). With `false`, the bodies have that
    /// type and no deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{body::{Body, Bytes}, http::{Request, Response}};
    /// use futures::stream;
    /// use http_body_util::BodyExt;
    /// use std::{convert::Infallible, time::Duration};
    /// use tickwheel::{deadline, tower::{BodyElapsed, DeadlineHeader, PropagateLayer}};
    /// use tower::{Layer, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Infallible> {
    /// let header = DeadlineHeader::grpc_timeout();
    /// let mut client = PropagateLayer::new(header.writer()).bodies(true).layer(service_fn(async |_| {
    ///     Ok::<_, Infallible>(Response::new(Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())))
    /// }));
    /// let second = Duration::from_secs(1);
    /// let call = deadline::within(second, async { client.call(Request::new(Body::empty())).await });
    /// let body = call.await.unwrap()?.into_body();
    /// let error = body.collect().await.unwrap_err(); // outside the scope
    /// assert_eq!(error.downcast_ref::<BodyElapsed>().unwrap().duration(), second);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bodies(self, limited: bool) -> PropagateLayer<W, bool> {
        PropagateLayer {
            write: self.write,
            bodies: limited,
        }
    }

    /// Writes the remaining time into a request, if there is a deadline.
    fn write_remaining<Request>(&self, request: &mut Request)
    where
        W: Fn(&mut Request, Duration),
    {
        if let Some(remaining) = remaining() {
            (self.write)(request, remaining);
        }
    }
}

impl<W, B> fmt::Debug for PropagateLayer<W, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PropagateLayer").finish_non_exhaustive()
    }
}

/// A client that writes the remaining time into each request, created by a [`PropagateLayer`].
///
/// It reads [`remaining`] in `call`, so it belongs above a `tower::buffer`, which calls the inner service
/// from a task of its own. With no time remaining it writes zero, as gRPC for Go does, and leaves the refusal
/// to the server. Outside a scope it leaves the request unchanged.
///
/// # Examples
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use tickwheel::{deadline, tower::PropagateLayer};
/// use tower::{Layer, Service, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let mut client = PropagateLayer::new(|request: &mut Duration, remaining| *request = remaining)
///     .layer(service_fn(|request: Duration| async move { Ok::<_, Infallible>(request) }));
/// let second = Duration::from_secs(1);
/// let sent = deadline::within(second, async { client.call(Duration::MAX).await });
/// assert_eq!(sent.await, Ok(Ok(second)));
/// # }
/// ```
#[derive(Clone)]
pub struct Propagate<S, W, B = ()> {
    inner: S,
    layer: PropagateLayer<W, B>,
}

wraps_a_service! {
    Propagate by PropagateLayer<W, B>,
    "tickwheel::tower::PropagateLayer::new(|_: &mut String, _| ()).layer(\"a service\")"
}

impl<S, W, Sent> Service<Sent> for Propagate<S, W>
where
    S: Service<Sent>,
    W: Fn(&mut Sent, Duration),
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Sent) -> S::Future {
        self.layer.write_remaining(&mut request);
        self.inner.call(request)
    }
}

impl<S, W, Sent, Answered> Service<Request<Sent>> for Propagate<S, W, bool>
where
    S: Service<Request<DeadlineBody<Sent>>, Response = Response<Answered>>,
    W: Fn(&mut Request<Sent>, Duration),
{
    type Response = Response<DeadlineBody<Answered>>;
    type Error = S::Error;
    type Future = PropagateFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Sent>) -> Self::Future {
        self.layer.write_remaining(&mut request);
        let scope = self.layer.bodies.then(|| BodyScope::current(None));
        let scope = scope.unwrap_or_default();
        PropagateFuture {
            response: self.inner.call(scope.of_request(request)),
            scope,
        }
    }
}

pin_project! {
    /// The response future of a [`Propagate`] with [`bodies`](PropagateLayer::bodies), whose response has a
    /// [`DeadlineBody`].
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{body::Body, http::{Request, Response}};
    /// use http_body_util::BodyExt;
    /// use tickwheel::tower::{DeadlineHeader, PropagateLayer};
    /// use tower::{BoxError, Layer, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let answers = service_fn(async |_| Ok::<_, BoxError>(Response::new(Body::from("pong"))));
    /// let header = DeadlineHeader::grpc_timeout();
    /// let mut client = PropagateLayer::new(header.writer()).bodies(true).layer(answers);
    /// let response = client.call(Request::new(Body::empty())).await?;
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "pong");
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct PropagateFuture<F> {
        #[pin]
        response: F,
        scope: BodyScope,
    }
}

impl<F, B, E> Future for PropagateFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<DeadlineBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.response.poll(cx))?;
        Poll::Ready(Ok(this.scope.of_response(response)))
    }
}
