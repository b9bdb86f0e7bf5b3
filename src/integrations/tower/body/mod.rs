//! Timeouts and deadlines of bodies: a timeout for the gap between two frames, and the deadline of the
//! request.

mod deadline;
mod timeout;

use std::{error::Error, fmt, io, time::Duration};

use http_body::{Body, Frame};

use crate::deadline::LimitError;

pub(super) use deadline::BodyScope;
pub use deadline::DeadlineBody;
pub use timeout::{
    RequestBodyTimeout, RequestBodyTimeoutLayer, ResponseBodyTimeout, ResponseBodyTimeoutFuture,
    ResponseBodyTimeoutLayer, TimeoutBody,
};

/// What a poll of a body yields.
type Next<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

/// Returns whether `body` yields nothing more after `next`.
fn has_ended<B: Body>(body: &B, next: &Next<B>) -> bool {
    !matches!(next, Some(Ok(_))) || body.is_end_stream()
}

/// The error of a body that did not keep its timeout or its deadline.
///
/// Bodies box their errors, and HTTP libraries wrap them, so look for it along [`source`](Error::source). It
/// converts into an [`io::Error`] of kind `TimedOut`.
///
/// # Examples
///
/// ```
/// use axum::body::{Body, Bytes};
/// use futures::stream;
/// use http_body_util::BodyExt;
/// use std::{convert::Infallible, time::Duration};
/// use tickwheel::{Wheel, deadline::LimitError, tower::{BodyElapsed, TimeoutBody}};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let silent = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
/// let body = TimeoutBody::new(&Wheel::new(), Duration::from_secs(2), silent);
/// let error = body.collect().await.unwrap_err();
/// let elapsed = error.downcast_ref::<BodyElapsed>().unwrap();
/// assert_eq!((elapsed.limit(), elapsed.duration()), (LimitError::Timeout, Duration::from_secs(2)));
/// assert_eq!(error.to_string(), "timeout has elapsed: no frame of the body came for 2s");
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyElapsed {
    limit: LimitError,
    duration: Duration,
    /// What the body is called.
    name: &'static str,
}

impl BodyElapsed {
    fn new(limit: LimitError, duration: Duration, name: &'static str) -> BodyElapsed {
        BodyElapsed {
            limit,
            duration,
            name,
        }
    }

    /// Returns what has elapsed: `Timeout` for the gap between two frames, and `Deadline` for the deadline of
    /// the request.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{deadline::LimitError, tower::BodyElapsed};
    ///
    /// fn is_worth_another_attempt(error: &BodyElapsed) -> bool {
    ///     error.limit() == LimitError::Timeout // past the deadline nobody waits for it
    /// }
    /// ```
    pub fn limit(&self) -> LimitError {
        self.limit
    }

    /// Returns the timeout, or the time that the request had until its deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::tower::BodyElapsed;
    ///
    /// fn log(error: &BodyElapsed) {
    ///     println!("gave up after {} ms", error.duration().as_millis());
    /// }
    /// ```
    pub fn duration(&self) -> Duration {
        self.duration
    }
}

impl fmt::Display for BodyElapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, time) = (self.name, self.duration);
        let elapsed = match self.limit {
            LimitError::Timeout => format!("no frame of the {name} came for {time:?}"),
            LimitError::Deadline => format!("the {name} did not end within the {time:?} of its request"),
        };
        f.pad(&format!("{}: {elapsed}", self.limit))
    }
}

impl Error for BodyElapsed {}

impl From<BodyElapsed> for io::Error {
    fn from(error: BodyElapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, error)
    }
}
