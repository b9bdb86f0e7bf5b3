//! `Run`: a worker that runs a function for each job, and `JobError`: how an attempt fails.

use std::{
    any::Any,
    error, fmt,
    future::{IntoFuture, pending},
    io,
    panic::{self, AssertUnwindSafe},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{job::Job, stream::Worker};
use crate::{
    error::Error,
    jobs::store::change,
    server::{
        connection::panic_text,
        retry::{Backoff, random_part},
    },
    timers,
};

type Cause = Box<dyn error::Error + Send + Sync>;
type Handler = Arc<dyn Fn(Arc<Job>) -> BoxFuture<'static, Result<(), Cause>> + Send + Sync>;

/// An error of a handler that says what becomes of the job, for [`Worker::run`].
///
/// A handler may return it as its error, or convert it into a boxed error, in which `run` finds it again.
/// Every other error of a handler counts as `Retry`. It is displayed as its cause.
#[derive(Debug)]
#[non_exhaustive]
pub enum JobError {
    /// The job is tried again after a delay that grows with its attempts, and is dead after its last one.
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

    fn cause(&self) -> Option<&Cause> {
        match self {
            JobError::Retry(cause) | JobError::RetryAfter(_, cause) | JobError::Bury(cause) => Some(cause),
            JobError::Snooze(_) => None,
        }
    }
}

impl From<io::Error> for JobError {
    fn from(error: io::Error) -> JobError {
        JobError::retry(error)
    }
}

impl From<Error> for JobError {
    fn from(error: Error) -> JobError {
        JobError::retry(error)
    }
}

impl From<Box<dyn error::Error + Send + Sync>> for JobError {
    /// Returns the `JobError` in the box if there is one.
    fn from(cause: Box<dyn error::Error + Send + Sync>) -> JobError {
        match cause.downcast() {
            Ok(known) => *known,
            Err(cause) => JobError::Retry(cause),
        }
    }
}

impl error::Error for JobError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.cause()?.source()
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.cause()) {
            (_, Some(cause)) => fmt::Display::fmt(cause, f),
            (JobError::Snooze(delay), _) => f.pad(&format!("put off for {delay:?}")),
            (_, None) => Ok(()),
        }
    }
}

/// The delay before the second attempt and the longest one, unless set.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(300);
/// How long jobs may still run after the end was asked for, unless set.
const GRACE: Duration = Duration::from_secs(30);
/// How long the jobs whose handlers were dropped at the end of that, and what was claimed, may take to be
/// given back, whether Redis answers or not.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A future that runs the jobs of a worker, created by [`Worker::run`].
///
/// It completes when the future given to [`until`](Run::until) has completed, no job runs any more and
/// everything else that the worker had claimed has been given back; when the wheel is shut down; or with an
/// error that only another program or setting can avoid. If it is dropped, the handlers that run are dropped
/// too, and their jobs are delivered again after their leases.
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
    backoff: Backoff,
}

impl Worker {
    /// Runs `handler` for each job, up to `concurrency` at once, each in a task of its own.
    ///
    /// | the handler | the job |
    /// | --- | --- |
    /// | returns `Ok` | is [done](Job::done) |
    /// | returns an error, or panics | is tried again after a [delay](Run::backoff), and is dead after its last attempt |
    /// | returns [`JobError::Bury`] or [`JobError::Snooze`] | is dead, or is put off without counting the attempt |
    /// | takes longer than [`time_limit`](super::super::WorkerBuilder::time_limit), or loses the job otherwise | is delivered again; the handler is dropped at its next `.await` |
    /// | runs while the job is [cancelled](super::super::DelayedJobs::cancel) | is gone; the handler is dropped at its next `.await` |
    ///
    /// The error of a handler may be anything that converts into a boxed error: an error of any kind, a box
    /// or a string. Its text is kept with the job, up to 1,024 bytes of it, and so is that of a panic.
    ///
    /// The worker takes no job before there is a place for it, whatever
    /// [`concurrency`](super::super::WorkerBuilder::concurrency) says. Errors of Redis are logged through
    /// `tracing`, and the worker goes on when Redis is back.
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
        E: Into<Box<dyn error::Error + Send + Sync>>,
    {
        assert!(concurrency > 0, "a worker runs at least one job at once");
        self.desk.set_places(concurrency);
        let handler = move |job| handler(job).map(|outcome| outcome.map_err(Into::into)).boxed();
        Run {
            setup: Some(Setup {
                worker: self,
                concurrency,
                handler: Arc::new(handler),
                until: pending().boxed(),
                grace: GRACE,
                backoff: Backoff::new(FIRST_DELAY, LONGEST_DELAY),
            }),
            running: None,
        }
    }
}

