//! The state of a wheel as [`Wheel::snapshot`](crate::Wheel::snapshot) returns it.

use std::time::Duration;

use crate::{
    engine::{
        labels::{self, LabelStats},
        lag::LagHistogram,
        shard::Mode,
        timing_wheel::{Nanos, TickDuration},
    },
    wheel::Wheel,
};

/// A snapshot of a wheel: its pending timers by deadline and bucket, the driver's lag, and the outcomes of labelled timeouts.
///
/// The shards are read one after another. While no call to the wheel is in progress, the whole snapshot is exact: the sums
/// over `horizon`, `levels` and `shards` each equal `pending`. While timers are started and ended, each number of one shard
/// was true at some moment of the reading, and the others are sums of these.
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
    /// timer is counted once, in the first element that its deadline is within, rounded up to a tick. A timer that was reset to
    /// a later instant is counted by its old deadline until that comes.
    pub horizon: [usize; 9],
    /// The timers on each level of the wheel, the finest level first, summed over the shards.
    pub levels: Vec<LevelSnapshot>,
    /// The shards.
    pub shards: Vec<ShardSnapshot>,
    /// The histogram of the driver's lateness.
    pub lag: LagHistogram,
    /// The outcomes of the timeouts of each label, in the order in which the labels were created.
    pub labels: Vec<LabelStats>,
    /// The tick in progress, counted from the wheel's first. With `n` buckets in each level and levels counted from 0, a
    /// bucket of level k spans `(n / 2).pow(k)` ticks, and the hand is at bucket `tick / (n / 2).pow(k) % n`.
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

/// The bounds of [`Snapshot::horizon`] in milliseconds, after the first, which is a tick, and before the last, which is open.
const HORIZON: [u64; 7] = [10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000];

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
        let tick = TickDuration::new(self.tick_duration());
        let later = HORIZON.map(|millis| Nanos::from_duration(Duration::from_millis(millis)));
        let bounds = [&[tick.nanos()][..], &later].concat();
        // The counts of each level's buckets up to the last one in use.
        let mut levels = vec![Vec::new(); self.levels()];
        let mut snapshot = Snapshot::default();
        for shard in &self.parts.shards {
            let mut walk = shard.walk();
            let mut pending = 0;
            while let Some(sites) = walk.next() {
                for site in &sites {
                    let left = tick.start_of(site.deadline).saturating_sub(walk.now);
                    let within = bounds.iter().position(|bound| left <= *bound);
                    snapshot.horizon[within.unwrap_or(bounds.len())] += 1;
                    let buckets = &mut levels[site.level];
                    if site.bucket >= buckets.len() {
                        buckets.resize(site.bucket + 1, 0);
                    }
                    buckets[site.bucket] += 1;
                }
                pending += sites.len();
            }
            snapshot.shards.push(ShardSnapshot {
                pending,
                mode: walk.mode,
            });
            snapshot.pending += pending;
            snapshot.tick = snapshot.tick.max(tick.tick_at(walk.now).0);
        }
        let stripes = self.parts.shards.iter().map(|shard| shard.labels());
        snapshot.labels = labels::stats(stripes, self.is_shutdown());
        snapshot.lag = self.parts.driver.stats.lag();
        snapshot.levels = levels.into_iter().map(LevelSnapshot::new).collect();
        snapshot
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
