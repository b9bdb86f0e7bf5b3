//! `Sleep`: waits for an instant or a duration.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    budget,
    clock::{Moment, Nanos},
    console::Resource,
    error::SleepError,
    shard::{Shard, Timer},
    wheel::Wheel,
};

impl Wheel {
    /// Waits until `duration` has elapsed, as `tokio::time::sleep` does.
    ///
    /// The sleep completes at the first tick that begins at or after its deadline, so it is never early, and less than one tick
    /// late plus the runtime's own delay. Ticks begin on the same millisecond boundaries as Tokio's, so with the default tick of 1
    /// ms it is as precise as Tokio's sleep. A zero duration completes at the first poll. A duration that overflows the clock is
    /// taken as 30 years.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once. As with a [`timeout`](Wheel::timeout), the timer that a thread cancelled last
    /// may stay in the wheel, uncounted, for the next timer of its task.
    ///
    /// # Panics
    ///
    /// The first poll panics outside a Tokio runtime, unless the wheel is already driven or was given a
    /// [`handle`](crate::Builder::handle). Creating the future needs no runtime.
    ///
    /// # Errors
    ///
    /// The future resolves to a [`SleepError`] when the wheel is full or has been shut down. A sleep of zero duration takes no
    /// place in the wheel, so a full wheel does not refuse it, but a wheel that has been shut down does.
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
    /// wheel.sleep(Duration::from_millis(20)).await.unwrap();
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::after(self.shard(), self.shard().now(), duration)
    }

    /// Waits until `deadline`, as `tokio::time::sleep_until` does.
    ///
    /// The sleep completes at the first tick that begins at or after `deadline`, so it is never early, and less than one tick late
    /// plus the runtime's own delay. If `deadline` is in the past, it completes at the first poll or at the next tick.
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
    /// Fails in the same cases as [`sleep`](Wheel::sleep).
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.sleep_until(Instant::now() + Duration::from_millis(20)).await.unwrap();
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        let resource = Resource::new("Sleep", "Wheel::sleep_until");
        resource.lasts(|| deadline.saturating_duration_since(Instant::now()));
        let shard = self.shard();
        Sleep {
            timer: Timer::at(shard, shard.moment_of(deadline)),
            resource,
        }
    }
}

/// The future returned by [`Wheel::sleep`] and [`Wheel::sleep_until`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until the sleep is
/// [`reset`](Sleep::reset).
///
/// # Examples
///
/// An idle timeout, pushed back by traffic:
///
/// ```
/// use tickwheel::Wheel;
/// use tokio::time::{Duration, Instant};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let (sender, mut traffic) = tokio::sync::mpsc::channel(1);
/// tokio::spawn(async move { sender.send("hello").await });
///
/// let mut idle = wheel.sleep(Duration::from_millis(30));
/// let waited = loop {
///     tokio::select! {
///         waited = &mut idle => break waited,
///         Some(_) = traffic.recv() => idle.reset(Instant::now() + Duration::from_millis(30)),
///     }
/// };
/// assert_eq!(waited, Ok(())); // an `Err` does not mean silence: the wheel was full, or was shut down
/// # }
/// ```
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Sleep {
    timer: Timer,
    resource: Resource,
}

