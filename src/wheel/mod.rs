//! `Wheel`: a cloneable handle to a timing wheel.

pub(crate) mod builder;
pub(crate) mod current;
pub(crate) mod roster;
pub(crate) mod shutdown;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    engine::{
        driver, events,
        shard::{Shard, Wakers, shard_number},
        sync::Mutex,
    },
    wheel::roster::Roster,
};

/// A handle to a hashed timing wheel for Tokio, on which timers are started.
///
/// Cloning a handle is cheap, and every clone refers to the same wheel. One wheel serves a whole process. A wheel starts no task
/// and does not tick until its first timer is polled.
///
/// Timers are precise to one tick, which is [`Builder::tick_duration`](crate::Builder::tick_duration) long.
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
    pub(crate) parts: Arc<Parts>,
}

/// The number of wheels alive, not counting current wheels.
static WHEELS: AtomicUsize = AtomicUsize::new(0);
/// Above this number of wheels, a warning is logged once, as in Netty.
const MANY_WHEELS: usize = 64;
static WARNED: AtomicBool = AtomicBool::new(false);

/// What all handles of a wheel share.
pub(crate) struct Parts {
    pub(crate) shards: Box<[Arc<Shard>]>,
    /// One for each shard.
    pub(crate) rosters: Box<[Arc<Roster>]>,
    /// Held during a shutdown, so that a concurrent second one waits and then finds nothing left to do.
    pub(crate) closing: Mutex<()>,
    pub(crate) driver: Arc<driver::Shared>,
    pub(crate) settings: Settings,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.driver.release_handles();
        if self.settings.counted {
            WHEELS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The settings that a wheel is built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) tick_duration: Duration,
    pub(crate) slack: Duration,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) levels: usize,
    pub(crate) max_pending: Option<usize>,
    /// Whether this wheel counts towards [`WHEELS`].
    pub(crate) counted: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tick_duration: Duration::from_millis(1),
            slack: Duration::ZERO,
            ticks_per_wheel: 512,
            levels: 4,
            max_pending: None,
            counted: true,
        }
    }
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

    /// Returns the duration of a tick.
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

    /// Returns how late a timer may be, beyond its tick, to fire in company.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert_eq!(tickwheel::Wheel::new().slack(), Duration::ZERO);
    /// ```
    pub fn slack(&self) -> Duration {
        self.parts.settings.slack
    }

    /// Returns the number of buckets in one level, a power of two. If it is 2 and there is more than one level, each has 4.
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

    /// Returns the number of levels.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().levels(), 4);
    /// ```
    pub fn levels(&self) -> usize {
        self.parts.settings.levels
    }

    /// Returns the number of shards, a power of two.
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

    /// Returns the number of pending timers.
    ///
    /// A timer that has expired is no longer pending, even if its future has not been polled since. Because the driver expires a
    /// timer a moment after its deadline, a timer that is due may still be counted right after `tokio::time::advance` on a paused
    /// clock, until the test yields or awaits the timer.
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
    /// sleeping.await.unwrap(); // the driver has run
    /// assert_eq!(wheel.pending(), 0);
    /// # }
    /// ```
    pub fn pending(&self) -> usize {
        self.parts.shards.iter().map(|shard| shard.pending()).sum()
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

    /// Returns whether the wheel has a driver now.
    pub(crate) fn is_driven(&self) -> bool {
        self.parts.shards.iter().any(|shard| shard.is_driven())
    }

    /// Ends every timer if this is the only handle, so that nobody can start another one. Futures then go on with Tokio's timer of the
    /// runtimes that poll them, and scheduled tasks have no runtime to start on.
    pub(crate) fn end_without_handle(&self) {
        if Arc::strong_count(&self.parts) == 1 {
            let mut wakers = Wakers::default();
            for shard in &self.parts.shards {
                shard.shutdown(&mut wakers);
            }
            // Unlike the tasks that a shutdown hands back, these are dropped where a panic is caught.
            self.parts.driver.wake(&mut wakers);
        }
    }

    /// Releases the wheel from its runtime, which has gone for good. From now on any runtime may drive the wheel, as long as it
    /// has timers.
    pub(crate) fn runtime_has_gone(&self) {
        self.parts.driver.forget_handle();
        self.parts.driver.release_handles();
    }

    /// Returns the shard of the current thread.
    #[inline]
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        let shards = &self.parts.shards;
        &shards[shard_number() & (shards.len() - 1)]
    }

    pub(crate) fn roster(&self) -> &Arc<Roster> {
        &self.parts.rosters[shard_number() & (self.parts.rosters.len() - 1)]
    }
}

impl fmt::Debug for Wheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("name", &self.parts.driver.stats.name)
            .field("tick_duration", &self.tick_duration())
            .field("slack", &self.slack())
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("levels", &self.levels())
            .field("shards", &self.shards())
            .field("max_pending", &self.max_pending())
            .field("pending", &self.pending())
            .field("shutdown", &self.is_shutdown())
            .field("driven", &self.is_driven())
            .finish()
    }
}
