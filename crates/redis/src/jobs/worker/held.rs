//! `HeldLeases`: all leases that a worker renews, of claims and of jobs, and how long its jobs may take.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use tickwheel::{DelayQueue, Wheel, delay_queue::Key};
use tokio::time::Instant;

use crate::jobs::{claim::JobLease, stats::QueueStats};

pub(super) struct HeldLeases {
    /// Each with its entry among the time limits, if it has one.
    leases: HashMap<ByIdentity, Option<Key>>,
    /// The jobs that were delivered, due when they will have taken as long as they may.
    time_limits: DelayQueue<Arc<JobLease>>,
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
    pub(super) fn new(wheel: &Wheel, stats: Arc<QueueStats>) -> HeldLeases {
        HeldLeases {
            leases: HashMap::new(),
            time_limits: DelayQueue::on(wheel),
            stats,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    pub(super) fn insert(&mut self, lease: &Arc<JobLease>) {
        self.leases.insert(ByIdentity(lease.clone()), None);
    }

    /// Limits until when a job may take that is held.
    pub(super) fn limit_time(&mut self, lease: &Arc<JobLease>, until: Instant) {
        lease.set_overdue_at(until);
        if let Some(entry) = self.leases.get_mut(&ByIdentity(lease.clone())) {
            *entry = Some(self.time_limits.insert_at(lease.clone(), until));
        }
    }

    /// Takes the jobs that have taken as long as they may. Returns when the next one will have.
    pub(super) fn take_overdue(&mut self) -> (Vec<Arc<JobLease>>, Option<Instant>) {
        let mut overdue = Vec::new();
        self.time_limits.expired(&mut overdue, usize::MAX);
        let next = self
            .time_limits
            .peek()
            .map(|first| self.time_limits.deadline(&first));
        let overdue = overdue.into_iter().map(|overdue| overdue.into_inner());
        (overdue.collect(), next)
    }

    /// Removes a lease, and counts it as lost if it was. Returns whether it was held and not lost.
    pub(super) fn remove(&mut self, lease: &Arc<JobLease>) -> bool {
        let Some(entry) = self.leases.remove(&ByIdentity(lease.clone())) else {
            return false;
        };
        if let Some(entry) = entry {
            // It is not there any more once the job has taken too long.
            self.time_limits.try_remove(&entry);
        }
        let is_lost = lease.validity.is_lost();
        if is_lost {
            self.stats.lost.increment();
        }
        !is_lost
    }

    /// Removes the lost leases, and counts them. Returns the remaining ones and the lost ones.
    pub(super) fn remove_lost(&mut self) -> (Vec<Arc<JobLease>>, Vec<Arc<JobLease>>) {
        let leases = self.leases.keys().map(|held| held.0.clone());
        let (lost, lasting): (Vec<_>, Vec<_>) = leases.partition(|lease| lease.validity.is_lost());
        for lease in &lost {
            self.remove(lease);
        }
        (lasting, lost)
    }

    pub(super) fn drain(&mut self) -> Vec<Arc<JobLease>> {
        self.time_limits.clear();
        self.leases.drain().map(|(held, _)| held.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lease() -> Arc<JobLease> {
        JobLease::new("id".to_owned(), 0, "token".into(), Instant::now() + 100 * SECOND)
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_jobs_that_are_done() {
        let mut held = HeldLeases::new(&Wheel::new(), Arc::default());
        let long = lease();
        held.insert(&long);
        held.limit_time(&long, Instant::now() + 60 * SECOND);
        for _ in 0..1000 {
            let job = lease();
            held.insert(&job);
            held.limit_time(&job, Instant::now() + 60 * SECOND);
            assert!(held.remove(&job));
        }
        assert_eq!((held.leases.len(), held.time_limits.len()), (1, 1));
        assert!(held.remove(&long));
        assert!(held.is_empty() && held.time_limits.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_overdue_once_when_it_has_taken_as_long_as_it_may() {
        let mut held = HeldLeases::new(&Wheel::new(), Arc::default());
        let (first, second) = (lease(), lease());
        for (job, after) in [(&second, 2 * SECOND), (&first, SECOND)] {
            held.insert(job);
            held.limit_time(job, Instant::now() + after);
        }
        let (overdue, next) = held.take_overdue();
        assert!(overdue.is_empty() && next == Some(Instant::now() + SECOND));
        tokio::time::advance(SECOND).await;
        let (overdue, next) = held.take_overdue();
        assert!(Arc::ptr_eq(&overdue[0], &first) && overdue.len() == 1);
        assert_eq!(next, Some(Instant::now() + SECOND));
        assert!(held.take_overdue().0.is_empty());
        assert!(held.remove(&first) && held.remove(&second));
    }
}
