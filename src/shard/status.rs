//! What can be known of a shard without its lock: whether it is driven, how far it has come, and what time it is.

use tokio::time::Instant;

use super::{Mode, Shard, State};
use crate::{
    clock::{Moment, Shift, Source},
    sync::{Ordering, lock},
    timing_wheel::{Nanos, Tick},
};

/// Nanoseconds: two readings of one clock, taken one after the other, are hardly ever further apart.
const SAME_READING: Nanos = Nanos(1_000_000);

/// The word of no [`Shift`].
pub(super) const DRIVERLESS: u64 = 0;

/// Whether a shard is driven, and by which clock. In a word, for those without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Driverless,
    Driven(Source),
    Shutdown,
}

impl Status {
    #[inline]
    pub(super) fn pack(self) -> u32 {
        match self {
            Status::Driverless => 0,
            Status::Driven(Source::Machine) => 1,
            Status::Driven(Source::Pausable) => 2,
            Status::Driven(Source::Test) => 3,
            Status::Shutdown => 4,
        }
    }

    #[inline]
    pub(super) fn unpack(word: u32) -> Status {
        match word {
            0 => Status::Driverless,
            1 => Status::Driven(Source::Machine),
            2 => Status::Driven(Source::Pausable),
            3 => Status::Driven(Source::Test),
            _ => Status::Shutdown,
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
        Status::unpack(self.status.load(Ordering::Acquire))
    }

    /// The shift of the driver's clock. None while there is no driver.
    #[inline]
    fn shift(&self) -> Option<Shift> {
        match self.shift.load(Ordering::Acquire) {
            DRIVERLESS => None,
            shift => Some(Shift(shift)),
        }
    }

    /// Reads the driver's clock. If there is no driver, it reads that of the runtime which would be asked for one.
    ///
    /// A clock that a test may pause can have been paused without the driver knowing yet, and the current context may have
    /// another clock: there, only a reading that is the machine's is taken as it is.
    #[inline]
    pub(crate) fn read_clock(&self) -> Instant {
        self.read(self.status())
    }

    #[inline]
    fn read(&self, status: Status) -> Instant {
        match status {
            // A model's time is its own.
            _ if cfg!(loom) => self.driver.now(),
            Status::Driven(Source::Machine) => std::time::Instant::now().into(),
            Status::Driven(Source::Pausable) => {
                let machine = Moment::of(std::time::Instant::now().into());
                let reading = Instant::now();
                match Moment::of(reading).is_within(SAME_READING, machine) {
                    true => reading,
                    false => self.driver.now(),
                }
            }
            _ => self.driver.now(),
        }
    }

    /// The moment that it is: wheel time, if there is a driver.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.stamped(|status| self.read(status))
    }

    /// The same by one reading of the clock: that of the current context, where the driver's may be paused and is not yet.
    #[inline]
    pub(crate) fn glance(&self) -> Moment {
        self.stamped(|status| match status {
            Status::Driven(Source::Pausable) if cfg!(not(loom)) => Instant::now(),
            _ => self.read(status),
        })
    }

    /// The moment by the shard's own clock or, if it has none, by a reading.
    pub(super) fn roughly_now(&self) -> Moment {
        match self.reuse.generation() {
            generation if self.ticks.load(Ordering::Relaxed) && generation != Generation::ENDED => {
                Moment::of_wheel(self.tick.start_of(generation.tick()))
            }
            _ => self.glance(),
        }
    }

    #[inline]
    fn stamped(&self, read: impl Fn(Status) -> Instant) -> Moment {
        loop {
            let shift = self.shift();
            let moment = Moment::of(read(self.status()));
            // Another driver may have come in between, with another clock.
            if self.shift() == shift {
                return shift.map_or(moment, |shift| shift.of_clock(moment));
            }
        }
    }

    /// Takes an instant to be of the driver's clock. While there is no driver, the next one converts it.
    #[inline]
    pub(crate) fn moment_of(&self, instant: Instant) -> Moment {
        let moment = Moment::of(instant);
        self.shift().map_or(moment, |shift| shift.of_clock(moment))
    }

    /// A moment as one of wheel time, if there is a driver.
    #[inline]
    pub(crate) fn to_wheel(&self, moment: Moment) -> Moment {
        if moment.is_wheel_time() {
            return moment;
        }
        self.shift().map_or(moment, |shift| shift.of_clock(moment))
    }

    /// A moment as one of wheel time. If there is no driver, this starts one. It stays what it is if none can be started.
    pub(crate) fn settled(&self, moment: Moment) -> Moment {
        if !moment.is_wheel_time() && self.status() == Status::Driverless {
            let _ = self.driver.clone().start();
        }
        self.to_wheel(moment)
    }

    /// The instant of the driver's clock, or of the last driver's, at a moment.
    pub(crate) fn instant_of(&self, moment: Moment) -> Instant {
        let shift = self.shift().unwrap_or_else(|| lock(&self.state).clock.shift());
        shift.instant(moment, self.base)
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        self.status() == Status::Shutdown
    }

    /// Whether a driver visits the shard, by a clock that reads `source`.
    pub(super) fn is_driven_by(&self, source: Source) -> bool {
        self.status() == Status::Driven(source)
    }

    /// Whether a driver visits the shard.
    pub(crate) fn is_driven(&self) -> bool {
        matches!(self.status(), Status::Driven(_))
    }

    /// Tells those without the lock what the state says.
    pub(super) fn publish(&self, state: &State) {
        let status = match state.mode {
            Mode::Shutdown => Status::Shutdown,
            Mode::Driverless => Status::Driverless,
            _ => Status::Driven(state.clock.source),
        };
        self.ticks.store(state.mode.is_ticking(), Ordering::Relaxed);
        // Whoever finds a shift finds its driver's status too, or finds on a second look that the shift has gone.
        if let Status::Driven(_) = status {
            self.status.store(status.pack(), Ordering::Release);
            self.shift.store(state.clock.shift().0, Ordering::Release);
        } else {
            self.shift.store(DRIVERLESS, Ordering::Release);
            self.status.store(status.pack(), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_unpacked_as_it_was_packed() {
        for status in [
            Status::Driverless,
            Status::Driven(Source::Machine),
            Status::Driven(Source::Pausable),
            Status::Driven(Source::Test),
            Status::Shutdown,
        ] {
            assert_eq!(Status::unpack(status.pack()), status);
        }
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
