//! What is behind the lock.

use std::task::Waker;

use super::{Generation, Ledger, Mode, NEVER};
use crate::{
    clock::{Clock, Epoch, Moment},
    timing_wheel::{Nanos, Tick, TimingWheel},
};

pub(super) struct State {
    /// The timers. Each has the waker of the task that polled it last.
    pub(super) wheel: TimingWheel<Waker>,
    /// Whether there is a driver, and how often it comes.
    pub(super) mode: Mode,
    /// The tick at which the driver visits next. [`NEVER`] if it need not.
    pub(super) wake_at: Tick,
    /// The tick of a visit that somebody wants, whatever is due then. [`NEVER`] if nobody does.
    pub(super) asked: Tick,
    /// The driver's clock or, while there is none, that of the last driver.
    pub(super) clock: Clock,
    /// Instants of this epoch are of that clock.
    pub(super) epoch: Epoch,
    /// The clocks of epochs 1 to `epoch`, exclusive.
    pub(super) former: Vec<Clock>,
    /// The wheel time from which delays of incoming timers count in this turn.
    pub(super) incoming_from: Nanos,
    /// The number of the driver or, while there is none, of the last one.
    pub(super) driver: u64,
    /// How often a driver has come, for [`Generation`]. One that has detached may attach again, with the same number.
    pub(super) attached: u32,
    pub(super) counters: Counters,
    /// Which slots have timers of this shard, kept for reuse.
    pub(super) ledger: Ledger,
}

/// What a shard has done so far: the fields of [`Metrics`](crate::metrics::Metrics) of the same names, without what the ledger counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) registered: u64,
    pub(super) expired: u64,
    pub(super) cancelled: u64,
    pub(super) rejected: u64,
    pub(super) cascaded: u64,
    pub(super) dozes: u64,
}

impl State {
    /// The first tick at which a timer for `deadline` may expire.
    pub(super) fn tick_of(&self, deadline: Moment, epoch: Epoch) -> Tick {
        let clock = match epoch {
            Epoch::NEVER_DRIVEN => &self.clock,
            Epoch(epoch) => self.former.get(usize::from(epoch) - 1).unwrap_or(&self.clock),
        };
        clock.deadline_tick(clock.nanos_at(deadline))
    }

    /// The last generation in which an entry for `tick` is certainly pending.
    #[inline]
    pub(super) fn until(&self, tick: Tick) -> Generation {
        match self.clock.source.is_real() {
            true => Generation::of(self.attached, tick),
            false => Generation::UNKNOWN,
        }
    }

    /// From now on the driver comes only at the next deadline, or if it is asked for.
    pub(super) fn doze(&mut self) {
        self.mode = Mode::DOZING;
        self.wake_at = self.next_visit();
    }

    /// When the driver is to come to a dozing shard.
    fn next_visit(&self) -> Tick {
        self.wheel.next_deadline().unwrap_or(NEVER).min(self.asked)
    }

    /// Counts a registration that read the clock. If the shard ticks from now on, returns when the driver is to come.
    pub(super) fn count_registration(&mut self, now: Nanos, many: bool) -> Option<Tick> {
        let tick = self.clock.tick_at(now);
        let real = self.clock.source.is_real();
        self.mode = self
            .mode
            .after_registration(tick, many, self.counters.registered, real);
        self.mode.is_ticking().then(|| tick.next())
    }

    /// Decides, after a visit at `tick`, when the driver is to come again.
    pub(super) fn plan(&mut self, tick: Tick) {
        let next = self
            .mode
            .after_visit(self.counters.registered, self.clock.source.is_real());
        if !self.mode.is_ticking() {
            self.wake_at = self.next_visit();
        } else if !next.is_ticking() && !self.wheel.has_incoming() {
            self.counters.dozes += 1;
            self.doze();
        } else {
            // The next visit transfers what came in during this one.
            if next.is_ticking() {
                self.mode = next;
            }
            self.wake_at = tick.next();
        }
    }
}
