//! Timeouts and deadlines for tower, on a wheel.
//!
//! [`TimeoutLayer`] corresponds to that of `tower::timeout`, and may answer a late request with a response
//! instead of an error.
//!
//! [`DeadlineLayer`] limits each request to the time that its caller has left, and [`PropagateLayer`] passes
//! the remaining time on to the next service, with the scopes of [`deadline`](crate::deadline).
//! [`DeadlineHeader`] has the headers for both.
//!
//! # Bodies
//!
//! A response is complete for these layers when its head is. The body of it, and that of the request, may
//! take longer, and have timeouts of their own, for `http` requests and responses whose bodies implement
//! `http_body::Body`:
//!
//! | timeout or deadline | layer |
//! | --- | --- |
//! | for the gap between two frames | [`RequestBodyTimeoutLayer`], [`ResponseBodyTimeoutLayer`] |
//! | for a whole body: the deadline of its request | [`DeadlineLayer::bodies`], [`PropagateLayer::bodies`] |
//!
//! The body that has run out of time drops what is inside it, and ends with a [`BodyElapsed`].

mod body;
mod deadline;
mod header;
mod propagate;
mod timeout;

use std::error::Error;

pub use body::{
    BodyElapsed, DeadlineBody, RequestBodyTimeout, RequestBodyTimeoutLayer, ResponseBodyTimeout,
    ResponseBodyTimeoutFuture, ResponseBodyTimeoutLayer, TimeoutBody,
};
pub use deadline::{Deadline, DeadlineFuture, DeadlineLayer};
pub use header::DeadlineHeader;
pub use propagate::{Propagate, PropagateFuture, PropagateLayer};
pub use timeout::{Timeout, TimeoutFuture, TimeoutLayer};

type BoxError = Box<dyn Error + Send + Sync>;

/// Makes a service that of its layer, and gives it access to the service inside, and `Debug`, for which a
/// closure need not be `Debug`. `$example` creates one around `"a service"`.
macro_rules! wraps_a_service {
    ($Service:ident by $Layer:ident<$($G:ident),*>, $($example:tt)+) => {
        impl<S, $($G: Clone),*> Layer<S> for $Layer<$($G),*> {
            type Service = $Service<S, $($G),*>;

            fn layer(&self, inner: S) -> $Service<S, $($G),*> {
                let layer = self.clone();
                $Service { inner, layer }
            }
        }

        impl<S, $($G),*> $Service<S, $($G),*> {
            /// Returns a reference to the service inside.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("let service = ", $($example)+, ";")]
            /// assert_eq!(*service.get_ref(), "a service");
            /// # use tower::Layer;
            /// ```
            pub fn get_ref(&self) -> &S {
                &self.inner
            }

            /// Returns a mutable reference to the service inside.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("let mut service = ", $($example)+, ";")]
            /// *service.get_mut() = "another";
            /// # use tower::Layer;
            /// ```
            pub fn get_mut(&mut self) -> &mut S {
                &mut self.inner
            }

            /// Consumes this service and returns the one inside.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("let service = ", $($example)+, ";")]
            /// assert_eq!(service.into_inner(), "a service");
            /// # use tower::Layer;
            /// ```
            pub fn into_inner(self) -> S {
                self.inner
            }
        }

        impl<S, $($G),*> std::fmt::Debug for $Service<S, $($G),*>
        where
            S: std::fmt::Debug,
        {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($Service))
                    .field("inner", &self.inner)
                    .field("layer", &self.layer)
                    .finish()
            }
        }
    };
}
use wraps_a_service;

/// Implements `Service` for a service that may run out of time, without `respond_with` and with it. `$D` is
/// the closure that returns the `$Time` of a request.
macro_rules! serves_in_time {
    (
        impl[$($D:ident: $Time:ty)?] $Service:ident<S, $Duration:ty> => $Future:ident,
        |$service:ident, $request:ident| $call:expr
    ) => {
        impl<S, $($D,)? Request> Service<Request> for $Service<S, $Duration>
        where
            S: Service<Request, Error: Into<BoxError>>,
            $($D: Fn(&Request) -> $Time,)?
        {
            type Response = S::Response;
            type Error = BoxError;
            type Future = $Future<S::Future>;

            fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
                self.inner.poll_ready(cx).map_err(Into::into)
            }

            fn call(&mut self, $request: Request) -> Self::Future {
                let $service = self;
                $call
            }
        }

        impl<S, $($D,)? R, Request> Service<Request> for $Service<S, $Duration, R>
        where
            S: Service<Request>,
            $($D: Fn(&Request) -> $Time,)?
            R: Fn(Elapsed) -> S::Response + Clone,
        {
            type Response = S::Response;
            type Error = S::Error;
            type Future = $Future<S::Future, R>;

            fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
                self.inner.poll_ready(cx)
            }

            fn call(&mut self, $request: Request) -> Self::Future {
                let $service = self;
                $call
            }
        }
    };
}
use serves_in_time;

/// Implements `Future` for the response future of such a service, whose field `response` completes with an
/// `Elapsed` if there is no time left.
macro_rules! responds_in_time {
    ($Future:ident) => {
        impl<F, T, E> Future for $Future<F>
        where
            F: Future<Output = Result<T, E>>,
            E: Into<BoxError>,
        {
            type Output = Result<T, BoxError>;

            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let in_time = ready!(self.project().response.poll(cx));
                Poll::Ready(in_time?.map_err(Into::into))
            }
        }

        impl<F, R, T, E> Future for $Future<F, R>
        where
            F: Future<Output = Result<T, E>>,
            R: Fn(Elapsed) -> T,
        {
            type Output = Result<T, E>;

            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                let this = self.project();
                let in_time = ready!(this.response.poll(cx));
                Poll::Ready(in_time.unwrap_or_else(|elapsed| Ok((this.respond)(elapsed))))
            }
        }
    };
}
use responds_in_time;
