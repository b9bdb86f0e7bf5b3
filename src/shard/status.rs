//! What can be known of a shard without its lock: by which clock it goes, how far it has come, and whether it is shut down.

use tokio::time::Instant;

use super::{Mode, Shard, State};
use crate::{
    clock::{Epoch, EpochInstant, Moment, Source},
    sync::Ordering,
    timing_wheel::{Nanos, Tick},
};

/// Nanoseconds: two readings of one clock, taken one after the other, are hardly ever further apart.
const SAME_READING: u64 = 1_000_000;

/// Whether a shard is driven, and by which clock. Packed into a word, so that it is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// There was no driver yet. An instant belongs to the first.
    NeverDriven,
    /// The epoch is that of the last driver. An instant belongs to it, or to the next.
    DriverGone(Epoch),
    Driven(Epoch, Source),
    Shutdown(Epoch),
}

impl Status {
    const BITS: u32 = 3;

    #[inline]
    pub(super) fn pack(self) -> u32 {
        let (kind, epoch) = match self {
            Status::NeverDriven => (0, Epoch::NEVER_DRIVEN),
            Status::DriverGone(epoch) => (1, epoch),
            Status::Driven(epoch, Source::Machine) => (2, epoch),
            Status::Driven(epoch, Source::Pausable) => (3, epoch),
            Status::Driven(epoch, Source::Test) => (4, epoch),
            Status::Shutdown(epoch) => (5, epoch),
        };
        u32::from(epoch.0) << Self::BITS | kind
    }

    #[inline]
    fn epoch_of(word: u32) -> Epoch {
        Epoch((word >> Self::BITS) as u16)
    }

    #[inline]
    pub(super) fn unpack(word: u32) -> Status {
        let epoch = Self::epoch_of(word);
        match word & ((1 << Self::BITS) - 1) {
            0 => Status::NeverDriven,
            1 => Status::DriverGone(epoch),
            2 => Status::Driven(epoch, Source::Machine),
            3 => Status::Driven(epoch, Source::Pausable),
            4 => Status::Driven(epoch, Source::Test),
            _ => Status::Shutdown(epoch),
        }
    }
}

/// How far a shard has come: how often a driver has come to it, and the tick that its visits have begun to expire. In one word, the drivers
/// above the tick, so that two compare.
///
/// A visit ends the generation: before it expires timers, it stores the tick up to which it is going to do so. A timer
/// whose entry is due later than that is pending, and still has the waker that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generation(u64);

impl Generation {
    const TICK_BITS: u32 = 44;
    /// 557 years of milliseconds. A later tick counts as this one: such a timer takes the lock, and is right.
    const LAST_TICK: u64 = (1 << Self::TICK_BITS) - 1;
    const LAST_ATTACHED: u32 = (1 << (u64::BITS - Self::TICK_BITS)) - 1;

    /// No timer is known to outlast it: there is no driver, or its clock is a test's, or the shard is shut down.
    pub(super) const ENDED: Generation = Generation(u64::MAX);
    /// Until when a timer is pending of which nothing is known.
    pub(super) const UNKNOWN: Generation = Generation(0);

    /// From the millionth time on that a driver comes, it is [`Generation::ENDED`]: no number is used twice.
    #[inline]
    pub(super) fn of(attached: u32, tick: Tick) -> Generation {
        if attached >= Self::LAST_ATTACHED {
            return Generation::ENDED;
        }
        Generation(u64::from(attached) << Self::TICK_BITS | tick.0.min(Self::LAST_TICK))
    }

    #[inline]
    pub(super) fn tick(self) -> Tick {
        Tick(self.0 & Self::LAST_TICK)
    }

    /// Whether a timer that is pending until this still is, now that the shard has come to `now`.
    ///
    /// One comparison tells of drivers too. How often one has come is in the bits above the tick, so the next one's generations are all
    /// larger. Whoever knows until when a timer is pending has seen a generation of its driver already.
    #[inline]
    pub(super) fn outlasts(self, now: Generation) -> bool {
        self > now
    }

    #[inline]
    pub(super) fn from_word(word: u64) -> Generation {
        Generation(word)
    }

    #[inline]
    pub(super) fn word(self) -> u64 {
        self.0
    }
}

impl Shard {
    #[inline]
    pub(super) fn status(&self) -> Status {
        Status::unpack(self.status.load(Ordering::Relaxed))
    }

    /// Whether the last driver's clock is that of `epoch`.
    #[inline]
    pub(super) fn status_is_of(&self, epoch: Epoch) -> bool {
        Status::epoch_of(self.status.load(Ordering::Relaxed)) == epoch
    }

