//! `Epoch`: by which driver's clock an instant was read. Here instants are compared that may be of different clocks.

use std::{cmp::Ordering, time::Duration};

use tokio::time::Instant;

use super::saturating_add;

/// The number of a driver's clock. The first is 1, and it rises whenever a driver with another clock comes.
///
/// A wheel may outlive its runtime and go on under another one. The clock of that one may be a day ahead, for example because it
/// was paused and moved. An instant keeps its meaning by the clock of its own epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u16);

impl Epoch {
    /// The epoch of a wheel that never had a driver. An instant that is read before the first driver comes is of epoch 1: it
    /// counts by that driver's clock.
    pub(crate) const NEVER_DRIVEN: Epoch = Epoch(0);

    /// There are 65,535 epochs. All later drivers share the last one: their instants are taken to be of one clock.
    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// An instant, and by which clock it was read. Instants of different clocks do not compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EpochInstant {
    pub(crate) instant: Instant,
    pub(crate) epoch: Epoch,
}

impl EpochInstant {
    /// The instant that is `duration` later, by the same clock.
    #[inline]
    pub(crate) fn after(self, duration: Duration) -> EpochInstant {
        EpochInstant {
            instant: saturating_add(self.instant, duration),
            epoch: self.epoch,
        }
    }

    /// How long this is after `earlier`. Zero if it is before that. `None` if they are of different clocks.
    #[inline]
    pub(crate) fn since(self, earlier: EpochInstant) -> Option<Duration> {
        (self.epoch == earlier.epoch).then(|| self.instant.saturating_duration_since(earlier.instant))
    }

    /// The one that was read later. A later epoch means a later reading.
    #[cfg(feature = "io")]
    pub(crate) fn later(self, other: EpochInstant) -> EpochInstant {
        let age = |deadline: &EpochInstant| (deadline.epoch.0, deadline.instant);
        if age(&self) < age(&other) { other } else { self }
    }
}

impl PartialOrd for EpochInstant {
    #[inline]
    fn partial_cmp(&self, other: &EpochInstant) -> Option<Ordering> {
        (self.epoch == other.epoch).then(|| self.instant.cmp(&other.instant))
    }
}
