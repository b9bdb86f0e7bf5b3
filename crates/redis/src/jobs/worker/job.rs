//! `Job`: a job that was delivered.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use super::desk::Desk;
use crate::{
    error::Error,
    jobs::store::{
        batcher::Operation,
        change::{self, Change, Finished},
        claim::{Claim, JobLease},
        queue::CALL_LIMIT,
    },
    validity::Lost,
};

/// A job that was delivered, to be finished with [`done`](Job::done), [`retry_after`](Job::retry_after),
/// [`snooze`](Job::snooze) or [`bury`](Job::bury).
///
/// Its lease is renewed for as long as the `Job` lives. If a `Job` is dropped unfinished, for example by a
/// panic, it is delivered again once its lease has expired.
#[must_use = "a job that is dropped is delivered again after its lease"]
pub struct Job {
    claim: Claim,
    desk: Arc<Desk>,
    /// Whether its place is free for another job, because it is being finished or is over.
    has_vacated: AtomicBool,
}

impl Job {
    pub(super) fn new(claim: Claim, desk: Arc<Desk>) -> Job {
        Job {
            claim,
            desk,
            has_vacated: AtomicBool::new(false),
        }
    }

    /// Returns the id that the job was scheduled under.
    pub fn id(&self) -> &str {
        &self.claim.lease.id
    }

    /// Returns the payload that the job was scheduled with.
    pub fn payload(&self) -> &[u8] {
        &self.claim.payload
    }

    /// Returns how often the job has been delivered, including this time. The first delivery returns 1.
    ///
    /// A delivery to a worker that died counts as an attempt, but a job that was only prefetched does not.
    pub fn attempt(&self) -> u32 {
        self.claim.attempts + 1
    }

    /// Returns when the job was due by Redis' clock, with a precision of one microsecond.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.claim.due)
    }

    /// Returns a future that completes when the job is lost: its lease could not be renewed, and the job may
    /// be delivered to another worker, or it was [cancelled](super::super::DelayedJobs::cancel).
    ///
    /// It completes before the lease expires in Redis, by the local clock, even if Redis cannot be reached.
    /// It also completes when the job has taken as long as its worker's
    /// [`time_limit`](super::super::WorkerBuilder::time_limit), and when it is finished or dropped.
    pub fn lost(&self) -> Lost {
        self.claim.lease.validity.lost()
    }

    /// Finishes the job: it is removed, and its id becomes free. Returns `false` and changes nothing if the
    /// job has been lost.
    ///
    /// # Cancellation
    ///
    /// The call is carried out even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis refuses the call or does not answer before the lease expires. The job may
    /// then be done, or be delivered again.
    pub async fn done(self) -> Result<bool, Error> {
        self.finish(change::done(self.lease())).await
    }

    /// Returns the job to the queue, due again after `delay` with a precision of one microsecond, or buries
    /// it if this was its last attempt.
    ///
    /// Returns `false` and changes nothing if the job has been lost.
    ///
    /// # Cancellation
    ///
    /// The call is carried out even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis refuses the call or does not answer before the lease expires.
    pub async fn retry_after(self, delay: Duration) -> Result<bool, Error> {
        self.put_off(change::retry(self.lease(), delay, ""), delay).await
    }

    /// Returns the job to the queue, due again after `delay` with a precision of one microsecond, and does
    /// not count this attempt.
    ///
    /// Use it for a job that could not be tried, because of a rate limit or because something that it depends
    /// on is unavailable. The next delivery has the same [`attempt`](Job::attempt), so a job can be put off
    /// without limit. Returns `false` and changes nothing if the job has been lost.
    ///
    /// # Cancellation
    ///
    /// The call is carried out even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis refuses the call or does not answer before the lease expires.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(job: tickwheel_redis::Job, limited_for: Option<std::time::Duration>) -> Result<(), tickwheel_redis::Error> {
    /// match limited_for {
    ///     Some(rest) => job.snooze(rest).await?,
    ///     None => job.done().await?,
    /// };
    /// # Ok(())
    /// # }
    /// ```
    pub async fn snooze(self, delay: Duration) -> Result<bool, Error> {
        self.put_off(change::snooze(self.lease(), delay), delay).await
    }

    /// Finishes the job, to be due again after `delay`.
    pub(super) async fn put_off(&self, change: Change<Finished>, delay: Duration) -> Result<bool, Error> {
        let waits = self.finish(change).await?;
        if waits {
            self.desk.queue.expect_job(self.claim.lease.partition, delay);
        }
        Ok(waits)
    }

    /// Marks the job as dead, to be kept until it is revived or purged. Returns `false` and changes nothing
    /// if the job has been lost.
    ///
    /// # Cancellation
    ///
    /// The call is carried out even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis refuses the call or does not answer before the lease expires.
    pub async fn bury(self) -> Result<bool, Error> {
        self.finish(change::bury(self.lease(), "")).await
    }

    pub(super) fn lease(&self) -> &JobLease {
        &self.claim.lease
    }

    /// Carries out a change by which the job is let go.
    pub(super) async fn finish(&self, change: Change<Finished>) -> Result<bool, Error> {
        let lease = &self.claim.lease;
        let queue = &self.desk.queue;
        // After a shutdown of the wheel nothing is renewed, and only Redis knows whether the lease is still
        // valid.
        let deadline = if queue.wheel.is_shutdown() {
            Instant::now() + CALL_LIMIT
        } else if lease.validity.is_lost() {
            return Ok(false);
        } else {
            lease.validity.until()
        };
        let asked = queue.partitions[lease.partition].submit(change, deadline)?;
        // A job that is being finished is not renewed. The next one is started by the batch that finishes it.
        let was_held = self.vacate();
        let finished = asked.await?;
        if was_held && finished == Finished::Lost {
            queue.nearby.stats.lost.increment();
        }
        if finished != Finished::Done {
            // The next take says when. One that was lost to a cancel may have made room for another.
            queue.expect_job(lease.partition, Duration::ZERO);
        }
        Ok(finished != Finished::Lost)
    }

    /// Frees the job's place for another, unless it has. Returns whether the job was renewed and not lost
    /// until now.
    fn vacate(&self) -> bool {
        !self.has_vacated.swap(true, Ordering::Relaxed) && self.desk.vacate(&self.claim.lease)
    }

    /// Ends the job as dropping it does, though somebody may keep a clone of its `Arc`.
    pub(super) fn end(&self) {
        let is_unfinished = !self.has_vacated.load(Ordering::Relaxed);
        self.vacate();
        self.claim.lease.validity.lose();
        if is_unfinished {
            self.confirm();
        }
    }

    /// Tells Redis that the handler has ended, so that the id becomes free of a job that was cancelled,
    /// whether or not its worker knows of that yet.
    fn confirm(&self) {
        let (queue, partition) = (self.desk.queue.clone(), self.lease().partition);
        // A job that cannot be confirmed is gone when its lease has ended. One that was cancelled may have made
        // room for another, or comes again.
        let answered = move |_: Result<Finished, Error>| queue.expect_job(partition, Duration::ZERO);
        let confirm = change::confirm(self.lease());
        let confirmed = Operation::new(confirm, Instant::now() + CALL_LIMIT, answered);
        self.desk.send(vec![(partition, confirmed)]);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("id", &self.id())
            .field("attempt", &self.attempt())
            .field("payload", &format_args!("{} bytes", self.payload().len()))
            .finish_non_exhaustive()
    }
}
