//! The settings of a wheel. Their limits are the constants in [`error`], and are checked here.

mod error;

use std::{ops::RangeInclusive, sync::Arc, task::Waker, thread, time::Duration};

use tokio::runtime::Handle;

use crate::{
    engine::{
        driver,
        labels::{Labels, Stripe},
        shard::{Limit, Shard},
        timing_wheel::{TickDuration, TimingWheel},
    },
    wheel::{Settings, Wheel},
};
use error::{LEVELS, SHARDS, SLACK, TICK_DURATION, TICKS_PER_WHEEL, TIMERS};

pub use error::BuildError;

impl Wheel {
    /// Creates a wheel with 1 ms ticks, 512 ticks per wheel, 4 levels and no limit on pending timers.
    ///
    /// The levels span 99 days. A timer that is further away is as precise, but is looked at once every 99 days until it is due.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::new();
    /// assert_eq!(wheel.tick_duration().as_millis(), 1);
    /// ```
    pub fn new() -> Wheel {
        Builder::default()
            .build()
            .expect("the defaults are within every limit")
    }

    /// Returns a [`Builder`] for a wheel with other settings than the defaults.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let wheel = tickwheel::Wheel::builder().tick_duration(Duration::from_millis(1)).build()?;
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Default for Wheel {
    /// Creates a wheel with the default settings, as [`Wheel::new`] does.
    fn default() -> Wheel {
        Wheel::new()
    }
}

/// A builder for a wheel with other settings than the defaults.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// let wheel = Wheel::builder()
///     .tick_duration(Duration::from_millis(100))
///     .ticks_per_wheel(1024)
///     .levels(2)
///     .max_pending(1_000_000)
///     .name("leases")
///     .build()?;
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    settings: Settings,
    shards: Option<usize>,
    capacity: Option<usize>,
    pub(super) handle: Option<Handle>,
    name: String,
}

impl Builder {
    /// Sets the duration of a tick, which is the precision of every timer.
    ///
    /// The duration can be from 1 ms to 1 h, and the default is 1 ms. Timers of the same tick are woken together, so a longer
    /// tick saves wake-ups where tens of thousands of timers per second expire, or on battery.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// let wheel = tickwheel::Wheel::builder().tick_duration(Duration::from_millis(10)).build()?;
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn tick_duration(mut self, tick_duration: Duration) -> Builder {
        self.settings.tick_duration = tick_duration;
        self
    }

