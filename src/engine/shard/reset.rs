//! How a timer is moved to another deadline: lazily to a later one, and at once to an earlier one.

use std::task::{Poll, Waker};

use tokio::time::Instant;

use super::{
    Generation, Mode, Removal, Timer,
    claim::{Claim, Progress},
    reuse::WakerId,
};
use crate::engine::{
    clock::{Moment, Source},
    sync::lock,
};

impl Timer {
    /// Moves the timer. For a later deadline nothing else is touched: the entry stays in place, and the timer is re-armed when
    /// its old deadline comes. For an earlier deadline the entry is moved at once. For a deadline that has passed, the waiting
    /// task is woken.
    #[inline]
    pub(crate) fn reset(&mut self, deadline: Moment) {
        if !self.set_later(deadline) {
            self.reset_earlier(deadline);
        }
    }

    #[inline(never)]
    fn reset_earlier(&mut self, deadline: Moment) {
        self.bring_forward(deadline).into_iter().for_each(Waker::wake);
    }

    /// Moves the timer to an instant. A later one, as that of nearly every reset, takes a subtraction and two stores.
    #[inline]
    pub(crate) fn reset_at(&mut self, deadline: Instant) {
        match self.shard.shift().near(deadline) {
            Some(deadline) => self.reset(deadline),
            None => self.reset_far(deadline),
        }
    }

    #[cold]
    fn reset_far(&mut self, deadline: Instant) {
        self.reset(self.shard.moment_of(deadline));
    }

    /// Moves the timer where no waker may be woken yet. Returns the waker to wake.
    #[must_use = "the waiting task is to be woken"]
    pub(crate) fn reset_without_waking(&mut self, deadline: Moment) -> Option<Waker> {
        match self.set_later(deadline) {
            true => None,
            false => self.bring_forward(deadline),
        }
    }

    /// Moves the timer to a deadline that has passed, so that the next poll completes it. Its slack is still that of the last time
    /// for which it waited.
    pub(crate) fn reset_immediately(&mut self, deadline: Moment) {
        let power = self.claim.power;
        self.reset(deadline);
        self.claim.power = power;
        self.claim.progress = Progress::Immediate;
        self.claim.until = Generation::UNKNOWN;
    }

    /// Re-arms a timer whose entry has come, for a later deadline and with the slack of a wait since `start`. The entry then wakes `waker`.
    /// Returns `false` if the timer has to be polled instead, because that deadline has passed too, or because there may be no driver.
    pub(crate) fn rearm(&mut self, deadline: Moment, start: Moment, waker: &Waker) -> bool {
        let has_come = self.claim.until.has_come_by(self.shard.reuse.generation());
        if !has_come || !deadline.is_wheel_time() {
            return false;
        }
        self.claim.set_deadline(deadline);
        self.count_from(start);
        let polled = self.claim.poll_driven(&self.shard, WakerId::of_clone(waker));
        matches!(polled, Some(Poll::Pending))
    }

    /// Sets the deadline. Returns `true` if nothing else is needed, because the entry may stay where it is.
    #[inline]
    fn set_later(&mut self, deadline: Moment) -> bool {
        let later = self.claim.may_wait_until(deadline);
        if self.claim.progress == Progress::Counting {
            // It is the next full visit that would come then, not the deadline.
            self.claim.until = Generation::UNKNOWN;
            self.claim.power = 0;
        }
        self.claim.set_deadline(deadline);
        later
    }

    #[inline]
    fn bring_forward(&mut self, deadline: Moment) -> Option<Waker> {
        if self.claim.power != 0 && self.claim.key.is_some() {
            let generation = self.shard.reuse.generation();
            let is_later = || {
                deadline.is_wheel_time()
                    && deadline.wheel_time() > self.shard.tick.start_of(generation.tick())
            };
            if self.claim.until.has_come_by(generation) && is_later() {
                // A visit has expired the entry, or is about to and then wakes the task. Either way the next poll re-arms the timer.
                self.claim.power = 0;
                return None;
            }
            self.count_from(self.shard.now());
        }
        // While there is no driver, the next poll moves the entry.
        let key = self.claim.key.as_ref().filter(|_| deadline.is_wheel_time())?;
        // The entry may expire early enough in its place, because an earlier reset to a later deadline left it there. If it is
        // removed before that, its task is woken, as after any lazy reset.
        let Claim { until, .. } = self.claim;
        if until.outlasts(self.shard.reuse.generation())
            && self.shard.tick.is_due_by(until.tick(), deadline.wheel_time())
        {
            return None;
        }
        let mut state = lock(&self.shard.state);
        let tick = state.tick_of(deadline);
        // The clock is read only where the driver would otherwise have to be woken, which costs far more, or where a test may have
        // moved the clock without the driver having run since.
        let is_read = tick < self.shard.wake_at() || state.clock.source == Source::Pausable;
        let reached = match state.mode != Mode::Driverless && is_read {
            true => self.shard.current(&state),
            false => self.shard.reached(&state),
        };
        if tick <= reached {
            // As in Tokio, a deadline that has passed does not wait for the driver.
            let key = self.claim.take_key()?;
            let waker = self.shard.remove(state, key, Removal::Expired)?;
            self.claim.progress = Progress::Elapsed;
            return Some(waker);
        }
        let deadline = self.shard.with_slack(&state, tick, 0);
        if state.wheel.bring_forward(key, deadline) {
            self.claim.power = deadline.power;
            self.claim.until = self.claim.until.min(state.until(deadline.due()));
            self.shard.wake_driver_by(state, deadline.due());
        }
        None
    }
}
