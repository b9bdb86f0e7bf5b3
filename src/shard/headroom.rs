//! How much of its time a timer has left, with as few readings of the clock as can be.
//!
//! A shard that ticks has a clock of its own, which costs nothing to read: the tick that its visits have come to. By that clock a
//! timer's time is known to two ticks. A shard that dozes has none: there the real one is read. A thread that reads it often asks the
//! driver to come in a tenth of the time. As long as the driver has not come, timers begun since then have nine tenths left.

use std::cell::Cell;

use tokio::time::Instant;

use super::{Generation, Mode, NEVER, Shard, State, Timer, claim::Progress, status::Status};
use crate::{
    clock::{Epoch, Moment, Source},
    sync::{Ordering, lock},
    timing_wheel::{Nanos, Tick},
};

/// After so many readings a thread asks for a visit, if at that rate [`WORTH`] times as many would come before it. Twice as many cost
/// about as much as to wake a quiet runtime twice: once to be asked, and once to come.
const MANY: u32 = 128;
const WORTH: u64 = 8;

/// The visit that nobody has asked for.
pub(super) const UNASKED: Moment = Moment(u64::MAX);

thread_local! {
    /// How often this thread has read the clock for headroom, of [`MANY`] times.
    static READINGS: Cell<u32> = const { Cell::new(0) };
    /// When it had last read it so many times.
    static SINCE: Cell<Moment> = const { Cell::new(Moment(0)) };
}

impl Timer {
    /// The delay of a timer that counts from its registration, as far as is known. Zero if it has a deadline.
    #[inline]
    pub(crate) fn delay(&self) -> Nanos {
        self.claim.incoming_delay()
    }

    /// Whether nine tenths of `total`, its time, are left, as far as can be told at once.
    #[inline]
    pub(crate) fn is_fresh(&self, total: Nanos) -> bool {
        match self.claim.progress {
            Progress::Counting => self.claim.until.outlasts(self.shard.reuse.generation()),
            Progress::Waiting => self.began_within_tenth_of_visit(total),
            _ => false,
        }
    }

    /// Whether the visit that was asked for comes before a tenth of `total` has passed. That visit has not come yet.
    #[inline]
    fn began_within_tenth_of_visit(&self, total: Nanos) -> bool {
        let visit = self.shard.asked.load(Ordering::Relaxed);
        // This wraps if the timer began later than that, and for a visit that nobody has asked for.
        let passed = visit.wrapping_sub(self.claim.nanos).wrapping_add(total.0);
        passed <= total.0 / 10 && self.shard.status_is_of(self.claim.epoch)
    }

    /// How many tenths of `total`, its time, a pending timer has left. `None` if it was pending at a shutdown.
    #[inline]
    pub(crate) fn tenths_left(&self, total: Nanos) -> Option<usize> {
        let shard = &*self.shard;
        let now = match shard.status() {
            Status::Driven(epoch, source)
                if epoch == self.claim.epoch
                    && self.claim.progress == Progress::Waiting
                    && !shard.ticks.load(Ordering::Relaxed) =>
            {
                match source {
                    Source::Pausable => Moment::of(Instant::now()),
                    Source::Machine => Moment::of(std::time::Instant::now().into()),
                    Source::Test => return self.tenths_left_slowly(total),
                }
            }
            _ => return self.tenths_left_slowly(total),
        };
        let left = tenths(now.nanos_until(Moment(self.claim.nanos)), total);
        if left == 9 {
            self.count_reading(now, total);
        }
        Some(left)
    }

