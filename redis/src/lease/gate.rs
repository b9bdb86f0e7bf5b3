//! `Gates`: of those in a process who wait for one lease, one asks Redis.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::FutureExt;
use tokio::sync::{MutexGuard as Turn, Notify};

use crate::notifications::Listener;

/// The leases that somebody in this process waits for, by key.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: Mutex<HashMap<String, Arc<Gate>>>,
}

#[derive(Debug, Default)]
struct Gate {
    /// Fair: who came first is first. With it goes what listens for the release by another process, once somebody has had to wait.
    turn: tokio::sync::Mutex<Option<Listener>>,
    /// Whether the last who had its turn holds the lease, as far as is known: it may also have lost it.
    held: AtomicBool,
    released: Notify,
}

/// One who waits, whose turn it may be.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    gates: &'a Gates,
    key: String,
    gate: Arc<Gate>,
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Gate>>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiter(&self, key: String) -> Waiter<'_> {
        let gate = self.lock().entry(key.clone()).or_default().clone();
        Waiter {
            gates: self,
            key,
            gate,
        }
    }

    /// A lease of this process was released.
    pub(super) fn released(&self, key: &str) {
        if let Some(gate) = self.lock().get(key) {
            gate.held.store(false, Ordering::Release);
            gate.released.notify_one();
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.lock().len()
    }
}

impl Waiter<'_> {
    /// Completes when it is this one's turn, which lasts until the guard is dropped.
    pub(super) async fn turn(&self) -> Turn<'_, Option<Listener>> {
        self.gate.turn.lock().await
    }

    /// Forgets the releases up to now: whoever asks after them need not be told.
    pub(super) fn forget_releases(&self, listener: Option<&Listener>) {
        self.released().now_or_never();
        if let Some(listener) = listener {
            listener.heard().now_or_never();
        }
    }

    /// This one was given the lease.
    pub(super) fn holds(&self) {
        self.gate.held.store(true, Ordering::Release);
    }

    /// Whether the one before was given the lease and has not released it.
    pub(super) fn is_held_here(&self) -> bool {
        self.gate.held.load(Ordering::Acquire)
    }

    /// Completes when the lease was released by this process since it last completed.
    pub(super) async fn released(&self) {
        self.gate.released.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut gates = self.gates.lock();
        // The map's and this one's.
        if Arc::strong_count(&self.gate) == 2 {
            gates.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[test]
    fn turns_come_in_order_and_nothing_is_left() {
        let gates = Gates::default();
        let (first, second) = (gates.waiter("a".into()), gates.waiter("a".into()));
        let turn = assert_ready!(task::spawn(first.turn()).poll());
        let mut waiting = task::spawn(second.turn());
        assert_pending!(waiting.poll());
        drop(turn);
        drop(assert_ready!(waiting.poll()));
        drop(waiting);
        drop(first);
        assert_eq!(gates.len(), 1);
        drop(second);
        assert_eq!(gates.len(), 0);
    }

    #[test]
    fn a_release_before_the_question_is_forgotten() {
        let gates = Gates::default();
        let waiter = gates.waiter("a".into());
        gates.released("a");
        waiter.forget_releases(None);
        assert_pending!(task::spawn(waiter.released()).poll());
    }

    #[test]
    fn the_next_knows_that_the_one_before_holds() {
        let gates = Gates::default();
        let (first, second) = (gates.waiter("a".into()), gates.waiter("a".into()));
        assert!(!second.is_held_here());
        first.holds();
        drop(first);
        assert!(second.is_held_here());
        gates.released("a");
        assert!(!second.is_held_here());
    }

    #[test]
    fn a_release_is_heard_also_by_one_who_listens_later() {
        let gates = Gates::default();
        let waiter = gates.waiter("a".into());
        gates.released("a");
        gates.released("b");
        assert_ready!(task::spawn(waiter.released()).poll());
        assert_pending!(task::spawn(waiter.released()).poll());
    }
}
