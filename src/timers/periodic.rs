//! `Periodic`: runs a future again and again, at a fixed rate or with a fixed delay.

use std::{
    fmt,
    future::{Future, poll_fn},
    hash::{BuildHasher, Hasher, RandomState},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    engine::{
        clock::{Nanos, after},
        sync::{Mutex, lock},
    },
    error::{ScheduleError, SleepError},
    timers::{interval::Interval, limit::Permit},
    wheel::Wheel,
};

impl Wheel {
    /// Creates a [`PeriodicBuilder`] for a series of runs, one every `period`, like the JDK's
    /// `scheduleAtFixedRate` and `scheduleWithFixedDelay`.
    ///
    /// A run is never early, and less than one tick late plus its slack and the runtime's own delay. A series
    /// costs one Tokio task and, while it waits, one timer in the wheel. It ends with its runtime.
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
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
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
    /// The default is [`Skip`](MissedTickBehavior::Skip): one late run makes up for all missed runs. A series
    /// with a fixed delay misses none.
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
    /// A run is never early, and less than one tick late plus its slack and the runtime's own delay. Runs
    /// never overlap: after a run that takes longer than a period, the next one starts late.
    ///
    /// # Cancellation
    ///
    /// Dropping the handle detaches the series and does not stop it. [`Periodic::stop`] stops the series.
    /// With [`abort_on_drop`](Periodic::abort_on_drop), dropping the handle ends it.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, unless the wheel was given a [`handle`](crate::Builder::handle). If
    /// the caller's runtime has no timers, the series panics rather than the call, and its handle reports the
    /// panic.
    ///
    /// # Errors
    ///
    /// The handle resolves to a [`ScheduleError`](crate::ScheduleError) when the wheel refuses the series or
    /// is shut down, or when a run panics.
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
    /// Dropping the handle detaches the series, as for
    /// [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate).
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
        let jitter = random.checked_rem(Nanos::of(self.jitter).0).unwrap_or(0);
        let first = after(self.wheel.now(), self.first_after);
        after(first, Duration::from_nanos(jitter))
    }

    #[track_caller]
    fn spawn<F, R>(self, mut run: F, after_run: fn(&mut Interval)) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future + Send + 'static,
    {
        let mut interval = self.wheel.interval_at(self.first(), self.period);
        interval.set_missed_tick_behavior(self.missed_tick_behavior);
        let runtime = self.wheel.runtime();
        let permit = Permit::take(&self.wheel.stripe().sleepers);
        let series = Arc::new(Series::default());
        let shared = series.clone();
        let task = runtime.spawn(async move {
            let mut permit = permit?;
            // A stop and a shutdown wake this task.
            let waker = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            permit.keep_waker(&waker)?;
            lock(&shared.0).task = Some(waker);
            while shared.wait(&mut interval, &permit).await? {
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

/// The state that a series of runs shares with its handle.
///
/// The task of the series alternates between waiting and running. If it is stopped while it waits, it ends at
/// once; if it is stopped during a run, it ends after that run.
#[derive(Default)]
struct Series(Mutex<State>);

/// This is behind one lock, so that a stop comes either before a run or during it.
#[derive(Default)]
struct State {
    /// The number of runs that have finished.
    runs: u64,
    /// Whether a run is in progress.
    running: bool,
    /// Whether the series was stopped, so that no other run starts.
    stopped: bool,
    /// Wakes the task of the series, which always has the same waker.
    task: Option<Waker>,
}

impl Series {
    /// Waits for the next run. Returns `false` if the series has been stopped.
    async fn wait(&self, interval: &mut Interval, permit: &Permit<Waker>) -> Result<bool, SleepError> {
        // A series whose runs take longer than its period would otherwise outlive a shutdown.
        permit.check()?;
        poll_fn(|cx| {
            let is_due = interval.poll_tick(cx).is_ready();
            let mut state = lock(&self.0);
            if is_due || state.stopped {
                state.running = !state.stopped;
                return Poll::Ready(Ok(state.running));
            }
            drop(state);
            permit.check()?;
            Poll::Pending
        })
        .await
    }

    fn finish_run(&self) {
        let mut state = lock(&self.0);
        state.running = false;
        state.runs += 1;
    }
}

/// The handle to a series of runs, and a future that completes when the series ends.
///
/// Dropping the handle detaches the series and does not stop it. The series then runs until the wheel is shut
/// down, a run panics or the runtime ends. Dropping every handle of the wheel does not end it either. To end
/// the series by dropping its handle, use [`abort_on_drop`](Periodic::abort_on_drop).
///
/// # Panics
///
/// Panics if it is polled again after it has completed, as a `JoinHandle` does.
///
/// # Errors
///
/// Resolves to a [`ScheduleError`] when the wheel refuses the series or is shut down, or when a run panics.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = tickwheel::Wheel::new();
/// let heartbeat = wheel.periodic(Duration::from_millis(10)).spawn_at_fixed_rate(|| async {});
/// heartbeat.stop();
/// assert_eq!(heartbeat.await, Ok(()));
/// # }
/// ```
///
/// A heartbeat that ends with its connection, however the connection ends:
///
/// ```
/// use std::{io, sync::Arc, time::Duration};
/// use tickwheel::Wheel;
/// use tokio::{io::{AsyncReadExt, AsyncWriteExt, DuplexStream, split}, sync::Mutex};
///
/// async fn serve(wheel: Wheel, stream: DuplexStream) -> io::Result<()> {
///     let (mut read, write) = split(stream);
///     let write = Arc::new(Mutex::new(write));
///     let _heartbeat = wheel
///         .periodic(Duration::from_millis(20))
///         .spawn_at_fixed_rate(move || {
///             let write = write.clone();
///             async move { drop(write.lock().await.write_all(b"beat").await) }
///         })
///         .abort_on_drop();
///     loop {
///         println!("heard {}", read.read_u8().await?);
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let wheel = Wheel::new();
/// # let (mut client, server) = tokio::io::duplex(64);
/// # let serving = tokio::spawn(serve(wheel.clone(), server));
/// # let mut beat = [0; 4];
/// # client.read_exact(&mut beat).await.unwrap();
/// # assert_eq!(&beat, b"beat");
/// # drop(client);
/// # assert!(serving.await.unwrap().is_err());
/// # tokio::task::yield_now().await;
/// # assert_eq!(wheel.pending(), 0);
/// # }
/// ```
#[must_use = "dropping it detaches the series: say so with `drop`, or keep it to stop or await the series"]
pub struct Periodic {
    series: Arc<Series>,
    task: JoinHandle<Result<(), ScheduleError>>,
    abort_on_drop: bool,
}

impl Periodic {
    /// Ends the series, after the run in progress if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_secs(30)).spawn_at_fixed_rate(|| async {});
    /// heartbeat.stop();
    /// assert!(heartbeat.is_finished());
    /// # }
    /// ```
    pub fn stop(&self) {
        let mut state = lock(&self.series.0);
        state.stopped = true;
        // A run in progress is left alone.
        let waiting = if state.running { None } else { state.task.take() };
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Makes dropping the handle end the series, as tokio-util's `AbortOnDropHandle` does for a task.
    ///
    /// A run in progress is aborted at its next `.await`, and no other run starts.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel
    ///     .periodic(Duration::from_secs(30))
    ///     .spawn_at_fixed_rate(|| async {})
    ///     .abort_on_drop();
    /// drop(heartbeat); // no run starts from now on
    /// # }
    /// ```
    #[must_use = "dropping it ends the series"]
    pub fn abort_on_drop(mut self) -> Periodic {
        self.abort_on_drop = true;
        self
    }

    /// Returns the number of completed runs.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_secs(30)).spawn_at_fixed_rate(|| async {});
    /// assert_eq!(heartbeat.runs(), 0);
    /// # }
    /// ```
    pub fn runs(&self) -> u64 {
        lock(&self.series.0).runs
    }

    /// Returns `true` if the series has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_secs(30)).spawn_at_fixed_rate(|| async {});
    /// assert!(!heartbeat.is_finished());
    /// # }
    /// ```
    pub fn is_finished(&self) -> bool {
        let state = lock(&self.series.0);
        state.stopped && !state.running || self.task.is_finished()
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        if self.abort_on_drop {
            // Aborting alone is not enough, because the task may be about to start a run.
            self.stop();
            self.task.abort();
        }
    }
}

impl Future for Periodic {
    type Output = Result<(), ScheduleError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.task).poll(cx));
        Poll::Ready(ended.unwrap_or_else(|error| Err(ScheduleError::of_task(error))))
    }
}

impl fmt::Debug for Periodic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Periodic")
            .field("runs", &self.runs())
            .field("is_finished", &self.is_finished())
            .finish()
    }
}
