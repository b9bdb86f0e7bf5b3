//! `LocalWorkers`: the workers of one queue that share a handle, which learn of what it schedules without a
//! notification, and what is counted of them.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::{runtime::Handle, time::Instant};

use super::{inbox::Inbox, stats::QueueStats};

#[derive(Default)]
pub(super) struct LocalWorkers {
    inboxes: Mutex<Vec<Weak<Inbox>>>,
    pub(super) stats: Arc<QueueStats>,
}

impl LocalWorkers {
    pub(super) fn add(&self, inbox: &Arc<Inbox>) {
        let mut inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        inboxes.push(Arc::downgrade(inbox));
    }

    fn inboxes(&self) -> Vec<Arc<Inbox>> {
        let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
        inboxes.iter().filter_map(Weak::upgrade).collect()
    }

    /// Tells the workers that a job of the partition is due at that time.
    pub(super) fn tell(&self, partition: usize, due: Instant) {
        for inbox in self.inboxes() {
            inbox.expect_job(partition, due);
        }
    }

    /// Returns the runtime of a worker that does not run on the same one as this.
    pub(super) fn another_runtime(&self, worker: &Inbox) -> Option<Handle> {
        let is_elsewhere =
            |other: &&Arc<Inbox>| other.runtime.id() != worker.runtime.id() && !other.has_ended();
        // The last one to start has the best chance to be driven.
        let inboxes = self.inboxes();
        Some(inboxes.iter().rev().find(is_elsewhere)?.runtime.clone())
    }
}

impl fmt::Debug for LocalWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWorkers").finish_non_exhaustive()
    }
}
