//! A timer with a deadline: register, poll, move, cancel.

use std::{
    fmt, mem,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Generation, Mode, ShardRef,
    claim::{Claim, Due, Progress},
    reuse::{Candidate, Put},
};
use crate::{
    engine::{
        clock::{self, Moment},
        sync::{MODELLED, lock},
        timing_wheel::Nanos,
    },
    error::SleepError,
};

/// One timer of a shard. The first poll registers it, in the shard of the polling thread. Dropping it cancels it.
///
/// A million connections have a million of these pending, so each byte counts.
pub(crate) struct Timer {
    pub(super) shard: ShardRef,
    pub(super) claim: Claim,
}

const _: () = assert!(mem::size_of::<Timer>() <= 40 || MODELLED);

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut timer = f.debug_struct("Timer");
        match self.claim.due() {
            Due::In(delay) => timer.field("delay", &delay.to_duration()),
            Due::At(deadline) => timer.field("deadline", &self.shard.instant_of(deadline)),
        };
        timer.field("progress", &self.claim.progress).finish()
    }
}

impl Timer {
    #[inline]
    fn new(shard: impl Into<ShardRef>, due: Due) -> Timer {
        Timer {
            shard: shard.into(),
            claim: Claim::new(due),
        }
    }

    /// Creates a timer that is due at `deadline`.
    #[inline]
    pub(crate) fn at(shard: impl Into<ShardRef>, deadline: Moment) -> Timer {
        Timer::new(shard, Due::At(deadline))
    }

    /// Creates a timer that is due `duration` after `start`. If the duration is zero, it is due at the first poll.
    #[inline]
    pub(crate) fn after(shard: impl Into<ShardRef>, start: Moment, duration: Duration) -> Timer {
        let mut timer = Timer::at(shard, start.after(Nanos::passed(duration)));
        if duration.is_zero() {
            timer.claim.progress = Progress::Immediate;
        }
        timer
    }

    /// Creates a timer that is due `delay` after its first poll.
    #[inline]
    pub(crate) fn counting(shard: impl Into<ShardRef>, delay: Duration) -> Timer {
        Timer::new(shard, Due::In(Nanos::from_duration(delay)))
    }

    #[inline]
    pub(crate) fn shard(&self) -> &ShardRef {
        &self.shard
    }

    #[inline]
    pub(crate) fn is_bound(&self) -> bool {
        self.shard.bound().is_some()
    }

    /// Gives an unbound timer its shard, which every poll needs.
    #[inline]
    pub(crate) fn bind(&mut self, shard: ShardRef) {
        debug_assert!(!self.is_bound());
        // The compiler does not know that there is nothing to drop.
        mem::forget(mem::replace(&mut self.shard, shard));
    }

    /// Returns the deadline. For a timer without one, its delay counts from now.
    #[inline]
    pub(crate) fn due(&self) -> Moment {
        match self.claim.due() {
            Due::At(deadline) => deadline,
            Due::In(delay) => self.shard.now().after(delay),
        }
    }

    /// Returns the time until the deadline, by one reading of the clock in a poll, or all of the delay if no visit has given the
    /// timer a deadline. After a shutdown, nothing is left.
    #[inline(always)]
    pub(crate) fn left(&self) -> Nanos {
        match self.claim.due() {
            Due::In(delay) if self.claim.until.outlasts(self.shard.reuse.generation()) => delay,
            Due::In(delay) => self.left_by_entry(delay),
            Due::At(deadline) => self.shard.left_until(deadline),
        }
    }

    #[cold]
    #[inline(never)]
    fn left_by_entry(&self, delay: Nanos) -> Nanos {
        let state = lock(&self.shard.state);
        let deadline = match &self.claim.key {
            _ if state.mode == Mode::Shutdown => return Nanos::ZERO,
            Some(key) if !state.wheel.is_incoming(key) => self.shard.tick.start_of(state.wheel.deadline(key)),
            _ => return delay,
        };
        drop(state);
        self.shard.left_until(Moment::of_wheel(deadline))
    }

    /// Returns when a refused timer would have been due, by the clock of the caller. If it had not begun to count, its time
    /// counts from now.
    pub(crate) fn refused_until(&self) -> Instant {
        match self.claim.due() {
            Due::In(delay) => clock::saturating_add(Instant::now(), delay.to_duration()),
            Due::At(_) => self.shard.driver.instant_here(self.deadline()),
        }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.shard.instant_of(self.due())
    }

    /// Converts the deadline to the axis on which moments are compared. Starts a driver to do so if there is none.
    pub(crate) fn settle(&mut self) {
        if let (Some(shard), Due::At(deadline)) = (self.shard.bound(), self.claim.due()) {
            self.claim.settle_at(shard.settled(deadline));
        }
    }

    /// Returns how late a timer that has elapsed may be for its slack.
    pub(crate) fn slack(&self) -> Nanos {
        match (self.claim.power, self.due()) {
            (power @ 1.., due) if due.is_wheel_time() => self.shard.tick.rounding(due.wheel_time(), power),
            _ => Nanos::ZERO,
        }
    }

