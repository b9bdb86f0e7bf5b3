//! `Wheel`: a cloneable handle to a timing wheel.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

#[cfg(feature = "io")]
use crate::clock::Moment;
use crate::{
    driver, events,
    metrics::Metrics,
    roster::Roster,
    shard::{Shard, shard_number},
    snapshot::{Census, Snapshot},
    sync::{Mutex, MutexGuard, lock},
    timing_wheel::TickDuration,
};

/// A hashed timing wheel for Tokio: the handle by which timers are started.
///
/// Cloning it is cheap, and every clone is the same wheel. One wheel serves a whole process. It starts no task and costs no
/// tick until its first timer is polled.
///
/// Timers are precise to one tick: see [`Builder::tick_duration`](crate::Builder::tick_duration).
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
/// let answer = wheel.timeout(Duration::from_secs(1), async { 42 }).await;
/// assert_eq!(answer, Ok(42));
/// # }
/// ```
#[derive(Clone)]
pub struct Wheel {
    parts: Arc<Parts>,
}

/// A wheel, as long as it has a handle.
#[cfg(feature = "metrics")]
pub(crate) struct WeakWheel(std::sync::Weak<Parts>);

#[cfg(feature = "metrics")]
impl WeakWheel {
    pub(crate) fn upgrade(&self) -> Option<Wheel> {
        let parts = self.0.upgrade()?;
        Some(Wheel { parts })
    }
}

#[cfg(feature = "metrics")]
impl fmt::Debug for WeakWheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakWheel").finish_non_exhaustive()
    }
}

/// How many wheels there are, not counting current wheels.
static WHEELS: AtomicUsize = AtomicUsize::new(0);
/// With more than this there is a warning, as in Netty.
const MANY_WHEELS: usize = 64;
static WARNED: AtomicBool = AtomicBool::new(false);

struct Parts {
    shards: Box<[Arc<Shard>]>,
    /// One for each shard.
    rosters: Box<[Arc<Roster>]>,
    /// Held during a shutdown, so that a second one waits and finds nothing left.
    closing: Mutex<()>,
    driver: Arc<driver::Shared>,
    settings: Settings,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.driver.release_handles();
        if self.settings.counted {
            WHEELS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What a wheel was built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) tick_duration: Duration,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) levels: usize,
    pub(crate) max_pending: Option<usize>,
    /// Whether it counts among [`WHEELS`].
    pub(crate) counted: bool,
}

impl Wheel {
    pub(crate) fn assemble(
        shards: Box<[Arc<Shard>]>,
        driver: Arc<driver::Shared>,
        settings: Settings,
    ) -> Wheel {
        debug_assert!(shards.len().is_power_of_two());
        driver.connect(shards.iter().map(Arc::downgrade));
        if settings.counted {
            let wheels = WHEELS.fetch_add(1, Ordering::Relaxed) + 1;
            if wheels > MANY_WHEELS && !WARNED.swap(true, Ordering::Relaxed) {
                events::too_many_wheels(wheels);
            }
        }
        let rosters = shards.iter().map(|_| Arc::new(Roster::new())).collect();
        Wheel {
            parts: Arc::new(Parts {
                shards,
                rosters,
                closing: Mutex::new(()),
                driver,
                settings,
            }),
        }
    }

    /// Returns how long a tick is.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert_eq!(tickwheel::Wheel::new().tick_duration(), Duration::from_millis(1));
    /// ```
    pub fn tick_duration(&self) -> Duration {
        self.parts.settings.tick_duration
    }

