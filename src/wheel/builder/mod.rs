//! The settings of a wheel. Their limits are the constants in [`error`], and are checked here.

mod error;

use std::{sync::Arc, task::Waker, thread, time::Duration};

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
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    tick_duration: Duration,
    slack: Duration,
    ticks_per_wheel: usize,
    levels: usize,
    shards: Option<usize>,
    capacity: Option<usize>,
    max_pending: Option<usize>,
    handle: Option<Handle>,
    name: Option<String>,
    /// Whether the wheel is that of a runtime. There may be many of these, which is no mistake.
    is_current: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            tick_duration: Duration::from_millis(1),
            slack: Duration::ZERO,
            ticks_per_wheel: 512,
            levels: 4,
            shards: None,
            capacity: None,
            max_pending: None,
            handle: None,
            name: None,
            is_current: false,
        }
    }
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
        self.tick_duration = tick_duration;
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
        self.slack = slack;
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
        self.ticks_per_wheel = ticks_per_wheel;
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
        self.levels = levels;
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
        self.max_pending = Some(max_pending);
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
        self.name = Some(name.into());
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
    /// assert_eq!(error.to_string(), "9 levels: a wheel has from 1 to 8");
    /// ```
    pub fn build(self) -> Result<Wheel, BuildError> {
        let shards = self.shards.unwrap_or_else(|| cores().min(*SHARDS.end()));
        self.check_limits(shards)?;
        let shards = shards.next_power_of_two();
        let driver = Arc::new(driver::Shared::new(
            self.name.unwrap_or_default(),
            TickDuration::new(self.tick_duration).with_slack(self.slack),
            self.handle,
            self.is_current,
        ));
        let limit = self.max_pending.map(|max| Arc::new(Limit::new(max)));
        let given = self.capacity.unwrap_or(0);
        let capacity = given.div_ceil(shards);
        let buckets = shards * TimingWheel::<Waker>::bucket_bytes(self.ticks_per_wheel, self.levels);
        let out_of_buckets = |_| BuildError::Memory { given: buckets };
        // First ask for all of the memory at once. If asked piece by piece, a machine may promise more memory than it has.
        Vec::<u8>::new()
            .try_reserve_exact(buckets)
            .map_err(out_of_buckets)?;
        let mask = shards - 1;
        let labels = Arc::<Labels>::default();
        let mut built = Vec::with_capacity(shards);
        for number in 0..shards {
            let mut wheel =
                TimingWheel::try_new(self.ticks_per_wheel, self.levels).map_err(out_of_buckets)?;
            wheel
                .try_reserve(capacity)
                .map_err(|_| BuildError::Memory { given })?;
            built.push(Arc::new(Shard::new(
                wheel,
                driver.clock(),
                capacity,
                limit.clone(),
                Stripe::new(labels.clone()),
                driver.clone(),
                (number, mask),
            )));
        }
        let settings = Settings {
            tick_duration: self.tick_duration,
            slack: self.slack,
            ticks_per_wheel: self.ticks_per_wheel.max(2).next_power_of_two(),
            levels: self.levels,
            max_pending: self.max_pending,
            counted: !self.is_current,
        };
        Ok(Wheel::assemble(built.into(), driver, settings))
    }

    /// Returns an error for the first setting outside its limits.
    fn check_limits(&self, shards: usize) -> Result<(), BuildError> {
        let tick_duration = self.tick_duration;
        if !TICK_DURATION.contains(&tick_duration) {
            return Err(BuildError::TickDuration { given: tick_duration });
        }
        if !SLACK.contains(&self.slack) {
            return Err(BuildError::Slack { given: self.slack });
        }
        let ticks_per_wheel = self.ticks_per_wheel;
        if !TICKS_PER_WHEEL.contains(&ticks_per_wheel) {
            return Err(BuildError::TicksPerWheel {
                given: ticks_per_wheel,
            });
        }
        if !LEVELS.contains(&self.levels) {
            return Err(BuildError::Levels { given: self.levels });
        }
        if !SHARDS.contains(&shards) {
            return Err(BuildError::Shards { given: shards });
        }
        let out_of_limits = |timers: &usize| !TIMERS.contains(timers);
        if let Some(given) = self.max_pending.filter(out_of_limits) {
            return Err(BuildError::MaxPending { given });
        }
        if let Some(given) = self.capacity.filter(out_of_limits) {
            return Err(BuildError::Capacity { given });
        }
        Ok(())
    }

    pub(crate) fn has_handle(&self) -> bool {
        self.handle.is_some()
    }

    /// Checks the settings as [`build`](Builder::build) does. Whether there is enough memory shows only by building a wheel,
    /// which is then dropped.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let mut builder = self.clone();
        builder.is_current = true;
        builder.build().map(drop)
    }

    /// Builds the wheel of a runtime from settings that have been checked.
    pub(crate) fn build_current(mut self, runtime: &Handle) -> Wheel {
        let workers = runtime.metrics().num_workers().min(*SHARDS.end());
        self.shards = self.shards.or(Some(workers));
        self.handle = Some(runtime.clone());
        self.is_current = true;
        let built = self.clone().build().or_else(|_| {
            // There was enough memory for the capacity when it was checked, but no longer.
            self.capacity = None;
            self.build()
        });
        // Not `expect`, which would link the `Debug` of every error into every program.
        built.unwrap_or_else(|_| panic!("there is not enough memory for the buckets of a wheel"))
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}
