//! `FallbackSleep`: a sleep that falls back on Tokio's timer if the wheel refuses it.

use std::{
    fmt,
    future::Future,
    panic::catch_unwind,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{self, Instant},
};

use crate::{budget, sleep::Sleep, wheel::Wheel};

impl Wheel {
    /// Waits until `duration` has elapsed, falling back on Tokio's own timer if the wheel refuses the sleep.
    ///
    /// This is [`sleep`](Wheel::sleep) without a `Result`. Use it where code relies on the time having passed when the sleep
    /// completes: in a `select!` arm, a retry, a backoff. On the wheel it is as precise as `sleep`. If the wheel is full, has
    /// been shut down, or is shut down during the sleep, it waits for the same instant on Tokio's timer, to the millisecond.
    ///
    /// There is no such timer in another executor or in a Tokio runtime built without timers. There, a sleep that the wheel
    /// refuses completes at its second poll, for which its task is woken at once.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once, as for [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// The first poll panics outside a Tokio runtime, unless the wheel is already driven or was given a
    /// [`handle`](crate::Builder::handle). Creating the future needs no runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.shutdown();
    ///
    /// let start = std::time::Instant::now();
    /// wheel.sleep_or_tokio(Duration::from_millis(20)).await; // `sleep` would fail at once here
    /// assert!(start.elapsed() >= Duration::from_millis(20));
    /// # }
    /// ```
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep_or_tokio(&self, duration: Duration) -> FallbackSleep {
        FallbackSleep::new(self.sleep(duration))
    }

    /// Waits until `deadline`, falling back on Tokio's own timer if the wheel refuses the sleep.
    ///
    /// This is [`sleep_until`](Wheel::sleep_until) without a `Result`, with the same fallback as
    /// [`sleep_or_tokio`](Wheel::sleep_or_tokio).
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once, as for [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`sleep_or_tokio`](Wheel::sleep_or_tokio).
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
    /// Wheel::new().sleep_until_or_tokio(deadline).await;
    /// assert!(Instant::now() >= deadline);
    /// # }
    /// ```
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep_until_or_tokio(&self, deadline: Instant) -> FallbackSleep {
        FallbackSleep::new(self.sleep_until(deadline))
    }
}

/// The future returned by [`Wheel::sleep_or_tokio`] and [`Wheel::sleep_until_or_tokio`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until the sleep is
/// [`reset`](FallbackSleep::reset). [`Metrics::rejected`](crate::Metrics::rejected) counts the sleeps that the wheel refused.
///
/// # Examples
///
/// ```
/// use tickwheel::{FallbackSleep, Wheel};
/// use std::time::Duration;
///
/// let pause: FallbackSleep = Wheel::new().sleep_or_tokio(Duration::from_secs(1));
/// assert!(!pause.is_elapsed());
/// ```
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct FallbackSleep {
    sleep: Sleep,
    fallback: Fallback,
}

/// The timer that replaces one that the wheel has refused. It is a future, polled after [`begin`](Fallback::begin).
#[derive(Debug)]
pub(crate) enum Fallback {
    /// The wheel has not refused the timer.
    Unused,
    Tokio(Pin<Box<time::Sleep>>),
    /// Tokio has no timer here either. The future completes at its second poll, for which its task is woken.
    Unavailable,
    Due,
    Elapsed,
}

impl Fallback {
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        matches!(self, Fallback::Unused)
    }

    /// Starts Tokio's timer in place of one that the wheel has refused and that would have been due at `deadline`.
    #[cold]
    pub(crate) fn begin(&mut self, deadline: Instant) {
        *self = tokio_sleep(deadline).map_or(Fallback::Unavailable, Fallback::Tokio);
    }

    /// Moves the replacement, if there is one, to a new deadline.
    pub(crate) fn reset(&mut self, deadline: impl FnOnce() -> Instant) {
        match self {
            Fallback::Tokio(tokio_sleep) => tokio_sleep.as_mut().reset(deadline()),
            Fallback::Elapsed => *self = Fallback::Unused,
            Fallback::Unused | Fallback::Unavailable | Fallback::Due => {}
        }
    }
}

