//! A timer that is due so long after its registration.
//!
//! In a shard that ticks, this needs no clock: the entry is incoming, with its delay, and the next visit counts from its own
//! reading. In one that dozes, the clock is read, and the timer has a deadline from then on.

use std::task::{Poll, Waker};

use super::{
    Admission, Mode, Timer,
    reuse::{Terms, WakerId},
    timer::{Claim, Progress},
};
use crate::{clock::Moment, error::Refusal, timing_wheel::Nanos};

impl Timer {
    #[inline]
    pub(super) fn start_counting(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        if self.claim.nanos == 0 {
            self.claim.progress = Progress::Immediate;
            return self.poll(waker);
        }
        self.shard.follow_thread();
        match self.shard.reuse.offer(waker) {
            Some(terms) if self.take_counting(&terms) => Poll::Pending,
            offer => self.register_counting(waker, offer.is_some()),
        }
    }

    /// Takes the timer that this thread keeps: an incoming one of the same delay or, for a reading of the clock, one with a deadline
    /// that is no later.
    #[inline]
    fn take_counting(&mut self, terms: &Terms) -> bool {
        if terms.delay == Nanos::ZERO {
            return self.take_by_deadline(terms);
        }
        if terms.delay.0 != self.claim.nanos {
            return false;
        }
        let Some(key) = self.shard.reuse.take() else {
            return false;
        };
        self.claim.entry_is(key, terms.until, terms.waker);
        true
    }

    #[inline]
    fn take_by_deadline(&mut self, terms: &Terms) -> bool {
        let delay = Nanos(self.claim.nanos);
        let now = self.shard.read_clock();
        self.claim
            .deadline_is(Moment::of(now.instant, self.shard.base).after(delay), now.epoch);
        if self.take(terms) {
            return true;
        }
        self.claim.nanos = delay.0;
        self.claim.progress = Progress::Counting;
        false
    }

    /// Registers the timer. The slow path, kept out of the fast one's frame.
    #[inline(never)]
    fn register_counting(&mut self, waker: &Waker, offered: bool) -> Poll<Result<(), Refusal>> {
        let delay = Nanos(self.claim.nanos);
        let waker = waker.clone();
        let id = WakerId::of(&waker);
        let shard = &self.shard;
        let mut spent = None;
        let mut state = shard.lock_to_register();
        if let Mode::Ticking { .. } = state.mode {
            // No visit that settles comes before the next tick.
            let until = state.until(shard.reuse.generation().tick().next());
            if let Some(key) = offered.then(|| shard.reuse.take_locked()).flatten() {
                // One of another delay: under the lock, for a visit may be about to settle it.
                if state.wheel.set_incoming_delay(&key, delay) {
                    drop(state);
                    self.claim.entry_is(key, until, id);
                    return Poll::Pending;
                }
                spent = state.end_kept(key);
            }
            shard.admit(&mut state, Admission::New)?;
            let key = state.wheel.insert_incoming(delay, waker);
            spent = spent.or(shard.make_room(&mut state));
            drop(state);
            drop(spent);
            self.claim.entry_is(key, until, id);
            return Poll::Pending;
        }
        let mut state = shard.driven(state)?;
        shard.admit(&mut state, Admission::New)?;
        let now = Moment::of(shard.now(), shard.base);
        let (wheel_now, due) = (state.clock.nanos_at(now), now.after(delay));
        let tick = state.clock.deadline_tick(state.clock.nanos_at(due));
        let (until, epoch) = (state.until(tick), state.epoch);
        let key = state.wheel.insert(tick, waker);
        let wake_by = state.count_registration(wheel_now).unwrap_or(tick);
        spent = shard.make_room(&mut state);
        shard.wake_by(state, wake_by);
        drop(spent);
        self.claim.entry_is(key, until, id);
        self.claim.deadline_is(due, epoch);
        Poll::Pending
    }
}

impl Claim {
    /// The delay of an entry that is incoming as far as is known; zero for any other.
    #[inline]
    pub(super) fn incoming_delay(&self) -> Nanos {
        match self.progress {
            Progress::Counting => Nanos(self.nanos),
            _ => Nanos::ZERO,
        }
    }
}
