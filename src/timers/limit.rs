//! `Permit` and `TrySleep`: what the wheel may refuse.
//!
//! The engine knows nothing of refusal. A future that may be refused holds a permit while it is pending, and
//! the permit keeps the waker of its task on the wheel's roster. A shutdown sets a flag and wakes these
//! tasks, which find the flag set. Their timers wait in the wheel until then.
//!
//! The flag is looked at first at the first poll, so that nothing begins on a wheel that has been shut down.
//! Afterwards the timer is polled first, because one that was due before the shutdown has elapsed. A task
//! whose waker comes too late for the roster is told by the roster, which the shutdown has closed.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    error::SleepError,
    timers::sleep::{HadBudget, Sleep, spend_budget},
    wheel::{Wheel, roster::Roster},
};

impl Wheel {
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
    /// The future resolves to a [`SleepError`] when it has to wait and the wheel is full, and when the wheel
    /// has been shut down, even if the duration is zero.
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
        TrySleep::new(self, self.sleep(duration))
    }
}

/// A place under the wheel's limit, which is given back when this is dropped.
pub(crate) struct Permit<M> {
    roster: Arc<Roster<M>>,
    /// The place on the roster of what waits, if it has waited.
    place: Option<u32>,
}

impl<M> Permit<M> {
    /// Takes a permit, and counts the refusal if there is none.
    pub(crate) fn take(roster: &Arc<Roster<M>>) -> Result<Permit<M>, SleepError> {
        roster.permits.check()?;
        let taken = roster.permits.try_take(false);
        taken.inspect_err(|_| roster.permits.count_rejected())?;
        Ok(Permit::taken(roster.clone()))
    }

    fn taken(roster: Arc<Roster<M>>) -> Permit<M> {
        Permit { roster, place: None }
    }

    /// Fails if the wheel has been shut down.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), SleepError> {
        self.roster.permits.check()
    }

    /// Makes a shutdown reach `member`. Fails if the wheel has been shut down.
    #[inline]
    pub(crate) fn enroll(&mut self, member: M) -> Result<(), SleepError> {
        self.place = Some(self.roster.add(member)?);
        Ok(())
    }
}

impl Permit<Waker> {
    /// Makes a shutdown wake this task too. Fails if the wheel has been shut down.
    pub(crate) fn keep_waker(&mut self, waker: &Waker) -> Result<(), SleepError> {
        match self.place {
            Some(place) => self.roster.redirect(place, waker),
            None => self.enroll(waker.clone()),
        }
    }
}

impl<M> Drop for Permit<M> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.roster.remove(place);
        }
        self.roster.permits.give_back();
    }
}

/// The future returned by [`Wheel::try_sleep`].
///
/// It is `Unpin`, and dropping it cancels it. Once it has completed, every poll returns ready at once until
/// the sleep is [moved](TrySleep::reset_at). A poll after a refusal asks the wheel again. A sleep that was
/// admitted once is not refused for want of room later.
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
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct TrySleep {
    sleep: Sleep,
    roster: Arc<Roster<Waker>>,
    /// While it is pending.
    permit: Option<Permit<Waker>>,
    was_admitted: bool,
}

