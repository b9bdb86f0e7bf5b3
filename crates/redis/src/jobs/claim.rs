//! `Claim`: a job that this process has taken, and `JobLease`: its lease.

use std::{
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tickwheel::{Wheel, delay_queue::Key};
use tokio::time::Instant;

use crate::validity::{Validity, margin, valid_for};

/// A job that this worker has taken. It counts as waiting until it has been started.
pub(super) struct Claim {
    pub(super) lease: Arc<JobLease>,
    /// Shorter than `size` until it has been fetched.
    pub(super) payload: Vec<u8>,
    pub(super) size: usize,
    /// How many attempts had been made before, and whether it had been delivered or had failed before, also in
    /// an attempt that was put off.
    pub(super) attempts: u32,
    pub(super) was_delivered: bool,
    /// Microseconds since 1970, by Redis' clock.
    pub(super) due: u64,
    /// From when on it may be delivered, and how late it was by then.
    pub(super) due_at: Instant,
    pub(super) overdue: Duration,
    /// Since when it has waited to be started, or to be fetched after its start.
    pub(super) since: Instant,
}

impl Claim {
    /// Whether all of its payload is here.
    pub(super) fn is_whole(&self) -> bool {
        self.payload.len() >= self.size
    }

    /// Returns how late the job is.
    pub(super) fn lateness(&self, now: Instant) -> Duration {
        self.overdue + now.saturating_duration_since(self.due_at)
    }
}

pub(super) struct JobLease {
    pub(super) id: String,
    pub(super) partition: usize,
    pub(super) token: Arc<str>,
    pub(super) validity: Validity,
    /// Whether a renewal is in flight.
    renewing: AtomicBool,
    /// Until when the job may take, once it was delivered.
    overdue_at: OnceLock<Instant>,
    /// The entry of the claim among those that wait until they are due.
    entry: OnceLock<Key>,
}

impl JobLease {
    pub(super) fn new(id: String, partition: usize, token: Arc<str>, until: Instant) -> Arc<JobLease> {
        Arc::new(JobLease {
            id,
            partition,
            token,
            validity: Validity::new(until),
            renewing: AtomicBool::new(false),
            overdue_at: OnceLock::new(),
            entry: OnceLock::new(),
        })
    }

    /// Records the entry of the claim that waits until it is due.
    pub(super) fn set_entry(&self, entry: Key) {
        let _ = self.entry.set(entry);
    }

    pub(super) fn entry(&self) -> Option<Key> {
        self.entry.get().copied()
    }

    /// Records that the job was delivered, and until when it may take.
    pub(super) fn set_overdue_at(&self, at: Instant) {
        let _ = self.overdue_at.set(at);
    }

    /// Begins a renewal by `lease`, unless one is in flight, and returns by how long to renew it. A lease that
    /// lasts for as long as the job may take is not extended.
    pub(super) fn begin_renewal(&self, wheel: &Wheel, lease: Duration) -> Option<Duration> {
        if self.renewing.swap(true, Ordering::AcqRel) {
            return None;
        }
        let until = self.validity.until();
        let lasts = self.overdue_at.get().is_some_and(|at| *at <= until);
        let rest = until.saturating_duration_since(Instant::now()) + margin(lease, wheel.tick_duration());
        Some(if lasts { rest.min(lease) } else { lease })
    }

    pub(super) fn end_renewal(&self) {
        self.renewing.store(false, Ordering::Release);
    }
}

impl fmt::Debug for JobLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobLease")
            .field("id", &self.id)
            .field("token", &self.token)
            .field("validity", &self.validity)
            .finish()
    }
}

/// Returns until when a lease is valid whose request was sent at `sent`.
pub(super) fn valid_until(wheel: &Wheel, sent: Instant, lease: Duration) -> Instant {
    sent + valid_for(lease, wheel.tick_duration())
}
