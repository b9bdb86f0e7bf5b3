//! `timeout`: a limit for one call, which is never longer than what is left.

use std::{
    error, fmt,
    future::{Future, IntoFuture},
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{Within, current, within};

/// Requires `future` to complete before `duration` has passed since its first poll, or before the deadline of the current scope.
///
/// It says which of the two came first, so that a caller retries after a timeout, and gives up at the deadline. It is a scope itself:
/// inside, [`current`](super::current) is the sooner of the two. All else is as in [`within`](super::within).
///
/// # Cancellation
///
/// As [`within`](super::within).
///
/// # Panics
///
/// As [`within`](super::within) does.
///
/// # Errors
///
/// It resolves to a [`LimitError`] when the time runs out: to `Deadline` if that of a scope around is not later than its own.
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
    /// It is `Unpin` if the future inside is, and dropping it cancels it.
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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut within = self.project().within;
        within.as_mut().poll(cx).map_err(|_| {
            match current().is_some_and(|outer| Some(outer) <= within.deadline()) {
                true => LimitError::Deadline,
                false => LimitError::Timeout,
            }
        })
    }
}

/// Which limit of a [`timeout`] has elapsed.
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
    /// That of the call. There is time for another one.
    Timeout,
    /// The deadline of the scope around.
    Deadline,
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
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
