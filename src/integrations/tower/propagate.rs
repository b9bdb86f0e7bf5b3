//! `PropagateLayer`: a client layer that sends the remaining time with each request.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::layered::Layered;
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
#[derive(Clone)]
pub struct PropagateLayer<W> {
    write: W,
}

impl<W> PropagateLayer<W> {
    /// Creates a layer that calls `write` with each request made inside a scope, and with the remaining time of that scope.
    ///
    /// A request may have a sooner deadline of its own, which `write` should keep, as [`DeadlineHeader::writer`] does.
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
        PropagateLayer { write }
    }
}

impl<S, W: Clone> Layer<S> for PropagateLayer<W> {
    type Service = Propagate<S, W>;

    fn layer(&self, inner: S) -> Propagate<S, W> {
        let layer = self.clone();
        Layered { inner, layer }
    }
}

/// A client that writes the remaining time into each request, created by a [`PropagateLayer`].
///
/// It reads [`remaining`] in `call`, so it belongs above a `tower::buffer`, which calls the inner service from a task of its own.
/// With no time remaining it writes zero, as gRPC for Go does, and leaves the refusal to the server. Outside a scope it leaves
/// the request unchanged.
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
pub type Propagate<S, W> = Layered<S, PropagateLayer<W>>;

impl<S, W, Request> Service<Request> for Layered<S, PropagateLayer<W>>
where
    S: Service<Request>,
    W: Fn(&mut Request, Duration),
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> S::Future {
        if let Some(remaining) = remaining() {
            (self.layer.write)(&mut request, remaining);
        }
        self.inner.call(request)
    }
}

impl<W> fmt::Debug for PropagateLayer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PropagateLayer").finish_non_exhaustive()
    }
}
