//! Settings of a wheel. Their limits are the constants in [`error`] and are checked here.

mod error;

use std::{sync::Arc, task::Waker, thread, time::Duration};

use tokio::runtime::Handle;

use crate::{
    driver,
    shard::{Limit, Shard},
    timing_wheel::TimingWheel,
    wheel::{Settings, Wheel},
};
use error::{LEVELS, SHARDS, TICK_DURATION, TICKS_PER_WHEEL, TIMERS};

pub use error::BuildError;

impl Wheel {
    /// Creates a wheel with 1 ms ticks, 512 ticks per wheel, 4 levels and no limit on pending timers.
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

    /// Starts a [`Builder`], for a wheel with other than the default settings.
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
    /// The same as [`Wheel::new`].
    fn default() -> Wheel {
        Wheel::new()
    }
}

/// The settings of a wheel to be built.
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
    ticks_per_wheel: usize,
    levels: usize,
    shards: Option<usize>,
    capacity: Option<usize>,
    max_pending: Option<usize>,
    handle: Option<Handle>,
    name: Option<String>,
    /// Whether the wheel counts towards the warning that there are too many wheels.
    counted: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            tick_duration: Duration::from_millis(1),
            ticks_per_wheel: 512,
            levels: 4,
            shards: None,
            capacity: None,
            max_pending: None,
            handle: None,
            name: None,
            counted: true,
        }
    }
}

impl Builder {
    /// Sets how long a tick is, which is the precision of every timer.
    ///
    /// From 1 ms to 1 h. The default is 1 ms. Timers of one tick are woken together, so a longer tick saves wake-ups where tens of
    /// thousands of timers a second run out, or on battery.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// let wheel = tickwheel::Wheel::builder().tick_duration(Duration::from_millis(10)).build()?;
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn tick_duration(self, tick_duration: Duration) -> Builder {
        Builder {
            tick_duration,
            ..self
        }
    }

