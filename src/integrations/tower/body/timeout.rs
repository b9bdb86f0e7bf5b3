//! `TimeoutBody`, and the layers that wrap the bodies of requests and responses in it.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::task::coop;
use tower_layer::Layer;
use tower_service::Service;

use super::{BodyElapsed, has_ended};
use crate::{
    deadline::LimitError,
    integrations::tower::{BoxError, wraps_a_service},
    timers::sleep::{HadBudget, Sleep},
    wheel::Wheel,
};

pin_project! {
    /// A body that ends with an error if its next frame takes too long.
    ///
    /// This corresponds to tower-http's `TimeoutBody`. The inner body is polled first, and the time counts
    /// from its first pending poll after a frame, so neither a slow reader nor a slow handler uses it up, and
    /// a frame that is ready costs neither a lock nor a clock reading. Frames, trailers and size hints pass
    /// through unchanged, and nothing is buffered. The timeout is as precise as [`Wheel::sleep`], and is
    /// never refused.
    ///
    /// A body that yields a frame often enough may last forever. To limit the whole body, use
    /// [`DeadlineLayer::bodies`].
    ///
    /// [`DeadlineLayer::bodies`]: crate::tower::DeadlineLayer::bodies
    ///
    /// # Cancellation
    ///
    /// Dropping the body cancels the timer at once, and so does the end of the body. When the timeout
    /// elapses, the inner body is dropped before the error is returned, with all that it holds, such as a
    /// permit.
    ///
    /// # Panics
    ///
    /// The first pending poll panics outside a Tokio runtime, as that of [`Wheel::sleep`] does.
    ///
    /// # Errors
    ///
    /// The error is boxed, and is either that of the inner body or a [`BodyElapsed`].
    ///
    /// # Examples
    ///
    /// A download in which the server may be silent for at most ten seconds:
    ///
    /// ```
    /// use http_body_util::{BodyExt, Full};
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, tower::TimeoutBody};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower::BoxError> {
    /// # let response = axum::http::Response::new(Full::new(axum::body::Bytes::from("hello")));
    /// let body = TimeoutBody::new(&Wheel::new(), Duration::from_secs(10), response.into_body());
    /// assert_eq!(body.collect().await?.to_bytes(), "hello");
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct TimeoutBody<B> {
        // `None` once the timeout has elapsed.
        #[pin]
        body: Option<B>,
        timeout: Duration,
        // It stays in the wheel when a frame comes, so that the next gap is a reset of it.
        sleep: Sleep,
        // Whether the sleep times the current gap or still the previous one.
        is_set: bool,
        name: &'static str,
    }
}

impl<B> TimeoutBody<B> {
    /// Creates a body that fails if a frame of `body` takes longer than `timeout`.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use axum::body::Body;
    /// use tickwheel::{Wheel, tower::TimeoutBody};
    ///
    /// let body = TimeoutBody::new(&Wheel::new(), Duration::from_secs(10), Body::empty());
    /// ```
    pub fn new(wheel: &Wheel, timeout: Duration, body: B) -> TimeoutBody<B> {
        TimeoutBody::of("body", wheel, timeout, body)
    }

    fn of(name: &'static str, wheel: &Wheel, timeout: Duration, body: B) -> TimeoutBody<B> {
        TimeoutBody {
            body: Some(body),
            timeout,
            sleep: Sleep::of_timeout(wheel.reference(), timeout, "TimeoutBody"),
            is_set: true,
            name,
        }
    }
}

impl<B> Body for TimeoutBody<B>
where
    B: Body<Error: Into<BoxError>>,
{
    type Data = B::Data;
    type Error = BoxError;

    #[track_caller]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let Some(mut body) = this.body.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let had_budget = HadBudget(coop::has_budget_remaining());
        if let Poll::Ready(next) = body.as_mut().poll_frame(cx) {
            *this.is_set = false;
            if has_ended(&*body, &next) {
                drop(this.sleep.timer.cancel());
            }
            return Poll::Ready(next.map(|frame| frame.map_err(Into::into)));
        }
        if !mem::replace(this.is_set, true) {
            this.sleep.reset_after(*this.timeout);
        }
        ready!(this.sleep.poll_after(had_budget, cx));
        this.body.set(None);
        let elapsed = BodyElapsed::new(LimitError::Timeout, *this.timeout, this.name);
        Poll::Ready(Some(Err(elapsed.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), B::size_hint)
    }
}

