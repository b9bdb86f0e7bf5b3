//! `Job`, `DeadJob` and `Counts`.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use super::{
    claim::Claim,
    inbox::Inbox,
    queue::{PATIENCE, micros, operation, submit},
};
use crate::{error::Error, lost::Lost};

/// A job that was delivered, to be worked on and then finished: [`done`](Job::done), [`retry_after`](Job::retry_after) or
/// [`bury`](Job::bury).
///
/// Its lease is renewed for as long as the `Job` lives. A job that is dropped unfinished, as after a panic, comes again once its
/// lease has run out.
#[must_use = "a job that is dropped comes again after its lease"]
pub struct Job {
    claim: Claim,
    inbox: Arc<Inbox>,
}

impl Job {
    pub(super) fn new(claim: Claim, inbox: Arc<Inbox>) -> Job {
        Job { claim, inbox }
    }

    /// Returns the id that the job was scheduled under.
    pub fn id(&self) -> &str {
        &self.claim.lease.id
    }

    /// Returns the payload that the job was scheduled with.
    pub fn payload(&self) -> &[u8] {
        &self.claim.payload
    }

    /// Returns how often the job has been delivered, this time included: 1 at first.
    ///
    /// An attempt is counted for a job whose worker stopped without a word, and none for a job that was only prefetched.
    pub fn attempt(&self) -> u32 {
        self.claim.attempts + 1
    }

    /// Returns when the job was due, to the microsecond, by Redis' clock.
    pub fn due(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.claim.due)
    }

    /// Returns a future that completes when the job is not ours any more: its lease could not be renewed, and somebody else may
    /// be given it.
    ///
    /// It completes before the lease runs out in Redis, by the local clock, even if Redis cannot be reached. It also completes
    /// when the job has been finished or dropped.
    pub fn lost(&self) -> Lost {
        self.claim.lease.validity.lost()
    }

    /// Ends the job: it is gone, and its id is free again. Returns `false`, and changes nothing, if the job had been lost.
    ///
    /// # Cancellation
    ///
    /// What was asked for is carried out, even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Fails if Redis gave no answer before the lease ran out, or refused. The job may then be done, or come again.
    pub async fn done(self) -> Result<bool, Error> {
        self.finish("done", 0, 0).await
    }

    /// Lets the job wait again. It comes again after `delay`, to the microsecond. On its last attempt it is buried instead.
    ///
    /// Returns `false`, and changes nothing, if the job had been lost.
    ///
    /// # Cancellation
    ///
    /// What was asked for is carried out, even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Fails if Redis gave no answer before the lease ran out, or refused.
    pub async fn retry_after(self, delay: Duration) -> Result<bool, Error> {
        let limit = self.inbox.settings.attempts;
        self.finish("retry", micros(delay), u64::from(limit)).await
    }

    /// Gives the job up: it is dead, and kept until it is revived or purged. Returns `false`, and changes nothing, if the job had
    /// been lost.
    ///
    /// # Cancellation
    ///
    /// What was asked for is carried out, even if the future is dropped after its first poll.
    ///
    /// # Errors
    ///
    /// Fails if Redis gave no answer before the lease ran out, or refused.
    pub async fn bury(self) -> Result<bool, Error> {
        self.finish("bury", 0, 0).await
    }

    async fn finish(self, name: &str, first: u64, second: u64) -> Result<bool, Error> {
        let lease = self.claim.lease.clone();
        let queue = self.inbox.queue.clone();
        // After a shutdown of the wheel nobody renews; Redis says whether the lease still lasts.
        let deadline = if queue.wheel.is_shutdown() {
            Instant::now() + PATIENCE
        } else if lease.validity.is_lost() {
            return Ok(false);
        } else {
            lease.validity.until()
        };
        let batcher = &queue.partitions[lease.partition].updates;
        let asked = submit(
            batcher,
            operation(name, &lease.id, &lease.token, first, second),
            deadline,
        );
        // What is finished is not renewed.
        self.inbox.leave(&lease);
        asked.await
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.inbox.leave(&self.claim.lease);
        self.inbox.finished();
        self.claim.lease.validity.lose();
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

/// A job that was buried, or used up its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadJob {
    pub(super) id: String,
    pub(super) payload: Vec<u8>,
    pub(super) attempts: u32,
}

impl DeadJob {
    /// Returns the id that the job was scheduled under.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the payload that the job was scheduled with.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns how often the job was delivered.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }
}

/// How many jobs a queue has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Those that are yet to be delivered, prefetched ones included.
    pub waiting: u64,
    /// Those that were delivered and are not finished.
    pub running: u64,
    /// Those that were buried, or used up their attempts.
    pub dead: u64,
}
