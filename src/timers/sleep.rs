//! `Sleep`: waits for an instant or a duration.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{task::coop, time::Instant};

use crate::{
    engine::{
        clock::{Moment, Nanos},
        shared::WheelRef,
        timer::Timer,
    },
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
    /// A zero duration completes at the next tick, so that other tasks run first, as with Tokio's sleep at
    /// the next millisecond.
    ///
    /// A sleep is never refused: neither [`max_pending`](crate::Builder::max_pending) nor a
    /// [`shutdown`](Wheel::shutdown) applies to it. It waits on the runtime that first polls it, and if that
    /// runtime ends, goes on for the same instant on the next one that polls it.
    ///
    /// # Cancellation
    ///
    /// Dropping the future cancels the sleep at once. As with a [`timeout`](Wheel::timeout), the entry of a
    /// cancelled timer may stay in the wheel, uncounted, for the next timer of its task.
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
        Sleep::after(self.reference(), self.shared().now(), duration)
    }

    /// Waits until `deadline`, as `tokio::time::sleep_until` does.
    ///
    /// The sleep completes at the first tick that begins at or after `deadline`, so it is never early, and
    /// less than one tick late plus its slack and the runtime's own delay. If the tick of `deadline` has
    /// begun, it completes at the first poll. Like [`sleep`](Wheel::sleep), it is never refused.
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
        Sleep::until(self.reference(), deadline)
    }
}

/// The future returned by [`Wheel::sleep`] and [`Wheel::sleep_until`], and by the functions of these names in
/// [`time`](crate::time).
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until
/// the sleep is [moved](Sleep::reset_at).
///
/// A task that polls a sleep by hand has to poll it at every wake-up, as `select!` does. The task may be
/// woken before the deadline, because the sleep waits in the place of an earlier timer of the task or has
/// been moved to a later deadline, and only that poll has the task woken again. A task that looks at the
/// clock instead may not be woken at the deadline.
///
/// # Examples
///
/// An idle timeout, pushed back by traffic:
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
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
///         Some(_) = traffic.recv() => idle.reset_after(Duration::from_millis(30)),
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
    /// Creates a sleep that is due `duration` after `now`.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn after(wheel: WheelRef, now: Moment, duration: Duration) -> Sleep {
        Sleep {
            timer: Timer::at(wheel, now.after(Nanos::of(duration)), now),
            resource: Resource::new("Sleep", "Wheel::sleep", || duration),
        }
    }

    /// Creates a sleep that is due at `deadline`.
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn until(wheel: WheelRef, deadline: Instant) -> Sleep {
        Sleep {
            timer: Timer::at(wheel, Moment::of(deadline), Moment::ZERO),
            resource: Resource::new("Sleep", "Wheel::sleep_until", || from_now(deadline)),
        }
    }

    /// Creates the timer of a timeout, whose duration counts from the first poll. `source` names the public
    /// function, for the console. That function wraps the future itself, because a large future is costly to
    /// move.
    #[inline]
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn of_timeout(wheel: WheelRef, duration: Duration, source: &'static str) -> Sleep {
        Sleep {
            timer: Timer::after_first_poll(wheel, duration),
            resource: Resource::new("Timeout", source, || duration),
        }
    }

    /// Creates the timer of a timeout that has a deadline.
    #[cfg_attr(feature = "console", track_caller)]
    pub(crate) fn of_timeout_at(wheel: WheelRef, deadline: Instant, source: &'static str) -> Sleep {
        Sleep {
            timer: Timer::at(wheel, Moment::of(deadline), Moment::ZERO),
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

    /// Moves the sleep to another deadline, as `tokio::time::Sleep::reset` does.
    ///
    /// This is [`reset_at`](Sleep::reset_at) with Tokio's signature, for code that keeps its sleep pinned. As
    /// there, the task may be woken at the old deadline, and has to poll the sleep then.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let sleep = Wheel::new().sleep(Duration::from_secs(3600));
    /// tokio::pin!(sleep);
    /// sleep.as_mut().reset(Instant::now() + Duration::from_millis(10));
    /// sleep.await;
    /// # }
    /// ```
    #[inline]
    pub fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().reset_at(deadline);
    }

    /// Moves the sleep to another deadline, whether or not it has been polled or has completed.
    ///
    /// A later deadline costs one store: the timer stays in its bucket, and is restarted when its old
    /// deadline comes. An earlier deadline moves the timer at once. The task that last polled the sleep is
    /// woken at the new deadline, or within this call if that has passed. It may also be woken once at an old
    /// deadline, and is woken at the new one only if it polls the sleep then, as at every wake-up. A sleep
    /// that had completed must be polled again to wait for the new deadline; if that has passed, the next
    /// poll completes it.
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
    /// sleep.reset_at(Instant::now() + Duration::from_millis(10));
    /// sleep.await;
    /// # }
    /// ```
    #[inline]
    pub fn reset_at(&mut self, deadline: Instant) {
        self.reset_to(Moment::of(deadline), Moment::ZERO);
    }

    /// Moves the sleep to `duration` from now, as [`reset_at`](Sleep::reset_at) does.
    ///
    /// A zero duration completes at the next tick, as that of [`Wheel::sleep`] does.
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
        let now = self.timer.now();
        self.reset_to(now.after(Nanos::of(duration)), now);
    }

    /// Moves the sleep to a deadline. `known_past` is a moment that has passed, or [`Moment::ZERO`]. Wakes
    /// the waiting task if the deadline has passed.
    #[inline]
    pub(crate) fn reset_to(&mut self, deadline: Moment, known_past: Moment) {
        let Sleep { timer, resource } = self;
        let woken = timer.reset(deadline, known_past);
        resource.restart("Sleep::reset", || from_now(timer.deadline().instant()));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Polls the sleep after the future that it times, which may have used up the budget.
    // One more call takes 20 to 40 instructions in each poll of a sleep.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn poll_after(&mut self, had_budget: HadBudget, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = self;
        let _spans = resource.enter();
        let polled = if timer.waits(cx.waker()) {
            Poll::Pending
        } else {
            poll_further(timer, had_budget, cx)
        };
        resource.report(&polled);
        polled
    }

    /// Polls the sleep on the task's budget, but has it wake by the wakers that `waker` makes, and no others,
    /// as [`Timer::poll_with`] does.
    #[track_caller]
    pub(crate) fn poll_with(
        &mut self,
        waker: impl Fn() -> Waker,
        since: Moment,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        ready!(HadBudget(false).poll(cx));
        let _spans = self.resource.enter();
        let polled = self.timer.poll_with(waker, since);
        self.resource.report(&polled);
        ready!(polled);
        spend_budget(cx)
    }

    /// Polls the sleep for a caller that minds the task's budget.
    #[track_caller]
    pub(crate) fn poll_without_budget(&mut self, waker: &Waker) -> Poll<()> {
        let _spans = self.resource.enter();
        let polled = self.timer.poll(waker);
        self.resource.report(&polled);
        polled
    }

    /// Ends the wait because the future that the sleep times has completed. The timer leaves the wheel now,
    /// because the timeout may be dropped later.
    #[inline]
    pub(crate) fn complete(&mut self) {
        self.timer.leave();
    }
}

