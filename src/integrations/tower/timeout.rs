//! `TimeoutLayer`, and its service, which fails or answers itself if a response takes too long.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{BoxError, responds_in_time, serves_in_time, wraps_a_service};
use crate::{error::Elapsed, timers::timeout, wheel::Wheel};

/// A layer that wraps services in a [`Timeout`], which returns an error if a response takes too long.
///
/// With [`respond_with`](TimeoutLayer::respond_with), the service answers with a response of your own
/// instead.
///
/// Its timers are never refused: neither [`max_pending`](crate::Builder::max_pending) nor a
/// [`shutdown`](Wheel::shutdown) of the wheel concerns them. To shed load, use `tower::load_shed` and
/// `tower::limit`.
///
/// # Examples
///
/// axum requires that every error is turned into a response:
///
/// ```
/// use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
/// use std::time::Duration;
/// use tickwheel::{Wheel, tower::TimeoutLayer};
///
/// let layer = TimeoutLayer::new(&Wheel::new(), Duration::from_secs(10))
///     .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response());
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(layer);
/// ```
///
/// Without `respond_with`, another layer handles the error:
///
/// ```
/// use axum::{BoxError, Router, error_handling::HandleErrorLayer, http::StatusCode, routing::get};
/// use std::time::Duration;
/// use tickwheel::{Wheel, time::error::Elapsed, tower::TimeoutLayer};
/// use tower::ServiceBuilder;
///
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(
///     ServiceBuilder::new()
///         .layer(HandleErrorLayer::new(async |error: BoxError| {
///             if error.is::<Elapsed>() { StatusCode::GATEWAY_TIMEOUT } else { StatusCode::INTERNAL_SERVER_ERROR }
///         }))
///         .layer(TimeoutLayer::new(&Wheel::new(), Duration::from_secs(10))),
/// );
/// ```
///
/// To name the layer's type in the signature of a function, write those of its closures as `impl Fn`:
///
/// ```
/// use axum::{http::StatusCode, response::{IntoResponse, Response}};
/// use std::time::Duration;
/// use tickwheel::{Wheel, time::error::Elapsed, tower::TimeoutLayer};
///
/// fn in_ten_seconds(wheel: &Wheel) -> TimeoutLayer<Duration, impl Fn(Elapsed) -> Response + Clone + use<>> {
///     TimeoutLayer::new(wheel, Duration::from_secs(10))
///         .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
/// }
/// # in_ten_seconds(&Wheel::new());
/// ```
#[derive(Clone)]
pub struct TimeoutLayer<D = Duration, R = ()> {
    wheel: Wheel,
    duration: D,
    respond: R,
}

impl TimeoutLayer {
    /// Creates a layer that gives every request the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, tower::TimeoutLayer};
    ///
    /// let layer = TimeoutLayer::new(&Wheel::new(), Duration::from_secs(10));
    /// ```
    pub fn new(wheel: &Wheel, duration: Duration) -> TimeoutLayer {
        TimeoutLayer {
            wheel: wheel.clone(),
            duration,
            respond: (),
        }
    }
}

impl<D> TimeoutLayer<D> {
    /// Creates a layer that calls `duration` with each request to get its timeout.
    ///
    /// [`Duration::MAX`] is taken as 30 years.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, tower::TimeoutLayer};
    ///
    /// let layer = TimeoutLayer::per_request(&Wheel::new(), |request: &axum::http::Request<String>| {
    ///     Duration::from_secs(if request.uri().path() == "/reports" { 60 } else { 1 })
    /// });
    /// ```
    pub fn per_request<Request>(wheel: &Wheel, duration: D) -> TimeoutLayer<D>
    where
        D: Fn(&Request) -> Duration + Clone,
    {
        TimeoutLayer {
            wheel: wheel.clone(),
            duration,
            respond: (),
        }
    }

    /// Returns a layer whose services answer a late request with what `respond` returns for the [`Elapsed`].
    ///
    /// The only errors of these services are those of the inner service.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
    /// # use std::time::Duration;
    /// # use tickwheel::{Wheel, tower::TimeoutLayer};
    ///
    /// let layer = TimeoutLayer::new(&Wheel::new(), Duration::from_secs(10))
    ///     .respond_with(|_| StatusCode::GATEWAY_TIMEOUT.into_response());
    /// let app: Router = Router::new().route("/", get(async || "hello").layer(layer));
    /// ```
    pub fn respond_with<R, Response>(self, respond: R) -> TimeoutLayer<D, R>
    where
        R: Fn(Elapsed) -> Response + Clone,
    {
        TimeoutLayer {
            wheel: self.wheel,
            duration: self.duration,
            respond,
        }
    }
}

impl<D, R> fmt::Debug for TimeoutLayer<D, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutLayer")
            .field("wheel", &self.wheel)
            .finish_non_exhaustive()
    }
}

