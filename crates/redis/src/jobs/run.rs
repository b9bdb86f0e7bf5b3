//! `Run`: a worker that runs a function for each job, and `JobError`: how an attempt fails.

use std::{
    error, fmt,
    future::{IntoFuture, pending},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Job, Worker};
use crate::{error::Error, local, nonce::random_part};

type Cause = Box<dyn error::Error + Send + Sync>;
type Handler = Arc<dyn Fn(Arc<Job>) -> BoxFuture<'static, Result<(), JobError>> + Send + Sync>;

/// What becomes of a job whose handler did not succeed, for [`Worker::run`].
///
/// Every error that implements [`std::error::Error`] converts into `Retry`, so `?` works in a handler.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The job is tried again after a pause that grows with its attempts, and is dead after its last one.
    Retry(Box<dyn error::Error + Send + Sync>),
    /// The job is tried again after this time, and is dead after its last attempt.
    RetryAfter(Duration, Box<dyn error::Error + Send + Sync>),
    /// The job is dead, because trying again would not help.
    Bury(Box<dyn error::Error + Send + Sync>),
    /// The job could not be tried. It is due again after this time, and no attempt is counted.
    Snooze(Duration),
}

impl JobError {
    /// Returns an error after which the job is tried again, made from anything that converts into a boxed
    /// error, such as a string.
    pub fn retry(cause: impl Into<Box<dyn error::Error + Send + Sync>>) -> JobError {
        JobError::Retry(cause.into())
    }

    /// Returns an error after which the job is dead, made from anything that converts into a boxed error,
    /// such as a string.
    pub fn bury(cause: impl Into<Box<dyn error::Error + Send + Sync>>) -> JobError {
        JobError::Bury(cause.into())
    }
}

impl<E: error::Error + Send + Sync + 'static> From<E> for JobError {
    fn from(error: E) -> JobError {
        JobError::Retry(Box::new(error))
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::Retry(cause) => write!(f, "to be tried again: {cause}"),
            JobError::RetryAfter(delay, cause) => write!(f, "to be tried again after {delay:?}: {cause}"),
            JobError::Bury(cause) => write!(f, "not to be tried again: {cause}"),
            JobError::Snooze(delay) => write!(f, "put off for {delay:?}"),
        }
    }
}

/// The pause before the second attempt and the longest one, unless set.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// How long jobs may still run after the end was asked for, unless set.
const GRACE: Duration = Duration::from_secs(30);

/// A future that runs the jobs of a worker, created by [`Worker::run`].
///
/// It completes when the future given to [`until`](Run::until) has completed and no job runs any more, when
/// the wheel is shut down, or with an error that only another program or setting can avoid. If it is dropped,
/// the handlers that run are dropped too, and their jobs are delivered again after their leases.
#[must_use = "futures do nothing unless you `.await` or poll them"]
pub struct Run {
    setup: Option<Setup>,
    running: Option<BoxFuture<'static, Result<(), Error>>>,
}

struct Setup {
    worker: Worker,
    concurrency: usize,
    handler: Handler,
    until: BoxFuture<'static, ()>,
    grace: Duration,
    backoff: (Duration, Duration),
}

impl Worker {
    /// Runs `handler` for each job, up to `concurrency` at once, each in a task of its own.
    ///
    /// | the handler | the job |
    /// | --- | --- |
    /// | returns `Ok` | is [done](Job::done) |
    /// | returns an error, or panics | is tried again after a [pause](Run::backoff), and is dead after its last attempt |
    /// | returns [`JobError::Bury`] or [`JobError::Snooze`] | is dead, or is put off without counting the attempt |
    /// | takes longer than [`time_limit`](super::WorkerBuilder::time_limit), or loses the job otherwise | is delivered again; the handler is dropped at its next `.await` |
    ///
    /// The worker takes no job before there is a place for it. Errors of Redis are logged through `tracing`,
    /// and the worker goes on when Redis is back.
    ///
    /// # Panics
    ///
    /// Panics if `concurrency` is zero. The future panics if it is polled outside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// The future returns an error if a setting of the worker or the queue is not allowed, if the queue has
    /// another number of partitions, or if the runtime on which the worker was started has ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use tickwheel_redis::JobError;
    ///
    /// let worker = jobs.worker().attempts(5).start();
    /// worker
    ///     .run(16, async |job| {
    ///         let order = std::str::from_utf8(job.payload()).map_err(JobError::bury)?;
    ///         tokio::fs::write("orders.txt", order).await?;
    ///         Ok::<(), JobError>(())
    ///     })
    ///     .until(async { tokio::signal::ctrl_c().await.unwrap_or_default() })
    ///     .await
    /// # }
    /// ```
    #[track_caller]
    pub fn run<H, F, E>(self, concurrency: usize, handler: H) -> Run
    where
        H: Fn(Arc<Job>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<JobError>,
    {
        assert!(concurrency > 0, "a worker runs at least one job at once");
        let handler = move |job| handler(job).map(|outcome| outcome.map_err(Into::into)).boxed();
        Run {
            setup: Some(Setup {
                worker: self,
                concurrency,
                handler: Arc::new(handler),
                until: pending().boxed(),
                grace: GRACE,
                backoff: BACKOFF,
            }),
            running: None,
        }
    }
}

impl Run {
    /// Ends the worker when `end` completes, for example at Ctrl-C: no job is started any more, what was
    /// claimed is returned to the queue, and jobs that run are finished, or given back after the [grace
    /// period](Run::grace).
    ///
    /// # Panics
    ///
    /// This and the other settings panic after the future has been polled.
    pub fn until<F>(self, end: F) -> Run
    where
        F: IntoFuture<Output = ()>,
        F::IntoFuture: Send + 'static,
    {
        let end = end.into_future().boxed();
        self.set(|setup| setup.until = end)
    }

