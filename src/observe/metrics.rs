//! The counters and gauges that [`Wheel::metrics`](crate::Wheel::metrics) returns.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{engine::registry, wheel::Wheel};

/// The counters and gauges of a wheel, summed over all runtimes, those that have ended included.
///
/// While no call to the wheel is in progress, `registered == expired + cancelled + pending as u64`.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// wheel.sleep(Duration::from_millis(20)).await;
///
/// let metrics = wheel.metrics();
/// assert_eq!(metrics.registered, 1);
/// assert_eq!(metrics.expired, 1);
/// assert_eq!(metrics.pending, 0);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Metrics {
    /// The number of pending timers.
    pub pending: usize,
    /// The number of timers that entered the wheel. A timer that is started anew when its old deadline comes
    /// counts again.
    pub registered: u64,
    /// The number of timers whose deadline came while they were pending.
    pub expired: u64,
    /// The number of timers that left the wheel before their deadline, because they were dropped, their
    /// future completed in time, a shutdown ended their task, or their runtime ended, in which case they are
    /// registered anew where they go on.
    pub cancelled: u64,
    /// The number of refusals because all permits of `max_pending` were taken.
    pub rejected: u64,
    /// The number of moves of a timer from a coarser level to a finer one.
    pub cascaded: u64,
    /// The number of turns of the drivers, in which they wake the tasks of due timers.
    pub turns: u64,
    /// The number of panics caught in wakers.
    pub panics: u64,
    /// The number of runtimes in which the wheel has a part now.
    pub engines: usize,
    /// How late the last turn came.
    pub last_lag: Duration,
    /// How late a turn came at most since the wheel was created.
    pub max_lag: Duration,
    /// The size in bytes of the arenas, used or not.
    pub arena_bytes: usize,
    /// Whether the wheel has been shut down.
    pub shutdown: bool,
}

impl Wheel {
    /// Returns the current values of the wheel's counters and gauges.
    ///
    /// This takes each shard's lock briefly, one after the other, and is cheap enough to be called every
    /// second under full load.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().metrics().registered, 0);
    /// ```
    pub fn metrics(&self) -> Metrics {
        let shared = self.shared();
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let usage = registry::usage(shared);
        Metrics {
            pending: usage.pending,
            registered: usage.tally.registered,
            expired: usage.tally.expired,
            cancelled: usage.tally.cancelled,
            rejected: self.permits().rejected(),
            cascaded: read(&shared.stats.cascaded),
            turns: read(&shared.stats.turns),
            panics: read(&shared.stats.panics),
            engines: usage.engines,
            last_lag: Duration::from_nanos(read(&shared.stats.last_lag)),
            max_lag: Duration::from_nanos(read(&shared.stats.max_lag)),
            arena_bytes: usage.arena_bytes,
            shutdown: self.is_shutdown(),
        }
    }
}
