//! The state of a wheel as [`Wheel::snapshot`](crate::Wheel::snapshot) returns it.

use std::time::Duration;

use crate::{
    engine::{labels::LabelStats, registry, shard::Shard},
    observe::lag::LagHistogram,
    wheel::Wheel,
};

/// A snapshot of a wheel: its pending timers by deadline and bucket, the driver's lag, and the outcomes of
/// labelled timeouts.
///
/// The shards are read one after another. While no call to the wheel is in progress, the whole snapshot is
/// exact: the sums over `due_within`, `levels`, `shards` and `engines` each equal `pending`. While timers are
/// started and ended, each number of one shard was true at some moment of the reading, and the others are
/// sums of these.
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
/// assert_eq!(snapshot.due_within[4], 1, "due within 10 s, and not within 1 s");
/// # drop(sleeping);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The number of pending timers.
    pub pending: usize,
    /// The number of pending timers that are due within a tick, 10 ms, 100 ms, 1 s, 10 s, 1 min, 10 min, 1 h,
    /// and later. Each timer is counted once, in the first element that its deadline is within, rounded up to
    /// a tick and by its slack. A timer that was reset to a later instant is counted by its old deadline
    /// until that comes, and one that wakes its task [before its deadline](crate::time) by that instant.
    pub due_within: [usize; 9],
    /// The timers on each level of the wheel, the finest level first, summed over all shards.
    pub levels: Vec<LevelSnapshot>,
    /// The shards of all runtimes.
    pub shards: Vec<ShardSnapshot>,
    /// The runtimes in which the wheel has timers, or had some lately.
    pub engines: Vec<EngineSnapshot>,
    /// The histogram of the driver's lateness.
    pub lag: LagHistogram,
    /// The outcomes of the timeouts of each label, in the order in which the labels were created.
    pub labels: Vec<LabelStats>,
}

/// The timers on one level of a wheel.
///
/// An overdue timer is counted on the finest level, in the bucket of the tick in progress. Buckets are those
/// of the ring: with `n` of them in each level, a bucket of level k spans `(n / 2).pow(k)` ticks. Each
/// runtime counts ticks from a start of its own.
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
    /// The buckets in use, in order of their index.
    pub buckets: Vec<BucketSnapshot>,
}

/// The number of pending timers in one bucket of a level, summed over all shards.
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
/// let levels = wheel.snapshot().levels;
/// let used: Vec<_> = levels.iter().flat_map(|level| &level.buckets).collect();
/// assert_eq!(used.len(), 1);
/// assert_eq!(used[0].pending, 1);
/// # drop(sleeping);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct BucketSnapshot {
    /// The place of the bucket in the ring of its level.
    pub index: usize,
    /// The number of pending timers in the bucket.
    pub pending: usize,
}

/// The number of pending timers in one shard of a wheel.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
///
/// let shards = Wheel::new().snapshot().shards;
/// assert!(shards.is_empty(), "no timer has been polled in any runtime");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ShardSnapshot {
    /// The runtime whose timers the shard holds, an index of [`Snapshot::engines`].
    pub engine: usize,
    /// The number of pending timers in the shard.
    pub pending: usize,
}

/// The part of a wheel in one runtime.
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
/// wheel.sleep(Duration::from_millis(5)).await;
///
/// let engines = wheel.snapshot().engines;
/// assert_eq!(engines.len(), 1);
/// assert!(!engines[0].kernel_timer, "it was not asked for");
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EngineSnapshot {
    /// Whether the timers wait on a timer of the kernel, as the feature `precise` allows, rather than on
    /// Tokio's.
    pub kernel_timer: bool,
    /// The number of pending timers in the runtime.
    pub pending: usize,
}

/// The bounds of [`Snapshot::due_within`] in milliseconds, after the first, which is a tick, and before the
/// last, which is open.
const BOUNDS: [u64; 7] = [10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000];

impl Wheel {
    /// Returns a snapshot of the wheel: its pending timers by deadline and bucket, the driver's lag, and the
    /// outcomes of labelled timeouts.
    ///
    /// Taking a snapshot walks the whole arena of each shard. It holds the shard's lock for at most 256 cells
    /// at a time, so a registration waits for one such batch at most. Call it about once a second;
    /// [`metrics`](Wheel::metrics) costs less.
    ///
    /// # Examples
    ///
    /// ```
    /// let snapshot = tickwheel::Wheel::new().snapshot();
    /// assert_eq!(snapshot.pending, 0);
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let shared = self.shared();
        let mut snapshot = Snapshot {
            levels: vec![LevelSnapshot::default(); self.levels()],
            ..Snapshot::default()
        };
        for (engine, parts) in registry::of_wheel(shared).iter().enumerate() {
            let mut of_engine = EngineSnapshot {
                kernel_timer: parts.alarm.has_kernel_timer(),
                pending: 0,
            };
            for place in &parts.shards {
                let pending = place.get().map_or(0, |shard| snapshot.add(shard));
                snapshot.shards.push(ShardSnapshot { engine, pending });
                of_engine.pending += pending;
            }
            snapshot.pending += of_engine.pending;
            snapshot.engines.push(of_engine);
        }
        for level in &mut snapshot.levels {
            level.buckets.retain(|bucket| bucket.pending > 0);
            level.buckets.shrink_to_fit();
        }
        snapshot.labels = shared.labels.stats();
        snapshot.lag = LagHistogram::of_wheel(&shared.stats);
        snapshot
    }
}

impl Snapshot {
    /// Adds the timers of a shard, but for its spares, which are told by the ticks at which their entries are
    /// due. Returns how many there are.
    fn add(&mut self, shard: &Shard) -> usize {
        let mut spares: Vec<_> = shard.spares.dues().map(|due| shard.clock.tick_at(due)).collect();
        let mut pending = 0;
        let now = shard.alarm.now();
        let bounds = BOUNDS.map(Duration::from_millis);
        let tick = [shard.shared.settings.tick_duration];
        shard.walk(|site| {
            if let Some(spare) = spares.iter().position(|due| *due == site.due) {
                spares.swap_remove(spare);
                return;
            }
            pending += 1;
            let left = shard.clock.start_of(site.due).since(now).to_duration();
            let within = tick.iter().chain(&bounds).position(|bound| left <= *bound);
            self.due_within[within.unwrap_or(1 + bounds.len())] += 1;
            self.levels[site.level].add(site.bucket);
        });
        pending
    }
}

impl LevelSnapshot {
    /// Adds a timer. Until all are added, the buckets up to the last one in use are in their places.
    fn add(&mut self, bucket: usize) {
        let known = self.buckets.len();
        let empty = |index| BucketSnapshot { index, pending: 0 };
        self.buckets.extend((known..=bucket).map(empty));
        self.buckets[bucket].pending += 1;
        self.pending += 1;
    }
}