    /// Sets how long jobs may still run after the end was asked for: 30 seconds unless set. `Duration::MAX`
    /// lets all of them finish.
    ///
    /// The handlers of the others are then dropped at their next `.await`, and their jobs wait again with no
    /// attempt counted.
    pub fn grace(self, period: Duration) -> Run {
        self.set(|setup| setup.grace = period)
    }

    /// Sets the pause before a job's second attempt, which doubles for each further attempt, and the longest
    /// pause: 1 second and 5 minutes unless set. Up to a quarter of it is left out at random, so that jobs
    /// that failed together do not come again together.
    pub fn backoff(self, first: Duration, longest: Duration) -> Run {
        self.set(|setup| setup.backoff = (first, longest))
    }

    fn set(mut self, change: impl FnOnce(&mut Setup)) -> Run {
        change(self.setup.as_mut().expect("settings come before the first poll"));
        self
    }
}

impl Future for Run {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(setup) = self.setup.take() {
            self.running = Some(setup.run().boxed());
        }
        let running = self
            .running
            .as_mut()
            .expect("a future is not polled after it has completed");
        let outcome = running.as_mut().poll(cx);
        if outcome.is_ready() {
            self.running = None;
        }
        outcome
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let setup = self.setup.as_ref();
        f.debug_struct("Run")
            .field("concurrency", &setup.map(|setup| setup.concurrency))
            .field("grace", &setup.map(|setup| setup.grace))
            .field("backoff", &setup.map(|setup| setup.backoff))
            .finish_non_exhaustive()
    }
}

impl Setup {
    async fn run(mut self) -> Result<(), Error> {
        let give_back = CancellationToken::new();
        let mut running = JoinSet::new();
        let outcome = loop {
            tokio::select! {
                biased;
                () = &mut self.until => break Ok(()),
                Some(_) = running.join_next() => {}
                next = self.worker.next(), if running.len() < self.concurrency => match next {
                    Some(Ok(job)) => {
                        let attempt = Attempt {
                            handler: self.handler.clone(),
                            backoff: self.backoff,
                            give_back: give_back.clone(),
                        };
                        running.spawn(attempt.run(Arc::new(job)));
                    }
                    Some(Err(error)) if error.ends_work() => break Err(error),
                    Some(Err(error)) => tracing::warn!(%error, "a worker cannot take jobs; it tries again"),
                    None => break Ok(()),
                },
            }
        };
        // What was claimed goes back now, and what runs is still renewed.
        drop(self.worker);
        let finished = async { while running.join_next().await.is_some() {} };
        if local::until(local::after(self.grace), finished).await.is_none() {
            give_back.cancel();
            while running.join_next().await.is_some() {}
        }
        outcome
    }
}

/// One attempt at a job.
struct Attempt {
    handler: Handler,
    backoff: (Duration, Duration),
    give_back: CancellationToken,
}

impl Attempt {
    async fn run(self, job: Arc<Job>) {
        let handler = AssertUnwindSafe(async { (self.handler)(job.clone()).await }).catch_unwind();
        let outcome = tokio::select! {
            biased;
            outcome = handler => outcome.unwrap_or_else(|panic| Err(JobError::Retry(panicked(&*panic)))),
            () = job.lost() => {
                tracing::warn!(job = job.id(), attempt = job.attempt(), "a job was lost while its handler ran");
                return;
            }
            () = self.give_back.cancelled() => {
                self.log_unfinished(&job, job.finish("unstart", 0, 0).await);
                return;
            }
        };
        if let Err(error) = &outcome {
            tracing::warn!(job = job.id(), attempt = job.attempt(), %error, "an attempt at a job failed");
        }
        let finished = match outcome {
            Ok(()) => job.finish("done", 0, 0).await,
            Err(JobError::Retry(_)) => job.put_off("retry", self.pause(job.attempt())).await,
            Err(JobError::RetryAfter(delay, _)) => job.put_off("retry", delay).await,
            Err(JobError::Bury(_)) => job.finish("bury", 0, 0).await,
            Err(JobError::Snooze(delay)) => job.put_off("snooze", delay).await,
        };
        self.log_unfinished(&job, finished);
    }

    fn pause(&self, attempt: u32) -> Duration {
        let (first, longest) = self.backoff;
        let pause = first.saturating_mul(1 << (attempt - 1).min(30)).min(longest);
        pause - random_part(pause / 4)
    }

    fn log_unfinished(&self, job: &Job, finished: Result<bool, Error>) {
        let reason = match finished {
            Ok(true) => return,
            Ok(false) => "it was lost".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(job = job.id(), attempt = job.attempt(), %reason, "the outcome of an attempt at a job may be unknown to Redis");
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Cause {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.unwrap_or_default()).into()
}
