//! `timeout`: a timeout for one call, which is never longer than the remaining time of its scope.

use std::{
    error, fmt, io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{Within, current, within};

/// Requires `future` to complete before `duration` has passed since its first poll, or before the deadline of
/// the current scope.
///
/// The error tells which of the two came first, so that a caller can retry after a timeout and give up at the
/// deadline. The timeout is a scope itself: inside it, [`current`](super::current) is the sooner of the two.
/// In every other respect it behaves as [`within`](super::within) does.
///
/// # Cancellation
///
/// Dropping the timeout drops the future and cancels the timer, as for [`within`](super::within).
///
/// # Panics
///
/// Panics in the same cases as [`within`](super::within).
///
/// # Errors
///
/// The future resolves to a [`LimitError`] when the time runs out. The error is `Deadline` if the deadline of
/// the enclosing scope is not later than that of the call.
///
/// # Examples
///
/// ```
/// use std::{future::pending, time::Duration};
/// use tickwheel::deadline::{self, LimitError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// deadline::within(Duration::from_millis(30), async {
///     let first = deadline::timeout(Duration::from_millis(20), pending::<()>()).await;
///     assert_eq!(first, Err(LimitError::Timeout));
///     let second = deadline::timeout(Duration::from_millis(20), pending::<()>()).await;
///     assert_eq!(second, Err(LimitError::Deadline));
/// })
/// .await
/// .unwrap();
/// # }
/// ```
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Limited<F::IntoFuture> {
    Limited {
        within: within(duration, future),
    }
}

pin_project! {
    /// The future returned by [`timeout`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels it.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::{future::{Ready, ready}, time::Duration};
    /// use tickwheel::deadline::{Limited, timeout};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limited: Limited<Ready<u8>> = timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(limited.await, Ok(7));
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Limited<F> {
        #[pin]
        within: Within<F>,
    }
}

impl<F: Future> Future for Limited<F> {
    type Output = Result<F::Output, LimitError>;

    #[track_caller]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut within = self.project().within;
        within.as_mut().poll(cx).map_err(|_| {
            if current().is_some_and(|outer| Some(outer) <= within.scoped.deadline) {
                LimitError::Deadline
            } else {
                LimitError::Timeout
            }
        })
    }
}

/// The error of a [`timeout`], which tells whether the timeout or the deadline has elapsed.
///
/// # Examples
///
/// ```
/// use std::io;
/// use tickwheel::deadline::LimitError;
///
/// assert_eq!(LimitError::Timeout.to_string(), "timeout has elapsed");
/// assert_eq!(io::Error::from(LimitError::Deadline).kind(), io::ErrorKind::TimedOut);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The timeout of the call itself elapsed, so there is time for another call.
    Timeout,
    /// The deadline of the enclosing scope has passed.
    Deadline,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LimitError::Timeout => "timeout has elapsed",
            LimitError::Deadline => "deadline has elapsed",
        })
    }
}

impl error::Error for LimitError {}

impl From<LimitError> for io::Error {
    fn from(error: LimitError) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, error)
    }
}
