//! Counters and gauges that [`Wheel::metrics`](crate::Wheel::metrics) returns.

use std::time::Duration;

use crate::shard::Usage;

/// Counters and gauges of a wheel, summed over its shards.
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
/// wheel.sleep(Duration::from_millis(20)).await.unwrap();
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
    /// Timers that wait in the wheel now.
    pub pending: usize,
    /// Timers that entered the wheel. A timer that re-arms when its old deadline comes counts again.
    pub registered: u64,
    /// Timers whose deadline came while they waited in the wheel.
    pub expired: u64,
    /// Timers that left the wheel before their deadline: they were dropped, or their future completed in time, or a shutdown
    /// ended them.
    pub cancelled: u64,
    /// Timers refused because `max_pending` others were waiting.
    pub rejected: u64,
    /// Moves of a timer from a coarser level to a finer one.
    pub cascaded: u64,
    /// Turns of the driver that found a later tick than the turn before, however much later. In a turn the driver visits every
    /// shard. A dozing wheel turns seldom, so this is not how many ticks have passed.
    pub ticks: u64,
    /// Times the driver woke, for a tick, a deadline or a registration.
    pub wakeups: u64,
    /// Visits that tidied a busy shard: each timeout started since the last one got its deadline. A busy shard has one every 10 ms,
    /// or every tick if that is longer.
    pub full_visits: u64,
    /// Visits that only woke due timers, in busy and in dozing shards.
    pub light_visits: u64,
    /// Times a shard went from full visits at every cadence to dozing.
    pub dozes: u64,
    /// Panics caught in wakers.
    pub panics: u64,
    /// Lateness of the driver at its last deadline or tick.
    pub last_lag: Duration,
    /// Maximum lateness of the driver since the wheel was created.
    pub max_lag: Duration,
    /// Bytes held by the arenas, used or not.
    pub arena_bytes: usize,
    /// Whether the wheel has been shut down.
    pub shutdown: bool,
    /// Whether the wheel has a driver. It has none before the first timer, after the driver's runtime has gone, or after a
    /// shutdown. This does not tell whether the driver's runtime itself is running.
    pub driven: bool,
}

impl Metrics {
    /// Adds what one shard has done.
    pub(crate) fn add(&mut self, usage: &Usage) {
        let Usage {
            pending,
            arena_bytes,
            counters,
        } = usage;
        self.pending += pending;
        self.registered += counters.registered;
        self.expired += counters.expired;
        self.cancelled += counters.cancelled;
        self.rejected += counters.rejected;
        self.cascaded += counters.cascaded;
        self.dozes += counters.dozes;
        self.full_visits += counters.full_visits;
        self.light_visits += counters.light_visits;
        self.arena_bytes += arena_bytes;
    }
}
