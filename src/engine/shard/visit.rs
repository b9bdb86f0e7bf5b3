//! The driver's operations on a shard: attach to it, visit it, detach from it, shut it down.

use std::{mem, task::Waker};

use tokio::time::Instant;

use super::{Generation, Mode, NEVER, Shard, State, mode::Cadence};
use crate::engine::{
    clock::{Clock, Source},
    sync::{Ordering, lock, planted},
    timing_wheel::{Nanos, Tick},
};

/// Wakers that were taken out of a shard, to be woken or dropped with no lock held.
#[derive(Default)]
pub(crate) struct Wakers {
    /// To be woken, because their timers are due or need another driver.
    pub(crate) due: Vec<Waker>,
    /// To be dropped, because no task waits for them.
    pub(in crate::engine) spent: Vec<Waker>,
    /// The number of timers that were transferred or cascaded, whose wakers stayed.
    pub(in crate::engine) moved: usize,
}

/// The one reading of the clock that a turn of the driver uses.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Reading {
    now: Nanos,
    /// The tick in progress, computed once, since a division takes long.
    pub(in crate::engine) tick: Tick,
    source: Source,
    /// The number of the driver.
    driver: u64,
}

impl Reading {
    /// Creates a reading by the clock of driver number `driver`.
    pub(in crate::engine) fn new(clock: &Clock, now: Nanos, driver: u64) -> Reading {
        Reading {
            now,
            tick: clock.tick.tick_at(now),
            source: clock.source,
            driver,
        }
    }
}

impl Shard {
    /// Attaches driver number `driver`, with its clock, which reads `now`.
    pub(in crate::engine) fn attach(&self, clock: Clock, now: Instant, driver: u64) {
        let mut state = lock(&self.state);
        if state.mode != Mode::Driverless {
            return;
        }
        let reached = state.wheel.now();
        state.follow(clock, now, reached);
        state.driver = driver;
        state.mode = Mode::Dozing;
        state.cadence = Cadence::default();
        let next = state.next_visit();
        self.plan_visit(&mut state, next);
        self.publish(&state);
        let begins = self.generation_at(&state, state.wheel.now());
        self.reuse.begin_generation(begins);
    }

    /// Continues by another clock of the same driver, which reads `now`.
    pub(in crate::engine) fn follow(&self, clock: Clock, now: Instant) {
        let mut state = lock(&self.state);
        let reached = match self.reuse.generation() {
            Generation::ENDED => state.wheel.now(),
            published => published.tick().max(state.wheel.now()),
        };
        state.follow(clock, now, reached);
        self.publish(&state);
    }

    /// Detaches a driver that ended at `stopped_at`. Every pending future is woken, so that one of them starts another driver.
    pub(in crate::engine) fn detach(&self, stopped_at: Nanos, wakers: &mut Wakers) {
        let mut state = lock(&self.state);
        self.end_generation(&mut state, Generation::ENDED, NEVER, &mut wakers.spent);
        if !state.mode.is_driven() {
            return self.unlock(state);
        }
        self.transfer_all(&mut state, stopped_at, wakers);
        let pending = state.wheel.values_mut();
        wakers
            .due
            .extend(pending.map(|waker| mem::replace(waker, Waker::noop().clone())));
        state.mode = Mode::Driverless;
        self.publish(&state);
        self.unlock(state);
    }

    /// Ends every timer, and shuts down the shard for good. Returns the number of timers that were pending.
    pub(crate) fn shutdown(&self, wakers: &mut Wakers) -> usize {
        let mut state = lock(&self.state);
        self.end_generation(&mut state, Generation::ENDED, NEVER, &mut wakers.spent);
        // Futures that fall back on Tokio's timer query their deadlines.
        self.transfer_all(&mut state, Nanos::ZERO, wakers);
        let pending = state.wheel.len();
        state.wheel.cancel_all(&mut wakers.due);
        state.counters.cancelled += pending as u64;
        state.mode = Mode::Shutdown;
        self.plan_visit(&mut state, NEVER);
        self.release(pending);
        self.publish(&state);
        self.unlock(state);
        pending
    }

