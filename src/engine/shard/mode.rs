//! `Mode`: a state machine for when a shard ticks and when it dozes. It knows neither the wheel nor the clock.

use crate::engine::{sync::MODELLED, timing_wheel::Tick};

/// A ticking shard dozes after this many cadences in a row with fewer than [`BUSY`] registrations.
const QUIET_CADENCES: u32 = if MODELLED { 1 } else { 4 };

/// A shard ticks after this many registrations in one cadence, whose clock readings then cost as much as a visit of the driver. A
/// visit costs more if the runtime has to be woken for it, and less if the runtime is busy. docs/tuning.md describes the
/// measurement.
pub(super) const BUSY: u32 = if MODELLED { 1 } else { 128 };

/// How a shard is driven, which decides how timers are registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// There is no driver. The next future that is polled starts one.
    Driverless,
    /// The driver visits only at `wake_at`, and nothing is incoming. Registrations read the clock. `busy` counts the
    /// registrations of the cadence that ends at `until`.
    Dozing { until: Tick, busy: u32 },
    /// The driver makes a full visit at every cadence, and timeouts need no clock. `seen` registrations had been counted at the
    /// last full visit.
    Ticking { quiet: u32, seen: u64 },
    /// Shut down for good.
    Shutdown,
}

impl Mode {
    pub(super) const DOZING: Mode = Mode::Dozing {
        until: Tick::ZERO,
        busy: 0,
    };

    pub(super) fn is_ticking(self) -> bool {
        matches!(self, Mode::Ticking { .. })
    }

    /// Returns the mode after a cadence, when `registered` timers have been registered in total. A shard ticks while that is
    /// worth its cost, and never on a test's clock.
    pub(super) fn after_cadence(self, registered: u64, real: bool) -> Mode {
        let Mode::Ticking { quiet, seen } = self else {
            return self;
        };
        let quiet = match registered - seen < u64::from(BUSY) {
            true => quiet + 1,
            false => 0,
        };
        if quiet == QUIET_CADENCES || !real {
            Mode::DOZING
        } else {
            Mode::Ticking {
                quiet,
                seen: registered,
            }
        }
    }

    /// Returns the mode after a registration that had to read the clock, in the cadence that ends at `until`. The shard ticks
    /// once there have been [`BUSY`] of these in one cadence, or if `many` says that the thread alone has made that many.
    pub(super) fn after_registration(self, until: Tick, many: bool, registered: u64, real: bool) -> Mode {
        let Mode::Dozing { until: counted, busy } = self else {
            return self;
        };
        let busy = match many {
            true => BUSY,
            false if counted == until => busy + 1,
            false => 1,
        };
        if busy >= BUSY && real {
            Mode::Ticking {
                quiet: 0,
                seen: registered,
            }
        } else {
            Mode::Dozing { until, busy }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn registered(times: u32, tick: u64, mode: Mode, real: bool) -> Mode {
        (0..times).fold(mode, |mode, n| {
            mode.after_registration(Tick(tick), false, u64::from(n) + 1, real)
        })
    }

    #[test]
    fn so_many_registrations_in_one_cadence_make_it_tick() {
        let nearly = registered(BUSY - 1, 7, Mode::DOZING, true);
        assert!(!nearly.is_ticking());
        assert!(nearly.after_registration(Tick(7), false, 128, true).is_ticking());
        assert!(
            !nearly.after_registration(Tick(8), false, 128, true).is_ticking(),
            "of another cadence"
        );
        assert!(
            !registered(BUSY * 2, 7, Mode::DOZING, false).is_ticking(),
            "a test's clock"
        );
    }

    #[test]
    fn a_thread_that_has_counted_so_many_itself_makes_it_tick_at_once() {
        assert!(
            Mode::DOZING
                .after_registration(Tick(7), true, 1, true)
                .is_ticking()
        );
        assert!(
            !Mode::DOZING
                .after_registration(Tick(7), true, 1, false)
                .is_ticking()
        );
    }

    #[test]
    fn so_many_quiet_cadences_in_a_row_make_it_doze() {
        let mut mode = registered(BUSY, 7, Mode::DOZING, true);
        let mut timers = u64::from(BUSY);
        for _ in 0..2 {
            for _ in 1..QUIET_CADENCES {
                timers += u64::from(BUSY) - 1;
                mode = mode.after_cadence(timers, true);
                assert!(mode.is_ticking());
            }
            timers += u64::from(BUSY);
            mode = mode.after_cadence(timers, true);
        }
        for _ in 1..QUIET_CADENCES {
            mode = mode.after_cadence(timers, true);
        }
        assert!(mode.is_ticking());
        assert_eq!(mode.after_cadence(timers, true), Mode::DOZING);
        assert_eq!(
            mode.after_cadence(timers + 1_000, false),
            Mode::DOZING,
            "a test's clock"
        );
    }

    #[test]
    fn without_a_driver_and_after_a_shutdown_nothing_changes() {
        for mode in [Mode::Driverless, Mode::Shutdown, Mode::DOZING] {
            assert_eq!(mode.after_cadence(1_000, true), mode);
        }
        for mode in [Mode::Driverless, Mode::Shutdown] {
            assert_eq!(registered(BUSY * 2, 1, mode, true), mode);
        }
    }
}