/// A service that returns an error, or a response of its own, if a response takes too long.
///
/// The response future of the inner service is polled first, and the time counts from its first pending poll.
/// A response that is ready at once costs neither a lock nor a clock reading. The timeout is as precise as
/// [`Wheel::timeout`]. Neither the time until the service is ready nor the body of the response counts; for
/// the body, use a [`ResponseBodyTimeoutLayer`](super::ResponseBodyTimeoutLayer).
///
/// # Cancellation
///
/// Dropping the response future drops that of the inner service and cancels the timer at once. When the
/// timeout elapses, the inner future is dropped only together with the response future. Until then it keeps
/// its resources, such as the permit of a concurrency limit.
///
/// # Panics
///
/// The first pending poll of a response panics outside a Tokio runtime, as that of [`Wheel::timeout`] does.
///
/// # Errors
///
/// As in `tower::timeout`, the error is boxed. It is either that of the inner service or an [`Elapsed`],
/// which `downcast_ref` finds. With [`respond_with`](Timeout::respond_with), all errors are those of the
/// inner service.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Wheel, time::error::Elapsed, tower::TimeoutLayer};
/// use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let mut service = ServiceBuilder::new()
///     .layer(TimeoutLayer::new(&Wheel::new(), Duration::from_millis(20)))
///     .service(service_fn(async |request: &str| match request {
///         "hello" => Ok::<_, BoxError>("world"),
///         _ => std::future::pending().await,
///     }));
///
/// assert_eq!(service.ready().await?.call("hello").await?, "world");
/// let error = service.ready().await?.call("anybody there?").await.unwrap_err();
/// assert!(error.is::<Elapsed>());
///
/// let mut service = service.respond_with(|_| "nobody is there");
/// assert_eq!(service.ready().await?.call("anybody there?").await?, "nobody is there");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Timeout<S, D = Duration, R = ()> {
    inner: S,
    layer: TimeoutLayer<D, R>,
}

impl<S> Timeout<S> {
    /// Creates a service that gives every request the same time.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tickwheel::{Wheel, tower::Timeout};
    ///
    /// let service = Timeout::new(&Wheel::new(), Duration::from_secs(10), "a service");
    /// ```
    pub fn new(wheel: &Wheel, duration: Duration, inner: S) -> Timeout<S> {
        TimeoutLayer::new(wheel, duration).layer(inner)
    }
}

impl<S, D> Timeout<S, D> {
    /// Creates a service that calls `duration` with each request to get its timeout, as
    /// [`TimeoutLayer::per_request`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tickwheel::{Wheel, tower::Timeout};
    ///
    /// let by_length = |request: &String| Duration::from_millis(request.len() as u64);
    /// let service = Timeout::per_request(&Wheel::new(), by_length, "a service");
    /// ```
    pub fn per_request<Request>(wheel: &Wheel, duration: D, inner: S) -> Timeout<S, D>
    where
        D: Fn(&Request) -> Duration + Clone,
    {
        TimeoutLayer::per_request(wheel, duration).layer(inner)
    }

    /// Converts this into a service that answers a late request with what `respond` returns for the
    /// [`Elapsed`], as [`TimeoutLayer::respond_with`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tickwheel::{Wheel, tower::Timeout};
    ///
    /// let service = Timeout::new(&Wheel::new(), Duration::from_secs(10), "a service")
    ///     .respond_with(|error| format!("sorry: {error}"));
    /// ```
    pub fn respond_with<R, Response>(self, respond: R) -> Timeout<S, D, R>
    where
        R: Fn(Elapsed) -> Response + Clone,
    {
        Timeout {
            inner: self.inner,
            layer: self.layer.respond_with(respond),
        }
    }
}

wraps_a_service! {
    Timeout by TimeoutLayer<D, R>,
    "tickwheel::tower::Timeout::new(&tickwheel::Wheel::new(), std::time::Duration::MAX, \"a service\")"
}

impl<S, D, R: Clone> Timeout<S, D, R> {
    fn call_within<Request>(&mut self, duration: Duration, request: Request) -> TimeoutFuture<S::Future, R>
    where
        S: Service<Request>,
    {
        TimeoutFuture {
            response: self.layer.wheel.timeout(duration, self.inner.call(request)),
            respond: self.layer.respond.clone(),
        }
    }
}

serves_in_time! {
    impl[] Timeout<S, Duration> => TimeoutFuture,
    |service, request| service.call_within(service.layer.duration, request)
}

serves_in_time! {
    impl[D: Duration] Timeout<S, D> => TimeoutFuture,
    |service, request| service.call_within((service.layer.duration)(&request), request)
}

pin_project! {
    /// The response future of a [`Timeout`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Wheel, tower::Timeout};
    /// use tower::{Service, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower::BoxError> {
    /// let echo = service_fn(async |request: u8| Ok::<u8, tower::BoxError>(request));
    /// let mut service = Timeout::new(&Wheel::new(), std::time::Duration::from_secs(1), echo);
    /// assert_eq!(service.ready().await?.call(7).await?, 7);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct TimeoutFuture<F, R = ()> {
        #[pin]
        response: timeout::Timeout<F>,
        respond: R,
    }
}

responds_in_time!(TimeoutFuture);

impl<F: fmt::Debug, R> fmt::Debug for TimeoutFuture<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutFuture")
            .field("response", &self.response)
            .finish_non_exhaustive()
    }
}
