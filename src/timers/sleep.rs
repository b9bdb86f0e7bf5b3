//! `Sleep`: waits for an instant or a duration.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::{
        clock::{Moment, Nanos},
        shard::{ShardRef, Timer},
    },
    error::SleepError,
    timers::{console::Resource, fallback::FallbackTimer},
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
    /// A sleep cannot fail. If the wheel is full, has been shut down, or is shut down during the sleep, the sleep waits for the
    /// same instant on Tokio's own timer, to the millisecond. There is no such timer in another executor or in a Tokio runtime
    /// built without timers. There, a sleep that the wheel refuses completes at its second poll, for which its task is woken at
    /// once. Use [`try_sleep`](Wheel::try_sleep) to hear of a refusal.
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
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// wheel.sleep(Duration::from_millis(20)).await;
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep::after(self.shard(), self.shard().now(), duration)
    }

    /// Waits until `deadline`, as `tokio::time::sleep_until` does.
    ///
    /// The sleep completes at the first tick that begins at or after `deadline`, so it is never early, and less than one tick late
    /// plus the runtime's own delay. If `deadline` is in the past, it completes at the first poll or at the next tick. Like
    /// [`sleep`](Wheel::sleep), it waits on Tokio's timer if the wheel refuses it.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep, as for [`sleep`](Wheel::sleep).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`sleep`](Wheel::sleep).
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
    /// Wheel::new().sleep_until(deadline).await;
    /// assert!(Instant::now() >= deadline);
    /// # }
    /// ```
    #[cfg_attr(feature = "console", track_caller)]
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep::until(
            self.shard(),
            deadline,
            Resource::new("Sleep", "Wheel::sleep_until"),
        )
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
/// loop {
///     tokio::select! {
///         () = &mut idle => break,
///         Some(_) = traffic.recv() => idle.reset(Instant::now() + Duration::from_millis(30)),
///     }
/// }
/// # }
/// ```
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Sleep {
    pub(crate) timer: FallbackTimer,
    resource: Resource,
}

impl Sleep {
    #[inline]
    pub(crate) fn new(timer: Timer, resource: Resource) -> Sleep {
        Sleep {
            timer: FallbackTimer::Wheel(timer),
            resource,
        }
    }

    /// Creates a sleep that is due `duration` after `start`. If the duration is zero, the sleep completes at the first poll.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn after(shard: impl Into<ShardRef>, start: Moment, duration: Duration) -> Sleep {
        let resource = Resource::new("Sleep", "Wheel::sleep");
        resource.lasts(|| duration);
        Sleep::new(Timer::after(shard, start, duration), resource)
    }

    /// Creates a sleep that is due at `deadline`.
    #[inline]
    pub(crate) fn until(shard: impl Into<ShardRef>, deadline: Instant, resource: Resource) -> Sleep {
        let shard = shard.into();
        resource.lasts(|| deadline.saturating_duration_since(Instant::now()));
        let deadline = shard.moment_of(deadline);
        Sleep::new(Timer::at(shard, deadline), resource)
    }

    /// Creates a sleep that is due `delay` after its first poll.
    #[inline]
    pub(crate) fn counting(shard: impl Into<ShardRef>, delay: Duration, resource: Resource) -> Sleep {
        resource.lasts(|| delay);
        Sleep::new(Timer::counting(shard, delay), resource)
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
        self.timer.ask(Timer::deadline)
    }

    /// Returns `true` if the deadline has passed.
    ///
    /// As with Tokio's `Sleep`, a sleep that has been neither polled nor reset has not elapsed. After a shutdown of the
    /// wheel, a sleep that was pending elapses only in a poll.
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
    /// (&mut sleep).await;
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
    /// that has passed. A sleep that had completed must be polled again to wait for the new deadline. A sleep that waits on
    /// Tokio's timer stays there until it has completed, and then asks the wheel again.
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
    /// sleep.await;
    /// # }
    /// ```
    #[inline]
    pub fn reset(&mut self, deadline: Instant) {
        self.timer.reset_at(deadline);
        self.restart();
    }

    /// Moves the sleep to a deadline that is already a moment of the shard's clock.
    #[inline]
    pub(crate) fn reset_to(&mut self, deadline: Moment) {
        self.timer.reset(deadline);
        self.restart();
    }

    /// Moves the sleep to `duration` from now.
    pub(crate) fn reset_after(&mut self, duration: Duration) {
        let deadline = self.shard().now().after(Nanos::passed(duration));
        if duration.is_zero() {
            self.reset_immediately(deadline);
        } else {
            self.reset_to(deadline);
        }
    }

    /// Moves the sleep to `deadline`, which has already passed, so that the next poll completes it.
    pub(crate) fn reset_immediately(&mut self, deadline: Moment) {
        self.timer.reset_immediately(deadline);
        self.restart();
    }

    /// Reports that the sleep has been reset.
    #[inline]
    fn restart(&mut self) {
        let Sleep { timer, resource } = self;
        let until = || {
            timer
                .ask(Timer::deadline)
                .saturating_duration_since(Instant::now())
        };
        resource.restart("Sleep::reset", until);
    }

    /// Begins a poll of the future that the sleep limits, which a sleep without a label does not count.
    #[inline(always)]
    pub(crate) fn begin_poll(&mut self, _: &Context<'_>) {}

    /// Polls the sleep after the future that it limits, which may have used up the budget that there was before.
    #[inline(never)]
    pub(crate) fn poll_after(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_after_inlined(had_budget, cx)
    }

    #[inline(always)]
    pub(crate) fn poll_after_inlined(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = self;
        resource.poll(|| timer.poll_after(had_budget, cx))
    }

    /// Polls the sleep as [`poll_after`](Sleep::poll_after) does, but fails if the wheel refuses it.
    #[inline]
    pub(crate) fn try_poll_after(
        &mut self,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        let Sleep { timer, resource } = self;
        resource.poll(|| timer.try_poll_after(had_budget, cx))
    }

    /// See [`FallbackTimer::poll_for`].
    pub(crate) fn poll_for(&mut self, waker: &Waker, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = self;
        resource.poll(|| timer.poll_for(waker, cx))
    }

    /// Ends the sleep, and keeps its timer for the next timer of the task if possible.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        self.timer.cancel();
    }

    /// See [`Timer::slack`].
    pub(crate) fn slack(&self) -> Nanos {
        self.timer.ask(Timer::slack)
    }

    /// Binds an unbound sleep, as its first poll would.
    #[inline]
    pub(crate) fn bind(&mut self, waker: &Waker) {
        self.timer.bind(waker);
    }

    /// See [`Timer::left`].
    #[inline(never)]
    pub(crate) fn left(&self) -> Nanos {
        self.timer.ask(Timer::left)
    }

    #[inline]
    pub(crate) fn shard(&self) -> &ShardRef {
        self.timer.shard()
    }

    /// Returns the deadline.
    #[inline]
    pub(crate) fn due(&self) -> Moment {
        self.timer.ask(Timer::due)
    }

    /// Reports that the sleep is counted under a label.
    #[inline]
    pub(crate) fn has_label(&self, label: &str) {
        self.resource.has_label(label);
    }
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = &mut *self;
        resource.poll(|| timer.poll(cx))
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("deadline", &self.deadline())
            .field("timer", &self.timer)
            .finish()
    }
}
