//! The counters and gauges that [`Wheel::metrics`](crate::Wheel::metrics) returns.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::wheel::Wheel;

/// The counters and gauges of a wheel, summed over its shards.
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
    /// The number of timers that entered the wheel. A timer that is re-armed when its old deadline comes counts again.
    pub registered: u64,
    /// The number of timers whose deadline came while they were pending.
    pub expired: u64,
    /// The number of timers that left the wheel before their deadline, because they were dropped, their future completed in time,
    /// or a shutdown ended them.
    pub cancelled: u64,
    /// The number of timers refused because `max_pending` other timers were pending.
    pub rejected: u64,
    /// The number of moves of a timer from a coarser level to a finer one.
    pub cascaded: u64,
    /// The number of turns of the driver that found a later tick than the turn before, however much later. In a turn, the driver
    /// visits every shard. Because turns are rare while the wheel dozes, this is not the number of ticks that have passed.
    pub ticks: u64,
    /// The number of times the driver woke, for a tick, a deadline or a registration.
    pub wakeups: u64,
    /// The number of visits that gave each timeout started since the previous such visit its deadline. Only a busy shard gets
    /// these visits, every 10 ms rounded down to whole ticks, or every tick if that is longer.
    pub full_visits: u64,
    /// The number of visits that only woke the tasks of due timers and moved timers to finer levels, in busy and in dozing shards.
    pub light_visits: u64,
    /// The number of times a shard went from a full visit at every cadence to dozing.
    pub dozes: u64,
    /// The number of panics caught in wakers.
    pub panics: u64,
    /// The lateness of the driver at its last deadline or tick.
    pub last_lag: Duration,
    /// The maximum lateness of the driver since the wheel was created.
    pub max_lag: Duration,
    /// The size in bytes of the arenas, used or not.
    pub arena_bytes: usize,
    /// Whether the wheel has been shut down.
    pub shutdown: bool,
    /// Whether the wheel has a driver. It has none before its first timer, after the driver's runtime has ended, and after a
    /// shutdown. This does not tell whether the driver's runtime itself is running.
    pub driven: bool,
}

impl Wheel {
    /// Returns counters of the wheel's work so far.
    ///
    /// This takes each shard's lock briefly, one after the other, and is cheap enough to be called every second under full load.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().metrics().registered, 0);
    /// ```
    pub fn metrics(&self) -> Metrics {
        let driver = &self.parts.driver.stats;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut metrics = Metrics {
            ticks: read(&driver.ticks),
            wakeups: read(&driver.wakeups),
            panics: read(&driver.panics),
            last_lag: Duration::from_nanos(read(&driver.last_lag)),
            max_lag: Duration::from_nanos(read(&driver.max_lag)),
            shutdown: self.is_shutdown(),
            driven: self.is_driven(),
            ..Metrics::default()
        };
        for shard in &self.parts.shards {
            let usage = shard.usage();
            metrics.pending += usage.pending;
            metrics.arena_bytes += usage.arena_bytes;
            metrics.registered += usage.counters.registered;
            metrics.expired += usage.counters.expired;
            metrics.cancelled += usage.counters.cancelled;
            metrics.rejected += usage.counters.rejected;
            metrics.cascaded += usage.counters.cascaded;
            metrics.dozes += usage.counters.dozes;
            metrics.full_visits += usage.counters.full_visits;
            metrics.light_visits += usage.counters.light_visits;
        }
        metrics
    }
}
