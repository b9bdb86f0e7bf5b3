//! When a shard ticks, and when it dozes.

use super::{NEVER, State};
use crate::timing_wheel::Tick;

/// Ticks in a row with fewer than [`BUSY`] registrations after which a ticking shard dozes.
const QUIET_TICKS: u32 = if cfg!(loom) { 1 } else { 4 };

/// Registrations in one tick from which a shard ticks: their clock readings cost as much as a visit of the driver does, which
/// is more where the runtime has to be woken for it and less where it is busy. docs/tuning.md says how it was measured.
const BUSY: u32 = if cfg!(loom) { 1 } else { 128 };

/// How a shard is driven, and what that makes of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// No driver: the next future polled starts one.
    Driverless,
    /// Visited at `wake_at` only, and nothing is incoming. Registrations read the clock; `busy` counts those of the tick `at`.
    Dozing { at: Tick, busy: u32 },
    /// Visited at every tick. Registrations need no clock; `seen` of them had been counted at the last visit.
    Ticking { quiet: u32, seen: u64 },
    /// For good.
    Shutdown,
}

impl State {
    /// From now on the driver comes at the next deadline only.
    pub(super) fn doze(&mut self) {
        self.mode = Mode::Dozing {
            at: Tick::ZERO,
            busy: 0,
        };
        self.wake_at = self.wheel.next_deadline().unwrap_or(NEVER);
    }

    /// After a visit at `tick`: goes on ticking while it is worth it.
    pub(super) fn choose_mode(&mut self, tick: Tick) {
        let Mode::Ticking { quiet, seen } = self.mode else {
            self.wake_at = self.wheel.next_deadline().unwrap_or(NEVER);
            return;
        };
        let registered = self.counters.registered;
        let quiet = if registered - seen < u64::from(BUSY) {
            quiet + 1
        } else {
            0
        };
        if quiet == QUIET_TICKS || !self.clock.source.is_real() {
            self.counters.dozes += 1;
            self.doze();
        } else {
            self.mode = Mode::Ticking {
                quiet,
                seen: registered,
            };
            self.wake_at = tick.next();
        }
    }

    /// Counts a registration that had to read the clock, at `tick`; true when there have been so many in this tick that the
    /// shard, from now on, ticks.
    pub(super) fn ticks_from_now_on(&mut self, tick: Tick) -> bool {
        let Mode::Dozing { at, busy } = &mut self.mode else {
            return false;
        };
        *busy = if *at == tick { *busy + 1 } else { 1 };
        *at = tick;
        let ticks = *busy >= BUSY && self.clock.source.is_real();
        if ticks {
            self.mode = Mode::Ticking {
                quiet: 0,
                seen: self.counters.registered,
            };
        }
        ticks
    }
}
