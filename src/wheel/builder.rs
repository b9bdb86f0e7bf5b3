//! `Builder`: the settings of a wheel, and what each may be.

use std::{error::Error, fmt, ops::RangeInclusive, sync::Arc, time::Duration};

use tokio::runtime::Handle;

use crate::{
    engine::{
        driver::kernel_timer::SHORTEST_TICK,
        shared::{Settings, Shared, WheelId},
    },
    wheel::Wheel,
};

const TICK_DURATION: RangeInclusive<Duration> = SHORTEST_TICK..=Duration::from_secs(3600);
const TICKS_PER_WHEEL: RangeInclusive<usize> = 1..=1 << 20;
const LEVELS: RangeInclusive<usize> = 1..=8;
const SHARDS: RangeInclusive<usize> = 1..=1024;
const SLACK: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
const TIMERS: RangeInclusive<usize> = 1..=u32::MAX as usize;

impl Wheel {
    /// Creates a wheel with 1 ms ticks, 512 ticks per wheel, 4 levels and no limit on pending timers.
    ///
    /// The levels span 99 days. A timer that is further away is as precise, but is looked at once every 99
    /// days until it is due.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::new();
    /// assert_eq!(wheel.tick_duration().as_millis(), 1);
    /// ```
    pub fn new() -> Wheel {
        Builder::default().build().expect("the defaults are allowed")
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
    pub(super) settings: Settings,
    pub(super) handle: Option<Handle>,
}

impl Builder {
    /// Sets the duration of a tick, which is the precision of every timer.
    ///
    /// The duration can be from 1 ms to 1 h, and the default is 1 ms. Timers of the same tick are woken
    /// together, so a longer tick saves wake-ups where tens of thousands of timers per second expire, or on
    /// battery.
    ///
    /// On Linux, the feature `precise` allows ticks from 20 µs on. With a tick below 1 ms, the wheel waits on
    /// a timer of the kernel, as `Builder::kernel_timer` says.
    ///
    /// # Panics
    ///
    /// With a tick below 1 ms, the first poll of a timer in a runtime without I/O panics, as
    /// `Builder::kernel_timer` says.
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

    /// Makes the wheel wait on a timer of the kernel instead of Tokio's, whose timer rounds up to a
    /// millisecond twice.
    ///
    /// With the default tick, timers are then late by 0.5 ms in the median instead of 1 ms, and firing one
    /// takes fewer instructions. A tick below a millisecond implies it. Precision ends where the runtime is
    /// busy: a woken task still waits for its turn. Slack applies, too, so a long timer that has to be exact
    /// to the tick needs [`slack(Duration::ZERO)`](Builder::slack).
    ///
    /// In each runtime, the wheel takes one file descriptor, a `timerfd`. Where there is none, it waits on
    /// Tokio's timer: on other systems than Linux, on a clock that a test may pause, where the process has no
    /// descriptor left, and while a runtime shuts down. [`Snapshot::engines`](crate::Snapshot) says which of
    /// the two it is. A child that is forked without `exec` inherits the descriptor, never uses it, and waits
    /// on Tokio's timer, too. If it drives its parent's runtime, it takes wake-ups that were the parent's, as
    /// it does from all of Tokio's sockets.
    ///
    /// # Panics
    ///
    /// The first poll of a timer in a runtime without I/O panics with Tokio's message, and leaves the timer
    /// as it was. Such a runtime needs `enable_io` or `enable_all`.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tickwheel::BuildError> {
    /// # use std::time::Duration;
    /// let wheel = tickwheel::Wheel::builder().kernel_timer(true).build()?;
    /// wheel.sleep(Duration::from_millis(1)).await;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "precise")]
    #[cfg_attr(docsrs, doc(cfg(feature = "precise")))]
    pub fn kernel_timer(mut self, kernel_timer: bool) -> Builder {
        self.settings.kernel_timer = kernel_timer;
        self
    }