/// Defines a layer and its service, which give each frame of a body the same time.
macro_rules! limits_frames {
    ($(#[$layer_docs:meta])* $Layer:ident, $(#[$service_docs:meta])* $Service:ident) => {
        $(#[$layer_docs])*
        #[derive(Clone, Debug)]
        pub struct $Layer {
            wheel: Wheel,
            timeout: Duration,
        }

        impl $Layer {
            /// Creates a layer that gives each frame of a body the same time.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("use tickwheel::{Wheel, tower::", stringify!($Layer), "};")]
            ///
            #[doc = concat!("let layer = ", stringify!($Layer), "::new(&Wheel::new(), Duration::from_secs(10));")]
            /// ```
            pub fn new(wheel: &Wheel, timeout: Duration) -> $Layer {
                $Layer {
                    wheel: wheel.clone(),
                    timeout,
                }
            }
        }

        $(#[$service_docs])*
        #[derive(Clone)]
        pub struct $Service<S> {
            inner: S,
            layer: $Layer,
        }

        impl<S> $Service<S> {
            /// Creates a service that gives each frame of a body the same time.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            #[doc = concat!("use tickwheel::{Wheel, tower::", stringify!($Service), "};")]
            ///
            #[doc = concat!(
                "let service = ", stringify!($Service), "::new(&Wheel::new(), Duration::from_secs(10), \"a service\");",
            )]
            /// ```
            pub fn new(wheel: &Wheel, timeout: Duration, inner: S) -> $Service<S> {
                $Layer::new(wheel, timeout).layer(inner)
            }
        }

        wraps_a_service! {
            $Service by $Layer<>,
            concat!(
                "tickwheel::tower::", stringify!($Service),
                "::new(&tickwheel::Wheel::new(), std::time::Duration::MAX, \"a service\")",
            )
        }
    };
}

limits_frames! {
    /// A layer that wraps services in a [`RequestBodyTimeout`], which limits the time between two frames of
    /// each request body.
    ///
    /// # Examples
    ///
    /// A server that gives up on a client that sends nothing of its upload for ten seconds:
    ///
    /// ```
    /// use axum::{Router, routing::post};
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, tower::RequestBodyTimeoutLayer};
    ///
    /// let app: Router = Router::new()
    ///     .route("/upload", post(async |body: String| format!("{} bytes", body.len())))
    ///     .layer(RequestBodyTimeoutLayer::new(&Wheel::new(), Duration::from_secs(10)));
    /// ```
    RequestBodyTimeoutLayer,
    /// A service whose requests have a [`TimeoutBody`].
    ///
    /// On a server, the handler that reads the body gets the error, and decides on the answer. In a client,
    /// the request fails with the error of the HTTP library. That of hyper has a [`BodyElapsed`] among its
    /// sources by HTTP/1, and says by HTTP/2 only that the stream was reset.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{body::{Body, Bytes}, http::Request};
    /// use futures::stream;
    /// use http_body_util::BodyExt;
    /// use std::{convert::Infallible, time::Duration};
    /// use tickwheel::{Wheel, tower::{RequestBodyTimeout, TimeoutBody}};
    /// use tower::{Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let upload = service_fn(|request: Request<TimeoutBody<Body>>| request.into_body().collect());
    /// let mut service = RequestBodyTimeout::new(&Wheel::new(), Duration::from_secs(2), upload);
    /// let silent = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    /// let error = service.call(Request::new(silent)).await.unwrap_err();
    /// assert_eq!(error.to_string(), "timeout has elapsed: no frame of the request body came for 2s");
    /// # }
    /// ```
    RequestBodyTimeout
}