    /// Returns how many buckets one level has, a power of two.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().ticks_per_wheel(500).build()?;
    /// assert_eq!(wheel.ticks_per_wheel(), 512);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn ticks_per_wheel(&self) -> usize {
        self.parts.settings.ticks_per_wheel
    }

    /// Returns how many levels the wheel has.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().levels(), 4);
    /// ```
    pub fn levels(&self) -> usize {
        self.parts.settings.levels
    }

    /// Returns how many shards the wheel has, a power of two.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().shards(3).build()?;
    /// assert_eq!(wheel.shards(), 4);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn shards(&self) -> usize {
        self.parts.shards.len()
    }

    /// Returns the limit on pending timers, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().max_pending(), None);
    /// ```
    pub fn max_pending(&self) -> Option<usize> {
        self.parts.settings.max_pending
    }

    /// Returns how many timers wait in the wheel.
    ///
    /// A timer that has expired is no longer in the wheel, even if its future has not been polled since. A timer expires when
    /// the driver comes, a moment after its deadline. So right after `tokio::time::advance` on a paused clock, a timer that is
    /// due may still be counted, until the test yields or awaits it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let sleep = wheel.sleep(Duration::from_secs(60));
    /// assert_eq!(wheel.pending(), 0, "a timer is registered by its first poll");
    ///
    /// let sleeping = tokio::spawn(sleep);
    /// tokio::task::yield_now().await;
    /// assert_eq!(wheel.pending(), 1);
    ///
    /// tokio::time::advance(Duration::from_secs(60)).await;
    /// sleeping.await.unwrap().unwrap(); // the driver has come
    /// assert_eq!(wheel.pending(), 0);
    /// # }
    /// ```
    pub fn pending(&self) -> usize {
        self.parts.shards.iter().map(|shard| shard.pending()).sum()
    }

    /// Returns what the wheel has done so far.
    ///
    /// It takes each shard's lock for a moment. It is cheap enough to be called every second under full load.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().metrics().registered, 0);
    /// ```
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        for shard in &self.parts.shards {
            metrics.add(&shard.usage());
        }
        self.parts.driver.stats.add_to(&mut metrics);
        metrics.shutdown = self.is_shutdown();
        metrics.driven = self.is_driven();
        metrics
    }

    /// Returns the wheel as it stands: what waits and until when, how late the driver came, and what became of labelled timeouts.
    ///
    /// It walks the whole arena, and takes a shard's lock for 256 cells of it at a time: a registration waits for one of those batches
    /// at most. It is meant for once a second or so. [`metrics`](Wheel::metrics) costs less.
    ///
    /// # Examples
    ///
    /// ```
    /// let snapshot = tickwheel::Wheel::new().snapshot();
    /// assert_eq!(snapshot.pending, 0);
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        let Settings {
            tick_duration,
            ticks_per_wheel,
            levels,
            ..
        } = self.parts.settings;
        let mut census = Census::new(TickDuration::new(tick_duration), ticks_per_wheel, levels);
        let shards = self.parts.shards.iter().map(|shard| census.take(shard));
        let (shards, ticks): (Vec<_>, Vec<_>) = shards.unzip();
        let driver = &self.parts.driver;
        let labels = driver.labels.stats(self.is_shutdown());
        let tick = ticks.into_iter().max().unwrap_or_default();
        census.finish(shards, driver.stats.lag(), labels, tick)
    }

    /// Returns `true` if the wheel has been shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::new();
    /// assert!(!wheel.is_shutdown());
    /// wheel.shutdown();
    /// assert!(wheel.is_shutdown());
    /// ```
    pub fn is_shutdown(&self) -> bool {
        self.parts.shards.iter().all(|shard| shard.is_shutdown())
    }

    /// Whether the wheel has a driver now.
    fn is_driven(&self) -> bool {
        self.parts.shards.iter().any(|shard| shard.is_driven())
    }

    /// Whether the driver has been woken but has not finished its turn. The answer stays true only while a test's clock stands
    /// still.
    #[cfg(feature = "test-util")]
    pub(crate) fn is_behind(&self) -> bool {
        self.parts.shards.iter().any(|shard| shard.is_behind())
    }

    /// The runtime that the wheel was given has gone for good. From now on any runtime may drive it, as long as it has timers.
    pub(crate) fn runtime_has_gone(&self) {
        self.parts.driver.forget_handle();
        self.parts.driver.release_handles();
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn downgrade(&self) -> WeakWheel {
        WeakWheel(Arc::downgrade(&self.parts))
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn name(&self) -> &str {
        &self.parts.driver.stats.name
    }

    /// Reads the clock that the wheel's timers go by.
    #[cfg(any(feature = "hyper", feature = "quinn"))]
    pub(crate) fn now(&self) -> tokio::time::Instant {
        self.shard().read_clock()
    }

    /// The moment that it is, by the same clock.
    #[cfg(feature = "io")]
    pub(crate) fn moment(&self) -> Moment {
        self.shard().now()
    }

    /// A moment as one of wheel time. Starts a driver for that if there is none.
    #[cfg(feature = "io")]
    pub(crate) fn settled(&self, moment: Moment) -> Moment {
        self.shard().settled(moment)
    }

    /// The shard of the current thread.
    #[inline]
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        let shards = &self.parts.shards;
        &shards[shard_number() & (shards.len() - 1)]
    }

    pub(crate) fn roster(&self) -> &Arc<Roster> {
        &self.parts.rosters[shard_number() & (self.parts.rosters.len() - 1)]
    }

    pub(crate) fn rosters(&self) -> impl Iterator<Item = &Roster> {
        self.parts.rosters.iter().map(|roster| &**roster)
    }

    pub(crate) fn closing(&self) -> MutexGuard<'_, ()> {
        lock(&self.parts.closing)
    }

    pub(crate) fn shard_list(&self) -> &[Arc<Shard>] {
        &self.parts.shards
    }

    pub(crate) fn driver(&self) -> &Arc<driver::Shared> {
        &self.parts.driver
    }
}

impl fmt::Debug for Wheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            tick_duration,
            ticks_per_wheel,
            levels,
            max_pending,
            counted: _,
        } = &self.parts.settings;
        f.debug_struct("Wheel")
            .field("name", &self.parts.driver.stats.name)
            .field("tick_duration", tick_duration)
            .field("ticks_per_wheel", ticks_per_wheel)
            .field("levels", levels)
            .field("shards", &self.shards())
            .field("max_pending", max_pending)
            .field("pending", &self.pending())
            .field("shutdown", &self.is_shutdown())
            .field("driven", &self.is_driven())
            .finish()
    }
}
