//! The state behind a shard's lock.

use std::task::Waker;

use tokio::time::Instant;

use super::{Counters, Generation, Ledger, Mode, NEVER, mode::Cadence};
use crate::engine::{
    clock::{Clock, Moment},
    sync::planted,
    timing_wheel::{Nanos, Tick, TimingWheel},
};

pub(super) struct State {
    /// The timers, each with the waker of the task that polled it last.
    pub(super) wheel: TimingWheel<Waker>,
    /// Whether there is a driver, and how often it visits.
    pub(super) mode: Mode,
    pub(super) cadence: Cadence,
    /// The driver's clock or, while there is none, that of the previous driver.
    pub(super) clock: Clock,
    /// The first tick for which a timer may be registered. The wheel may be a tick ahead of the clock of a driver that has just
    /// started, and a timer for a tick that the wheel has reached would be early.
    pub(super) first: Tick,
    /// The wheel time from which delays of incoming timers count in this turn.
    pub(super) incoming_from: Nanos,
    /// The number of the driver or, while there is none, of the previous one.
    pub(super) driver: u64,
    pub(super) counters: Counters,
    /// The slots that keep timers of this shard for reuse.
    pub(super) ledger: Ledger,
}

impl State {
    /// Returns the first tick at which a timer for `deadline` may expire.
    pub(super) fn tick_of(&self, deadline: Moment) -> Tick {
        let deadline = self.clock.shift.to_wheel(deadline);
        self.clock.deadline_tick(deadline.wheel_time()).max(self.first)
    }

    /// Continues by another clock, which reads `now`. The shard has `reached` a tick by the clock before it.
    pub(super) fn follow(&mut self, clock: Clock, now: Instant, reached: Tick) {
        self.clock = clock;
        self.first = match clock.instant_of(reached) > now {
            true => Tick(reached.0 + 1),
            false => Tick::ZERO,
        };
    }

    /// Returns the last generation in which an entry for `tick` is certainly pending.
    #[inline]
    pub(super) fn until(&self, tick: Tick) -> Generation {
        match self.clock.source.is_real() {
            true => Generation::of(self.driver, tick),
            false => Generation::UNKNOWN,
        }
    }

    /// Returns the last generation in which an incoming entry is certainly pending, because only a full visit transfers it.
    #[inline]
    pub(super) fn until_full_visit(&self) -> Generation {
        self.until(self.cadence.end)
    }

    /// Returns the tick of the driver's next visit, which is at the next deadline, when slots are to be closed, and in a ticking
    /// shard at the next full visit at the latest.
    pub(super) fn next_visit(&self) -> Tick {
        let due = self.wheel.next_deadline().unwrap_or(NEVER);
        let due = due.min(self.ledger.closes_at());
        match self.mode {
            Mode::Ticking if !planted("full_at") => due.min(self.cadence.end),
            _ => due,
        }
    }

    /// Returns the tick of the visit after `next`, if no timer is registered or cancelled until then. Coarser levels and the slots are
    /// ignored, because they rarely decide.
    pub(super) fn visit_after(&self, next: Tick) -> Tick {
        let due = self.wheel.deadline_after(next).unwrap_or(NEVER);
        match self.mode {
            Mode::Ticking => due.min(self.clock.tick.full_visit_after(next)),
            _ => due,
        }
    }

    /// Counts a registration of a shard that dozes and read the clock. Returns whether the shard ticks from now on, as it never does on
    /// a test's clock.
    pub(super) fn count_registration(&mut self, tick: Tick, many: bool) -> bool {
        let end = self.clock.tick.full_visit_after(tick);
        let is_busy = self.cadence.add_registration(end, many, self.counters.registered);
        let begins = is_busy && self.clock.source.is_real();
        if begins {
            self.mode = Mode::Ticking;
        }
        begins
    }

    /// Begins the next cadence in a full visit at `tick`, and decides whether the shard continues ticking. In either case, that visit
    /// transfers all incoming timers.
    pub(super) fn end_cadence(&mut self, tick: Tick) {
        let end = self.clock.tick.full_visit_after(tick);
        let is_quiet = self.cadence.begin_next(end, self.counters.registered);
        if is_quiet || !self.clock.source.is_real() {
            self.mode = Mode::Dozing;
            self.counters.dozes += 1;
        }
    }
}
