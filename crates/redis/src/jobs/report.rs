//! What a queue reports about its jobs: plain data.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

/// The numbers of jobs in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Jobs that have not been delivered, including prefetched ones.
    pub waiting: u64,
    /// Jobs that have been delivered and are not finished.
    pub running: u64,
    /// Jobs that were buried or have used up their attempts.
    pub dead: u64,
    /// Whether the queue is [paused](super::DelayedJobs::pause).
    pub paused: bool,
}

/// How long a queue is, and how far behind its workers are, as
/// [`DelayedJobs::sample`](super::DelayedJobs::sample) found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueSample {
    /// The numbers of waiting, running and dead jobs.
    pub counts: Counts,
    /// For how long the oldest due job has been due by Redis' clock, of those that no worker has claimed.
    /// `None` if none is due.
    pub oldest_due: Option<Duration>,
}

/// What [`DelayedJobs::cancel`](super::DelayedJobs::cancel) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cancelled {
    /// The job waited, and is gone.
    Waiting,
    /// The job runs. Its worker is told, and it is not delivered again.
    Running,
    /// No job with that id waits or runs: it is dead, unknown, or was cancelled before.
    Absent,
}

/// What [`DelayedJobs::repeat`](super::DelayedJobs::repeat) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repeated {
    /// The id was free, and the job is scheduled.
    New,
    /// The job is there already, with the same period and payload.
    Same,
    /// The job was there with another period or payload, and has the new ones now.
    Changed,
    /// A job that does not repeat has the id, and nothing was changed.
    Taken,
}

/// What a job is doing, in a [`JobInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobState {
    /// It has not been delivered, or waits to be delivered again.
    Waiting,
    /// It was delivered and is not finished.
    Running,
    /// It was buried, or has used up its attempts.
    Dead,
}

/// A job, as [`DelayedJobs::get`](super::DelayedJobs::get) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// Whether the job waits, runs or is dead.
    pub state: JobState,
    /// When the job is due, or was due if it runs or is dead, by Redis' clock and with a precision of one
    /// microsecond.
    pub due: SystemTime,
    /// Which attempt its next delivery is, or its last one was if it runs or is dead, from 1 on.
    pub attempt: u32,
    /// The error of its last attempt, up to 1,024 bytes of it. `None` if no attempt has failed, if the last
    /// one was ended by [`bury`](super::Job::bury) or [`retry_after`](super::Job::retry_after), or if the
    /// error has an empty text.
    pub error: Option<String>,
}

/// A job that waits, as [`DelayedJobs::waiting`](super::DelayedJobs::waiting) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingJob {
    /// The id that the job was scheduled under.
    pub id: String,
    /// When the job is due by Redis' clock, with a precision of one microsecond.
    pub due: SystemTime,
    /// Which attempt its next delivery is, from 1 on.
    pub attempt: u32,
}

/// A job that was buried or has used up its attempts.
#[derive(Clone, PartialEq, Eq)]
pub struct DeadJob {
    pub(crate) id: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) attempts: u32,
    pub(crate) died_at: SystemTime,
    pub(crate) error: Option<String>,
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

    /// Returns how often the job was delivered, or how often its delivery was tried.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns when the job died by Redis' clock, with a precision of one microsecond.
    pub fn died_at(&self) -> SystemTime {
        self.died_at
    }

    /// Returns the error of the last attempt, up to 1,024 bytes of it: what the handler returned or panicked
    /// with, why the job could not be delivered, or that its lease ran out.
    ///
    /// Returns `None` if the job was ended by [`bury`](super::Job::bury) or
    /// [`retry_after`](super::Job::retry_after), or if the error has an empty text.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

impl fmt::Debug for DeadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadJob")
            .field("id", &self.id)
            .field("attempts", &self.attempts)
            .field("died_at", &self.died_at)
            .field("error", &self.error)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish_non_exhaustive()
    }
}
