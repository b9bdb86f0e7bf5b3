//! `Periodic`: a series of runs, at a fixed rate or with a fixed delay.

mod series;

use std::{
    fmt,
    future::Future,
    hash::{BuildHasher, Hasher, RandomState},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    clock::{self, Nanos},
    error::ScheduleError,
    wheel::Wheel,
};

use series::{Pace, Series};

impl Wheel {
    /// Starts to build a series of runs, one every `period`, as the JDK's `scheduleAtFixedRate` and `scheduleWithFixedDelay` do.
    ///
    /// A run starts never early, and less than one tick late plus what the runtime adds. A series costs one Tokio task. While
    /// it waits, it also costs one timer in the wheel.
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
    /// wheel.sleep(Duration::from_millis(60)).await.unwrap();
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

/// A series of runs to be started; made by [`Wheel::periodic`].
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
    /// Sets how long after the spawning call the series runs first. The default is one period.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let wheel = tickwheel::Wheel::new();
    /// let at_once = wheel.periodic(Duration::from_secs(30)).first_after(Duration::ZERO);
    /// ```
    pub fn first_after(self, first_after: Duration) -> PeriodicBuilder {
        PeriodicBuilder { first_after, ..self }
    }

    /// Delays the first run, and with it the whole series, by a random part of `jitter`. So a thousand peers do not all run at
    /// the same moment. The default is no jitter.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let wheel = tickwheel::Wheel::new();
    /// let spread = wheel.periodic(Duration::from_secs(30)).jitter(Duration::from_secs(30));
    /// ```
    pub fn jitter(self, jitter: Duration) -> PeriodicBuilder {
        PeriodicBuilder { jitter, ..self }
    }

    /// Sets when missed runs of a fixed rate are made up for. Runs are missed while a run takes too long or the process stalls.
    ///
    /// The default is [`Skip`](MissedTickBehavior::Skip): one late run makes up for all of them. A fixed delay misses none.
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
    pub fn missed_tick_behavior(self, missed_tick_behavior: MissedTickBehavior) -> PeriodicBuilder {
        PeriodicBuilder {
            missed_tick_behavior,
            ..self
        }
    }

    /// Runs `run` once a period, counted from start to start. Two runs never overlap: after a run that takes longer, the next
    /// one starts late.
    ///
    /// A run starts never early, and less than one tick late plus what the runtime adds.
    ///
    /// # Cancellation
    ///
    /// Dropping the handle detaches the series and does not stop it. [`Periodic::stop`] stops it. With
    /// [`abort_on_drop`](Periodic::abort_on_drop), dropping the handle ends it.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, unless the wheel was given a [`handle`](crate::Builder::handle).
    ///
    /// # Errors
    ///
    /// The handle resolves to a [`ScheduleError`] when the wheel refuses the series or is shut down, or a run panics.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let heartbeat = wheel.periodic(Duration::from_millis(10)).spawn_at_fixed_rate(|| async {});
    /// wheel.sleep(Duration::from_millis(50)).await.unwrap();
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
        let mut interval = self.wheel.interval_at(self.first(), self.period);
        interval.set_missed_tick_behavior(self.missed_tick_behavior);
        self.spawn(Pace::Rate(interval), run)
    }

    /// Runs `run` again and again, with one period from the end of each run to the start of the next.
    ///
    /// A run starts never early, and less than one tick late plus what the runtime adds.
    ///
    /// # Cancellation
    ///
    /// As [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate).
    ///
    /// # Panics
    ///
    /// As [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate) does.
    ///
    /// # Errors
    ///
    /// As [`spawn_at_fixed_rate`](PeriodicBuilder::spawn_at_fixed_rate) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let sweep = wheel.periodic(Duration::from_millis(10)).spawn_with_fixed_delay(|| async {});
    /// wheel.sleep(Duration::from_millis(50)).await.unwrap();
    /// sweep.stop();
    /// # }
    /// ```
    #[track_caller]
    pub fn spawn_with_fixed_delay<F, R>(self, run: F) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future + Send + 'static,
    {
        let sleep = self.wheel.sleep_until(self.first());
        let period = self.period;
        self.spawn(
            Pace::Delay {
                sleep,
                period,
                started: false,
            },
            run,
        )
    }

    /// When the series runs first.
    fn first(&self) -> Instant {
        let first = clock::saturating_add(self.wheel.shard().now(), self.first_after);
        // This is the standard library's only source of randomness. It is good enough for jitter.
        let random = RandomState::new().build_hasher().finish();
        let jitter = Nanos::from_duration(self.jitter).0;
        clock::saturating_add(
            first,
            Duration::from_nanos(random.checked_rem(jitter).unwrap_or(0)),
        )
    }

    #[track_caller]
    fn spawn<F, R>(self, mut pace: Pace, mut run: F) -> Periodic
    where
        F: FnMut() -> R + Send + 'static,
        R: Future + Send + 'static,
    {
        let runtime = self.wheel.driver().runtime();
        let series = Arc::new(Series::default());
        let stopped = series.clone();
        let task = runtime.spawn(async move {
            while stopped.wait(&mut pace).await? {
                run().await;
                stopped.finish_run();
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

/// The handle of a series of runs: a future of its end.
///
/// Dropping it detaches the series and does not stop it. The series then runs until the wheel is shut down, a run panics or the
/// runtime ends, even after every handle of the wheel has been dropped. [`abort_on_drop`](Periodic::abort_on_drop) makes a
/// handle whose drop ends the series.
///
/// # Panics
///
/// It panics if it is polled again after it completed, as a `JoinHandle` does.
///
/// # Errors
///
/// It resolves to a [`ScheduleError`] when the wheel refuses the series or is shut down, or a run panics.
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
/// A heartbeat that ends together with its connection, however that ends:
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
    /// Ends the series. A run in progress still finishes.
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
        self.series.stop();
    }

    /// Ends the series when the handle is dropped, as tokio-util's `AbortOnDropHandle` does. A run in progress is aborted at its
    /// next `.await`, and no other run starts.
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
    /// drop(heartbeat); // no run any more
    /// # }
    /// ```
    #[must_use = "dropping it ends the series"]
    pub fn abort_on_drop(mut self) -> Periodic {
        self.abort_on_drop = true;
        self
    }

    /// Returns how many runs have completed.
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
        self.series.runs()
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
        self.series.has_stopped() || self.task.is_finished()
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        if self.abort_on_drop {
            // Stop it as well: the task may be just about to start a run.
            self.series.stop();
            self.task.abort();
        }
    }
}

impl Future for Periodic {
    type Output = Result<(), ScheduleError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.task).poll(cx));
        Poll::Ready(ended.unwrap_or_else(|error| Err(error.into())))
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