    /// Lets timers be late by up to `slack`, so that they fire in company, which costs a fraction of firing alone.
    ///
    /// A timer that is due in `d` may be late by a hundredth of `d`, and by `slack` at most, beyond its tick. It is never early.
    /// With a slack of 300 ms, a keepalive of 30 s fires at the next multiple of 256 ms after its deadline, along with all others
    /// due in that time, and a timeout of 1 s up to 8 ms late. The deadline is rounded up to a multiple of a power of two ticks,
    /// so a slack of less than two ticks changes nothing, and neither does any for a timer of less than 200 ticks.
    ///
    /// Every kind of timer on the wheel has slack. Intervals do not drift by it, and on a clock that a test has paused there is
    /// none. Timers that share an instant also do their work at the same instant, and jitter narrower than the slack is undone.
    ///
    /// The slack can be up to 1 h, and there is none by default.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// let wheel = tickwheel::Wheel::builder().slack(Duration::from_millis(300)).build()?;
    /// assert_eq!(wheel.slack(), Duration::from_millis(300));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn slack(mut self, slack: Duration) -> Builder {
        self.settings.slack = slack;
        self
    }

    /// Sets the number of buckets in one level, rounded up to a power of two.
    ///
    /// The number can be from 1 (taken as 2) to 2^20, and the default is 512.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().ticks_per_wheel(1000).build()?;
    /// assert_eq!(wheel.ticks_per_wheel(), 1024);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn ticks_per_wheel(mut self, ticks_per_wheel: usize) -> Builder {
        self.settings.ticks_per_wheel = ticks_per_wheel;
        self
    }

    /// Sets the number of levels.
    ///
    /// A wheel with 1 level is like Netty's, and one with more is like Kafka's hierarchy.
    ///
    /// The number can be from 1 to 8, and the default is 4. No deadline is too far away, even with 1 level: a timer beyond the
    /// last level is looked at once per round of that level.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().levels(1).build()?;
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn levels(mut self, levels: usize) -> Builder {
        self.settings.levels = levels;
        self
    }

    /// Sets the number of shards, rounded up to a power of two.
    ///
    /// As many threads as there are shards can start timers without waiting for each other's locks.
    ///
    /// The number can be from 1 to 1024, and the default is the number of cores of the machine.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().shards(1).build()?;
    /// assert_eq!(wheel.shards(), 1);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn shards(mut self, shards: usize) -> Builder {
        self.shards = Some(shards);
        self
    }

    /// Reserves memory for `capacity` timers when the wheel is built, divided evenly among the shards.
    ///
    /// The capacity can be from 1 to `u32::MAX`. By default no memory is reserved, and the arenas grow as they are used.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().capacity(10_000).build()?;
    /// assert!(wheel.metrics().arena_bytes >= 10_000 * 40);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn capacity(mut self, capacity: usize) -> Builder {
        self.capacity = Some(capacity);
        self
    }

    /// Limits the number of pending timers.
    ///
    /// Further timers are refused with `AtCapacity`.
    ///
    /// The limit can be from 1 to `u32::MAX`, and there is none by default. The count is exact and shared by all shards, so a
    /// limit makes timers slower when several workers use them.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().max_pending(100).build()?;
    /// assert_eq!(wheel.max_pending(), Some(100));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn max_pending(mut self, max_pending: usize) -> Builder {
        self.settings.max_pending = Some(max_pending);
        self
    }

    /// Sets the runtime that drives the wheel, whose timers can then be awaited from any executor.
    ///
    /// By default, the runtime that polls the first timer drives the wheel. When that runtime has ended, the next runtime that
    /// polls a timer takes over. The same happens when the runtime given here has been shut down.
    ///
    /// A runtime that exists but does not run, such as a current-thread runtime between two `block_on`s, stops the wheel that it
    /// drives. So does a runtime that was ended by `shutdown_background` while all its workers were blocked: no other runtime
    /// takes the wheel over until one of those workers is free.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    /// let wheel = tickwheel::Wheel::builder().handle(runtime.handle().clone()).build()?;
    ///
    /// futures::executor::block_on(wheel.sleep(Duration::from_millis(10)));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn handle(mut self, handle: Handle) -> Builder {
        self.handle = Some(handle);
        self
    }

    /// Sets the name of the wheel, which appears in its `Debug` output and its `tracing` events.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().name("requests").build()?;
    /// assert!(format!("{wheel:?}").contains("requests"));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = name.into();
        self
    }

    /// Builds the wheel.
    ///
    /// This starts no task, because the driver starts with the first timer.
    ///
    /// # Errors
    ///
    /// Returns a [`BuildError`] that names the first setting outside its limits, the value given and the values allowed. Returns
    /// [`BuildError::Memory`] if there is not enough memory.
    ///
    /// # Examples
    ///
    /// ```
    /// let error = tickwheel::Wheel::builder().levels(9).build().unwrap_err();
    /// assert_eq!(error.to_string(), "9 levels are not within 1..=8");
    /// ```
    pub fn build(self) -> Result<Wheel, BuildError> {
        let shards = self.check()?;
        let mut settings = self.settings;
        let driver = Arc::new(driver::Shared::new(
            self.name,
            TickDuration::new(settings.tick_duration).with_slack(settings.slack),
            self.handle,
            !settings.counted,
        ));
        let limit = settings.max_pending.map(|max| Arc::new(Limit::new(max)));
        let capacity = self.capacity.unwrap_or(0).div_ceil(shards);
        let labels = Arc::<Labels>::default();
        let shard = |number| {
            let mut wheel = TimingWheel::new(settings.ticks_per_wheel, settings.levels);
            wheel.reserve(capacity);
            Arc::new(Shard::new(
                wheel,
                driver.clock(),
                capacity,
                limit.clone(),
                Stripe::new(labels.clone()),
                driver.clone(),
                (number, shards - 1),
            ))
        };
        let built = (0..shards).map(shard).collect();
        settings.ticks_per_wheel = settings.ticks_per_wheel.max(2).next_power_of_two();
        Ok(Wheel::assemble(built, driver, settings))
    }

    /// Returns the number of shards, or an error for the first setting outside its limits, or if there is not enough memory.
    pub(crate) fn check(&self) -> Result<usize, BuildError> {
        let settings = &self.settings;
        let shards = self.shards.unwrap_or_else(|| cores().min(*SHARDS.end()));
        within(&TICK_DURATION, settings.tick_duration, |given| {
            BuildError::TickDuration { given }
        })?;
        within(&SLACK, settings.slack, |given| BuildError::Slack { given })?;
        within(&TICKS_PER_WHEEL, settings.ticks_per_wheel, |given| {
            BuildError::TicksPerWheel { given }
        })?;
        within(&LEVELS, settings.levels, |given| BuildError::Levels { given })?;
        within(&SHARDS, shards, |given| BuildError::Shards { given })?;
        if let Some(max_pending) = settings.max_pending {
            within(&TIMERS, max_pending, |given| BuildError::MaxPending { given })?;
        }
        if let Some(capacity) = self.capacity {
            within(&TIMERS, capacity, |given| BuildError::Capacity { given })?;
        }
        let shards = shards.next_power_of_two();
        let bytes = |capacity: usize| {
            let each = capacity.div_ceil(shards);
            let each = TimingWheel::<Waker>::bytes(settings.ticks_per_wheel, settings.levels, each);
            each.saturating_mul(shards)
        };
        let capacity = self.capacity.unwrap_or(0);
        let (buckets, all) = (bytes(0), bytes(capacity));
        ask_for(buckets, buckets)?;
        ask_for(all, capacity)?;
        Ok(shards)
    }

    /// Builds the wheel of a runtime from settings that have been checked.
    ///
    /// The wheel is not counted: each runtime has one, and having many runtimes is no mistake.
    pub(crate) fn build_current(mut self, runtime: &Handle) -> Wheel {
        let workers = runtime.metrics().num_workers().min(*SHARDS.end());
        self.shards = self.shards.or(Some(workers));
        self.handle = Some(runtime.clone());
        self.settings.counted = false;
        let built = self.clone().build().or_else(|_| {
            // There was enough memory for the capacity when it was checked, but no longer.
            self.capacity = None;
            self.build()
        });
        // Not `expect`, which would link the `Debug` of every error into every program.
        built.unwrap_or_else(|_| panic!("there is not enough memory for the buckets of a wheel"))
    }
}

/// Returns the error for a setting that is not within what is allowed.
fn within<T: PartialOrd>(
    allowed: &RangeInclusive<T>,
    given: T,
    error: impl FnOnce(T) -> BuildError,
) -> Result<(), BuildError> {
    match allowed.contains(&given) {
        true => Ok(()),
        false => Err(error(given)),
    }
}

/// Asks for all of the memory at once. If asked piece by piece, a machine may promise more memory than it has.
fn ask_for(bytes: usize, given: usize) -> Result<(), BuildError> {
    let asked = Vec::<u8>::new().try_reserve_exact(bytes);
    asked.map_err(|_| BuildError::Memory { given })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}
