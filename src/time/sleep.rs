//! `sleep` and `sleep_until` on the global wheel.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Duration, GLOBAL, Instant, require_runtime};
use crate::{engine::clock::Moment, timers::sleep};

/// Waits until `duration` has elapsed, on the global wheel.
///
/// The sleep is never early, and less than one tick of the wheel late plus its slack and the runtime's own
/// delay. A zero duration completes at the next tick. A duration of more than 30 years is taken as 30 years.
/// In every other respect it behaves as `tokio::time::sleep`.
///
/// A sleep is never refused, and goes on for the same instant on the runtime that polls it if the one on
/// which it waits ends.
///
/// # Cancellation
///
/// Dropping the future cancels the sleep at once. As with a [`timeout()`](super::timeout()), the timer that a
/// thread cancelled last may stay in the wheel for the next timer of its task.
///
/// # Panics
///
/// Panics outside a Tokio runtime, with Tokio's message. On one without timers it is the first poll that
/// panics.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, sleep};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// sleep(Duration::from_millis(20)).await;
/// # }
/// ```
#[track_caller]
#[inline]
pub fn sleep(duration: Duration) -> Sleep {
    require_runtime();
    Sleep(sleep::Sleep::after(GLOBAL, Moment::now(), duration))
}

/// Waits until `deadline`, on the global wheel.
///
/// It is as precise as [`sleep`]. If the deadline is in the past, the sleep completes at the first poll. In
/// every other respect it behaves as `tokio::time::sleep_until`.
///
/// # Cancellation
///
/// Dropping the future cancels the sleep, as for [`sleep`].
///
/// # Panics
///
/// Panics in the same cases as [`sleep`].
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, sleep_until};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let deadline = Instant::now() + Duration::from_millis(20);
/// sleep_until(deadline).await;
/// assert!(Instant::now() >= deadline);
/// # }
/// ```
#[track_caller]
#[inline]
pub fn sleep_until(deadline: Instant) -> Sleep {
    require_runtime();
    Sleep(sleep::Sleep::until(GLOBAL, deadline))
}

/// The future returned by [`sleep`] and [`sleep_until`].
///
/// It is used like Tokio's, with `sleep.as_mut().reset(deadline)` on a pinned sleep. Because it is `Unpin`,
/// `(&mut sleep).await` and `Pin::new(&mut sleep).reset(deadline)` also work without pinning it first.
///
/// # Examples
///
/// ```
/// use tickwheel::time::{Duration, Instant, sleep};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let sleep = sleep(Duration::from_secs(60));
/// tokio::pin!(sleep);
/// tokio::select! {
///     () = &mut sleep => unreachable!(),
///     () = std::future::ready(()) => sleep.as_mut().reset(Instant::now() + Duration::from_millis(10)),
/// }
/// sleep.await;
/// # }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Sleep(pub(super) sleep::Sleep);

impl Sleep {
    /// Returns the instant at which the sleep is due.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::time::{Duration, Instant, sleep_until};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// assert_eq!(sleep_until(deadline).deadline(), deadline);
    /// # }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.0.deadline()
    }

    /// Returns `true` if the deadline has passed.
    ///
    /// As with Tokio's `Sleep`, a sleep that has been neither polled nor reset has not elapsed. If the
    /// runtime on which it waited has ended, it elapses only in a poll.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::time::{Duration, sleep};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = sleep(Duration::from_millis(10));
    /// assert!(!sleep.is_elapsed());
    /// (&mut sleep).await;
    /// assert!(sleep.is_elapsed());
    /// # }
    /// ```
    pub fn is_elapsed(&self) -> bool {
        self.0.is_elapsed()
    }

    /// Moves the sleep to another deadline, whether or not it has been polled or has completed.
    ///
    /// A later deadline costs one store: the timer stays in its bucket, and is started anew when its old
    /// deadline comes. An earlier deadline moves the timer at once. The task that last polled the sleep is
    /// woken at the new deadline, or within this call if that has passed. A sleep that had completed must be
    /// polled again to wait for the new deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::pin::Pin;
    /// use tickwheel::time::{Duration, Instant, sleep};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = sleep(Duration::from_secs(3600));
    /// Pin::new(&mut sleep).reset(Instant::now() + Duration::from_millis(10));
    /// sleep.await;
    /// # }
    /// ```
    pub fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().0.reset(deadline);
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}