impl Run {
    /// Ends the worker when `end` completes, for example at Ctrl-C: no job is started any more, what was
    /// claimed is returned to the queue, and jobs that run are finished, or given back after the [grace
    /// period](Run::grace). The future completes after that, so a program may exit at once.
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
    /// attempt counted. The future completes a second later at most, also if Redis does not answer. What
    /// could not be given back is delivered again after its lease.
    pub fn grace(self, period: Duration) -> Run {
        self.set(|setup| setup.grace = period)
    }

    /// Sets the delay before a job's second attempt, which doubles for each further attempt, and the longest
    /// delay: 1 second and 5 minutes unless set. Up to a quarter of it is left out at random, so that jobs
    /// that failed together do not come again together.
    pub fn backoff(self, first: Duration, longest: Duration) -> Run {
        self.set(|setup| setup.backoff = Backoff::new(first, longest))
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
            .field("backoff", &setup.map(|setup| &setup.backoff))
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
                            backoff: self.backoff.clone(),
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
        let given_back = self.worker.close();
        let grace_ends = timers::after(self.grace);
        // With less grace than that, too: it is for what runs.
        let claims_end = timers::after(self.grace.max(LAST_WORDS));
        let mut finished = pin!(async { while running.join_next().await.is_some() {} });
        if timers::until(grace_ends, &mut finished).await.is_none() {
            give_back.cancel();
            timers::until(timers::after(LAST_WORDS), finished).await;
        }
        timers::until(claims_end, given_back).await;
        outcome
    }
}

/// One attempt at a job.
struct Attempt {
    handler: Handler,
    backoff: Backoff,
    give_back: CancellationToken,
}

/// A job that ends with its attempt, however that ends: what the handler has spawned may keep it for longer.
struct Attempted(Arc<Job>);

impl Drop for Attempted {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Attempt {
    async fn run(self, job: Arc<Job>) {
        let job = Attempted(job);
        self.attempt(&job.0).await;
    }

    async fn attempt(self, job: &Arc<Job>) {
        let handler = async {
            let error = (self.handler)(job.clone()).await.err()?;
            // Its `Display` may panic, too, which changes nothing of what it asks for.
            let text = panic::catch_unwind(AssertUnwindSafe(|| error.to_string()));
            let text = text.unwrap_or_else(|panic| panicked(&*panic));
            Some((error, text))
        };
        let failure = tokio::select! {
            biased;
            outcome = AssertUnwindSafe(handler).catch_unwind() => {
                outcome.unwrap_or_else(|panic| {
                    let text = panicked(&*panic);
                    Some((text.clone().into(), text))
                })
            }
            () = job.lost() => {
                tracing::warn!(job = job.id(), attempt = job.attempt(), "a job was lost while its handler ran");
                return;
            }
            () = self.give_back.cancelled() => {
                self.log_unfinished(job, job.finish(change::give_back(job.lease(), true)).await);
                return;
            }
        };
        let finished = match failure {
            None => job.finish(change::done(job.lease())).await,
            Some((error, text)) => {
                tracing::warn!(job = job.id(), attempt = job.attempt(), error = %text, "an attempt at a job failed");
                self.failed(job, error, &text).await
            }
        };
        self.log_unfinished(job, finished);
    }

    /// Finishes a job as the error of its handler says.
    async fn failed(&self, job: &Job, error: Cause, text: &str) -> Result<bool, Error> {
        let (verdict, lease) = (JobError::from(error), job.lease());
        let delay = match verdict {
            JobError::Retry(_) => {
                let delay = self.backoff.after(job.attempt());
                delay - random_part(delay / 4)
            }
            JobError::RetryAfter(delay, _) => delay,
            JobError::Bury(_) => return job.finish(change::bury(lease, text)).await,
            JobError::Snooze(delay) => return job.put_off(change::snooze(lease, delay), delay).await,
        };
        job.put_off(change::retry(lease, delay, text), delay).await
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

fn panicked(panic: &(dyn Any + Send)) -> String {
    format!("the handler panicked: {}", panic_text(panic).unwrap_or_default())
}
