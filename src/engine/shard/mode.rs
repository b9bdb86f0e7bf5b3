//! `Mode`: how a shard is driven, and `Cadence`: when it ticks and when it dozes. They know neither the wheel nor the clock.

use crate::engine::{sync::MODELLED, timing_wheel::Tick};

/// A ticking shard dozes after this many cadences in a row with fewer than [`BUSY`] registrations.
const QUIET_CADENCES: u32 = if MODELLED { 1 } else { 4 };

/// A shard ticks after this many registrations in one cadence, whose clock readings then cost as much as a visit of the driver. A
/// visit costs more if the runtime has to be woken for it, and less if the runtime is busy. docs/tuning.md describes the
/// measurement.
pub(super) const BUSY: u32 = if MODELLED { 1 } else { 128 };

/// How a shard is driven, which decides how timers are registered.
///
/// # Examples
///
/// ```
/// use tickwheel::Mode;
///
/// let snapshot = tickwheel::Wheel::new().snapshot();
/// assert_eq!(snapshot.shards[0].mode, Mode::Driverless);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Mode {
    /// The shard has no driver, because it has had no timer yet, or because its driver's runtime has ended.
    Driverless,
    /// The driver visits the shard at its next deadline, if there is one. Every registration reads the clock.
    Dozing,
    /// The shard is busy with timeouts, which are registered without a clock reading. The driver visits it at each
    /// cadence, and at each deadline.
    Ticking,
    /// The shard has been shut down.
    Shutdown,
}

impl Mode {
    pub(super) fn is_driven(self) -> bool {
        matches!(self, Mode::Dozing | Mode::Ticking)
    }
}

/// What a shard counts to decide whether it ticks, which it does while that is worth its cost.
#[derive(Default)]
pub(super) struct Cadence {
    /// The tick at which the counted cadence ends. In a shard that ticks, this is the tick of the next full visit: until then,
    /// incoming timers stay incoming.
    pub(super) end: Tick,
    /// While the shard dozes, the registrations of this cadence that had to read the clock.
    busy: u32,
    /// While it ticks, the number of quiet cadences in a row, and the registrations that had been counted when this one began.
    quiet: u32,
    seen: u64,
}

impl Cadence {
    /// Counts a registration that had to read the clock, in the cadence that ends at `end`. Returns whether the shard is to tick:
    /// once there have been [`BUSY`] of these in one cadence, or if `many` says that the thread alone has made that many.
    pub(super) fn add_registration(&mut self, end: Tick, many: bool, registered: u64) -> bool {
        if self.end != end {
            *self = Cadence {
                end,
                ..Cadence::default()
            };
        }
        self.busy += 1;
        self.quiet = 0;
        self.seen = registered;
        many || self.busy >= BUSY
    }

    /// Ends a cadence of a shard that ticks, in which the count of registrations reached `registered`, and begins the next, which
    /// ends at `end`. Returns whether the shard is to doze.
    pub(super) fn begin_next(&mut self, end: Tick, registered: u64) -> bool {
        self.quiet = match registered - self.seen < u64::from(BUSY) {
            true => self.quiet + 1,
            false => 0,
        };
        self.end = end;
        self.seen = registered;
        // The first registration after that begins a cadence.
        self.busy = 0;
        self.quiet >= QUIET_CADENCES
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn busy_after(times: u32, cadence: &mut Cadence, end: u64) -> bool {
        (0..times).fold(false, |_, n| {
            cadence.add_registration(Tick(end), false, u64::from(n) + 1)
        })
    }

    #[test]
    fn so_many_registrations_in_one_cadence_make_it_tick() {
        let mut cadence = Cadence::default();
        assert!(!busy_after(BUSY - 1, &mut cadence, 7));
        assert!(!busy_after(BUSY - 1, &mut cadence, 8), "of another cadence");
        assert!(cadence.add_registration(Tick(8), false, 128));
    }

    #[test]
    fn a_thread_that_has_counted_so_many_itself_makes_it_tick_at_once() {
        assert!(Cadence::default().add_registration(Tick(7), true, 1));
    }

    #[test]
    fn so_many_quiet_cadences_in_a_row_make_it_doze() {
        let mut cadence = Cadence::default();
        let mut timers = u64::from(BUSY);
        assert!(busy_after(BUSY, &mut cadence, 7));
        for _ in 0..2 {
            for _ in 1..QUIET_CADENCES {
                timers += u64::from(BUSY) - 1;
                assert!(!cadence.begin_next(Tick(8), timers));
            }
            timers += u64::from(BUSY);
            assert!(!cadence.begin_next(Tick(8), timers));
        }
        for _ in 1..QUIET_CADENCES {
            assert!(!cadence.begin_next(Tick(8), timers));
        }
        assert!(cadence.begin_next(Tick(8), timers));
    }
}