    /// Counts the time for which the timer waits from `start` on, so that its slack is a share of all that time, even where it
    /// is re-armed for the rest.
    pub(crate) fn count_from(&mut self, start: Moment) {
        if let (Some(_), Due::At(deadline)) = (&self.claim.key, self.claim.due()) {
            self.claim.power = self.shard.tick.power_of(deadline.since(start));
        }
    }

    /// Returns whether the deadline has come, as [`Timer::poll`] sees it. It is `false` for a timer that was neither polled nor
    /// reset.
    pub(crate) fn is_elapsed(&self) -> bool {
        match self.claim.progress {
            Progress::New | Progress::Counting | Progress::Immediate => false,
            Progress::Waiting => self.is_past(),
            Progress::Elapsed => true,
        }
    }

    /// Returns whether the timer would complete at this poll if the wheel had not refused it.
    pub(crate) fn needs_no_timer(&self) -> bool {
        self.claim.progress == Progress::Immediate && self.shard.has_come(self.due())
    }

    /// Marks a timer that is not in the wheel as elapsed.
    pub(crate) fn elapse(&mut self) {
        self.claim.progress = Progress::Elapsed;
    }

    fn is_past(&self) -> bool {
        let deadline = self.due();
        if !self.is_bound() || !self.shard.to_wheel(deadline).is_wheel_time() {
            return deadline <= self.shard.now();
        }
        let mut state = lock(&self.shard.state);
        let tick = state.tick_of(deadline);
        let reached = self.shard.reached(&state);
        match &self.claim.key {
            None => tick <= reached,
            Some(key) if state.wheel.is_cancelled(key) => false,
            Some(key) if state.wheel.get_mut(key).is_none() => tick <= reached.max(state.wheel.due(key)),
            Some(_) => state.mode == Mode::Dozing && tick <= reached,
        }
    }

    /// Polls the timer, which is ready when it is due or refused.
    #[inline]
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        match self.waits(waker) || self.takes_over(waker) {
            true => Poll::Pending,
            false => self.poll_locked(waker),
        }
    }

    /// Returns whether the timer waits and wakes this task, as far as is known without the lock.
    #[inline]
    pub(crate) fn waits(&self, waker: &Waker) -> bool {
        self.claim.until.outlasts(self.shard.reuse.generation()) && self.claim.waker.is(waker)
    }

    /// Polls the timer where the lock is needed.
    #[inline(never)]
    pub(crate) fn poll_locked(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        match (&self.claim.key, self.claim.progress) {
            (_, Progress::Immediate | Progress::Elapsed) | (Some(_), Progress::New) => self.complete(waker),
            (Some(_), Progress::Waiting) if self.claim.has_come(&self.shard) => {
                self.claim.progress = Progress::Elapsed;
                Poll::Ready(Ok(()))
            }
            (Some(_), Progress::Waiting | Progress::Counting) => self.claim.poll(&self.shard, waker),
            (None, _) => self.register(waker),
        }
    }

    /// Completes a timer that waits for nothing, except that on a test's clock a timer whose deadline is now waits for the next
    /// millisecond, as Tokio's does.
    fn complete(&mut self, waker: &Waker) -> Poll<Result<(), SleepError>> {
        let immediate = self.claim.progress == Progress::Immediate;
        let refused = immediate && self.shard.is_shutdown();
        if immediate && !refused && !self.shard.has_come(self.due()) {
            self.claim.progress = Progress::Waiting;
            return self.poll_locked(waker);
        }
        self.cancel();
        if refused {
            return Poll::Ready(Err(SleepError::Shutdown));
        }
        self.claim.progress = Progress::Elapsed;
        Poll::Ready(Ok(()))
    }

    /// Ends the timer, and keeps it for the next timer of its task if possible.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if self.claim.key.is_some() {
            self.give_back();
        }
    }

    /// Ends the timer, and keeps nothing for the next timer of its task, which would be woken at this one's deadline.
    pub(crate) fn remove(&mut self) {
        // Of a timer with no generation nothing is kept.
        self.claim.until = Generation::UNKNOWN;
        self.cancel();
    }

    #[inline(never)]
    fn give_back(&mut self) {
        self.give_back_inlined();
    }

    #[inline(always)]
    pub(crate) fn give_back_inlined(&mut self) {
        if self.claim.progress == Progress::Elapsed {
            return self.claim.expire(&self.shard);
        }
        let candidate = Candidate {
            until: self.claim.until,
            delay: self.claim.incoming_delay(),
            waker: self.claim.waker,
        };
        let Some(key) = self.claim.take_key() else { return };
        let spent = match self.shard.reuse.put(key, &candidate) {
            Put::Kept => return,
            Put::Outlived => self.shard.cancel_put(),
            Put::Closed(key) => self.shard.cancel_or_keep(key, &candidate),
            Put::Refused(key) => self.shard.cancel(key),
        };
        drop(spent);
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}
