//! `Worker`: a stream of jobs.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_core::Stream;

use super::{desk::Desk, job::Job};
use crate::{error::Error, timers};

/// A stream of a queue's jobs as they become due.
///
/// [`run`](Worker::run) runs a function for each job, which is what most programs need. As a stream, process
/// the jobs one after another, or many at once with `for_each_concurrent`. The stream also yields errors, at
/// most one per second. An error does not end the stream, which resumes when Redis is available again. It
/// ends when the wheel is shut down, and with [`Error::NoRuntime`] when the runtime on which the worker was
/// started is.
///
/// If the consumer's places are said, by [`concurrency`](super::WorkerBuilder::concurrency) or by `run`, as many jobs
/// are started as there are places free, in few commands. One that is being finished has left its place, so
/// the next job starts before the consumer asks for it. These count as running. A started job that is not
/// fetched within 200 ms, or sooner if the consumer works on others and does not poll, waits again with no
/// attempt counted.
///
/// Dropping a worker returns its claimed jobs to the queue. The jobs that it has yielded remain with their
/// holders and are still renewed. A worker that is not polled returns the jobs that were claimed for it 50 ms
/// after it has yielded one, and claims no more until it is polled again. Jobs that it holds ahead of their
/// due time go back after 5 ms, unless it has yielded jobs so fast that the next one would come within 20 ms
/// and two round trips.
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
    pub(super) fn new(desk: Arc<Desk>) -> Worker {
        Worker { desk }
    }

    /// Ends the worker, and waits until everything that it has claimed and not yielded has been given back,
    /// and Redis has others told of jobs in its place.
    ///
    /// It waits for 5 seconds at most, or for [`answer_within`](super::super::DelayedJobs::answer_within) if that is
    /// longer. What could not be given back is delivered after its lease. Jobs that the worker has yielded
    /// stay with their holders and are still renewed. A program that exits without this, or without
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
        let limit = timers::after(desk.queue.call_limit());
        // The engine hears of it now, and not when the future is polled first.
        drop(self);
        async move {
            timers::until(limit, desk.given_back.wait()).await;
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
