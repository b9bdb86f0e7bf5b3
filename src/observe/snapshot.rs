//! The state of a wheel as [`Wheel::snapshot`](crate::Wheel::snapshot) returns it.

use std::time::Duration;

use crate::engine::{
    labels::{self, LabelStats},
    lag::LagHistogram,
    shard::{self, Shard},
    timing_wheel::{Nanos, Site, Tick, TickDuration},
};
use crate::wheel::Wheel;

/// A snapshot of a wheel: its pending timers by deadline and bucket, the driver's lag, and the outcomes of labelled timeouts.
///
/// The shards are read one after another. While no call to the wheel is in progress, the whole snapshot is exact: the sums over
/// `horizon`, `levels` and `shards` each equal `pending`. While timers are started and ended, each number was true at some moment
/// of the reading.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let sleeping = tokio::spawn(wheel.sleep(Duration::from_secs(5)));
/// tokio::task::yield_now().await;
///
/// let snapshot = wheel.snapshot();
/// assert_eq!(snapshot.pending, 1);
/// assert_eq!(snapshot.horizon[4], 1, "due within 10 s, and not within 1 s");
/// # drop(sleeping);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The number of pending timers.
    pub pending: usize,
    /// The number of pending timers that are due within a tick, 10 ms, 100 ms, 1 s, 10 s, 1 min, 10 min, 1 h, and later. Each
    /// timer is counted once, in the first element that its deadline is within. A timer that was reset to a later instant is
    /// counted by its old deadline until that comes.
    pub horizon: [usize; 9],
    /// The timers on each level of the wheel, the finest level first, summed over the shards.
    pub levels: Vec<LevelSnapshot>,
    /// The shards.
    pub shards: Vec<ShardSnapshot>,
    /// The histogram of the driver's lateness.
    pub lag: LagHistogram,
    /// The outcomes of the timeouts of each label, in the order in which the labels were created.
    pub labels: Vec<LabelStats>,
    /// The tick in progress, counted from the wheel's first. With `n` ticks per wheel and levels counted from 0, a bucket of
    /// level k spans `(n / 2).pow(k)` ticks, and the hand is at bucket `tick / (n / 2).pow(k) % n`.
    pub tick: u64,
}

/// The timers on one level of a wheel.
///
/// A new timeout gets its deadline at the driver's next visit. Until then it is counted in the bucket in which it would be by
/// now. An overdue timer is counted on the finest level, in the bucket of the hand.
///
/// # Examples
///
/// ```
/// let snapshot = tickwheel::Wheel::new().snapshot();
/// assert_eq!(snapshot.levels.len(), 4);
/// assert!(snapshot.levels.iter().all(|level| level.buckets.is_empty()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LevelSnapshot {
    /// The number of timers on the level.
    pub pending: usize,
    /// The used buckets in order, each with its index and its number of timers.
    pub buckets: Vec<(usize, usize)>,
}

/// One shard of a wheel.
///
/// # Examples
///
/// ```
/// use tickwheel::Mode;
///
/// let wheel = tickwheel::Wheel::new();
/// wheel.shutdown();
/// assert!(wheel.snapshot().shards.iter().all(|shard| shard.mode == Mode::Shutdown));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShardSnapshot {
    /// The number of pending timers in the shard.
    pub pending: usize,
    /// How the shard is driven.
    pub mode: Mode,
}

/// How a shard is driven.
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
    /// The driver visits the shard at its next deadline, if there is one.
    Dozing,
    /// The shard is busy with timeouts, and the driver visits it every 10 ms, or every tick if that is longer, and at each
    /// deadline.
    Ticking,
    /// The shard has been shut down.
    Shutdown,
}

/// The bounds of [`Snapshot::horizon`] after the first, which is a tick, and before the last, which is open.
const HORIZON: [Duration; 7] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
    Duration::from_secs(3600),
];

impl Wheel {
    /// Returns a snapshot of the wheel: its pending timers by deadline and bucket, the driver's lag, and the outcomes of labelled
    /// timeouts.
    ///
    /// Taking a snapshot walks the whole arena of each shard. It holds the shard's lock for at most 256 cells at a time, so a
    /// registration waits for one such batch at most. Call it about once a second; [`metrics`](Wheel::metrics) costs less.
    ///
    /// # Examples
    ///
    /// ```
    /// let snapshot = tickwheel::Wheel::new().snapshot();
    /// assert_eq!(snapshot.pending, 0);
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let mut census = Census::new(TickDuration::new(self.tick_duration()), self.levels());
        let shards = self.parts.shards.iter().map(|shard| census.take(shard)).collect();
        let stripes = self.parts.shards.iter().map(|shard| shard.labels());
        Snapshot {
            pending: census.horizon.iter().sum(),
            horizon: census.horizon,
            levels: census.levels.into_iter().map(LevelSnapshot::new).collect(),
            shards,
            lag: self.parts.driver.stats.lag(),
            labels: labels::stats(stripes, self.is_shutdown()),
            tick: census.latest.0,
        }
    }
}

impl LevelSnapshot {
    /// Creates the snapshot of a level whose buckets have these counts.
    fn new(counts: Vec<usize>) -> LevelSnapshot {
        LevelSnapshot {
            pending: counts.iter().sum(),
            buckets: counts
                .into_iter()
                .enumerate()
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

/// Counts the timers by deadline and by bucket, shard by shard.
struct Census {
    tick: TickDuration,
    /// A tick, followed by [`HORIZON`].
    bounds: [Nanos; 8],
    horizon: [usize; 9],
    /// The counts of each level's buckets up to the last one in use.
    levels: Vec<Vec<usize>>,
    /// The latest tick in progress in any shard.
    latest: Tick,
}

impl Census {
    fn new(tick: TickDuration, levels: usize) -> Census {
        let mut bounds = [tick.nanos(); 8];
        bounds[1..].copy_from_slice(&HORIZON.map(Nanos::from_duration));
        Census {
            tick,
            bounds,
            horizon: [0; 9],
            levels: vec![Vec::new(); levels],
            latest: Tick::ZERO,
        }
    }

    /// Counts every pending timer of a shard.
    fn take(&mut self, shard: &Shard) -> ShardSnapshot {
        let mut walk = shard.walk();
        let mut pending = 0;
        while let Some(sites) = walk.next() {
            sites.iter().for_each(|site| self.count(site, walk.now));
            pending += sites.len();
        }
        let mode = match walk.mode {
            shard::Mode::Driverless => Mode::Driverless,
            shard::Mode::Dozing { .. } => Mode::Dozing,
            shard::Mode::Ticking { .. } => Mode::Ticking,
            shard::Mode::Shutdown => Mode::Shutdown,
        };
        self.latest = self.latest.max(self.tick.tick_at(walk.now));
        ShardSnapshot { pending, mode }
    }

    /// Counts a timer as seen at `now`.
    fn count(&mut self, site: &Site, now: Nanos) {
        let left = self.tick.start_of(site.deadline).saturating_sub(now);
        let within = self.bounds.iter().position(|bound| left <= *bound);
        self.horizon[within.unwrap_or(self.bounds.len())] += 1;

        let buckets = &mut self.levels[site.level];
        if site.bucket >= buckets.len() {
            buckets.resize(site.bucket + 1, 0);
        }
        buckets[site.bucket] += 1;
    }
}
