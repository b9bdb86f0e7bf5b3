//! `Generation`: how far a shard has come, which tells without the lock whether a timer is still pending.

use crate::engine::timing_wheel::Tick;

/// How far a shard has come: the number of its driver, and the tick up to which visits have begun to expire timers. Both are in
/// one word, with the driver above the tick, so that two generations can be compared.
///
/// A visit ends the generation: before it expires timers, it stores the tick up to which it will do so. A timer whose entry is
/// due later than that is pending, and still has the waker that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generation(pub(super) u64);

impl Generation {
    const TICK_BITS: u32 = 44;
    /// 2^44 ticks, which are 557 years if a tick is a millisecond. A later tick counts as this one, in which case the timer takes
    /// the lock and is still right.
    const LAST_TICK: u64 = (1 << Self::TICK_BITS) - 1;
    const LAST_DRIVER: u64 = (1 << (u64::BITS - Self::TICK_BITS)) - 1;

    /// No timer outlasts this generation. It means that there is no driver, or that its clock is a test's, or that the shard is
    /// shut down.
    pub(super) const ENDED: Generation = Generation(u64::MAX);
    /// The generation until which a timer is pending if nothing is known of it.
    pub(super) const UNKNOWN: Generation = Generation(0);

    /// Returns the generation of a tick. From about the millionth driver on, this is [`Generation::ENDED`], so that no number is
    /// used twice.
    #[inline]
    pub(super) fn of(driver: u64, tick: Tick) -> Generation {
        if driver >= Self::LAST_DRIVER {
            return Generation::ENDED;
        }
        Generation(driver << Self::TICK_BITS | tick.0.min(Self::LAST_TICK))
    }

    #[inline]
    pub(super) fn tick(self) -> Tick {
        Tick(self.0 & Self::LAST_TICK)
    }

    /// Returns whether a timer that is pending until this generation is still pending, given that the shard has reached `now`.
    ///
    /// This one comparison covers drivers too. The driver's number is in the bits above the tick, so all generations of the
    /// next driver are larger. A thread that knows until when a timer is pending has already seen a generation of that timer's
    /// driver.
    #[inline]
    pub(super) fn outlasts(self, now: Generation) -> bool {
        self > now
    }

    /// Returns whether the clock had reached this tick when `now` was published, by the same driver.
    #[inline]
    pub(super) fn has_come_by(self, now: Generation) -> bool {
        self <= now && now != Generation::ENDED && (self.0 ^ now.0) >> Self::TICK_BITS == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_timer_outlasts_earlier_ticks_and_no_later_driver() {
        let until = Generation::of(1, Tick(5));
        assert!(until.outlasts(Generation::of(1, Tick(4))));
        assert!(!until.outlasts(Generation::of(1, Tick(5))));
        assert!(!until.outlasts(Generation::of(2, Tick(0))));
        assert!(!Generation::UNKNOWN.outlasts(Generation::of(0, Tick(0))));
        assert!(!until.outlasts(Generation::ENDED));
        assert!(!Generation::ENDED.outlasts(Generation::ENDED));
    }

    #[test]
    fn a_tick_comes_by_the_clock_of_its_own_driver() {
        let until = Generation::of(1, Tick(5));
        assert!(!until.has_come_by(Generation::of(1, Tick(4))));
        assert!(until.has_come_by(Generation::of(1, Tick(5))));
        assert!(!until.has_come_by(Generation::of(2, Tick(9))));
        assert!(!until.has_come_by(Generation::ENDED));
        assert!(!Generation::ENDED.has_come_by(Generation::ENDED));
        assert!(!Generation::UNKNOWN.has_come_by(Generation::of(1, Tick(5))));
    }

    #[test]
    fn what_does_not_fit_is_not_known() {
        let far = Generation::of(1, Tick::MAX);
        assert!(far.outlasts(Generation::of(1, Tick(1 << 43))));
        assert!(!far.outlasts(Generation::of(1, Tick::MAX)));
        assert!(
            !far.outlasts(Generation::of(2, Tick::ZERO)),
            "a tick spills into the driver"
        );
        assert_eq!(Generation::of(u64::MAX, Tick(1)), Generation::ENDED);
    }
}