    /// Reads the driver's clock. If there is no driver, it reads that of the runtime which would be asked for one.
    ///
    /// A clock that a test may pause can have been paused without the driver knowing yet, and the current context may have
    /// another clock: there, only a reading that is the machine's is taken as it is.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.reading().0
    }

    /// The same, and the moment that it is.
    #[inline]
    fn reading(&self) -> (Instant, Moment) {
        let reading = match self.status() {
            // A model's time is its own.
            _ if cfg!(loom) => self.driver.now(),
            Status::Driven(_, Source::Machine) => std::time::Instant::now().into(),
            Status::Driven(_, Source::Pausable) => {
                let machine = Moment::of(std::time::Instant::now().into());
                let reading = Instant::now();
                let moment = Moment::of(reading);
                if moment.0.wrapping_sub(machine.0) < SAME_READING {
                    return (reading, moment);
                }
                self.driver.now()
            }
            _ => self.driver.now(),
        };
        (reading, Moment::of(reading))
    }

    /// Reads the clock, and which clock that is.
    #[inline]
    pub(crate) fn read_clock(&self) -> EpochInstant {
        let (instant, epoch) = self.stamped(|| self.reading().0);
        EpochInstant { instant, epoch }
    }

    /// The same as a moment.
    #[inline]
    pub(super) fn read_moment(&self) -> (Moment, Epoch) {
        self.stamped(|| self.reading().1)
    }

    /// Reads the clock once: that of the current context, where the driver's may be paused and is not yet.
    #[inline]
    pub(crate) fn glance_at_clock(&self) -> EpochInstant {
        let (instant, epoch) = self.stamped(|| match self.status() {
            Status::Driven(_, Source::Pausable) if cfg!(not(loom)) => Instant::now(),
            _ => self.now(),
        });
        EpochInstant { instant, epoch }
    }

    #[inline]
    fn stamped<T>(&self, read: impl Fn() -> T) -> (T, Epoch) {
        loop {
            let status = self.status.load(Ordering::Acquire);
            let read = read();
            // Another driver may have come in between, with another clock.
            if self.status.load(Ordering::Relaxed) == status {
                return (read, self.epoch_by(Status::unpack(status)));
            }
        }
    }

    /// Takes an instant to be of the clock that the wheel goes by now.
    #[inline]
    pub(crate) fn stamp(&self, instant: Instant) -> EpochInstant {
        let epoch = self.epoch_by(self.status());
        EpochInstant { instant, epoch }
    }

    #[inline]
    fn epoch_by(&self, status: Status) -> Epoch {
        match status {
            Status::NeverDriven => Epoch::NEVER_DRIVEN.next(),
            Status::DriverGone(epoch) if !self.driver.would_keep_clock() => epoch.next(),
            Status::DriverGone(epoch) | Status::Driven(epoch, _) | Status::Shutdown(epoch) => epoch,
        }
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        matches!(self.status(), Status::Shutdown(_))
    }

    /// Whether a driver visits the shard, by a clock that reads `source`.
    pub(super) fn is_driven_by(&self, source: Source) -> bool {
        matches!(self.status(), Status::Driven(_, current) if current == source)
    }

    /// Whether a driver visits the shard.
    pub(crate) fn is_driven(&self) -> bool {
        matches!(self.status(), Status::Driven(..))
    }

    /// Tells those without the lock what the state says.
    pub(super) fn publish(&self, state: &State) {
        let status = match state.mode {
            Mode::Shutdown => Status::Shutdown(state.epoch),
            Mode::Driverless if state.epoch == Epoch::NEVER_DRIVEN => Status::NeverDriven,
            Mode::Driverless => Status::DriverGone(state.epoch),
            _ => Status::Driven(state.epoch, state.clock.source),
        };
        self.ticks.store(state.mode.is_ticking(), Ordering::Relaxed);
        self.origin.store(state.clock.origin().0, Ordering::Relaxed);
        self.status.store(status.pack(), Ordering::Release);
    }

    /// The wheel time of a deadline, if that can be known without the lock.
    #[inline]
    pub(super) fn wheel_time(&self, deadline: Moment, epoch: Epoch) -> Option<Nanos> {
        match self.status() {
            Status::Driven(current, Source::Machine | Source::Pausable) if current == epoch => {
                Some(Moment(self.origin.load(Ordering::Relaxed)).nanos_until(deadline))
            }
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_unpacked_as_it_was_packed() {
        for epoch in [Epoch(1), Epoch(u16::MAX)] {
            for status in [
                Status::DriverGone(epoch),
                Status::Driven(epoch, Source::Machine),
                Status::Driven(epoch, Source::Pausable),
                Status::Driven(epoch, Source::Test),
                Status::Shutdown(epoch),
            ] {
                assert_eq!(Status::unpack(status.pack()), status);
            }
        }
        assert_eq!(Status::unpack(Status::NeverDriven.pack()), Status::NeverDriven);
    }

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
    fn what_does_not_fit_is_not_known() {
        let far = Generation::of(1, Tick::MAX);
        assert!(far.outlasts(Generation::of(1, Tick(1 << 43))));
        assert!(!far.outlasts(Generation::of(1, Tick::MAX)));
        assert!(
            !far.outlasts(Generation::of(2, Tick::ZERO)),
            "a tick spills into the driver"
        );
        assert_eq!(Generation::of(u32::MAX, Tick(1)), Generation::ENDED);
    }
}