    /// Returns whether the driver's visit is overdue, by whole milliseconds, since Tokio's timer runs the driver.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_behind(&self) -> bool {
        let state = lock(&self.state);
        let now = state.clock.wheel_time(self.read_clock()).whole_milliseconds();
        state.mode.is_driven() && self.tick.tick_at(now) >= self.wake_at()
    }

    /// Marks the timers that are incoming now. This turn transfers these and no others, so that it ends. Delays count from a
    /// reading of the clock made here.
    fn mark_incoming(&self, state: &mut State, now: Nanos) {
        // The lock is held, so every registration found was made before this reading, and counting from it is never early.
        state.incoming_from = state.clock.wheel_time(self.read_clock()).max(now);
        state.wheel.mark_incoming();
    }

    /// Gives every incoming timer its deadline. Delays count as in [`Shard::mark_incoming`].
    fn transfer_all(&self, state: &mut State, now: Nanos, wakers: &mut Wakers) {
        if state.wheel.has_incoming() {
            self.mark_incoming(state, now);
            state.transfer_incoming(usize::MAX, &mut wakers.moved);
        }
    }

    /// Continues by another source of the clock of driver number `driver`, before that driver runs.
    pub(in crate::engine) fn follow_source(&self, source: Source, driver: u64, wakers: &mut Wakers) {
        let mut state = lock(&self.state);
        if self.is_driven() && state.driver == driver {
            let now = state.wheel.now();
            self.change_source(&mut state, source, now, wakers);
        }
    }

    fn change_source(&self, state: &mut State, source: Source, tick: Tick, wakers: &mut Wakers) {
        if state.clock.source != source {
            state.clock.source = source;
            self.publish(state);
            // On a test's clock nothing is known without the lock.
            let next = self.generation_at(state, tick);
            self.end_generation(state, next, tick, &mut wakers.spent);
        }
    }

    /// Returns the generation to publish before timers up to `tick` expire.
    pub(super) fn generation_at(&self, state: &State, tick: Tick) -> Generation {
        let next = Generation::of(state.driver, tick);
        match self.reuse.generation() {
            _ if !state.clock.source.is_real() => Generation::ENDED,
            Generation::ENDED => next,
            last => last.max(next),
        }
    }

    /// Returns whether a turn has to visit the shard, as far as is known without the lock.
    #[inline]
    pub(in crate::engine) fn is_due(&self, Reading { tick, source, .. }: Reading) -> bool {
        !source.is_real() || self.wake_at() <= tick || !self.is_driven_by(source)
    }

    /// Moves the shard on to this turn's reading of the clock, and takes the wakers of due timers. Handles up to `batch` timers,
    /// the earliest first, and returns whether there are more. `begins` says that this is the turn's first visit here.
    ///
    /// A shard that has another driver by now is left alone: the previous driver may still be at work while its runtime drops its
    /// task, and would move the visit that the next one has planned.
    pub(in crate::engine) fn visit(
        &self,
        Reading {
            now,
            tick,
            source,
            driver,
        }: Reading,
        begins: bool,
        batch: usize,
        wakers: &mut Wakers,
    ) -> bool {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if !state.mode.is_driven() || state.driver != driver {
            return false;
        }
        self.change_source(state, source, tick, wakers);
        if begins {
            // A test may have stopped the clock, so that the next tick never comes. Incoming timers are therefore transferred
            // now.
            let end = state.cadence.end;
            let full = state.mode == Mode::Ticking
                && (tick == end || tick > end && !planted("late_visit") || !source.is_real());
            if tick < self.wake_at() && !full {
                self.unlock(guard);
                return false;
            }
            let next = self.generation_at(state, tick);
            self.end_generation(state, next, tick, &mut wakers.spent);
            if full {
                // Timers registered from here on stay incoming, and can be taken over, until the next full visit.
                state.counters.full_visits += 1;
                self.mark_incoming(state, now);
                state.end_cadence(tick);
            } else {
                if planted("light_visit") {
                    self.mark_incoming(state, now);
                }
                state.counters.light_visits += 1;
            }
        }
        let advanced = state.wheel.advance(tick, batch, &mut wakers.due);
        state.counters.expired += advanced.expired as u64;
        state.counters.cascaded += advanced.cascaded as u64;
        self.release(advanced.expired);
        wakers.moved += advanced.cascaded;
        let limit = batch - advanced.expired - advanced.cascaded;
        if advanced.more || state.wheel.has_incoming() && !state.transfer_incoming(limit, &mut wakers.moved) {
            return true;
        }
        let next = state.next_visit();
        self.plan_visit(state, next);
        self.visit_after
            .store(state.visit_after(next).0, Ordering::Relaxed);
        if state.wheel.is_vacant() {
            self.unlock(guard);
        }
        false
    }
}

