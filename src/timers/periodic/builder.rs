//! `PeriodicBuilder`: configures and starts a series of runs.

use std::{
    future::Future,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior};

use super::{Periodic, series::Series};
use crate::{
    engine::moment::{Nanos, after},
    timers::interval::Interval,
    wheel::Wheel,
};

impl Wheel {
    /// Creates a [`PeriodicBuilder`] for a series of runs, one every `period`, like the JDK's `scheduleAtFixedRate` and
    /// `scheduleWithFixedDelay`.
    ///
    /// A run is never early, and less than one tick late plus its slack and the runtime's own delay. A series costs one Tokio task and, while
    /// it waits, one timer in the wheel. It ends with its runtime.
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero.
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
    /// let heartbeat = wheel
    ///     .periodic(Duration::from_millis(20))
    ///     .jitter(Duration::from_millis(10))
    ///     .spawn_at_fixed_rate(|| async { println!("still here") });
    ///
    /// wheel.sleep(Duration::from_millis(60)).await;
    /// heartbeat.stop();
    /// assert!(heartbeat.runs() > 0);
    /// # }
    /// ```
    #[track_caller]
    pub fn periodic(&self, period: Duration) -> PeriodicBuilder {
        assert!(period > Duration::ZERO, "`period` must be non-zero.");
        PeriodicBuilder {
            wheel: self.clone(),
            period,
            first_after: period,
            jitter: Duration::ZERO,
            missed_tick_behavior: MissedTickBehavior::Skip,
        }
    }
}

/// A builder for a series of runs, created by [`Wheel::periodic`].
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let series = tickwheel::Wheel::new()
///     .periodic(Duration::from_secs(30))
///     .first_after(Duration::ZERO)
///     .spawn_with_fixed_delay(|| async { println!("swept") });
/// # series.stop();
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs until the series is spawned"]
pub struct PeriodicBuilder {
    wheel: Wheel,
    period: Duration,
    first_after: Duration,
    jitter: Duration,
    missed_tick_behavior: MissedTickBehavior,
}

impl PeriodicBuilder {
    /// Sets the time between the spawning call and the first run.
    ///
    /// The default is one period.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let wheel = tickwheel::Wheel::new();
    /// let at_once = wheel.periodic(Duration::from_secs(30)).first_after(Duration::ZERO);
    /// ```
    pub fn first_after(mut self, first_after: Duration) -> PeriodicBuilder {
        self.first_after = first_after;
        self
    }

    /// Delays the first run, and with it the whole series, by a random duration below `jitter`.
    ///
    /// Jitter keeps a thousand peers from all running at the same moment. The default is none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let wheel = tickwheel::Wheel::new();
    /// let spread = wheel.periodic(Duration::from_secs(30)).jitter(Duration::from_secs(30));
    /// ```
    pub fn jitter(mut self, jitter: Duration) -> PeriodicBuilder {
        self.jitter = jitter;
        self
    }

    /// Sets how a series with a fixed rate makes up for missed runs.
    ///
    /// Runs are missed while a run takes too long or the process stalls.
    ///
    /// The default is [`Skip`](MissedTickBehavior::Skip): one late run makes up for all missed runs. A series with a fixed delay
    /// misses none.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// use tokio::time::MissedTickBehavior;
    ///
    /// # let wheel = tickwheel::Wheel::new();
    /// let burst = wheel.periodic(Duration::from_secs(30)).missed_tick_behavior(MissedTickBehavior::Burst);
    /// ```
    pub fn missed_tick_behavior(mut self, missed_tick_behavior: MissedTickBehavior) -> PeriodicBuilder {
        self.missed_tick_behavior = missed_tick_behavior;
        self
    }

    /// Spawns a series that starts a run every `period`, measured from start to start.
    ///
    /// A run is never early, and less than one tick late plus its slack and the runtime's own delay. Runs never overlap: after a run that
    /// takes longer than a period, the next one starts late.
    ///
    /// # Cancellation
    ///
    /// Dropping the handle detaches the series and does not stop it. [`Periodic::stop`] stops the series. With
    /// [`abort_on_drop`](Periodic::abort_on_drop), dropping the handle ends it.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, unless the wheel was given a [`handle`](crate::Builder::handle).
    ///
    /// # Errors
    ///
    /// The handle resolves to a [`ScheduleError`](crate::ScheduleError) when the wheel refuses the series or is shut down, or
    /// when a run panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_millis(10)).spawn_at_fixed_rate(|| async {});
    /// wheel.sleep(Duration::from_millis(50)).await;
    /// heartbeat.stop();
    /// heartbeat.await.unwrap();
    /// # }
    /// ```
    #[track_caller]
    pub fn spawn_at_fixed_rate<F, R>(self, run: F) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future + Send + 'static,
    {
        self.spawn(run, |_| ())
    }

    /// Spawns a series with one period from the end of each run to the start of the next.
    ///
    /// A run is never early, and less than one tick late plus its slack and the runtime's own delay.
    ///
    /// # Cancellation
    ///
    /// Dropping the handle detaches the series, as for [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate).
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let sweep = wheel.periodic(Duration::from_millis(10)).spawn_with_fixed_delay(|| async {});
    /// wheel.sleep(Duration::from_millis(50)).await;
    /// sweep.stop();
    /// # }
    /// ```
    #[track_caller]
    pub fn spawn_with_fixed_delay<F, R>(self, run: F) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future + Send + 'static,
    {
        self.spawn(run, Interval::reset)
    }

    /// Returns when the series first runs, jitter included.
    fn first(&self) -> Instant {
        // The standard library has no other source of randomness, and for jitter it is good enough.
        let random = RandomState::new().build_hasher().finish();
        let jitter = Nanos::of(self.jitter).0;
        let first = after(self.wheel.now(), self.first_after);
        after(
            first,
            Duration::from_nanos(random.checked_rem(jitter).unwrap_or(0)),
        )
    }

    #[track_caller]
    fn spawn<F, R>(self, mut run: F, after_run: fn(&mut Interval)) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future + Send + 'static,
    {
        let mut interval = self.wheel.interval_at(self.first(), self.period).refusable();
        interval.set_missed_tick_behavior(self.missed_tick_behavior);
        let runtime = self.wheel.runtime();
        let series = Arc::new(Series::default());
        let shared = series.clone();
        let task = runtime.spawn(async move {
            while shared.wait(&mut interval).await? {
                run().await;
                shared.finish_run();
                after_run(&mut interval);
            }
            Ok(())
        });
        Periodic {
            series,
            task,
            abort_on_drop: false,
        }
    }
}
