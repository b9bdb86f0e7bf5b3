//! `timeout` and `timeout_at` on the current wheel.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::task::coop;

use super::{Duration, Instant, error::Elapsed};
use crate::{
    budget::poll_after, console::Caller, current, error::TimeoutError, fallback_sleep::Fallback, timeout,
};

/// Requires `future` to complete before `duration` has elapsed, on the wheel of the current runtime.
///
/// As in `tokio::time::timeout`, the future is polled first, and if it is ready, the timeout succeeds whatever the duration.
/// Unlike there, the duration counts from the first pending poll. The timeout elapses at a tick of the wheel: never early, and
/// less than one tick late plus the runtime's own delay; a wheel that is busy with timeouts adds up to 10 ms (or a tick if that is
/// longer) to durations of 100 times as much. A zero duration elapses at the first pending poll. A duration that overflows the clock is taken as 30 years.
///
/// A timeout cannot be refused: if the wheel is full or has been shut down, the timeout waits on Tokio's timer.
///
/// # Cancellation
///
/// Dropping the timeout drops the future and cancels the timer at once. The timer that a thread cancelled last may stay in the
/// wheel for the next timer of its task, until its deadline at the latest. While it stays, it keeps a clone of the task's waker.
///
/// # Panics
///
/// Panics outside a Tokio runtime, and on one without timers, with Tokio's message.
///
/// # Errors
///
/// The timeout resolves to [`Elapsed`] when the time runs out.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, timeout};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let (sender, receiver) = tokio::sync::oneshot::channel::<&str>();
///
/// if let Err(_) = timeout(Duration::from_millis(10), receiver).await {
///     println!("no answer");
/// }
/// # drop(sender);
/// # }
/// ```
#[track_caller]
#[inline]
pub fn timeout<F>(duration: Duration, future: F) -> Timeout<F::IntoFuture>
where
    F: IntoFuture,
{
    let _caller = Caller::here();
    Timeout {
        timeout: current::with_wheel(|wheel| wheel.timeout(duration, future)),
        fallback: Fallback::Unused,
    }
}

/// Requires `future` to complete before `deadline`, on the wheel of the current runtime.
///
/// As in `tokio::time::timeout_at`, the future is polled first, and succeeds if it is ready, even past the deadline. The timeout
/// is never early, and less than one tick late plus the runtime's own delay.
///
/// # Cancellation
///
/// Dropping the timeout drops the future and cancels the timer at once.
///
/// # Panics
///
/// Panics in the same cases as [`timeout`].
///
/// # Errors
///
/// Fails in the same cases as [`timeout`].
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, timeout_at};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let deadline = Instant::now() + Duration::from_millis(20);
/// assert!(timeout_at(deadline, std::future::pending::<()>()).await.is_err());
/// assert!(Instant::now() >= deadline);
/// # }
/// ```
#[track_caller]
#[inline]
pub fn timeout_at<F>(deadline: Instant, future: F) -> Timeout<F::IntoFuture>
where
    F: IntoFuture,
{
    let _caller = Caller::here();
    Timeout {
        timeout: current::with_wheel(|wheel| wheel.timeout_at(deadline, future)),
        fallback: Fallback::Unused,
    }
}

pin_project! {
    /// The future returned by [`timeout`] and [`timeout_at`].
    ///
    /// It is `Unpin` if the wrapped future is, and dropping it cancels the timeout.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::future::{Ready, ready};
    /// use tickwheel::time::{Duration, Timeout, timeout};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let answer: Timeout<Ready<u8>> = timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(answer.await, Ok(7));
    /// # }
    /// ```
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct Timeout<T> {
        #[pin]
        timeout: timeout::Timeout<T>,
        fallback: Fallback,
    }
}

impl<T> Timeout<T> {
    /// Returns a reference to the wrapped future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::future::ready;
    /// # use tickwheel::time::{Duration, timeout};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let timeout = timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(format!("{:?}", timeout.get_ref()), "Ready(Some(7))");
    /// # }
    /// ```
    pub fn get_ref(&self) -> &T {
        self.timeout.get_ref()
    }

    /// Returns a mutable reference to the wrapped future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::future::ready;
    /// # use tickwheel::time::{Duration, timeout};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut timeout = timeout(Duration::from_secs(1), ready(7));
    /// *timeout.get_mut() = ready(8);
    /// assert_eq!(timeout.await, Ok(8));
    /// # }
    /// ```
    pub fn get_mut(&mut self) -> &mut T {
        self.timeout.get_mut()
    }

    /// Consumes the timeout, cancels its timer, and returns the wrapped future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::future::ready;
    /// # use tickwheel::time::{Duration, timeout};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let timeout = timeout(Duration::from_secs(1), ready(7));
    /// assert_eq!(timeout.into_inner().await, 7);
    /// # }
    /// ```
    pub fn into_inner(self) -> T {
        self.timeout.into_inner()
    }
}

impl<T> Future for Timeout<T>
where
    T: Future,
{
    type Output = Result<T::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if !this.fallback.is_unused() {
            return poll_fallback(this.timeout.future(), this.fallback, cx);
        }
        match ready!(this.timeout.as_mut().poll(cx)) {
            Ok(output) => Poll::Ready(Ok(output)),
            Err(TimeoutError::Elapsed) => Poll::Ready(Err(Elapsed::new())),
            Err(TimeoutError::AtCapacity { .. } | TimeoutError::Shutdown) => {
                this.fallback.begin(this.timeout.refused_until());
                // The wheel was polled and has refused, which only happens while there is budget left.
                poll_after(true, Pin::new(this.fallback), cx).map(|()| Err(Elapsed::new()))
            }
        }
    }
}

#[cold]
fn poll_fallback<T: Future>(
    future: Pin<&mut T>,
    fallback: &mut Fallback,
    cx: &mut Context<'_>,
) -> Poll<Result<T::Output, Elapsed>> {
    let had_budget = coop::has_budget_remaining();
    match future.poll(cx) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => poll_after(had_budget, Pin::new(fallback), cx).map(|()| Err(Elapsed::new())),
    }
}

impl<T: fmt::Debug> fmt::Debug for Timeout<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timeout.fmt(f)
    }
}
