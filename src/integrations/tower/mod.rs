//! Timeouts and deadlines for tower, on a wheel.
//!
//! [`Timeout`] corresponds to `tower::timeout`, and [`Respond`] answers a late request with a response
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

mod answer;
mod body;
mod deadline;
mod header;
mod propagate;
mod timeout;

use std::error::Error;

pub use answer::{Answered, Fail, RespondWith};
pub use body::{
    BodyElapsed, DeadlineBody, HeadOnly, InScope, LimitedResponse, RequestBodyTimeout,
    RequestBodyTimeoutLayer, ResponseBodyTimeout, ResponseBodyTimeoutLayer, TimeoutBody,
};
pub use deadline::{Deadline, DeadlineFuture, DeadlineLayer};
pub use header::DeadlineHeader;
pub use propagate::{Propagate, PropagateLayer};
pub use timeout::{Respond, RespondFuture, RespondLayer, ResponseFuture, Timeout, TimeoutFor, TimeoutLayer};

type BoxError = Box<dyn Error + Send + Sync>;

/// A service under one of the layers of this module: a [`Timeout`], a [`Deadline`], a
/// [`Propagate`], a [`RequestBodyTimeout`] or a
/// [`ResponseBodyTimeout`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tickwheel::{Wheel, tower::{Layered, TimeoutLayer}};
/// use tower::Layer;
///
/// let layer = TimeoutLayer::new(&Wheel::new(), Duration::from_secs(1));
/// let service: Layered<&str, TimeoutLayer> = layer.layer("a service");
/// ```
#[derive(Clone, Debug)]
pub struct Layered<S, L> {
    inner: S,
    layer: L,
}

impl<S, L> Layered<S, L> {
    /// Returns a reference to the inner service.
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

    /// Returns a mutable reference to the inner service.
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

    /// Consumes this service and returns the inner one.
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
