//! `WorkerBuilder`: the settings of a worker, and its start. `Worker`: a stream of jobs.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::Stream;
use tokio::runtime::Handle;

use super::{desk::Desk, engine::Engine, job::Job};
use crate::{
    error::Error,
    jobs::{settings::WorkerSettings, store::queue::Queue},
    timers,
};

/// A builder for a [`Worker`], created by [`DelayedJobs::worker`](super::super::DelayedJobs::worker).
#[derive(Clone)]
#[must_use = "a worker does nothing until it is started"]
pub struct WorkerBuilder {
    queue: Arc<Queue>,
    settings: WorkerSettings,
}

impl WorkerBuilder {
    pub(crate) fn new(queue: Arc<Queue>) -> WorkerBuilder {
        WorkerBuilder {
            queue,
            settings: WorkerSettings::default(),
        }
    }

    /// Sets the lease, after which the jobs of a worker that has died are delivered to another.
    ///
    /// It may be from 200 ms, or 20 ticks of the wheel if that is more, to 24 hours, and is 30 seconds by
    /// default. The lease of a job in progress is renewed at a third of this time, so a job may take as long
    /// as it needs.
    pub fn lease(mut self, lease: Duration) -> WorkerBuilder {
        self.settings.lease = lease;
        self
    }

    /// Sets how often a job is delivered before it is dead, at least once and 5 times by default.
    ///
    /// The number is stored with a job at each start. When that delivery fails or its lease runs out, it is
    /// judged by that number, whichever worker notices. A job that cannot be delivered for its payload goes by
    /// the worker that takes it.
    pub fn attempts(mut self, attempts: u32) -> WorkerBuilder {
        self.settings.max_attempts = attempts;
        self
    }

    /// Sets how many jobs the consumer works on at once, at least one.
    ///
    /// The worker starts jobs for so many places and claims no more than it will start soon, so that jobs
    /// which are due wait in Redis for whichever worker is free. Without this, a stream has a place for one
    /// more job than it holds whenever it is polled, and starts them one by one. [`run`](Worker::run) sets it
    /// by its own argument.
    pub fn concurrency(mut self, places: usize) -> WorkerBuilder {
        self.settings.concurrency = Some(places);
        self
    }

    /// Sets how many jobs may be claimed at most before the consumer asks for them, from 1 to 10,000 and 32
    /// by default.
    ///
    /// It is an upper bound, and none below the [places](WorkerBuilder::concurrency). No more are claimed
    /// than there are places free, or than the consumer has shown to start within 20 ms and two round trips.
    /// A consumer that has not taken a job yet and does not say its places may have this many claimed for it;
    /// what it does not ask for within 50 ms of its first job goes back.
    pub fn prefetch(mut self, prefetch: usize) -> WorkerBuilder {
        self.settings.prefetch = prefetch;
        self
    }

    /// Sets how long before their due time jobs may be claimed, up to an hour. By default, they are claimed
    /// when they are due.
    ///
    /// Claimed jobs wait on the wheel and are delivered within a tick and a round trip of their due time.
    /// Until then they count as waiting, and can be cancelled and rescheduled.
    pub fn look_ahead(mut self, look_ahead: Duration) -> WorkerBuilder {
        self.settings.look_ahead = look_ahead;
        self
    }

    /// Sets how long a job may take, which is unlimited by default.
    ///
    /// A job that takes longer, counted from when the stream yielded it, is not renewed any more, and its
    /// [`lost`](super::Job::lost) completes. `done` then returns `false`. The attempt has failed: the job is
    /// delivered again when the rest of its lease has passed, so that its handler has that time to stop, and
    /// after its last attempt it is dead. Without a limit, a handler that hangs keeps its job forever.
    pub fn time_limit(mut self, limit: Duration) -> WorkerBuilder {
        self.settings.time_limit = Some(limit);
        self
    }

    /// Starts the worker, which claims no jobs before it is polled.
    ///
    /// If a setting is not allowed or the queue cannot be opened, the stream yields that error every second
    /// or two.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, as `tokio::spawn` does.
    #[track_caller]
    pub fn start(self) -> Worker {
        let desk = Desk::new(self.queue, self.settings, Handle::current());
        tokio::spawn(Engine::new(desk.clone()).run());
        Worker { desk }
    }
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerBuilder")
            .field("queue", &self.queue.name)
            .field("settings", &self.settings)
            .finish()
    }
}

/// A stream of a queue's jobs as they become due.
///
/// [`run`](Worker::run) runs a function for each job, which is what most programs need. As a stream, process
/// the jobs one after another, or many at once with `for_each_concurrent`. The stream also yields errors, at
/// most one per second. An error does not end the stream, which resumes when Redis is available again. It
/// ends when the wheel is shut down, and with [`Error::NoRuntime`] when the runtime on which the worker was
/// started is.
///
/// If the consumer's places are said, by [`concurrency`](super::WorkerBuilder::concurrency) or by `run`, as
/// many jobs are started as there are places free, in few commands. One that is being finished has left its
/// place, so the next job starts before the consumer asks for it. These count as running. A started job that
/// is not received within 200 ms, or sooner if the consumer works on others and does not poll, waits again
/// with no attempt counted.
///
/// Dropping a worker gives its claimed jobs back to the queue. The jobs that it has yielded remain with their
/// holders and are still renewed. A worker that is not polled gives back the jobs that were claimed for it 50
/// ms after it has yielded one, or within 300 ms if it has yielded none, and claims no more until it is polled
/// again. Jobs that it has claimed ahead of their due time go back after 5 ms, unless it has yielded jobs so
/// fast that the next one would come within 20 ms and two round trips.
#[must_use = "streams do nothing unless polled"]
pub struct Worker {
    pub(super) desk: Arc<Desk>,
}

impl Stream for Worker {
    type Item = Result<Job, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let desk = &self.desk;
        desk.poll_next(cx)
            .map(|next| next.map(|claim| claim.map(|claim| Job::new(claim, desk.clone()))))
    }
}

impl Worker {
    /// Ends the worker, and waits until everything that it has claimed and not yielded has been given back,
    /// and Redis has others told of jobs in its place.
    ///
    /// It waits for 5 seconds at most, or for [`answer_within`](super::super::DelayedJobs::answer_within) if
    /// that is longer. What could not be given back is delivered after its lease. Jobs that the worker has
    /// yielded stay with their holders and are still renewed. A program that exits without this, or without
    /// [`run`](Worker::run), which does so too, leaves what it has claimed to others only after its lease.
    ///
    /// # Cancel safety
    ///
    /// The worker ends when this is called, and gives everything back even if the future is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use futures_util::StreamExt;
    ///
    /// let mut worker = jobs.worker().start();
    /// if let Some(job) = worker.next().await {
    ///     job?.done().await?;
    /// }
    /// worker.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(self) -> impl Future<Output = ()> + Send + 'static {
        let desk = self.desk.clone();
        let deadline = timers::after(desk.queue.call_limit());
        // The engine hears of it now, and not when the future is polled first.
        drop(self);
        async move {
            timers::until(deadline, desk.given_back.wait()).await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("queue", &self.desk.queue.name)
            .field("settings", &self.desk.settings)
            .finish_non_exhaustive()
    }
}