impl<S, B> Service<Request<B>> for RequestBodyTimeout<S>
where
    S: Service<Request<TimeoutBody<B>>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        let RequestBodyTimeoutLayer { wheel, timeout } = &self.layer;
        let request = request.map(|body| TimeoutBody::of("request body", wheel, *timeout, body));
        self.inner.call(request)
    }
}

limits_frames! {
    /// A layer that wraps services in a [`ResponseBodyTimeout`], which limits the time between two frames of
    /// each response body.
    ///
    /// # Examples
    ///
    /// A server that ends a response whose handler produces nothing for ten seconds:
    ///
    /// ```
    /// use axum::{Router, routing::get};
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, tower::ResponseBodyTimeoutLayer};
    ///
    /// let app: Router = Router::new()
    ///     .route("/", get(async || "hello"))
    ///     .layer(ResponseBodyTimeoutLayer::new(&Wheel::new(), Duration::from_secs(10)));
    /// ```
    ResponseBodyTimeoutLayer,
    /// A service whose responses have a [`TimeoutBody`].
    ///
    /// On a server, an elapsed body cuts the response off: HTTP/1 closes the connection, and HTTP/2 resets
    /// the stream. In a client, whoever reads the body gets the error.
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{body::{Body, Bytes}, http::{Request, Response}};
    /// use futures::stream;
    /// use http_body_util::BodyExt;
    /// use std::{convert::Infallible, time::Duration};
    /// use tickwheel::{Wheel, tower::ResponseBodyTimeout};
    /// use tower::{Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Infallible> {
    /// let silent = service_fn(async |_: Request<Body>| {
    ///     Ok::<_, Infallible>(Response::new(Body::from_stream(stream::pending::<Result<Bytes, Infallible>>())))
    /// });
    /// let mut service = ResponseBodyTimeout::new(&Wheel::new(), Duration::from_secs(2), silent);
    /// let response = service.call(Request::new(Body::empty())).await?;
    /// let error = response.into_body().collect().await.unwrap_err();
    /// assert_eq!(error.to_string(), "timeout has elapsed: no frame of the response body came for 2s");
    /// # Ok(())
    /// # }
    /// ```
    ResponseBodyTimeout
}

impl<S, Sent, B> Service<Sent> for ResponseBodyTimeout<S>
where
    S: Service<Sent, Response = Response<B>>,
{
    type Response = Response<TimeoutBody<B>>;
    type Error = S::Error;
    type Future = ResponseBodyTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Sent) -> Self::Future {
        ResponseBodyTimeoutFuture {
            response: self.inner.call(request),
            layer: self.layer.clone(),
        }
    }
}

pin_project! {
    /// The response future of a [`ResponseBodyTimeout`], whose response has a [`TimeoutBody`].
    ///
    /// # Examples
    ///
    /// ```
    /// use axum::{body::Body, http::{Request, Response}};
    /// use http_body_util::BodyExt;
    /// use std::time::Duration;
    /// use tickwheel::{Wheel, tower::ResponseBodyTimeout};
    /// use tower::{BoxError, Service, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), BoxError> {
    /// let answers = service_fn(async |_| Ok::<_, BoxError>(Response::new(Body::from("pong"))));
    /// let mut service = ResponseBodyTimeout::new(&Wheel::new(), Duration::from_secs(10), answers);
    /// let response = service.call(Request::new(Body::empty())).await?;
    /// assert_eq!(response.into_body().collect().await?.to_bytes(), "pong");
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseBodyTimeoutFuture<F> {
        #[pin]
        response: F,
        layer: ResponseBodyTimeoutLayer,
    }
}

impl<F, B, E> Future for ResponseBodyTimeoutFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<TimeoutBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let ResponseBodyTimeoutLayer { wheel, timeout } = this.layer;
        let limited = |body| TimeoutBody::of("response body", wheel, *timeout, body);
        this.response.poll(cx).map_ok(|response| response.map(limited))
    }
}
