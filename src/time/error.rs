//! The errors of [`tickwheel::time`](crate::time).

use std::{error, fmt, io};

#[doc(no_inline)]
pub use tokio::time::error::Error;

/// The error of a [`timeout`](super::timeout()) that elapsed before its future completed.
///
/// # Examples
///
/// ```
/// use std::{future::pending, io};
/// use tickwheel::time::{Duration, error::Elapsed, timeout};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let error: Elapsed = timeout(Duration::from_millis(10), pending::<()>()).await.unwrap_err();
/// assert_eq!(error.to_string(), "deadline has elapsed");
/// assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
/// # }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl Elapsed {
    pub(crate) fn new() -> Elapsed {
        Elapsed(())
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        "deadline has elapsed".fmt(f)
    }
}

impl error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(_: Elapsed) -> io::Error {
        io::ErrorKind::TimedOut.into()
    }
}
