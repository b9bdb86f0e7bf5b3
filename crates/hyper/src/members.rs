//! The open connections, by their tasks.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Waker},
};

use slab::Slab;
use tokio::sync::Notify;

/// The open connections of a [`ConnectionLimits`](crate::ConnectionLimits), and the tasks to wake when its
/// settings change.
#[derive(Debug, Default)]
pub(crate) struct Members {
    open: AtomicU64,
    none_open: Notify,
    tasks: Mutex<Slab<Waker>>,
}

impl Members {
    pub(crate) fn join(self: &Arc<Self>) -> Member {
        self.open.fetch_add(1, Ordering::Relaxed);
        let members = self.clone();
        Member { members, task: None }
    }

    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until no connection is open.
    pub(crate) async fn none_open(&self) {
        loop {
            // Before the count is read, so that a connection that ends in between is not missed.
            let none_open = self.none_open.notified();
            if self.open() == 0 {
                return;
            }
            none_open.await;
        }
    }

    pub(crate) fn wake_all(&self) {
        // A waker may run any code, and that must not find the lock taken.
        let tasks: Vec<Waker> = self.tasks().iter().map(|(_, task)| task.clone()).collect();
        tasks.into_iter().for_each(Waker::wake);
    }

    fn tasks(&self) -> MutexGuard<'_, Slab<Waker>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open connection. It leaves when it is dropped.
#[derive(Debug)]
pub(crate) struct Member {
    members: Arc<Members>,
    task: Option<Task>,
}

/// The task that polls a connection, and its place among all.
#[derive(Debug)]
struct Task {
    /// A copy of what is in that place, so that a poll by the same task takes no lock.
    waker: Waker,
    place: usize,
}

impl Member {
    /// Makes [`Members::wake_all`] wake the task that polls the connection.
    pub(crate) fn register(&mut self, cx: &Context<'_>) {
        let waker = cx.waker();
        match &mut self.task {
            Some(task) if task.waker.will_wake(waker) => {}
            Some(task) => {
                task.waker.clone_from(waker);
                let former = std::mem::replace(&mut self.members.tasks()[task.place], waker.clone());
                drop(former);
            }
            None => {
                let (waker, kept) = (waker.clone(), waker.clone());
                let place = self.members.tasks().insert(kept);
                self.task = Some(Task { waker, place });
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            let waker = self.members.tasks().remove(task.place);
            drop(waker);
        }
        if self.members.open.fetch_sub(1, Ordering::Release) == 1 {
            self.members.none_open.notify_waiters();
        }
    }
}
