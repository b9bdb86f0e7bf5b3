//! `TimeoutLayer`, and its service, which fails or answers itself if a response takes too long.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

use tower_layer::Layer;
use tower_service::Service;

use super::{
    Layered,
    answer::{Answer, Answered, Fail, RespondWith},
    body::HeadOnly,
};
use crate::{error::TimeoutError, timers::timeout::TryTimeout, wheel::Wheel};

/// A layer that wraps services in a [`Timeout`], which returns an error if a response takes too long.
///
/// With [`respond_with`](TimeoutLayer::respond_with), it wraps them in a [`Respond`], which answers with a
/// response of your own instead.
///
/// # Examples
///
/// axum requires that every error is turned into a response:
///
/// ```
/// use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
/// use std::time::Duration;
/// use tickwheel::{TimeoutError, Wheel, tower::TimeoutLayer};
///
/// let wheel = Wheel::new();
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(
///     TimeoutLayer::new(&wheel, Duration::from_secs(10)).respond_with(|error| match error {
///         TimeoutError::Elapsed => StatusCode::GATEWAY_TIMEOUT.into_response(),
///         _ => StatusCode::SERVICE_UNAVAILABLE.into_response(), // the wheel is full, or has been shut down
///     }),
/// );
/// ```
///
/// Without `respond_with`, another layer handles the error:
///
/// ```
/// use axum::{BoxError, Router, error_handling::HandleErrorLayer, http::StatusCode, routing::get};
/// use std::time::Duration;
/// use tickwheel::{TimeoutError, Wheel, tower::TimeoutLayer};
/// use tower::ServiceBuilder;
///
/// let wheel = Wheel::new();
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(
///     ServiceBuilder::new()
///         .layer(HandleErrorLayer::new(async |error: BoxError| {
///             match error.downcast_ref::<TimeoutError>() {
///                 Some(TimeoutError::Elapsed) => StatusCode::GATEWAY_TIMEOUT,
///                 _ => StatusCode::SERVICE_UNAVAILABLE,
///             }
///         }))
///         .layer(TimeoutLayer::new(&wheel, Duration::from_secs(10))),
/// );
/// ```
#[derive(Clone)]
pub struct TimeoutLayer<D = Duration, A = Fail> {
    wheel: Wheel,
    durations: D,
    answer: A,
}

/// A layer that wraps services in a [`Respond`], created by [`TimeoutLayer::respond_with`].
///
/// # Examples
///
/// To name the type in a function's signature, write the closure's type as an `impl Fn`:
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
pub type RespondLayer<D, F> = TimeoutLayer<D, RespondWith<F>>;

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
            durations: duration,
            answer: Fail,
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
            durations: duration,
            answer: Fail,
        }
    }

    /// Returns a layer whose services answer a late request with what `respond` returns for the
    /// [`TimeoutError`].
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
    pub fn respond_with<F, Response>(self, respond: F) -> RespondLayer<D, F>
    where
        F: Fn(TimeoutError) -> Response + Clone,
    {
        TimeoutLayer {
            wheel: self.wheel,
            durations: self.durations,
            answer: RespondWith(respond),
        }
    }
}

impl<D, A> fmt::Debug for TimeoutLayer<D, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutLayer")
            .field("wheel", &self.wheel)
            .finish_non_exhaustive()
    }
}

/// The timeout of a request: a [`Duration`], or a closure that computes one from the request.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::tower::TimeoutFor;
///
/// assert_eq!(Duration::from_secs(1).timeout_for(&"request"), Duration::from_secs(1));
/// assert_eq!((|request: &u64| Duration::from_secs(*request)).timeout_for(&2), Duration::from_secs(2));
/// ```
pub trait TimeoutFor<Request> {
    /// Returns the timeout of `request`.
    fn timeout_for(&self, request: &Request) -> Duration;
}

impl<Request> TimeoutFor<Request> for Duration {
    fn timeout_for(&self, _: &Request) -> Duration {
        *self
    }
}

impl<Request, F: Fn(&Request) -> Duration> TimeoutFor<Request> for F {
    fn timeout_for(&self, request: &Request) -> Duration {
        self(request)
    }
}

/// A service that returns an error if a response takes too long.
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
/// As in `tower::timeout`, the error is boxed. It is either that of the inner service or a [`TimeoutError`],
/// which `downcast_ref` finds. A [`Respond`] has no error of its own.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{TimeoutError, Wheel, tower::TimeoutLayer};
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
/// assert_eq!(error.downcast_ref(), Some(&TimeoutError::Elapsed));
/// # Ok(())
/// # }
/// ```
pub type Timeout<S, D = Duration, A = Fail> = Layered<S, TimeoutLayer<D, A>>;

/// A service that answers a request itself if the inner service does not answer in time.
///
/// The time counts as in [`Timeout`], with the same precision. The closure creates the answer from the
/// [`TimeoutError`], which tells whether the time ran out or the wheel refused the timer.
///
/// # Cancellation
///
/// Dropping the response future drops that of the inner service and cancels the timer at once. When the
/// service answers itself, the inner future is dropped only together with the response future.
///
/// # Panics
///
/// Panics in the same cases as [`Timeout`].
///
/// # Errors
///
/// The only errors are those of the inner service.
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
pub type Respond<S, D, F> = Timeout<S, D, RespondWith<F>>;

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
    /// [`TimeoutError`], as [`TimeoutLayer::respond_with`] does.
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
    pub fn respond_with<F, Response>(self, respond: F) -> Respond<S, D, F>
    where
        F: Fn(TimeoutError) -> Response + Clone,
    {
        Layered {
            inner: self.inner,
            layer: self.layer.respond_with(respond),
        }
    }
}

impl<S, D: Clone, A: Clone> Layer<S> for TimeoutLayer<D, A> {
    type Service = Timeout<S, D, A>;

    fn layer(&self, inner: S) -> Timeout<S, D, A> {
        let layer = self.clone();
        Layered { inner, layer }
    }
}

impl<S, D, A, Request> Service<Request> for Layered<S, TimeoutLayer<D, A>>
where
    S: Service<Request>,
    D: TimeoutFor<Request>,
    A: Answer<TimeoutError, S::Response, S::Error> + Clone,
{
    type Response = S::Response;
    type Error = A::Error;
    type Future = ResponseFuture<S::Future, A>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), A::Error>> {
        self.inner.poll_ready(cx).map_err(A::pass)
    }

    fn call(&mut self, request: Request) -> ResponseFuture<S::Future, A> {
        let duration = self.layer.durations.timeout_for(&request);
        Answered {
            response: self.layer.wheel.try_timeout(duration, self.inner.call(request)),
            answer: self.layer.answer.clone(),
            bodies: HeadOnly,
        }
    }
}

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
pub type ResponseFuture<F, A = Fail> = Answered<TryTimeout<F>, A>;

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
pub type RespondFuture<R, F> = ResponseFuture<R, RespondWith<F>>;
