//! `LocalWorkers`: the workers of one queue that share a handle, which learn of what it schedules without a notification, and what is counted
//! of them.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::time::Instant;

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

    /// Tells the workers that a job of the partition is due at that time.
    pub(super) fn tell(&self, partition: usize, due: Instant) {
        let inboxes: Vec<Arc<Inbox>> = {
            let inboxes = self.inboxes.lock().unwrap_or_else(PoisonError::into_inner);
            inboxes.iter().filter_map(Weak::upgrade).collect()
        };
        for inbox in inboxes {
            inbox.expect_job(partition, due);
        }
    }
}

impl fmt::Debug for LocalWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalWorkers").finish_non_exhaustive()
    }
}
