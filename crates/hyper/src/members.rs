//! The open connections, by their tasks.

use std::{
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
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
    /// Counts a connection, until it [leaves](Members::leave).
    pub(crate) fn join(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes [`wake_all`](Members::wake_all) wake the task that polls the connection.
    #[inline]
    pub(crate) fn register(&self, member: &mut Member, cx: &Context<'_>) {
        let is_registered = |task: &Task| task.waker.will_wake(cx.waker());
        if !member.task.as_ref().is_some_and(is_registered) {
            self.change_task(member, cx.waker());
        }
    }

    #[cold]
    fn change_task(&self, member: &mut Member, waker: &Waker) {
        match &mut member.task {
            Some(task) => {
                task.waker.clone_from(waker);
                let former = mem::replace(&mut self.tasks()[task.place], waker.clone());
                drop(former);
            }
            None => {
                let (waker, kept) = (waker.clone(), waker.clone());
                let place = self.tasks().insert(kept);
                member.task = Some(Task { waker, place });
            }
        }
    }

    pub(crate) fn leave(&self, member: &Member) {
        if let Some(task) = &member.task {
            let waker = self.tasks().remove(task.place);
            drop(waker);
        }
        if self.open.fetch_sub(1, Ordering::Release) == 1 {
            self.none_open.notify_waiters();
        }
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

/// An open connection's place among the members, once it has one.
#[derive(Debug, Default)]
pub(crate) struct Member {
    task: Option<Task>,
}

/// The task that polls a connection.
#[derive(Debug)]
struct Task {
    /// A copy of what is in its place, so that a poll by the same task takes no lock.
    waker: Waker,
    place: usize,
}
