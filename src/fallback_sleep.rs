//! `FallbackSleep`: a sleep that waits on Tokio's timer if the wheel refuses it.

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
    /// Waits until `duration` has elapsed, on Tokio's own timer where the wheel refuses.
    ///
    /// This is [`sleep`](Wheel::sleep) without a `Result`. Use it where the end of a sleep must mean that its time is over: in a
    /// `select!` arm, a retry, a backoff. On the wheel it is as precise as `sleep`. If the wheel is full or has been shut down,
    /// it waits for the same instant on Tokio's timer, to the millisecond. The same happens if the wheel is shut down meanwhile.
    ///
    /// Another executor, or a Tokio runtime built without timers, has no such timer. If the wheel refuses a sleep there, it
    /// completes at its second poll, and its task is woken for that at once.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once, as that of [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// The first poll panics outside a Tokio runtime, unless the wheel is driven already or was given a
    /// [`handle`](crate::Builder::handle). Making the future needs no runtime.
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
    /// wheel.sleep_or_tokio(Duration::from_millis(20)).await; // where `sleep` would fail at once
    /// assert!(start.elapsed() >= Duration::from_millis(20));
    /// # }
    /// ```
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep_or_tokio(&self, duration: Duration) -> FallbackSleep {
        FallbackSleep::new(self.sleep(duration))
    }

    /// Waits until `deadline`, on Tokio's own timer where the wheel refuses.
    ///
    /// This is [`sleep_until`](Wheel::sleep_until) without a `Result`: see [`sleep_or_tokio`](Wheel::sleep_or_tokio).
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once, as that of [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// As [`sleep_or_tokio`](Wheel::sleep_or_tokio) does.
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
/// It is `Unpin`, and dropping it cancels it. After it has completed, every poll is ready at once, until it is
/// [`reset`](FallbackSleep::reset). [`Metrics::rejected`](crate::Metrics::rejected) counts what the wheel refused.
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

/// What a timer waits on once its wheel has refused it. A future, to be polled after [`begin`](Fallback::begin).
#[derive(Debug)]
pub(crate) enum Fallback {
    /// The wheel has not refused the timer.
    Unused,
    Tokio(Pin<Box<time::Sleep>>),
    /// There is no timer of Tokio's here either. The timer ends at its second poll, for which its task is woken.
    Unavailable,
    Due,
    Elapsed,
}

impl Fallback {
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        matches!(self, Fallback::Unused)
    }

    /// The wheel has refused a timer that would have been due at `deadline`.
    #[cold]
    pub(crate) fn begin(&mut self, deadline: Instant) {
        *self = tokio_sleep(deadline).map_or(Fallback::Unavailable, Fallback::Tokio);
    }

    /// The timer was reset.
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

    /// Returns `true` if the sleep's deadline has come. As with Tokio's, a sleep that was neither polled nor reset has not elapsed.
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

    /// Moves the sleep to another deadline, before or after it was polled, and also after it completed.
    ///
    /// A later deadline costs one store, as in [`Sleep::reset`](crate::Sleep::reset). A sleep that waits on Tokio's timer goes
    /// on waiting there. One that has completed tries the wheel again. The task that polled the sleep last is woken for the new
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

    /// Cancels the sleep, and does not keep it for reuse: no later timer of the task is woken at its deadline.
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

/// Makes a sleep on Tokio's own timer. Returns `None` if there is no such timer.
pub(crate) fn tokio_sleep(deadline: Instant) -> Option<Pin<Box<time::Sleep>>> {
    Handle::try_current().ok()?;
    // Tokio reports a runtime without timers only by a panic.
    catch_unwind(|| Box::pin(time::sleep_until(deadline))).ok()
}
