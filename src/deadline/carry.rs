//! `carry`: takes the caller's scope along into a spawned task.

use std::future::IntoFuture;

use super::{Within, current, within::End};

/// Wraps `future` in the caller's scope, for a task that is to be spawned.
///
/// The future has until the deadline that is [`current`] at the call, and keeps that deadline after the caller's scope has ended,
/// so a task ends when its parent would. Outside a scope there is no limit. If the future is polled inside another scope, the
/// sooner of the two deadlines holds. In every other respect it is a scope like that of [`until`](super::until). The caller's
/// scope does not wait for a [`shield`](super::shield()) inside the carried future, unless it awaits that future itself.
///
/// # Cancellation
///
/// Dropping the future drops the wrapped future inside its scope, as for [`within`](super::within).
///
/// # Panics
///
/// Panics in the same cases as [`within`](super::within).
///
/// # Errors
///
/// The future resolves to [`Elapsed`](crate::time::error::Elapsed) at the deadline.
///
/// # Examples
///
/// ```
/// use std::{future::pending, time::Duration};
/// use tickwheel::deadline;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let task = deadline::within(Duration::from_millis(20), async {
///     tokio::spawn(deadline::carry(pending::<()>()))
/// });
/// let outcome = task.await.unwrap().await.unwrap();
/// assert!(outcome.is_err(), "the task ends 20 ms after the start, though its parent has ended before");
/// # }
/// ```
pub fn carry<F: IntoFuture>(future: F) -> Carried<F::IntoFuture> {
    Within::new(End::At(current()), Some(future.into_future()))
}

/// The future returned by [`carry`].
///
/// It is `Unpin` if the wrapped future is, and dropping it cancels it.
///
/// # Examples
///
/// ```
/// use std::future::{Ready, ready};
/// use tickwheel::deadline::{Carried, carry};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let carried: Carried<Ready<u8>> = carry(ready(7));
/// assert_eq!(carried.await, Ok(7), "there is no scope here, and so no limit");
/// # }
/// ```
pub type Carried<F> = Within<F>;
