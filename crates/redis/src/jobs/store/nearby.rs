//! `Nearby`: the workers of one queue that share a handle, which learn of what it schedules without a
//! message, and what is counted of them.

use std::{
    collections::BTreeMap,
    fmt::Display,
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, time::Instant};

use crate::{
    jobs::{settings::INTERVAL, stats::QueueStats},
    mutex::Mutex,
    server::{names::Nonce, notifications::Notifications},
};

#[derive(Default)]
pub(crate) struct Nearby {
    workers: Mutex<Vec<Weak<NearbyWorker>>>,
    pub(crate) stats: Arc<QueueStats>,
}

/// A worker of this process, as those who schedule jobs know it.
#[derive(Debug)]
pub(crate) struct NearbyWorker {
    /// The name under which Redis knows the worker, and it listens.
    pub(crate) name: Nonce,
    pub(crate) runtime: Handle,
    /// Notified when the worker has something to do.
    pub(crate) has_work: Notify,
    look_ahead: Duration,
    notifications: Option<Notifications>,
    news: Mutex<News>,
}

#[derive(Debug, Default)]
struct News {
    /// From when jobs may be claimed that this process has scheduled, by partition.
    claimable: BTreeMap<usize, Instant>,
    has_ended: bool,
}

impl Nearby {
    /// Adds a worker on a runtime, which claims jobs so long before they are due.
    pub(crate) fn add(
        &self,
        runtime: Handle,
        look_ahead: Duration,
        notifications: Option<Notifications>,
    ) -> Arc<NearbyWorker> {
        let worker = Arc::new(NearbyWorker {
            name: Nonce::new(),
            runtime,
            has_work: Notify::new(),
            look_ahead,
            notifications,
            news: Mutex::default(),
        });
        let mut workers = self.workers.lock();
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        drop(workers);
        worker
    }

    fn workers(&self) -> Vec<Arc<NearbyWorker>> {
        self.workers.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Tells the workers that a job of the partition is due at that time, but for those that hear of it on this
    /// channel.
    pub(crate) fn expect_job(&self, partition: usize, channel: Option<&str>, due: Instant) {
        for worker in self.workers() {
            if !channel.is_some_and(|channel| worker.hears(channel, worker.name)) {
                worker.expect_job(partition, due);
            }
        }
    }

    /// Returns the runtime of a worker that does not run on the same one as this.
    pub(crate) fn another_runtime(&self, worker: &NearbyWorker) -> Option<Handle> {
        let is_elsewhere = |other: &&Arc<NearbyWorker>| {
            other.runtime.id() != worker.runtime.id() && !other.news.lock().has_ended
        };
        // The last one to start has the best chance to be driven.
        let workers = self.workers();
        Some(workers.iter().rev().find(is_elsewhere)?.runtime.clone())
    }
}

impl NearbyWorker {
    /// Whether messages of that kind arrive which are published on a channel.
    pub(crate) fn hears(&self, channel: &str, kind: impl Display) -> bool {
        let arrive = |notifications: &Notifications| {
            notifications.arrive(self.runtime.id(), &format!("{channel}:{kind}"))
        };
        self.notifications.as_ref().is_some_and(arrive)
    }

    fn expect_job(&self, partition: usize, due: Instant) {
        let mut news = self.news.lock();
        let claimable = due.checked_sub(self.look_ahead).unwrap_or(due);
        let is_known = news
            .claimable
            .get(&partition)
            .is_some_and(|known| *known <= claimable);
        if news.has_ended || is_known || claimable > Instant::now() + INTERVAL {
            return;
        }
        news.claimable.insert(partition, claimable);
        drop(news);
        self.has_work.notify_one();
    }

    /// Takes the partitions of which jobs become due, each with when the first may be claimed.
    pub(crate) fn take_expected(&self) -> BTreeMap<usize, Instant> {
        mem::take(&mut self.news.lock().claimable)
    }

    pub(crate) fn end(&self) {
        self.news.lock().has_ended = true;
    }
}
