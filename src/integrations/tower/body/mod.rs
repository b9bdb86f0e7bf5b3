//! Time limits for bodies: a timeout for the gap between two frames, and the deadline of the request.

mod deadline;
mod elapsed;
mod response;
mod timeout;

use http_body::{Body, Frame};

pub use deadline::{Bodies, DeadlineBody, HeadOnly};
pub(super) use deadline::{Limit, Unlimited};
pub use elapsed::BodyElapsed;
pub use response::LimitedResponse;
pub use timeout::{
    RequestBodyTimeout, RequestBodyTimeoutLayer, ResponseBodyTimeout, ResponseBodyTimeoutLayer, TimeoutBody,
};

/// What a poll of a body yields.
type Next<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// Returns whether `body` yields nothing more after `next`.
fn has_ended<B: Body>(body: &B, next: &Next<B>) -> bool {
    !matches!(next, Some(Ok(_))) || body.is_end_stream()
}