impl Future for Fallback {
    type Output = ();

    #[cold]
    #[inline(never)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            Fallback::Tokio(tokio_sleep) => ready!(tokio_sleep.as_mut().poll(cx)),
            Fallback::Unavailable => {
                // A loop around such a timer must let other tasks run.
                *self = Fallback::Due;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Fallback::Unused | Fallback::Due | Fallback::Elapsed => ready!(budget::poll_spend(cx)),
        }
        *self = Fallback::Elapsed;
        Poll::Ready(())
    }
}

impl FallbackSleep {
    #[inline]
    pub(crate) fn new(sleep: Sleep) -> FallbackSleep {
        FallbackSleep {
            sleep,
            fallback: Fallback::Unused,
        }
    }

    /// Returns the instant at which the sleep is due.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// let deadline = Instant::now() + Duration::from_secs(1);
    /// assert_eq!(Wheel::new().sleep_until_or_tokio(deadline).deadline(), deadline);
    /// ```
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// Returns `true` if the deadline has passed.
    ///
    /// As with Tokio's `Sleep`, a sleep that has been neither polled nor reset has not elapsed.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = Wheel::new().sleep_or_tokio(Duration::from_millis(10));
    /// (&mut sleep).await;
    /// assert!(sleep.is_elapsed());
    /// # }
    /// ```
    pub fn is_elapsed(&self) -> bool {
        match &self.fallback {
            Fallback::Unused => self.sleep.is_elapsed(),
            Fallback::Tokio(tokio_sleep) => tokio_sleep.is_elapsed(),
            Fallback::Unavailable | Fallback::Due => false,
            Fallback::Elapsed => true,
        }
    }

    /// Moves the sleep to another deadline, whether or not it has been polled or has completed.
    ///
    /// A later deadline costs one store, as in [`Sleep::reset`](crate::Sleep::reset). A sleep that waits on Tokio's timer stays
    /// there, while a sleep that has completed tries the wheel again. The task that last polled the sleep is woken at the new
    /// deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = Wheel::new().sleep_or_tokio(Duration::from_secs(3600));
    /// sleep.reset(Instant::now() + Duration::from_millis(10));
    /// sleep.await;
    /// # }
    /// ```
    pub fn reset(&mut self, deadline: Instant) {
        self.sleep.reset(deadline);
        self.fallback.reset(|| self.sleep.refused_until());
    }

    /// Moves the sleep to `duration` from now.
    #[cfg(feature = "stream")]
    pub(crate) fn reset_after(&mut self, duration: Duration) {
        self.sleep.reset_after(duration);
        self.fallback.reset(|| self.sleep.refused_until());
    }

    #[cold]
    #[inline(never)]
    fn begin_fallback(&mut self) {
        self.fallback.begin(self.sleep.refused_until());
    }

    /// Cancels the sleep and does not keep it for reuse, so that no later timer of the task is woken at its deadline.
    pub(crate) fn remove(mut self) {
        self.sleep.remove();
    }
}

impl Future for FallbackSleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.fallback.is_unused() {
            match Pin::new(&mut self.sleep).poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => return Poll::Ready(()),
                Poll::Ready(Err(_)) => self.begin_fallback(),
            }
        }
        Pin::new(&mut self.fallback).poll(cx)
    }
}

impl fmt::Debug for FallbackSleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackSleep")
            .field("deadline", &self.deadline())
            .field("fallback", &self.fallback)
            .finish()
    }
}

/// Creates a sleep on Tokio's own timer. Returns `None` where there is no such timer.
pub(crate) fn tokio_sleep(deadline: Instant) -> Option<Pin<Box<time::Sleep>>> {
    Handle::try_current().ok()?;
    // Tokio reports a runtime without timers only by a panic.
    catch_unwind(|| Box::pin(time::sleep_until(deadline))).ok()
}