/// Whether a task had some of its cooperative budget left before it polled the future whose timer it polls
/// next. `false` for a timer that times no future.
///
/// Timers mind the budget as Tokio's do: a completion spends one unit, and a poll without budget left only
/// wakes the task, which is then polled again with a new budget. But a future that always uses up the budget
/// must not keep its own timer from elapsing. So if there was budget before that future was polled, its timer
/// is polled even without any.
#[derive(Clone, Copy)]
pub(crate) struct HadBudget(pub(crate) bool);

impl HadBudget {
    /// Returns ready if the timer may be polled.
    #[inline(always)]
    pub(crate) fn poll(self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.0 && !coop::has_budget_remaining() {
            drop(ready!(coop::poll_proceed(cx)));
        }
        Poll::Ready(())
    }
}

/// Spends a unit of the task's budget on a timer that has completed.
// One more call takes 18 instructions in each timeout with a label.
#[inline(always)]
pub(crate) fn spend_budget(cx: &mut Context<'_>) -> Poll<()> {
    if coop::has_budget_remaining() {
        ready!(coop::poll_proceed(cx)).made_progress();
    }
    Poll::Ready(())
}

// Out of line, it takes 17 instructions more of each timeout.
#[inline(always)]
#[track_caller]
fn poll_further(timer: &mut Timer, had_budget: HadBudget, cx: &mut Context<'_>) -> Poll<()> {
    ready!(had_budget.poll(cx));
    ready!(timer.poll(cx.waker()));
    spend_budget(cx)
}

/// Polls the timer of a sleep that times no future. In line, it takes 14 instructions more of a server's
/// request.
#[inline(never)]
#[track_caller]
fn poll_alone(timer: &mut Timer, cx: &mut Context<'_>) -> Poll<()> {
    poll_further(timer, HadBudget(false), cx)
}

fn from_now(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

impl Future for Sleep {
    type Output = ();

    #[inline]
    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Sleep { timer, resource } = &mut *self;
        let _spans = resource.enter();
        let polled = if timer.waits(cx.waker()) {
            Poll::Pending
        } else {
            poll_alone(timer, cx)
        };
        resource.report(&polled);
        polled
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
