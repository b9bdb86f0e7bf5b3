//! A timer that is due so long after its registration.
//!
//! In a shard that ticks, this needs no clock: the entry is incoming, with its delay, and the next visit counts from its own
//! reading. In one that dozes, the clock is read, and the timer has a deadline from then on.

use std::task::{Poll, Waker};

use super::{
    Admission, Generation, Shard, State, Timer,
    claim::{Claim, Progress},
    reuse::{Candidate, WakerId},
};
use crate::{clock::Moment, error::Refusal, sync::Ordering, timing_wheel::Nanos};

impl Timer {
    /// Takes over the timer that this thread keeps, if that is of the same delay, or has a deadline that is no later than this one's.
    #[inline]
    pub(super) fn take_over_counting(&mut self, waker: &Waker) -> bool {
        if self.claim.nanos == 0 {
            return false;
        }
        self.shard.follow_thread();
        match self.shard.reuse.take_incoming(waker, Nanos(self.claim.nanos)) {
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
        let (now, epoch) = self.shard.read_moment();
        let due = now.after(Nanos(self.claim.nanos));
        let tick = self.shard.tick;
        let deadline = self.shard.wheel_time(due, epoch);
        if !deadline.is_some_and(|deadline| candidate.is_due_by(deadline, tick)) {
            return false;
        }
        let Some(key) = self.shard.reuse.take_at(now, self.shard.cadence.nanos(tick)) else {
            return false;
        };
        self.claim.set_entry(key, candidate.until, candidate.waker);
        self.claim.set_deadline(due, epoch);
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
        state.wheel.reinsert_incoming(&key, Nanos(self.claim.nanos));
        let until = shard.pending_until_full_visit(&state);
        drop(state);
        self.claim.set_entry(key, until, id);
        true
    }

    /// Registers the timer, unless it is due at once.
    pub(super) fn register_counting(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        if self.claim.nanos == 0 {
            self.claim.progress = Progress::Immediate;
            return self.poll_slowly(waker);
        }
        let delay = Nanos(self.claim.nanos);
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
            drop(spent);
            self.claim.set_entry(key, until, id);
            return Poll::Pending;
        }
        let mut state = shard.ensure_driven(state)?;
        shard.admit(&mut state, Admission::New)?;
        let now = Moment::of(shard.now());
        let (wheel_now, due) = (state.clock.nanos_at(now), now.after(delay));
        let tick = state.clock.deadline_tick(state.clock.nanos_at(due));
        let (until, epoch) = (state.until(tick), state.epoch);
        let key = state.wheel.insert(tick, waker);
        let now = state.clock.tick_at(wheel_now);
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
        drop((spent, emptied));
        self.claim.set_entry(key, until, id);
        self.claim.set_deadline(due, epoch);
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

impl Claim {
    /// The delay of an entry that is incoming, as far as is known. Zero for any other.
    #[inline]
    pub(super) fn incoming_delay(&self) -> Nanos {
        match self.progress {
            Progress::Counting => Nanos(self.nanos),
            _ => Nanos::ZERO,
        }
    }
}
