//! `Claim`: a job that this process has taken, and `JobLease`: its lease.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::validity::Validity;

/// A job that this worker has taken. It counts as waiting until it has been started.
pub(crate) struct Claim {
    pub(crate) lease: Arc<JobLease>,
    /// Shorter than `size` until it has been fetched.
    pub(crate) payload: Vec<u8>,
    pub(crate) size: usize,
    /// How many attempts count so far.
    pub(crate) attempts: u32,
    /// Whether it was tried before, also in an attempt that was put off and does not count.
    pub(crate) was_tried: bool,
    /// Microseconds since 1970, by Redis' clock.
    pub(crate) due: u64,
    /// From when on it may be delivered, and how late it was by then.
    pub(crate) due_at: Instant,
    pub(crate) late_by: Duration,
    /// Since when it has waited to be started, or to be received after its start.
    pub(crate) since: Instant,
}

impl Claim {
    /// Whether all of its payload is here.
    pub(crate) fn is_whole(&self) -> bool {
        self.payload.len() >= self.size
    }

    /// Returns how late the job is.
    pub(crate) fn lateness(&self, now: Instant) -> Duration {
        self.late_by + now.saturating_duration_since(self.due_at)
    }
}

/// The lease under which a worker has a job, from its claim to its end.
pub(crate) struct JobLease {
    pub(crate) id: String,
    pub(crate) partition: usize,
    /// The name of the take, under which Redis knows the holder.
    pub(crate) holder: Arc<str>,
    pub(crate) validity: Validity,
}

impl JobLease {
    pub(crate) fn new(id: String, partition: usize, holder: Arc<str>, until: Instant) -> Arc<JobLease> {
        Arc::new(JobLease {
            id,
            partition,
            holder,
            validity: Validity::new(until),
        })
    }
}