    /// Sets how many buckets one level has, rounded up to a power of two.
    ///
    /// From 1 (taken as 2) to 2^20. The default is 512.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().ticks_per_wheel(1000).build()?;
    /// assert_eq!(wheel.ticks_per_wheel(), 1024);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn ticks_per_wheel(self, ticks_per_wheel: usize) -> Builder {
        Builder {
            ticks_per_wheel,
            ..self
        }
    }

    /// Sets how many levels the wheel has. With 1 it is Netty's wheel, with more it is Kafka's hierarchy.
    ///
    /// From 1 to 8. The default is 4. No deadline is too far away, even with 1 level: a timer beyond the last level is looked at
    /// once in each round of that level.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().levels(1).build()?;
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn levels(self, levels: usize) -> Builder {
        Builder { levels, ..self }
    }

    /// Sets how many shards the wheel has, rounded up to a power of two. So many threads can start timers without waiting for
    /// each other's locks.
    ///
    /// From 1 to 1024. The default is the number of cores of the machine.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().shards(1).build()?;
    /// assert_eq!(wheel.shards(), 1);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn shards(self, shards: usize) -> Builder {
        Builder {
            shards: Some(shards),
            ..self
        }
    }

    /// Reserves memory for this many timers at the start, divided evenly among the shards.
    ///
    /// From 1 to `u32::MAX`. By default nothing is reserved, and the arenas grow as they are used.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().capacity(10_000).build()?;
    /// assert!(wheel.metrics().arena_bytes >= 10_000 * 40);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn capacity(self, capacity: usize) -> Builder {
        Builder {
            capacity: Some(capacity),
            ..self
        }
    }

    /// Limits how many timers may wait in the wheel at once. Others are refused with `AtCapacity`.
    ///
    /// From 1 to `u32::MAX`. By default there is no limit. The count is exact. All shards share it, so it makes timers slower on
    /// several workers.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().max_pending(100).build()?;
    /// assert_eq!(wheel.max_pending(), Some(100));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn max_pending(self, max_pending: usize) -> Builder {
        Builder {
            max_pending: Some(max_pending),
            ..self
        }
    }

    /// Sets the runtime that drives the wheel. Its timers may then be awaited from any executor.
    ///
    /// By default the runtime that polls the first timer drives the wheel. When that runtime has gone, the next one that polls a
    /// timer drives it. The same happens when the runtime given here has been shut down.
    ///
    /// A runtime that exists but does not run, such as a current-thread one between two `block_on`s, stops the wheel that it
    /// drives. So does one that was ended by `shutdown_background` while all its workers were blocked: until one of them is free,
    /// no other runtime takes the wheel over.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    /// let wheel = tickwheel::Wheel::builder().handle(runtime.handle().clone()).build()?;
    ///
    /// futures::executor::block_on(wheel.sleep(Duration::from_millis(10))).unwrap();
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn handle(self, handle: Handle) -> Builder {
        Builder {
            handle: Some(handle),
            ..self
        }
    }

    /// Sets the name of the wheel, which its `Debug` output and its `tracing` events show.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().name("requests").build()?;
    /// assert!(format!("{wheel:?}").contains("requests"));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn name(self, name: impl Into<String>) -> Builder {
        Builder {
            name: Some(name.into()),
            ..self
        }
    }

    /// Builds the wheel. It starts no task: the driver starts with the first timer.
    ///
    /// # Errors
    ///
    /// Returns a [`BuildError`] that names the first setting out of its limits, the value given and the values allowed.
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
            self.tick_duration,
            self.handle,
        ));
        let limit = self.max_pending.map(|max| Arc::new(Limit::new(max as u32)));
        let given = self.capacity.unwrap_or(0);
        let capacity = given.div_ceil(shards);
        let buckets = shards * TimingWheel::<Waker>::bucket_bytes(self.ticks_per_wheel, self.levels);
        let out_of_buckets = |_| BuildError::Memory { given: buckets };
        // Ask for all of the memory at once first. Asked for it piece by piece, a machine may promise more than it has.
        Vec::<u8>::new()
            .try_reserve_exact(buckets)
            .map_err(out_of_buckets)?;
        let mask = shards - 1;
        let shards = (0..shards)
            .map(|number| {
                let mut wheel =
                    TimingWheel::try_new(self.ticks_per_wheel, self.levels).map_err(out_of_buckets)?;
                wheel
                    .try_reserve(capacity)
                    .map_err(|_| BuildError::Memory { given })?;
                let clock = driver.first_clock();
                Ok(Arc::new(Shard::new(
                    wheel,
                    clock,
                    capacity,
                    limit.clone(),
                    driver.clone(),
                    (number, mask),
                )))
            })
            .collect::<Result<_, BuildError>>()?;
        let settings = Settings {
            tick_duration: self.tick_duration,
            ticks_per_wheel: self.ticks_per_wheel.max(2).next_power_of_two(),
            levels: self.levels,
            max_pending: self.max_pending,
            counted: self.counted,
        };
        Ok(Wheel::assemble(shards, driver, settings))
    }

    /// Returns the first setting that is out of its limits, as an error.
    fn check_limits(&self, shards: usize) -> Result<(), BuildError> {
        let tick_duration = self.tick_duration;
        if !TICK_DURATION.contains(&tick_duration) {
            return Err(BuildError::TickDuration { given: tick_duration });
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

    /// Checks the settings, as [`build`](Builder::build) does. There must be enough memory too, so a wheel is built and dropped.
    pub(crate) fn check(&self) -> Result<(), BuildError> {
        let builder = self.clone();
        Builder {
            counted: false,
            ..builder
        }
        .build()
        .map(drop)
    }

    /// Builds the wheel of a runtime. The settings have been checked.
    ///
    /// It is not counted: each runtime has one, and it is no mistake to have many runtimes.
    pub(crate) fn build_current(self, runtime: &Handle) -> Wheel {
        let workers = runtime.metrics().num_workers().min(*SHARDS.end());
        let builder = Builder {
            shards: self.shards.or(Some(workers)),
            handle: Some(runtime.clone()),
            counted: false,
            ..self
        };
        let built = builder.clone().build().or_else(|_| {
            // There was enough memory for the capacity when it was checked. Now there is not.
            Builder {
                capacity: None,
                ..builder
            }
            .build()
        });
        built.expect("the settings are within every limit")
    }
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get())
}
