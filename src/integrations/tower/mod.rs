//! Timeouts and deadlines for tower, on a wheel.
//!
//! [`Timeout`] corresponds to `tower::timeout`, and [`Respond`] answers a late request with a response instead of an error.
//!
//! [`DeadlineLayer`] limits each request to the time that its caller has left, and [`PropagateLayer`] passes the remaining time on to the
//! next service, with the scopes of [`deadline`](crate::deadline). [`DeadlineHeader`] has the headers for both.
//!
//! # Bodies
//!
//! A response is complete for these layers when its head is. The body of it, and that of the request, may take longer, and have limits of
//! their own, for `http` requests and responses whose bodies implement `http_body::Body`:
//!
//! | limit | layer |
//! | --- | --- |
//! | for the gap between two frames | [`RequestBodyTimeoutLayer`], [`ResponseBodyTimeoutLayer`] |
//! | for a whole body: the deadline of its request | [`DeadlineLayer::bodies`], [`PropagateLayer::bodies`] |
//!
//! The body that has run out of time drops what is inside it, and ends with a [`BodyElapsed`].

mod answer;
mod body;
mod deadline;
mod header;
mod layer;
mod layered;
mod propagate;
mod timeout;

use std::{error::Error, time::Duration};

pub use answer::{Answered, Fail, RespondWith};
pub use body::{
    Bodies, BodyElapsed, DeadlineBody, HeadOnly, LimitedResponse, RequestBodyTimeout,
    RequestBodyTimeoutLayer, ResponseBodyTimeout, ResponseBodyTimeoutLayer, TimeoutBody,
};
pub use deadline::{Deadline, DeadlineFuture, DeadlineLayer};
pub use header::DeadlineHeader;
pub use layer::{RespondLayer, TimeoutLayer};
pub use layered::Layered;
pub use propagate::{Propagate, PropagateLayer};
pub use timeout::{Respond, RespondFuture, ResponseFuture, Timeout};

type BoxError = Box<dyn Error + Send + Sync>;

/// The time limit of a request: a [`Duration`], or a closure that computes one from the request.
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
    /// Returns the time limit of `request`.
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
