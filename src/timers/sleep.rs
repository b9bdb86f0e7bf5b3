//! `Sleep` and `TrySleep`: waits for an instant or a duration.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{task::coop, time::Instant};

use crate::{
    engine::{
        clock::{Moment, Nanos},
        shard::TimerShard,
        shared::{Refusal, Shared},
        timer::{Polled, Timer},
    },
    error::SleepError,
    timers::console::Resource,
    wheel::Wheel,
};

impl Wheel {
    /// Waits until `duration` has elapsed, as `tokio::time::sleep` does.
    ///
    /// The sleep completes at the first tick that begins at or after its deadline, so it is never early, and
    /// less than one tick late plus the runtime's own delay. Ticks begin on the same millisecond boundaries
    /// as Tokio's, so with the default tick of 1 ms it is as precise as Tokio's sleep. A sleep of more than
    /// two seconds may in addition be late by a thousandth of its duration, up to 100 ms, unless
    /// [`Builder::slack`](crate::Builder::slack) says otherwise. A duration of more than 30 years is taken as
    /// 30 years.
    ///
    /// A zero duration completes at the first poll. On a clock that a test has paused between two
    /// milliseconds it completes at the end of that millisecond, as Tokio's does, unless the wheel has a
    /// longer tick.
    ///
    /// A sleep is never refused: neither [`max_pending`](crate::Builder::max_pending) nor a
    /// [`shutdown`](Wheel::shutdown) applies to it. It waits on the runtime that first polls it, and if that
    /// runtime ends, goes on for the same instant on the next one that polls it.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once. As with a [`timeout`](Wheel::timeout), the entry that a
    /// thread cancelled last may stay in the wheel, uncounted, for the next timer of its task.
    ///
    /// # Panics
    ///
    /// The first poll panics outside a Tokio runtime and in one without timers, with Tokio's message, unless
    /// the wheel was given a [`handle`](crate::Builder::handle). Creating the future needs no runtime.
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
        Sleep::after(self.unbound_shard(), self.shared().now(), duration)
    }

    /// Waits until `deadline`, as `tokio::time::sleep_until` does.
    ///
    /// The sleep completes at the first tick that begins at or after `deadline`, so it is never early, and
    /// less than one tick late plus its slack and the runtime's own delay. If `deadline` is in the past, it
    /// completes at the first poll. Like [`sleep`](Wheel::sleep), it is never refused.
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
        Sleep::until(self.unbound_shard(), deadline)
    }

    /// Waits until `duration` has elapsed, or fails if the wheel refuses to wait.
    ///
    /// This is [`sleep`](Wheel::sleep) for code that sheds load at
    /// [`max_pending`](crate::Builder::max_pending) or ends with the wheel. It is as precise.
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
    /// The future resolves to a [`SleepError`] when the wheel is full or has been shut down. A sleep of zero
    /// duration takes no place in the wheel, so a full wheel does not refuse it, but a wheel that has been
    /// shut down does.
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
        let shard = self.unbound_refusable_shard();
        TrySleep(Sleep::after(shard, self.shared().now(), duration))
    }

    /// Waits until `deadline`, or fails if the wheel refuses to wait.
    ///
    /// This is [`sleep_until`](Wheel::sleep_until) as [`try_sleep`](Wheel::try_sleep) is
    /// [`sleep`](Wheel::sleep).
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
        TrySleep(Sleep::until(self.unbound_refusable_shard(), deadline))
    }
}

/// The future returned by [`Wheel::sleep`] and [`Wheel::sleep_until`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until
/// the sleep is [`reset`](Sleep::reset).
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
    pub(crate) timer: Timer,
    pub(crate) resource: Resource,
}