    /// Lets timers be late by up to `slack`, so that they fire in company, which costs a fraction of firing
    /// alone.
    ///
    /// A timer that is due in `d` may be late by a hundredth of `d`, and by `slack` at most, beyond its tick.
    /// It is never early. With a slack of 300 ms, a keepalive of 30 s fires at the next multiple of 256 ms
    /// after its deadline, along with all others due in that time, and a timeout of 1 s up to 8 ms late. The
    /// deadline is rounded up to a multiple of a power of two ticks, so a slack of less than two ticks
    /// changes nothing, and neither does any for a timer of less than 200 ticks.
    ///
    /// Every kind of timer on the wheel has slack. Intervals do not drift by it. Timers that share an instant
    /// also do their work at the same instant, and jitter narrower than the slack is undone.
    ///
    /// The slack can be up to 1 h, and [`Duration::ZERO`] stands for none. By default a timer may be late by
    /// a thousandth of `d`, and by 100 ms at most, as `epoll` itself allows: a timer of less than 2 s is
    /// exact to its tick, and one of 30 s is up to 16 ms late. A clock that a test controls has no slack
    /// unless it is asked for here.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// let keepalives = tickwheel::Wheel::builder().slack(Duration::from_millis(300)).build()?;
    /// assert_eq!(keepalives.slack(), Duration::from_millis(300));
    ///
    /// let exact = tickwheel::Wheel::builder().slack(Duration::ZERO).build()?;
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn slack(mut self, slack: Duration) -> Builder {
        self.settings.slack = Some(slack);
        self
    }

    /// Sets the number of buckets in one level, rounded up to a power of two.
    ///
    /// The number can be from 1 (taken as 2) to 2^20, and the default is 512. With more than one level, each
    /// has at least 4 buckets.
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
    /// The number can be from 1 to 8, and the default is 4. No deadline is too far away, even with 1 level: a
    /// timer beyond the last level is looked at once per round of that level.
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

    /// Sets the number of shards in each runtime, rounded up to a power of two.
    ///
    /// As many threads as there are shards can start timers without waiting for each other's locks.
    ///
    /// The number can be from 1 to 1024, and by default a runtime has as many shards as it has workers.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tickwheel::BuildError> {
    /// # use std::time::Duration;
    /// let wheel = tickwheel::Wheel::builder().shards(4).build()?;
    /// wheel.sleep(Duration::from_millis(5)).await;
    /// assert_eq!(wheel.snapshot().shards.len(), 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shards(mut self, shards: usize) -> Builder {
        self.settings.shards = Some(shards);
        self
    }

    /// Reserves memory for `capacity` timers in each runtime, divided evenly among its shards, each of which
    /// reserves its part with its first timer.
    ///
    /// The capacity can be from 1 to `u32::MAX`, and each timer takes 40 bytes. A capacity for which there is
    /// no memory aborts the process when the first timer starts. By default no memory is reserved, and the
    /// arenas grow as they are used.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tickwheel::BuildError> {
    /// let wheel = tickwheel::Wheel::builder().capacity(10_000).build()?;
    /// wheel.sleep(Duration::from_millis(10)).await;
    /// assert!(wheel.metrics().arena_bytes >= 10_000 * 40);
    /// # Ok(())
    /// # }
    /// ```
    pub fn capacity(mut self, capacity: usize) -> Builder {
        self.settings.capacity = Some(capacity);
        self
    }

    /// Limits the number of permits for what may be refused, in all runtimes together.
    ///
    /// A future of [`try_sleep`](Wheel::try_sleep) or [`try_timeout`](Wheel::try_timeout) holds a permit from
    /// its first pending poll until it completes or is dropped, a task of [`schedule`](Wheel::schedule) from
    /// the call until it starts, is cancelled or is handed back, and a series of
    /// [`periodic`](Wheel::periodic) from the call until it ends. Without a permit, they fail with
    /// `AtCapacity`. All others, such as [`sleep`](Wheel::sleep) and [`timeout`](Wheel::timeout), need none.
    /// A future that has been admitted once is not refused for want of a permit when it is reset after it has
    /// completed, so the limit may be exceeded that way.
    ///
    /// The limit can be from 1 to `u32::MAX`, and there is none by default. The count is exact and shared by
    /// all workers, so a limit makes these timers slower when several workers use them.
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