impl TrySleep {
    pub(crate) fn new(wheel: &Wheel, sleep: Sleep) -> TrySleep {
        TrySleep {
            sleep,
            roster: wheel.stripe().sleepers.clone(),
            permit: None,
            was_admitted: false,
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
    /// let start = Instant::now();
    /// let sleep = Wheel::new().try_sleep(Duration::from_secs(1));
    /// assert!(sleep.deadline() >= start + Duration::from_secs(1));
    /// ```
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
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
        self.sleep.is_elapsed()
    }

    /// Moves the sleep to another deadline, as [`Sleep::reset`] does.
    ///
    /// This is [`reset_at`](TrySleep::reset_at) with Tokio's signature, for code that keeps its sleep pinned.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let sleep = Wheel::new().try_sleep(Duration::from_secs(3600));
    /// tokio::pin!(sleep);
    /// sleep.as_mut().reset(Instant::now() + Duration::from_millis(10));
    /// assert_eq!(sleep.await, Ok(()));
    /// # }
    /// ```
    pub fn reset(self: Pin<&mut Self>, deadline: Instant) {
        self.get_mut().reset_at(deadline);
    }

    /// Moves the sleep to another deadline, as [`Sleep::reset_at`] does.
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
    /// sleep.reset_at(Instant::now() + Duration::from_millis(10));
    /// assert_eq!(sleep.await, Ok(()));
    /// # }
    /// ```
    pub fn reset_at(&mut self, deadline: Instant) {
        self.end_if_shut_down();
        self.sleep.reset_at(deadline);
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
        self.end_if_shut_down();
        self.sleep.reset_after(duration);
    }

    /// Ends a wait that a shutdown has refused, because a reset does not bring it back.
    fn end_if_shut_down(&mut self) {
        if self.roster.permits.is_shutdown() {
            // Woken, because the shutdown finds it on the roster no more, and another task may wait.
            self.refuse().into_iter().for_each(Waker::wake);
        }
    }

    /// Polls the sleep after the future that it times, which may have used up the budget.
    #[inline]
    #[track_caller]
    pub(crate) fn poll_after(
        &mut self,
        had_budget: HadBudget,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        // What is known to wait has a permit and its waker on the roster. The timer is not looked at once more,
        // because the permit of one that has elapsed since has to be given back.
        if self.sleep.timer.waits(cx.waker()) && !self.roster.permits.is_shutdown() {
            let _spans = self.sleep.resource.enter();
            self.sleep.resource.report(&Poll::<()>::Pending);
            return Poll::Pending;
        }
        ready!(had_budget.poll(cx));
        let waited = ready!(self.poll_without_budget(cx.waker()));
        spend_budget(cx).map(|()| waited)
    }

    #[track_caller]
    fn poll_without_budget(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        let is_new = self.permit.is_none() && !self.sleep.timer.has_completed();
        let polled = if is_new {
            self.begin(waker)?
        } else {
            self.sleep.poll_without_budget(waker)
        };
        if polled.is_ready() {
            self.permit = None;
            return Poll::Ready(Ok(()));
        }
        let kept = self.permit.as_mut().map(|permit| permit.keep_waker(waker));
        if let Some(Err(shut_down)) = kept {
            // Its deadline may have passed before the shutdown, with a driver that has not come to it.
            let is_due = self.sleep.timer.is_due();
            if is_due {
                drop(self.sleep.timer.expire());
            }
            drop(self.refuse());
            return Poll::Ready(if is_due { Ok(()) } else { Err(shut_down) });
        }
        Poll::Pending
    }

    /// Begins to wait, with a permit. A sleep that is due needs none.
    #[track_caller]
    fn begin(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        let permits = &self.roster.permits;
        permits.check()?;
        match permits.try_take(self.was_admitted) {
            Ok(()) => {
                // A local, because the poll panics if there is no runtime.
                let permit = Permit::taken(self.roster.clone());
                let polled = self.sleep.poll_without_budget(waker);
                self.was_admitted = true;
                self.permit = polled.is_pending().then_some(permit);
                polled.map(Ok)
            }
            Err(full) => {
                // One that is due by its deadline may still have to wait for its tick.
                if self.sleep.timer.is_due() && self.sleep.poll_without_budget(waker).is_ready() {
                    return Poll::Ready(Ok(()));
                }
                drop(self.sleep.timer.cancel());
                self.roster.permits.count_rejected();
                Poll::Ready(Err(full))
            }
        }
    }

    /// Ends the wait because the future that the sleep times has completed.
    #[inline]
    pub(crate) fn complete(&mut self) {
        self.sleep.complete();
        self.permit = None;
    }

    /// Ends the wait because the wheel has been shut down. Returns the waker of the entry.
    #[cold]
    fn refuse(&mut self) -> Option<Waker> {
        self.permit = None;
        if self.sleep.is_elapsed() {
            None
        } else {
            self.sleep.timer.cancel()
        }
    }
}

impl Future for TrySleep {
    type Output = Result<(), SleepError>;

    #[track_caller]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_after(HadBudget(false), cx)
    }
}

impl fmt::Debug for TrySleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TrySleep").field(&self.sleep).finish()
    }
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use tokio_test::task;

    use super::*;

    /// The reset takes the waker off the roster before the shutdown has come to it.
    #[tokio::test(start_paused = true)]
    async fn a_task_whose_sleep_another_resets_during_a_shutdown_is_woken() {
        let wheel = Wheel::new();
        let mut sleep = task::spawn(wheel.try_sleep(Duration::from_secs(1)));
        assert!(sleep.poll().is_pending());
        assert!(wheel.permits().shut_down());
        sleep.reset_after(Duration::from_secs(2));
        let closed = wheel.stripe().sleepers.close().count();
        assert!(sleep.is_woken(), "{closed} members are left on the roster");
        assert_eq!(sleep.poll(), Poll::Ready(Err(SleepError::Shutdown)));
    }
}
