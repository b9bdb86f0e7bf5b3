//! `BodyElapsed`: the error of a body that a time limit has ended.

use std::{error::Error, fmt, io, time::Duration};

use crate::deadline::LimitError;

/// The error of a body that did not keep a time limit.
///
/// Bodies box their errors, and HTTP libraries wrap them, so look for it along [`source`](Error::source). It converts into an
/// [`io::Error`] of kind `TimedOut`.
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
    subject: Subject,
}

/// Which body it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Request,
    Response,
    Unknown,
}

impl BodyElapsed {
    pub(super) fn new(limit: LimitError, duration: Duration, subject: Subject) -> BodyElapsed {
        BodyElapsed {
            limit,
            duration,
            subject,
        }
    }

    /// Returns the limit that has elapsed: `Timeout` for the gap between two frames, and `Deadline` for the deadline of the request.
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
        let BodyElapsed { limit, duration, .. } = self;
        let body = match self.subject {
            Subject::Request => "request body",
            Subject::Response => "response body",
            Subject::Unknown => "body",
        };
        f.pad(&match limit {
            LimitError::Timeout => format!("{limit}: no frame of the {body} came for {duration:?}"),
            LimitError::Deadline => {
                format!("{limit}: the {body} did not end within the {duration:?} of its request")
            }
        })
    }
}

impl Error for BodyElapsed {}

impl From<BodyElapsed> for io::Error {
    fn from(error: BodyElapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, error)
    }
}
