//! A timer that is due so long after its registration.
//!
//! In a shard that ticks, this needs no clock: the entry is incoming, with its delay, and the next visit counts from its own
//! reading. In one that dozes, the clock is read, and the timer has a deadline from then on.

use std::task::{Poll, Waker};

use super::{
    Admission, Generation, Shard, State, Timer,
    claim::Progress,
    reuse::{Candidate, WakerId},
};
use crate::{clock::Moment, error::Refusal, sync::Ordering, timing_wheel::Nanos};

impl Timer {
    /// Takes over the timer that this thread keeps, if that is of the same delay, or has a deadline that is no later than this one's.
    #[inline]
    pub(super) fn take_over_counting(&mut self, waker: &Waker) -> bool {
        let delay = self.claim.incoming_delay();
        if delay == Nanos::ZERO {
            return false;
        }
        self.shard.follow_thread();
        match self.shard.reuse.take_incoming(waker, delay) {
            Some((candidate, Some(key))) => {
                self.claim.set_entry(key, candidate.until, candidate.waker);
                true
            }
            Some((_, None)) if self.shard.ticks.load(Ordering::Relaxed) => self.take_over_locked(waker),
            Some((candidate, None)) if candidate.delay == Nanos::ZERO => {
                self.take_over_by_deadline(&candidate)
            }
            _ => false,
        }
    }

    /// Takes over the timer that this thread keeps, for a reading of the clock, if its deadline is no later.
    #[inline]
    fn take_over_by_deadline(&mut self, candidate: &Candidate) -> bool {
        let now = self.shard.now();
        let due = now.after(self.claim.incoming_delay());
        let tick = self.shard.tick;
        if !due.is_wheel_time() || !candidate.is_due_by(due.wheel_time(), tick) {
            return false;
        }
        let Some(key) = self.shard.reuse.take_at(now, self.shard.cadence.nanos(tick)) else {
            return false;
        };
        self.claim.set_entry(key, candidate.until, candidate.waker);
        self.claim.set_deadline(due);
        true
    }

    /// Takes over the timer that this thread keeps, whatever its delay or deadline, in a shard that ticks. It gets this one's delay. That
    /// needs the lock, since a visit may be about to transfer it. It needs no clone of the waker, which would cost as much.
    #[inline(never)]
    fn take_over_locked(&mut self, waker: &Waker) -> bool {
        let shard = &self.shard;
        let mut state = shard.lock_to_register();
        if !state.mode.is_ticking() {
            return false;
        }
        let Some((key, id)) = shard.reuse.take_locked(waker) else {
            return false;
        };
        state.wheel.reinsert_incoming(&key, self.claim.incoming_delay());
        let until = shard.pending_until_full_visit(&state);
        drop(state);
        self.claim.set_entry(key, until, id);
        true
    }

    /// Registers the timer, unless it is due at once.
    pub(super) fn register_counting(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let delay = self.claim.incoming_delay();
        if delay == Nanos::ZERO {
            self.claim.progress = Progress::Immediate;
            return self.poll_slowly(waker);
        }
        let waker = waker.clone();
        let id = WakerId::of(&waker);
        let shard = &self.shard;
        let mut state = shard.lock_to_register();
        if state.mode.is_ticking() {
            shard.admit(&mut state, Admission::New)?;
            let until = shard.pending_until_full_visit(&state);
            let key = state.wheel.insert_incoming(delay, waker);
            let spent = shard.make_room(&mut state);
            drop(state);
            self.claim.set_entry(key, until, id);
            drop(spent);
            return Poll::Pending;
        }
        let mut state = shard.ensure_driven(state)?;
        shard.admit(&mut state, Admission::New)?;
        let now = state.clock.shift().to_wheel(Moment::of(shard.read_clock()));
        let due = now.after(delay);
        let tick = shard.tick.deadline_tick(due.wheel_time());
        let until = state.until(tick);
        let key = state.wheel.insert(tick, waker);
        let now = shard.tick.tick_at(now.wheel_time());
        let mut wake_at = tick;
        let mut emptied = Vec::new();
        // `ensure_driven` may have let another thread make the shard tick.
        let ticks = state.mode.is_ticking();
        if !ticks && state.count_registration(now, shard.cadence, shard.reuse.were_many()) {
            wake_at = tick.min(state.full_at);
            // The last visit may be long ago. The clock of a shard that ticks is its generation, and begins here.
            let begins = shard.generation_at(&state, now);
            shard.end_generation(&mut state, begins, &mut emptied);
            shard.ticks.store(true, Ordering::Relaxed);
        }
        let spent = shard.make_room(&mut state);
        shard.wake_driver_by(state, wake_at);
        self.claim.set_entry(key, until, id);
        self.claim.set_deadline(due);
        // Last, because a waker may panic as it is dropped.
        drop((spent, emptied));
        Poll::Pending
    }
}

impl Shard {
    /// Until when an incoming timer is certainly pending: only a full visit transfers.
    #[inline]
    fn pending_until_full_visit(&self, state: &State) -> Generation {
        state.until(state.full_at)
    }
}