    /// Makes all timers of the wheel wait on the runtime of `handle`, so that they can be awaited from any
    /// executor.
    ///
    /// By default, a timer waits on the runtime that first polls it. Once the runtime of `handle` has ended,
    /// that holds for this wheel too.
    ///
    /// The wheel has as many shards as that runtime has workers, so with one worker all threads share one
    /// lock. If several threads start timers, set [`shards`](Builder::shards) to their number.
    ///
    /// A runtime that exists but does not run, such as a current-thread runtime between two `block_on`s,
    /// fires no timers.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    /// // Four threads of another executor start timers.
    /// let wheel = tickwheel::Wheel::builder().handle(runtime.handle().clone()).shards(4).build()?;
    ///
    /// futures::executor::block_on(wheel.sleep(Duration::from_millis(10)));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn handle(mut self, handle: Handle) -> Builder {
        self.handle = Some(handle);
        self
    }

    /// Sets the name of the wheel, which appears in its `Debug` output, its `tracing` events and the metrics
    /// of exporters.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().name("requests").build()?;
    /// assert!(format!("{wheel:?}").contains("requests"));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.settings.name = Some(name.into());
        self
    }

    /// Builds the wheel.
    ///
    /// This starts no task and reserves no memory, because both come with the first timer in a runtime.
    ///
    /// # Errors
    ///
    /// Returns a [`BuildError`] that names the first setting that is not allowed, the value given and the
    /// values allowed.
    ///
    /// # Examples
    ///
    /// ```
    /// let error = tickwheel::Wheel::builder().levels(9).build().unwrap_err();
    /// assert_eq!(error.to_string(), "9 levels are not within 1..=8");
    /// ```
    pub fn build(self) -> Result<Wheel, BuildError> {
        self.check()?;
        let shared = Shared::new(WheelId::next(), self.settings, self.handle);
        Ok(Wheel::assemble(Arc::new(shared)))
    }

    /// Fails for the first setting that is not allowed.
    pub(super) fn check(&self) -> Result<(), BuildError> {
        let settings = &self.settings;
        within(&TICK_DURATION, Some(settings.tick_duration))
            .map_err(|given| BuildError::TickDuration { given })?;
        within(&SLACK, settings.slack).map_err(|given| BuildError::Slack { given })?;
        within(&TICKS_PER_WHEEL, Some(settings.ticks_per_wheel))
            .map_err(|given| BuildError::TicksPerWheel { given })?;
        within(&LEVELS, Some(settings.levels)).map_err(|given| BuildError::Levels { given })?;
        within(&SHARDS, settings.shards).map_err(|given| BuildError::Shards { given })?;
        within(&TIMERS, settings.max_pending).map_err(|given| BuildError::MaxPending { given })?;
        within(&TIMERS, settings.capacity).map_err(|given| BuildError::Capacity { given })
    }
}

/// Fails with the value of a setting that was given and is not within what is allowed.
fn within<T: PartialOrd>(allowed: &RangeInclusive<T>, given: Option<T>) -> Result<(), T> {
    let refused = given.filter(|given| !allowed.contains(given));
    refused.map_or(Ok(()), Err)
}

/// The error of a wheel that could not be built.
///
/// # Examples
///
/// ```
/// use tickwheel::{BuildError, Wheel};
///
/// let error = Wheel::builder().shards(0).build().unwrap_err();
/// assert!(matches!(error, BuildError::Shards { given: 0, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick duration is less than 1 ms or more than 1 h. With the feature `precise` on Linux, it may be
    /// 20 µs or more.
    TickDuration {
        /// The value given.
        given: Duration,
    },
    /// The number of ticks per wheel is 0 or more than 2^20.
    TicksPerWheel {
        /// The value given.
        given: usize,
    },
    /// The number of levels is 0 or more than 8.
    Levels {
        /// The value given.
        given: usize,
    },
    /// The number of shards is 0 or more than 1024.
    Shards {
        /// The value given.
        given: usize,
    },
    /// The slack is more than 1 h.
    Slack {
        /// The value given.
        given: Duration,
    },
    /// The limit on pending timers is 0 or more than `u32::MAX`.
    MaxPending {
        /// The value given.
        given: usize,
    },
    /// The capacity is 0 or more than `u32::MAX`.
    Capacity {
        /// The value given.
        given: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            BuildError::TickDuration { given } => {
                let is_too_short = *given < SHORTEST_TICK && SHORTEST_TICK.as_millis() == 1;
                let why = if is_too_short {
                    "; shorter ones take Linux and the feature `precise`"
                } else {
                    ""
                };
                format!("a tick duration of {given:?} is not within {TICK_DURATION:?}{why}")
            }
            BuildError::TicksPerWheel { given } => {
                format!("{given} ticks per wheel are not within {TICKS_PER_WHEEL:?}")
            }
            BuildError::Levels { given } => format!("{given} levels are not within {LEVELS:?}"),
            BuildError::Shards { given } => format!("{given} shards are not within {SHARDS:?}"),
            BuildError::Slack { given } => format!("a slack of {given:?} is not within {SLACK:?}"),
            BuildError::MaxPending { given } => {
                format!("a limit of {given} pending timers is not within {TIMERS:?}")
            }
            BuildError::Capacity { given } => {
                format!("a capacity of {given} timers is not within {TIMERS:?}")
            }
        };
        f.pad(&text)
    }
}

impl Error for BuildError {}
