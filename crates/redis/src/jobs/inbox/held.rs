//! `HeldLeases`: all leases that a worker renews, of claims and of jobs.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::super::{claim::JobLease, stats::QueueStats};

#[derive(Default)]
pub(super) struct HeldLeases {
    leases: HashSet<ByIdentity>,
    stats: Arc<QueueStats>,
}

struct ByIdentity(Arc<JobLease>);

impl PartialEq for ByIdentity {
    fn eq(&self, other: &ByIdentity) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ByIdentity {}

impl Hash for ByIdentity {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        Arc::as_ptr(&self.0).hash(hasher);
    }
}

impl HeldLeases {
    pub(super) fn new(stats: Arc<QueueStats>) -> HeldLeases {
        HeldLeases {
            leases: HashSet::new(),
            stats,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn insert(&mut self, lease: &Arc<JobLease>) {
        self.leases.insert(ByIdentity(lease.clone()));
    }

    /// Removes a lease, and counts it as lost if it was. Returns whether it was held and not lost.
    pub(super) fn remove(&mut self, lease: &Arc<JobLease>) -> bool {
        let was_held = self.leases.remove(&ByIdentity(lease.clone()));
        let is_lost = was_held && lease.validity.is_lost();
        if is_lost {
            self.stats.lost.increment();
        }
        was_held && !is_lost
    }

    /// Removes the lost leases, and counts them. Returns the remaining ones and the lost ones.
    pub(super) fn split_lost(&mut self) -> (Vec<Arc<JobLease>>, Vec<Arc<JobLease>>) {
        let (mut lasting, mut lost) = (Vec::new(), Vec::new());
        self.leases.retain(|held| {
            let is_lost = held.0.validity.is_lost();
            if is_lost { &mut lost } else { &mut lasting }.push(held.0.clone());
            !is_lost
        });
        self.stats.lost.add(lost.len() as u64);
        (lasting, lost)
    }

    pub(super) fn drain(&mut self) -> Vec<Arc<JobLease>> {
        self.leases.drain().map(|held| held.0).collect()
    }
}
