//! `TimeoutLayer`: wraps services in a timeout.

use std::{fmt, time::Duration};

use super::answer::{Fail, RespondWith};
use crate::{error::TimeoutError, wheel::Wheel};

/// A layer that wraps services in a [`Timeout`](super::Timeout), which returns an error if a response takes too long.
///
/// With [`respond_with`](TimeoutLayer::respond_with), it wraps them in a [`Respond`](super::Respond), which answers with a
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
    pub(super) wheel: Wheel,
    pub(super) durations: D,
    pub(super) answer: A,
}

/// A layer that wraps services in a [`Respond`](super::Respond), created by [`TimeoutLayer::respond_with`].
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
    /// Creates a layer that calls `duration` with each request to get its time limit.
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

    /// Returns a layer whose services answer a late request with what `respond` returns for the [`TimeoutError`].
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
