//! `RespondLayer` and `Respond`: if a response comes too late, the service answers itself.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{Timeout, TimeoutFor, TimeoutLayer};
use crate::{error::TimeoutError, timeout};

/// Wraps services in a [`Respond`]. It is made by [`TimeoutLayer::respond_with`].
///
/// # Examples
///
/// In the type of a function, the closure is an `impl Fn`:
///
/// ```
/// use axum::{http::StatusCode, response::{IntoResponse, Response}};
/// use std::time::Duration;
/// use tickwheel::{TimeoutError, Wheel, tower::{RespondLayer, TimeoutLayer}};
///
/// fn in_ten_seconds(wheel: &Wheel) -> RespondLayer<Duration, impl Fn(TimeoutError) -> Response + Clone + use<>> {
///     TimeoutLayer::new(wheel, Duration::from_secs(10))
///         .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
/// }
/// # in_ten_seconds(&Wheel::new());
/// ```
#[derive(Clone)]
pub struct RespondLayer<D, F> {
    layer: TimeoutLayer<D>,
    respond: F,
}

impl<D, F> RespondLayer<D, F> {
    pub(super) fn new(layer: TimeoutLayer<D>, respond: F) -> RespondLayer<D, F> {
        RespondLayer { layer, respond }
    }
}

impl<S, D: Clone, F: Clone> Layer<S> for RespondLayer<D, F> {
    type Service = Respond<S, D, F>;

    fn layer(&self, inner: S) -> Respond<S, D, F> {
        Respond::new(self.layer.layer(inner), self.respond.clone())
    }
}

impl<D, F> fmt::Debug for RespondLayer<D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondLayer")
            .field("layer", &self.layer)
            .finish_non_exhaustive()
    }
}

/// A service that answers itself if the service inside does not answer in time.
///
/// The time counts as in [`Timeout`], and is as precise. The closure makes the answer from the [`TimeoutError`], which says
/// whether the time ran out or the wheel refused.
///
/// # Cancellation
///
/// Dropping the response future drops the one inside and cancels the timer at once. When the service answers itself, the future
/// inside is dropped only together with the response future.
///
/// # Panics
///
/// As [`Timeout`] does.
///
/// # Errors
///
/// The errors are those of the service inside, and no others.
///
/// # Examples
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use tickwheel::{Wheel, tower::TimeoutLayer};
/// use tower::{Service, ServiceBuilder, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Infallible> {
/// let layer = TimeoutLayer::new(&Wheel::new(), Duration::from_millis(20)).respond_with(|_| "nobody is there");
/// let mut service = ServiceBuilder::new().layer(layer).service(service_fn(async |request: &str| match request {
///     "hello" => Ok::<_, Infallible>("world"),
///     _ => std::future::pending().await,
/// }));
///
/// assert_eq!(service.call("hello").await?, "world");
/// assert_eq!(service.call("anybody there?").await?, "nobody is there");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Respond<S, D, F> {
    service: Timeout<S, D>,
    respond: F,
}

impl<S, D, F> Respond<S, D, F> {
    pub(super) fn new(service: Timeout<S, D>, respond: F) -> Respond<S, D, F> {
        Respond { service, respond }
    }

    /// Returns the service inside.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// let service = Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").respond_with(|_| ());
    /// assert_eq!(*service.get_ref(), "a service");
    /// ```
    pub fn get_ref(&self) -> &S {
        self.service.get_ref()
    }

    /// Returns the service inside, to be changed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// let mut service = Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").respond_with(|_| ());
    /// *service.get_mut() = "another";
    /// ```
    pub fn get_mut(&mut self) -> &mut S {
        self.service.get_mut()
    }

    /// Returns the service inside.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// let service = Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").respond_with(|_| ());
    /// assert_eq!(service.into_inner(), "a service");
    /// ```
    pub fn into_inner(self) -> S {
        self.service.into_inner()
    }
}

impl<S, D, F, Request> Service<Request> for Respond<S, D, F>
where
    S: Service<Request>,
    D: TimeoutFor<Request>,
    F: Fn(TimeoutError) -> S::Response + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = RespondFuture<S::Future, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.get_mut().poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> RespondFuture<S::Future, F> {
        RespondFuture {
            response: self.service.start(request),
            respond: self.respond.clone(),
        }
    }
}

impl<S: fmt::Debug, D, F> fmt::Debug for Respond<S, D, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Respond")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

pin_project! {
    /// The response future of a [`Respond`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use tickwheel::{Wheel, tower::Timeout};
    /// use tower::{Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Infallible> {
    /// let echo = service_fn(async |request: u8| Ok::<u8, Infallible>(request));
    /// let mut service = Timeout::new(&Wheel::new(), std::time::Duration::from_secs(1), echo).respond_with(|_| 0);
    /// assert_eq!(service.call(7).await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct RespondFuture<R, F> {
        #[pin]
        response: timeout::Timeout<R>,
        respond: F,
    }
}

impl<R, F, T, E> Future for RespondFuture<R, F>
where
    R: Future<Output = Result<T, E>>,
    F: Fn(TimeoutError) -> T,
{
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, E>> {
        let this = self.project();
        let outcome = ready!(this.response.poll(cx));
        Poll::Ready(outcome.unwrap_or_else(|error| Ok((this.respond)(error))))
    }
}

impl<R, F> fmt::Debug for RespondFuture<R, F>
where
    R: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondFuture")
            .field("response", &self.response)
            .finish_non_exhaustive()
    }
}
