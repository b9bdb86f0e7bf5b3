//! What can be known of a shard without its lock: whether it is shut down, and by which clock it goes.

use std::time::Duration;

use tokio::time::Instant;

use super::{Mode, Shard, State};
use crate::{
    clock::{Deadline, Epoch, Source},
    sync::Ordering,
};

/// Two readings of one clock, taken one after the other, are hardly ever further apart.
const MOMENT: Duration = Duration::from_millis(1);

/// What a shard publishes of itself: an epoch, and one of these.
pub(super) struct Published;

impl Published {
    const BITS: u32 = 3;
    const KIND: u32 = (1 << Self::BITS) - 1;
    /// There was no driver yet; an instant belongs to the first.
    pub(super) const UNDRIVEN: u32 = 0;
    /// The epoch is that of the last driver; an instant belongs to it, or to the next.
    const DRIVER_GONE: u32 = 1;
    const MACHINE: u32 = 2;
    const PAUSABLE: u32 = 3;
    const TEST: u32 = 4;
    const SHUTDOWN: u32 = 5;
}

impl Shard {
    /// Reads the driver's clock; with no driver, that of the runtime which would be asked for one.
    ///
    /// A clock that a test may pause can have been paused without the driver knowing yet, and the current context may have
    /// another clock: there, only a reading that is the machine's is taken as it is.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self.published.load(Ordering::Relaxed) & Published::KIND {
            // A model's time is its own.
            _ if cfg!(loom) => self.driver.now(),
            Published::MACHINE => std::time::Instant::now().into(),
            Published::PAUSABLE => {
                let machine = std::time::Instant::now();
                let reading = Instant::now();
                match reading.into_std().checked_duration_since(machine) {
                    Some(between) if between < MOMENT => reading,
                    _ => self.driver.now(),
                }
            }
            _ => self.driver.now(),
        }
    }

    /// The same, and which clock that is.
    #[inline]
    pub(crate) fn read_clock(&self) -> Deadline {
        self.stamped(|| self.now())
    }

    /// The same by one reading: that of the current context's clock, where the driver's may be paused and is not yet.
    #[inline]
    pub(crate) fn glance_at_clock(&self) -> Deadline {
        self.stamped(
            || match self.published.load(Ordering::Relaxed) & Published::KIND {
                Published::PAUSABLE if cfg!(not(loom)) => Instant::now(),
                _ => self.now(),
            },
        )
    }

    #[inline]
    fn stamped(&self, read: impl Fn() -> Instant) -> Deadline {
        loop {
            let published = self.published.load(Ordering::Acquire);
            let instant = read();
            // Another driver may have come in between, with another clock.
            if self.published.load(Ordering::Relaxed) == published {
                return self.stamp_by(published, instant);
            }
        }
    }

    /// Takes an instant to be of the clock that the wheel goes by now.
    #[inline]
    pub(crate) fn stamp(&self, instant: Instant) -> Deadline {
        self.stamp_by(self.published.load(Ordering::Relaxed), instant)
    }

    #[inline]
    fn stamp_by(&self, published: u32, instant: Instant) -> Deadline {
        let epoch = Epoch(published >> Published::BITS);
        let epoch = match published & Published::KIND {
            Published::UNDRIVEN => epoch.next(),
            Published::DRIVER_GONE if !self.driver.would_keep_clock() => epoch.next(),
            _ => epoch,
        };
        Deadline { instant, epoch }
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        self.published.load(Ordering::Relaxed) & Published::KIND == Published::SHUTDOWN
    }

    /// Whether a driver visits the shard.
    pub(crate) fn is_driven(&self) -> bool {
        matches!(
            self.published.load(Ordering::Relaxed) & Published::KIND,
            Published::MACHINE | Published::PAUSABLE | Published::TEST
        )
    }

    /// Tells [`Shard::now`] and [`Shard::stamp`] what the state says.
    pub(super) fn publish(&self, state: &State) {
        let kind = match state.mode {
            Mode::Shutdown => Published::SHUTDOWN,
            Mode::Driverless if state.epoch == Epoch::UNDRIVEN => Published::UNDRIVEN,
            Mode::Driverless => Published::DRIVER_GONE,
            _ => match state.clock.source {
                Source::Machine => Published::MACHINE,
                Source::Pausable => Published::PAUSABLE,
                Source::Test => Published::TEST,
            },
        };
        self.published
            .store(state.epoch.0 << Published::BITS | kind, Ordering::Release);
    }
}
