//! The crate `pingora-timeout`, on a [`tickwheel`] timing wheel.
//!
//! It replaces that crate for a whole program, `pingora-core` included:
//!
//! ```toml
//! [patch.crates-io]
//! pingora-timeout = { path = "../tickwheel/crates/pingora-timeout" }
//! ```
//!
//! Programs and their dependencies then use it as they used the original:
//!
//! ```
//! use pingora_timeout::timeout;
//! use std::{future::pending, time::Duration};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! assert!(timeout(Duration::from_millis(10), pending::<()>()).await.is_err());
//! # }
//! ```
//!
//! A timer that is first polled in a Tokio runtime is on [`tickwheel::Wheel::global`], and driven by that
//! runtime. Any other is on one wheel that all such timers share, which a thread of its own drives. One of
//! more than 15 minutes uses Tokio's timer, unless the threshold is set otherwise, and so needs a runtime.
//!
//! What differs from the original:
//!
//! - A timer is less than one tick of its wheel late, 1 ms unless [`tickwheel::Builder::build_global`] says
//!   otherwise, and its slack of a thousandth of its duration. The original rounds up to 10 ms.
//! - A timer that is dropped leaves the wheel. The original keeps it until its time comes.
//! - In a runtime no thread of its own wakes every 10 ms, and timers go by the runtime's clock, so
//!   `tokio::time::pause` applies. The runtime must have its timers enabled (`enable_time`).
//!
//! Code of your own needs no replacement: [`tickwheel::time`] has the same functions, and
//! `docs/migrating.md` in the repository compares the two.

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod delay;
pub mod fast_timeout;
#[path = "../../futures-timer/src/own_thread.rs"]
mod own_thread;
pub mod timer;

use std::{
    error, fmt,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::{
    task::coop,
    time::{Duration, sleep as tokio_sleep},
};

#[doc(hidden)]
pub use delay::Delay;
pub use fast_timeout::{fast_sleep as sleep, fast_timeout as timeout};

/// Makes the timer of a [`Timeout`].
pub trait ToTimeout {
    /// Starts the timer.
    fn timeout(&self) -> Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

    /// Creates the timer's settings.
    fn create(d: Duration) -> Self;

    /// The same as `timeout`, without a box if it can.
    #[doc(hidden)]
    fn delay(&self) -> Delay {
        Delay::boxed(self.timeout())
    }
}

/// The timer of a [`tokio_timeout`].
#[derive(Debug)]
pub struct TokioTimeout(Duration);

impl ToTimeout for TokioTimeout {
    fn timeout(&self) -> Pin<Box<dyn Future<Output = ()> + Send + Sync>> {
        Box::pin(tokio_sleep(self.0))
    }

    fn create(d: Duration) -> TokioTimeout {
        TokioTimeout(d)
    }
}

/// The error of a timeout that has elapsed.
///
/// # Examples
///
/// ```
/// assert_eq!(pingora_timeout::Elapsed.to_string(), "Timeout Elapsed");
/// ```
#[derive(Debug)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timeout Elapsed")
    }
}

impl error::Error for Elapsed {}

/// Limits a future to a duration, by Tokio's timer.
///
/// The timer starts at the first poll that finds the future pending.
///
/// # Examples
///
/// ```
/// use pingora_timeout::tokio_timeout;
/// use std::{future::pending, time::Duration};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// assert!(tokio_timeout(Duration::from_millis(10), pending::<()>()).await.is_err());
/// # }
/// ```
pub fn tokio_timeout<T>(duration: Duration, future: T) -> Timeout<T, TokioTimeout>
where
    T: Future,
{
    Timeout::new(future, TokioTimeout::create(duration))
}

pin_project! {
    /// The future returned by [`timeout`] and [`tokio_timeout`].
    ///
    /// # Cancellation
    ///
    /// Dropping it drops the future inside and cancels the timer at once.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Timeout<T, F> {
        #[pin]
        value: T,
        delay: Option<Delay>,
        callback: F,
    }
}

impl<T, F> Timeout<T, F> {
    pub(crate) fn new(value: T, callback: F) -> Timeout<T, F> {
        Timeout {
            value,
            delay: None,
            callback,
        }
    }
}

impl<T, F> Future for Timeout<T, F>
where
    T: Future,
    F: ToTimeout,
{
    type Output = Result<T::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let had_budget = coop::has_budget_remaining();
        if let Poll::Ready(value) = this.value.poll(cx) {
            return Poll::Ready(Ok(value));
        }
        let delay = this.delay.get_or_insert_with(|| this.callback.delay());
        // A future that uses up the task's budget each time must elapse too.
        let polled = if had_budget && !coop::has_budget_remaining() {
            pin!(coop::unconstrained(delay)).poll(cx)
        } else {
            Pin::new(delay).poll(cx)
        };
        polled.map(|()| Err(Elapsed))
    }
}

impl<T, F> fmt::Debug for Timeout<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timeout").finish_non_exhaustive()
    }
}
