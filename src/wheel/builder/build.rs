//! Checks the settings, and builds a wheel of them.

use std::{ops::RangeInclusive, sync::Arc, task::Waker, thread};

use tokio::runtime::Handle;

use super::{
    Builder,
    error::{BuildError, LEVELS, SHARDS, SLACK, TICK_DURATION, TICKS_PER_WHEEL, TIMERS},
};
use crate::{
    engine::{
        driver,
        labels::{Labels, Stripe},
        shard::{Limit, Shard},
        timing_wheel::{TickDuration, TimingWheel},
    },
    wheel::Wheel,
};

impl Builder {
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
