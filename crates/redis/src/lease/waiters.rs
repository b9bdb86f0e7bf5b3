//! `Waiters`: the tasks of a process that wait for leases, of which one per lease asks Redis.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::FutureExt;
use tokio::sync::{MutexGuard as FirstGuard, Notify};

use crate::notifications::Listener;

/// The queues of waiting tasks, by the key of the lease.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    queues: Mutex<HashMap<String, Arc<Queue>>>,
}

#[derive(Debug, Default)]
struct Queue {
    /// A fair lock, held by the task that is first in the queue. It passes on the listener for releases by other processes, which is
    /// created once a task has to wait.
    first: tokio::sync::Mutex<Option<Listener>>,
    /// Whether the last task that was first holds the lease, unless it has lost it since.
    held: AtomicBool,
    released: Notify,
}

/// A task's place in a queue.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    key: String,
    queue: Arc<Queue>,
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiter(&self, key: String) -> Waiter<'_> {
        let queue = self.lock().entry(key.clone()).or_default().clone();
        Waiter {
            waiters: self,
            key,
            queue,
        }
    }

    /// Records that this process has released a lease.
    pub(super) fn released(&self, key: &str) {
        if let Some(queue) = self.lock().get(key) {
            queue.held.store(false, Ordering::Release);
            queue.released.notify_one();
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Waiter<'_> {
    /// Waits until this waiter is first in its queue. It stays first until the guard is dropped.
    pub(super) async fn first(&self) -> FirstGuard<'_, Option<Listener>> {
        self.queue.first.lock().await
    }

    /// Forgets earlier releases, because a request that is sent after them finds the lease free anyway.
    pub(super) fn forget_releases(&self, listener: Option<&Listener>) {
        self.released().now_or_never();
        if let Some(listener) = listener {
            listener.heard().now_or_never();
        }
    }

    /// Records that this waiter has acquired the lease.
    pub(super) fn holds(&self) {
        self.queue.held.store(true, Ordering::Release);
    }

    /// Whether the waiter before acquired the lease and has not released it.
    pub(super) fn is_held_here(&self) -> bool {
        self.queue.held.load(Ordering::Acquire)
    }

    /// Waits until this process has released the lease since the last call completed.
    pub(super) async fn released(&self) {
        self.queue.released.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiters.lock();
        // One for the map and one for this waiter.
        if Arc::strong_count(&self.queue) == 2 {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[test]
    fn the_queue_moves_on_in_order_and_nothing_is_left() {
        let waiters = Waiters::default();
        let (first, second) = (waiters.waiter("a".into()), waiters.waiter("a".into()));
        let guard = assert_ready!(task::spawn(first.first()).poll());
        let mut waiting = task::spawn(second.first());
        assert_pending!(waiting.poll());
        drop(guard);
        drop(assert_ready!(waiting.poll()));
        drop(waiting);
        drop(first);
        assert_eq!(waiters.len(), 1);
        drop(second);
        assert_eq!(waiters.len(), 0);
    }

    #[test]
    fn a_release_before_the_question_is_forgotten() {
        let waiters = Waiters::default();
        let waiter = waiters.waiter("a".into());
        waiters.released("a");
        waiter.forget_releases(None);
        assert_pending!(task::spawn(waiter.released()).poll());
    }

    #[test]
    fn the_next_knows_that_the_one_before_holds() {
        let waiters = Waiters::default();
        let (first, second) = (waiters.waiter("a".into()), waiters.waiter("a".into()));
        assert!(!second.is_held_here());
        first.holds();
        drop(first);
        assert!(second.is_held_here());
        waiters.released("a");
        assert!(!second.is_held_here());
    }

    #[test]
    fn a_release_is_heard_also_by_one_who_listens_later() {
        let waiters = Waiters::default();
        let waiter = waiters.waiter("a".into());
        waiters.released("a");
        waiters.released("b");
        assert_ready!(task::spawn(waiter.released()).poll());
        assert_pending!(task::spawn(waiter.released()).poll());
    }
}