impl Sleep {
    /// Creates a sleep that is due `duration` after `start`. If the duration is zero, the sleep completes at the first poll.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn after(shard: &Arc<Shard>, start: Moment, duration: Duration) -> Sleep {
        let resource = Resource::new("Sleep", "Wheel::sleep");
        resource.lasts(|| duration);
        Sleep {
            timer: Timer::after(shard, start, duration),
            resource,
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
    /// assert_eq!(Wheel::new().sleep_until(deadline).deadline(), deadline);
    /// ```
    pub fn deadline(&self) -> Instant {
        self.timer.deadline()
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
    /// let mut sleep = Wheel::new().sleep(Duration::from_millis(10));
    /// assert!(!sleep.is_elapsed());
    /// (&mut sleep).await.unwrap();
    /// assert!(sleep.is_elapsed());
    /// # }
    /// ```
    pub fn is_elapsed(&self) -> bool {
        self.timer.is_elapsed()
    }

    /// Moves the sleep to another deadline, whether or not it has been polled or has completed.
    ///
    /// A later deadline costs one store: the timer stays in its bucket, and is re-armed when its old deadline comes. An earlier
    /// deadline moves the timer at once. The task that last polled the sleep is woken at the new deadline, or within this call if
    /// that has passed. A sleep that had completed must be polled again to wait for the new deadline.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = Wheel::new().sleep(Duration::from_secs(3600));
    /// sleep.reset(Instant::now() + Duration::from_millis(10));
    /// sleep.await.unwrap();
    /// # }
    /// ```
    #[inline]
    pub fn reset(&mut self, deadline: Instant) {
        self.reset_to(self.timer.shard().moment_of(deadline));
    }

    /// Moves the sleep to a deadline that is already a moment of the shard's clock.
    #[inline]
    pub(crate) fn reset_to(&mut self, deadline: Moment) {
        let shard = self.timer.shard();
        let until = || {
            shard
                .instant_of(deadline)
                .saturating_duration_since(Instant::now())
        };
        self.resource.restart("Sleep::reset", until);
        self.timer.reset(deadline);
    }

    /// Moves the sleep to `duration` from now.
    pub(crate) fn reset_after(&mut self, duration: Duration) {
        let deadline = self.timer.shard().now().after(Nanos::passed(duration));
        if duration.is_zero() {
            self.reset_immediately(deadline);
        } else {
            self.reset_to(deadline);
        }
    }

    /// Moves the sleep to `deadline`, which has already passed, so that the next poll completes it.
    pub(crate) fn reset_immediately(&mut self, deadline: Moment) {
        self.resource.restart("Sleep::reset", || Duration::ZERO);
        self.timer.reset_immediately(deadline);
    }

    /// Polls the sleep without regard to the task's budget.
    #[inline]
    pub(crate) fn poll_elapsed(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        let timer = &mut self.timer;
        self.resource.poll(|| timer.poll(waker))
    }

    /// Cancels the sleep and does not keep it for reuse, so that no later timer of the task is woken at its deadline.
    pub(crate) fn remove(&mut self) {
        self.timer.remove();
    }

    /// Returns when a refused sleep would have been due, by the clock of the caller.
    pub(crate) fn refused_until(&self) -> Instant {
        self.timer.refused_until()
    }

    /// Converts the deadline to wheel time, unless that is done. Starts a driver to do so if there is none.
    pub(crate) fn settle(&mut self) {
        self.timer.settle();
    }

    pub(crate) fn shard(&self) -> &Shard {
        self.timer.shard()
    }

    /// Returns the deadline.
    #[inline]
    pub(crate) fn due(&self) -> Moment {
        self.timer.due()
    }
}

impl Future for Sleep {
    type Output = Result<(), SleepError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Sleep { timer, resource } = &mut *self;
        resource.poll(|| {
            // A poll that leaves the sleep pending spends no budget.
            match timer.waits(cx.waker()) {
                true => Poll::Pending,
                false => poll_locked(timer, cx),
            }
        })
    }
}

/// Polls a sleep that may have to do more than stay pending.
#[inline(never)]
fn poll_locked(timer: &mut Timer, cx: &mut Context<'_>) -> Poll<Result<(), SleepError>> {
    if timer.takes_over(cx.waker()) {
        return Poll::Pending;
    }
    ready!(budget::poll_left(cx));
    let outcome = ready!(timer.poll_locked(cx.waker()));
    ready!(budget::poll_spend(cx));
    Poll::Ready(outcome)
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline())
            .field("progress", &self.timer.progress())
            .finish()
    }
}
