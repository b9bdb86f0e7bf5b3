//! `TrySleep`: a sleep that the wheel may refuse.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{error::SleepError, timers::sleep::Sleep, wheel::Wheel};

impl Wheel {
    /// Waits until `duration` has elapsed, or fails if the wheel refuses to wait.
    ///
    /// This is [`sleep`](Wheel::sleep) for code that sheds load at [`max_pending`](crate::Builder::max_pending) or ends with the
    /// wheel. It is as precise.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep, as for [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`sleep`](Wheel::sleep).
    ///
    /// # Errors
    ///
    /// The future resolves to a [`SleepError`] when the wheel is full or has been shut down. A sleep of zero duration takes no
    /// place in the wheel, so a full wheel does not refuse it, but a wheel that has been shut down does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{SleepError, Wheel};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.shutdown();
    /// assert_eq!(wheel.try_sleep(Duration::from_secs(60)).await, Err(SleepError::Shutdown));
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn try_sleep(&self, duration: Duration) -> TrySleep {
        TrySleep(self.sleep(duration).refusable())
    }

    /// Waits until `deadline`, or fails if the wheel refuses to wait.
    ///
    /// This is [`sleep_until`](Wheel::sleep_until) as [`try_sleep`](Wheel::try_sleep) is [`sleep`](Wheel::sleep).
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep, as for [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`sleep`](Wheel::sleep).
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`try_sleep`](Wheel::try_sleep).
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let deadline = Instant::now() + Duration::from_millis(20);
    /// assert_eq!(Wheel::new().try_sleep_until(deadline).await, Ok(()));
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn try_sleep_until(&self, deadline: Instant) -> TrySleep {
        TrySleep(self.sleep_until(deadline).refusable())
    }
}

/// The future returned by [`Wheel::try_sleep`] and [`Wheel::try_sleep_until`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until the sleep is
/// [`reset`](TrySleep::reset). A poll after a refusal asks the wheel again.
///
/// # Examples
///
/// ```
/// use tickwheel::{TrySleep, Wheel};
/// use std::time::Duration;
///
/// let sleep: TrySleep = Wheel::new().try_sleep(Duration::from_secs(1));
/// assert!(!sleep.is_elapsed());
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct TrySleep(Sleep);

impl TrySleep {
    /// Returns the instant at which the sleep is due.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// assert_eq!(Wheel::new().try_sleep_until(deadline).deadline(), deadline);
    /// ```
    pub fn deadline(&self) -> Instant {
        self.0.deadline()
    }

    /// Returns `true` if the deadline has passed, as [`Sleep::is_elapsed`] does. For a sleep that has failed, it means nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = tickwheel::Wheel::new().try_sleep(std::time::Duration::from_millis(10));
    /// (&mut sleep).await.unwrap();
    /// assert!(sleep.is_elapsed());
    /// # }
    /// ```
    pub fn is_elapsed(&self) -> bool {
        self.0.is_elapsed()
    }

    /// Moves the sleep to another deadline, as [`Sleep::reset`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = Wheel::new().try_sleep(Duration::from_secs(3600));
    /// sleep.reset(Instant::now() + Duration::from_millis(10));
    /// assert_eq!(sleep.await, Ok(()));
    /// # }
    /// ```
    #[inline]
    pub fn reset(&mut self, deadline: Instant) {
        self.0.reset(deadline);
    }

    /// Moves the sleep to `duration` from now, as [`Sleep::reset_after`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = Wheel::new().try_sleep(Duration::from_secs(3600));
    /// sleep.reset_after(Duration::from_millis(10));
    /// assert_eq!(sleep.await, Ok(()));
    /// # }
    /// ```
    pub fn reset_after(&mut self, duration: Duration) {
        self.0.reset_after(duration);
    }
}

impl Future for TrySleep {
    type Output = Result<(), SleepError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.try_poll_after(false, cx)
    }
}