impl Sleep {
    /// Creates a sleep that is due `duration` after `now`. If the duration is zero, the sleep completes at
    /// the first poll.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn after(shard: TimerShard, now: Moment, duration: Duration) -> Sleep {
        Sleep {
            timer: Timer::after(shard, now, duration),
            resource: Resource::new("Sleep", "Wheel::sleep", || duration),
        }
    }

    /// Creates a sleep that is due at `deadline`.
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn until(shard: TimerShard, deadline: Instant) -> Sleep {
        Sleep {
            timer: Timer::at(shard, Moment::of(deadline)),
            resource: Resource::new("Sleep", "Wheel::sleep_until", || from_now(deadline)),
        }
    }

    /// Creates the timer of a timeout, whose duration counts from the first poll. `source` names the public
    /// function, for the console. That function wraps the future itself, because a large future is costly to
    /// move.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn of_timeout(shard: TimerShard, duration: Duration, source: &'static str) -> Sleep {
        Sleep {
            timer: Timer::from_first_poll(shard, duration),
            resource: Resource::new("Timeout", source, || duration),
        }
    }

    /// Creates the timer of a timeout that has a deadline.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn of_timeout_at(shard: TimerShard, deadline: Instant, source: &'static str) -> Sleep {
        Sleep {
            timer: Timer::at(shard, Moment::of(deadline)),
            resource: Resource::new("Timeout", source, || from_now(deadline)),
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
        self.timer.deadline().instant()
    }

    /// Returns `true` if the deadline has passed.
    ///
    /// As with Tokio's `Sleep`, a sleep that has been neither polled nor reset has not elapsed. If the
    /// runtime on which it waited has ended, it elapses only in a poll.
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
    /// A later deadline costs one store: the timer stays in its bucket, and is restarted when its old
    /// deadline comes. An earlier deadline moves the timer at once. The task that last polled the sleep is
    /// woken at the new deadline, or within this call if that has passed. A sleep that had completed must be
    /// polled again to wait for the new deadline; if that has passed, the next poll completes it.
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
        let woken = self.timer.reset(Moment::of(deadline));
        self.finish_reset(woken);
    }

    /// Moves the sleep to `duration` from now, as [`reset`](Sleep::reset) does.
    ///
    /// A zero duration completes at the next poll, as that of [`Wheel::sleep`] does at the first.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut sleep = Wheel::new().sleep(Duration::from_secs(3600));
    /// sleep.reset_after(Duration::from_millis(10));
    /// sleep.await;
    /// # }
    /// ```
    pub fn reset_after(&mut self, duration: Duration) {
        let deadline = self.timer.now().after(Nanos::of(duration));
        if duration.is_zero() {
            self.reset_given_now(deadline, deadline);
        } else {
            self.reset(deadline.instant());
        }
    }

    /// Moves the sleep to a deadline. The next poll completes the sleep if the deadline is not after `now`.
    pub(crate) fn reset_given_now(&mut self, deadline: Moment, now: Moment) {
        let woken = self.timer.reset_given_now(deadline, now);
        self.finish_reset(woken);
    }

    /// Wakes the waiting task if the new deadline has passed, and reports that the sleep has been reset.
    #[inline]
    fn finish_reset(&mut self, woken: Option<Waker>) {
        let Sleep { timer, resource } = self;
        resource.restart("Sleep::reset", || from_now(timer.deadline().instant()));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Polls the sleep after the future that it times, which may have used up the budget.
    // One more call takes 20 to 40 instructions in each poll of a sleep, and so does going through
    // `try_poll_after`.
    #[inline(always)]
    pub(crate) fn poll_after(&mut self, had_budget: HadBudget, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = self;
        if timer.waits(cx.waker()) {
            return resource.poll(|| Poll::Pending);
        }
        resource.poll(|| poll_further(timer, had_budget, cx)).map(drop)
    }

    /// Polls the sleep as [`poll_after`](Sleep::poll_after) does, and fails if the wheel refuses it.
    #[inline]
    pub(crate) fn try_poll_after(
        &mut self,
        had_budget: HadBudget,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        let Sleep { timer, resource } = self;
        if timer.waits(cx.waker()) {
            return resource.poll(|| Poll::Pending);
        }
        let polled = resource.poll(|| poll_further(timer, had_budget, cx));
        polled.map_err(|refusal| refused(refusal, timer.shared()))
    }

    /// Polls the sleep on the task's budget, but makes it wake `waker`.
    pub(crate) fn poll_for(&mut self, waker: &Waker, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = self;
        let poll = || poll_on_budget(HadBudget(false), cx, |_| timer.poll_further(waker));
        resource.poll(poll).map(drop)
    }

    /// Ends the wait because the future that the sleep times has completed. The timer leaves the wheel now,
    /// because the timeout may be dropped later, unless the drop may make its entry a spare.
    #[inline]
    pub(crate) fn complete(&mut self) {
        self.timer.cancel_unless_kept();
    }
}

/// Whether a task had some of its cooperative budget left before it polled the future whose timer it polls
/// next. `false` for a timer that times no future.
#[derive(Clone, Copy)]
pub(crate) struct HadBudget(pub(crate) bool);

#[inline]
fn poll_further(timer: &mut Timer, had_budget: HadBudget, cx: &mut Context<'_>) -> Polled {
    poll_on_budget(had_budget, cx, |waker| timer.poll_further(waker))
}

/// Polls a timer on the task's cooperative budget, as Tokio does: a completion spends one unit, and a poll
/// without budget left only wakes the task, which is then polled again with a new budget.
///
/// A future that always uses up the budget must not keep its own timer from elapsing. So if there was budget
/// before that future was polled, as `had_budget` says, its timer is polled even without any.
// One more call takes 18 instructions in each timeout with a label.
#[inline(always)]
pub(crate) fn poll_on_budget<T>(
    had_budget: HadBudget,
    cx: &mut Context<'_>,
    timer: impl FnOnce(&Waker) -> Poll<T>,
) -> Poll<T> {
    if !had_budget.0 && !coop::has_budget_remaining() {
        drop(ready!(coop::poll_proceed(cx)));
    }
    let output = ready!(timer(cx.waker()));
    if coop::has_budget_remaining() {
        ready!(coop::poll_proceed(cx)).made_progress();
    }
    Poll::Ready(output)
}

/// Returns the error of a timer that its wheel has refused.
pub(crate) fn refused(refusal: Refusal, wheel: &Shared) -> SleepError {
    match refusal {
        Refusal::Shutdown => SleepError::Shutdown,
        Refusal::AtCapacity => SleepError::AtCapacity {
            limit: wheel.settings.max_pending.unwrap_or(usize::MAX),
        },
    }
}

fn from_now(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_after(HadBudget(false), cx)
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

/// The future returned by [`Wheel::try_sleep`] and [`Wheel::try_sleep_until`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until
/// the sleep is [`reset`](TrySleep::reset). A poll after a refusal asks the wheel again.
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

    /// Returns `true` if the deadline has passed, as [`Sleep::is_elapsed`] does.
    ///
    /// The result is unspecified for a sleep that has failed.
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

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.try_poll_after(HadBudget(false), cx)
    }
}
