//! What can be known of a shard without its lock: whether it is driven, which tick it has reached, and the current time.

use tokio::time::Instant;

use super::{Mode, Shard, State};
use crate::engine::{
    clock::{self, Moment, Shift, Source},
    sync::{MODELLED, Ordering, lock},
    timing_wheel::Nanos,
};

/// The distance that two successive readings of one clock hardly ever exceed.
const SAME_READING: Nanos = Nanos(1_000_000);

/// Whether a shard is driven, and by which clock. It fits into a word that is readable without the lock.
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

impl Shard {
    #[inline]
    pub(super) fn status(&self) -> Status {
        Status::unpack(self.status.load(Ordering::Acquire))
    }

    /// Returns the shift of the driver's clock, or [`Shift::NONE`] while there is no driver.
    #[inline]
    pub(super) fn shift(&self) -> Shift {
        Shift(self.shift.load(Ordering::Acquire))
    }

    /// Reads the driver's clock or, if there is no driver, that of the runtime on which one would be started.
    ///
    /// A clock that a test can pause may have been paused without the driver knowing yet, and the current context may have
    /// another clock. In these cases a reading is used as it is only if it is the machine's.
    #[inline]
    pub(crate) fn read_clock(&self) -> Instant {
        self.read(self.status(), clock::now)
    }

    #[inline]
    fn read(&self, status: Status, read_here: impl Fn() -> Instant) -> Instant {
        match status {
            // Under loom, the model has a time of its own.
            _ if MODELLED => self.driver.now(),
            Status::Driven(Source::Machine) => std::time::Instant::now().into(),
            Status::Driven(Source::Pausable) => {
                let machine = Moment::of(std::time::Instant::now().into());
                let reading = read_here();
                match Moment::of(reading).is_within(SAME_READING, machine) {
                    true => reading,
                    false => self.read_paused(),
                }
            }
            _ => self.driver.now(),
        }
    }

    /// Reads the driver's clock, which may have been paused. The driver checks that at its next turn, which is brought forward.
    #[cold]
    fn read_paused(&self) -> Instant {
        self.driver.wake_task();
        self.driver.now()
    }

    /// Returns the current moment, which is of wheel time if there is a driver.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.now_and_instant().0
    }

    /// Returns the current moment as [`Shard::now`] does, and as the instant that the clock reads.
    #[inline]
    pub(crate) fn now_and_instant(&self) -> (Moment, Instant) {
        self.reading(|status| self.read(status, Instant::now))
    }

    /// Returns the current moment as [`Shard::now`] does, also in the destructors of thread-locals.
    pub(crate) fn now_anywhere(&self) -> Moment {
        self.reading(|status| self.read(status, clock::now)).0
    }

    /// Returns the current moment by one reading of the clock, also in the destructors of thread-locals.
    #[inline]
    pub(crate) fn glance(&self) -> Moment {
        self.reading(|status| self.read_once(status, clock::now)).0
    }

    /// Returns the time until a deadline by one reading of the clock, in a poll. After a shutdown, nothing is left.
    #[inline]
    pub(crate) fn left_until(&self, deadline: Moment) -> Nanos {
        let shift = self.shift();
        match shift.near(self.read_once(self.status(), Instant::now)) {
            // Another driver with another clock may have started in between.
            Some(now) if self.shift() == shift && deadline.is_wheel_time() => deadline.since(now),
            _ => self.left_by_driver(deadline),
        }
    }

    /// Returns the time until a deadline by the clock of the driver, or of the previous one.
    #[cold]
    #[inline(never)]
    fn left_by_driver(&self, deadline: Moment) -> Nanos {
        match self.is_shutdown() {
            true => Nanos::ZERO,
            false => Nanos::passed(
                self.instant_of(deadline)
                    .saturating_duration_since(self.driver.now()),
            ),
        }
    }

    /// Reads the driver's clock once. Where it can be paused but is not known to be, that is the clock of the current context.
    #[inline]
    fn read_once(&self, status: Status, read_here: impl Fn() -> Instant) -> Instant {
        match status {
            Status::Driven(Source::Machine) if !MODELLED => std::time::Instant::now().into(),
            Status::Driven(Source::Pausable) if !MODELLED => read_here(),
            _ => self.read_driver(),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_driver(&self) -> Instant {
        self.driver.now()
    }

    #[inline]
    fn reading(&self, read: impl Fn(Status) -> Instant) -> (Moment, Instant) {
        loop {
            let shift = self.shift();
            let reading = read(self.status());
            // Another driver with another clock may have started in between.
            if self.shift() == shift {
                return (shift.moment(reading), reading);
            }
        }
    }

    /// Converts an instant that is of the driver's clock. While there is no driver, the next one will convert the moment.
    #[inline]
    pub(crate) fn moment_of(&self, instant: Instant) -> Moment {
        self.shift().moment(instant)
    }

    /// Converts a moment to wheel time, if there is a driver.
    #[inline]
    pub(crate) fn to_wheel(&self, moment: Moment) -> Moment {
        self.shift().to_wheel(moment)
    }

    /// Converts a moment to the axis on which moments are compared. This is wheel time, for which a driver is started if there is
    /// none, or after a shutdown, which ends wheel time, that of the clock. If no driver can be started, the moment is returned
    /// unchanged.
    pub(crate) fn settled(&self, moment: Moment) -> Moment {
        match self.status() {
            Status::Shutdown => return Moment::of(self.instant_of(moment)),
            Status::Driverless if !moment.is_wheel_time() => drop(self.driver.clone().start()),
            _ => {}
        }
        self.to_wheel(moment)
    }

    /// Converts a moment to an instant of the driver's clock, or of the previous driver's.
    pub(crate) fn instant_of(&self, moment: Moment) -> Instant {
        match self.shift() {
            Shift::NONE => lock(&self.state).clock.shift.instant(moment),
            shift => shift.instant(moment),
        }
    }

    /// Returns whether a deadline that is no later than now has come by Tokio's timer too, which on a test's clock counts whole
    /// milliseconds.
    pub(super) fn has_come(&self, deadline: Moment) -> bool {
        match self.status() {
            Status::Driven(Source::Machine) => true,
            _ => self.driver.has_come(self.instant_of(deadline)),
        }
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        self.status() == Status::Shutdown
    }

    /// Returns whether a driver visits the shard, by a clock that reads `source`.
    pub(super) fn is_driven_by(&self, source: Source) -> bool {
        self.status() == Status::Driven(source)
    }

    /// Returns whether a driver visits the shard.
    pub(crate) fn is_driven(&self) -> bool {
        matches!(self.status(), Status::Driven(_))
    }

    /// Publishes the state to readers without the lock.
    pub(super) fn publish(&self, state: &State) {
        let status = match state.mode {
            Mode::Shutdown => Status::Shutdown,
            Mode::Driverless => Status::Driverless,
            _ => Status::Driven(state.clock.source),
        };
        // A reader that finds a shift also finds its driver's status, or finds on a second read that the shift is gone.
        if let Status::Driven(_) = status {
            self.status.store(status.pack(), Ordering::Release);
            self.shift.store(state.clock.shift.0, Ordering::Release);
        } else {
            self.shift.store(Shift::NONE.0, Ordering::Release);
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
}