    /// The clock was read because no visit is asked for in this timer's first tenth. If that is so often, one is.
    #[inline(always)]
    fn count_reading(&self, now: Moment, total: Nanos) {
        let readings = READINGS.get() + 1;
        READINGS.set(readings % MANY);
        if readings == MANY {
            self.count_many_readings(now, total);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_many_readings(&self, now: Moment, total: Nanos) {
        let tenth = Nanos(total.0 / 10);
        if SINCE.replace(now).nanos_until(now) < Nanos(tenth.0 / WORTH) {
            self.shard.ask_for_visit(now.after(tenth));
        }
    }

    #[inline(never)]
    fn tenths_left_slowly(&self, total: Nanos) -> Option<usize> {
        if self.shard.is_shutdown() {
            return None;
        }
        let left = match self.claim.progress {
            Progress::Counting => total.saturating_sub(self.since_registration()),
            _ => self.until_deadline(),
        };
        Some(tenths(left, total))
    }

    /// How long ago a timer was registered that has no deadline yet.
    fn since_registration(&self) -> Nanos {
        match self.claim.until {
            Generation::UNKNOWN => Nanos::ZERO,
            // It was registered since the full visit before.
            until => {
                let registered = self.shard.cadence.before(until.tick());
                self.begin_of(registered).nanos_until(self.glance().0)
            }
        }
    }

    /// How long it is until the deadline.
    #[inline(never)]
    pub(crate) fn until_deadline(&self) -> Nanos {
        let due = Moment(self.claim.nanos);
        let (now, epoch) = self.glance();
        if epoch == self.claim.epoch {
            return now.nanos_until(due);
        }
        // Of the clock of another driver.
        let state = lock(&self.shard.state);
        let due = self.shard.tick.start_of(state.tick_of(due, self.claim.epoch));
        due.saturating_sub(state.clock.nanos_at(now))
    }

    /// The moment by the shard's own clock or, if it has none, by a reading.
    fn glance(&self) -> (Moment, Epoch) {
        let shard = &self.shard;
        match (shard.status(), shard.reuse.generation()) {
            (Status::Driven(epoch, _), generation)
                if shard.ticks.load(Ordering::Relaxed) && generation != Generation::ENDED =>
            {
                (self.begin_of(generation.tick()), epoch)
            }
            _ => {
                let now = shard.glance_at_clock();
                (Moment::of(now.instant), now.epoch)
            }
        }
    }

    fn begin_of(&self, tick: Tick) -> Moment {
        Moment(self.shard.origin.load(Ordering::Relaxed)).after(self.shard.tick.start_of(tick))
    }
}

impl Shard {
    /// Makes the driver come to a dozing shard at the last tick that begins by `at`, and tells without the lock that it will.
    #[cold]
    fn ask_for_visit(&self, at: Moment) {
        let mut state = lock(&self.state);
        let tick = state.clock.tick_at(state.clock.nanos_at(at));
        let dozes = matches!(state.mode, Mode::Dozing { .. }) && state.clock.source.is_real();
        if dozes && tick > state.wheel.now() && tick < state.asked {
            state.asked = tick;
            self.asked.store(state.clock.moment_of(tick).0, Ordering::Relaxed);
            self.wake_driver_by(state, tick);
        }
    }

    /// The visit that was asked for has come, or never will.
    pub(super) fn end_asking(&self, state: &mut State) {
        if state.asked != NEVER {
            state.asked = NEVER;
            self.asked.store(UNASKED.0, Ordering::Relaxed);
        }
    }
}

/// How many tenths of `total` are `left`. All of it counts as 9.
#[inline]
fn tenths(left: Nanos, total: Nanos) -> usize {
    // Mostly, next to nothing has passed.
    match total.saturating_sub(left).0.checked_mul(10) {
        Some(passed) if passed <= total.0 && total.0 > 0 => 9,
        _ => tenths_by_division(left, total),
    }
}

#[inline(never)]
fn tenths_by_division(left: Nanos, total: Nanos) -> usize {
    match (total.0, left.0.checked_mul(10)) {
        (0, _) => 0,
        (total, Some(left)) => (left / total).min(9) as usize,
        // Centuries.
        (total, None) => (left.0 / total.div_ceil(10)).min(9) as usize,
    }
}