impl State {
    /// Gives up to `limit` of the marked incoming timers their deadlines, and counts them. Returns `true` if none is left.
    fn transfer_incoming(&mut self, limit: usize, moved: &mut usize) -> bool {
        let (clock, from) = (self.clock, self.incoming_from);
        self.wheel.transfer_incoming(limit, |delay| {
            *moved += 1;
            clock.deadline_after(delay, from)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::{clock::Moment, shard::drive::fixture::driverless_shard};

    fn visit(shard: &Shard, clock: Clock, driver: u64, at: u64, begins: bool, batch: usize) -> bool {
        let reading = Reading::new(&clock, clock.tick.start_of(Tick(at)), driver);
        shard.visit(reading, begins, batch, &mut Wakers::default())
    }

    /// A driver's runtime ends in the middle of its turn, and the next driver starts with the same clock. Where a bucket has to
    /// cascade before its timer is due, a visit plans the next one for the cascade, and would leave no visit for the timer.
    #[test]
    fn a_driver_that_has_been_replaced_leaves_the_next_ones_plan_alone() {
        let (shard, clock) = driverless_shard(2, 8);
        let visit = |driver, at, begins, batch| visit(&shard, clock, driver, at, begins, batch);
        let register = |at| {
            let mut state = lock(&shard.state);
            // The key is dropped, so that the timer is never removed.
            let _ = state.wheel.insert(at, Waker::noop().clone());
            shard.plan_visit(&mut state, at);
        };
        shard.attach(clock, Instant::now(), 1);
        register(Tick(1));
        register(Tick(1));
        assert!(visit(1, 1, true, 1));
        shard.detach(Nanos::ZERO, &mut Wakers::default());
        shard.attach(clock, Instant::now(), 2);
        assert!(!visit(2, 1, true, 256));
        assert_eq!(shard.wake_at(), NEVER);
        let due = Tick(1_000);
        register(due);
        visit(1, 1, false, 256);
        assert_eq!(shard.wake_at(), due);
    }
    /// A driver pauses in the middle of a turn, and then finds where Tokio's milliseconds begin, which sets wheel time back.
    #[test]
    fn no_timer_is_registered_for_a_tick_that_was_published_before_wheel_time_went_back() {
        let (shard, clock) = driverless_shard(512, 4);
        let now = Instant::now();
        let tick = clock.tick;
        shard.attach(clock, now, 1);
        let mut state = lock(&shard.state);
        for _ in 0..2 {
            // The key is dropped, so that the timer is never removed.
            let _ = state.wheel.insert(Tick(5), Waker::noop().clone());
        }
        shard.plan_visit(&mut state, Tick(5));
        drop(state);
        assert!(visit(&shard, clock, 1, 10, true, 1));
        assert_eq!(lock(&shard.state).wheel.now(), Tick(5));
        let behind = tick.start_of(Tick(10)).saturating_sub(Nanos(1));
        shard.follow(Clock::new(now, behind, tick, Source::Machine), now);
        let state = lock(&shard.state);
        let next = state.tick_of(Moment::of_wheel(tick.start_of(Tick(10))));
        assert_eq!(next, Tick(11));
        assert!(!state.until(next).has_come_by(shard.reuse.generation()));
    }
}
