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

/// Gives a service of this module its access to the service inside, and `Debug`, for which a closure need not
/// be `Debug`. `$example` creates one around `"a service"`.
macro_rules! wraps_a_service {
    (impl[$($generics:tt)*] $Service:ident<$($arguments:ident),*>, $example:literal) => {
        impl<$($generics)*> $Service<$($arguments),*> {
            /// Returns a reference to the service inside.
            ///
            /// # Examples
            ///
            /// ```
            #[doc = concat!("let service = ", $example, ";")]
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
            #[doc = concat!("let mut service = ", $example, ";")]
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
            #[doc = concat!("let service = ", $example, ";")]
            /// assert_eq!(service.into_inner(), "a service");
            /// # use tower::Layer;
            /// ```
            pub fn into_inner(self) -> S {
                self.inner
            }
        }

        impl<$($generics)*> std::fmt::Debug for $Service<$($arguments),*>
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
