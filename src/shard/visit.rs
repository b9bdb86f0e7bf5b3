//! What the driver does with a shard: take it over, visit it, leave it.

use std::{mem, task::Waker};

use super::{Generation, Mode, NEVER, Shard, State};
use crate::{
    clock::{Clock, Epoch, Source},
    sync::{Ordering, lock},
    timing_wheel::{Nanos, Tick},
};

/// Wakers taken out of a shard, to be woken or dropped with no lock held.
#[derive(Default)]
pub(crate) struct Wakers {
    /// To be woken: their timers are due, or have to look for another driver.
    pub(crate) due: Vec<Waker>,
    /// To be dropped: nobody waits by them.
    pub(crate) spent: Vec<Waker>,
}

/// How a visit ended.
pub(crate) enum Visited {
    /// The batch was full: come back at once.
    Unfinished,
    /// Come back at tick `next`; at [`NEVER`], not before a notification.
    Finished { next: Tick },
    /// The shard needs nothing any more.
    Shutdown,
}

impl Shard {
    /// A driver has come, with its clock.
    pub(crate) fn attach(&self, clock: Clock, epoch: Epoch) {
        let mut state = lock(&self.state);
        if state.mode != Mode::Driverless {
            return;
        }
        if epoch != state.epoch && state.epoch != Epoch::NEVER_DRIVEN {
            let former = state.clock;
            state.former.push(former);
        }
        state.clock = clock;
        state.epoch = epoch;
        state.driver += 1;
        state.doze();
        self.publish(&state);
        let begins = self.generation_at(&state, state.wheel.now());
        self.reuse.begin_generation(begins);
    }

    /// The driver has gone, at `stopped_at`: every pending future is to be polled, so that one starts another driver.
    pub(crate) fn detach(&self, stopped_at: Nanos, wakers: &mut Wakers) {
        let mut state = lock(&self.state);
        if matches!(state.mode, Mode::Driverless | Mode::Shutdown) {
            return;
        }
        self.end_generation(&mut state, Generation::ENDED, &mut wakers.spent);
        if state.mode.is_ticking() {
            self.mark_incoming(&mut state, stopped_at);
            state.transfer_incoming(usize::MAX);
        }
        let pending = state.wheel.values_mut();
        wakers
            .due
            .extend(pending.map(|waker| mem::replace(waker, Waker::noop().clone())));
        state.mode = Mode::Driverless;
        self.publish(&state);
        self.unlock(state);
    }

    /// Lets the driver go, if no timer is pending here.
    pub(crate) fn detach_if_empty(&self, wakers: &mut Wakers) -> bool {
        let mut state = lock(&self.state);
        // The same goes on, where the driver stays.
        let same = self.reuse.generation();
        self.end_generation(&mut state, same, &mut wakers.spent);
        // A cell whose timer has expired, and whose future may never be polled again, is no reason to stay.
        let empty = state.wheel.len() == 0;
        if empty && state.mode != Mode::Shutdown {
            state.mode = Mode::Driverless;
            self.publish(&state);
            self.reuse.begin_generation(Generation::ENDED);
        }
        let shutdown = state.mode == Mode::Shutdown;
        self.unlock(state);
        empty || shutdown
    }

    /// Ends every timer, and the shard, for good; returns how many timers there were.
    pub(crate) fn shutdown(&self, wakers: &mut Wakers) -> usize {
        let mut state = lock(&self.state);
        self.end_generation(&mut state, Generation::ENDED, &mut wakers.spent);
        if state.mode.is_ticking() {
            // For those that wait on elsewhere, for what is left of their time.
            self.mark_incoming(&mut state, Nanos::ZERO);
            state.transfer_incoming(usize::MAX);
        }
        let pending = state.wheel.len();
        state.wheel.cancel_all(&mut wakers.due);
        state.counters.cancelled += pending as u64;
        state.mode = Mode::Shutdown;
        self.release(pending);
        self.publish(&state);
        self.unlock(state);
        pending
    }

    /// Whether the driver's visit is overdue, by more than what Tokio's timer rounds up.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_behind(&self) -> bool {
        let state = lock(&self.state);
        let now = state.clock.nanos_of(self.now() - crate::clock::ROUNDING);
        matches!(state.mode, Mode::Dozing { .. } | Mode::Ticking { .. })
            && state.clock.tick_at(now) >= state.wake_at
    }

    /// Marks what is incoming now, to be transferred by this turn: it counts from a reading of the clock made here. What comes later
    /// is the next turn's, so that a turn has an end.
    fn mark_incoming(&self, state: &mut State, now: Nanos) {
        // Under the lock: a registration that is here was made before this reading, so counting from it is never early.
        state.incoming_from = state.clock.nanos_of(self.now()).max(now);
        state.wheel.mark_incoming();
    }

    /// What to publish before timers up to `tick` expire.
    fn generation_at(&self, state: &State, tick: Tick) -> Generation {
        let next = Generation::of(state.driver, tick);
        match self.reuse.generation() {
            _ if !state.clock.source.is_real() => Generation::ENDED,
            Generation::ENDED => next,
            last => last.max(next),
        }
    }

    /// Moves the shard on to `now`, the reading of the clock by which this turn goes, and takes wakers of due timers. Deals with up
    /// to `batch` timers, those that are due first. `begins`: it is the turn's first visit here.
    pub(crate) fn visit(
        &self,
        now: Nanos,
        source: Source,
        begins: bool,
        batch: usize,
        wakers: &mut Wakers,
    ) -> Visited {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        match state.mode {
            Mode::Shutdown => {
                self.end_generation(state, Generation::ENDED, &mut wakers.spent);
                self.unlock(guard);
                return Visited::Shutdown;
            }
            Mode::Driverless => return Visited::Finished { next: NEVER },
            Mode::Dozing { .. } | Mode::Ticking { .. } => {}
        }
        if state.clock.source != source {
            state.clock.source = source;
            self.publish(state);
        }
        let tick = state.clock.tick_at(now);
        if begins {
            let ticking = state.mode.is_ticking();
            // A clock that a test has stopped is no reason to wait for the next tick: what is incoming is transferred now.
            if tick < state.wake_at && (source.is_real() || !ticking) {
                let next = state.wake_at;
                self.unlock(guard);
                return Visited::Finished { next };
            }
            let (last, next) = (self.reuse.generation(), self.generation_at(state, tick));
            self.end_generation(state, next, &mut wakers.spent);
            // Within one tick of the real clock only once: a generation that did not end still takes over what is incoming.
            if ticking && (last != next || next == Generation::ENDED) {
                self.mark_incoming(state, now);
            }
        }
        let advanced = state.wheel.advance(tick, batch, &mut wakers.due);
        state.counters.expired += advanced.expired as u64;
        state.counters.cascaded += advanced.cascaded as u64;
        self.release(advanced.expired);
        if advanced.more || !state.transfer_incoming(batch - advanced.expired - advanced.cascaded) {
            return Visited::Unfinished;
        }
        state.plan(tick);
        self.ticks.store(state.mode.is_ticking(), Ordering::Relaxed);
        let next = state.wake_at;
        self.unlock(guard);
        Visited::Finished { next }
    }
}

impl State {
    /// Gives up to `limit` of the incoming timers that were marked their deadlines; true when it was all of them.
    fn transfer_incoming(&mut self, limit: usize) -> bool {
        let (clock, from) = (self.clock, self.incoming_from);
        self.wheel
            .transfer_incoming(limit, |delay| clock.deadline_tick(from.saturating_add(delay)))
    }
}
