//! `Timeout`: if a response comes too late, the service returns an error.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{BoxError, Respond, TimeoutFor, TimeoutLayer};
use crate::{error::TimeoutError, timeout, wheel::Wheel};

/// A service that returns an error if a response comes too late.
///
/// The response future of the service inside is polled first. The time counts from its first pending poll. A response that is
/// ready at once costs neither a lock nor a clock reading. The timeout is never early, and less than two ticks late plus
/// what the runtime adds. The time in which the service becomes ready does not count, nor does the body of the response.
///
/// # Cancellation
///
/// Dropping the response future drops the one inside and cancels the timer at once. When the timeout elapses, the future inside
/// is dropped only together with the response future. Until then it keeps what it holds, such as the permit of a concurrency
/// limit.
///
/// # Panics
///
/// The first pending poll of a response panics outside a Tokio runtime, as that of [`Wheel::timeout`] does.
///
/// # Errors
///
/// As in `tower::timeout`, the error is boxed. It is that of the service inside, or a [`TimeoutError`], which `downcast_ref`
/// finds. A [`Respond`] has no error of its own.
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
#[derive(Clone)]
pub struct Timeout<S, D = Duration> {
    pub(super) inner: S,
    pub(super) wheel: Wheel,
    pub(super) durations: D,
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
    /// Creates a service that calls `duration` to find out how much time a request gets, as [`TimeoutLayer::per_request`] does.
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

    /// Makes a service that answers with what `respond` returns for the [`TimeoutError`], as [`TimeoutLayer::respond_with`] does.
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
        Respond::new(self, respond)
    }

    /// Calls the service inside, and limits its response in time.
    pub(super) fn start<Request>(&mut self, request: Request) -> timeout::Timeout<S::Future>
    where
        S: Service<Request>,
        D: TimeoutFor<Request>,
    {
        let duration = self.durations.timeout_for(&request);
        self.wheel.timeout(duration, self.inner.call(request))
    }

    /// Returns the service inside.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// assert_eq!(*Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").get_ref(), "a service");
    /// ```
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the service inside, to be changed.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// *Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").get_mut() = "another";
    /// ```
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the service inside.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tickwheel::{Wheel, tower::Timeout};
    /// assert_eq!(Timeout::new(&Wheel::new(), std::time::Duration::MAX, "a service").into_inner(), "a service");
    /// ```
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, D, Request> Service<Request> for Timeout<S, D>
where
    S: Service<Request>,
    S::Error: Into<BoxError>,
    D: TimeoutFor<Request>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request) -> ResponseFuture<S::Future> {
        ResponseFuture {
            response: self.start(request),
        }
    }
}

impl<S: fmt::Debug, D> fmt::Debug for Timeout<S, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout")
            .field("inner", &self.inner)
            .field("wheel", &self.wheel)
            .finish_non_exhaustive()
    }
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
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<F> {
        #[pin]
        response: timeout::Timeout<F>,
    }
}

impl<F, T, E> Future for ResponseFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(self.project().response.poll(cx)) {
            Ok(outcome) => outcome.map_err(Into::into),
            Err(error) => Err(error.into()),
        })
    }
}
