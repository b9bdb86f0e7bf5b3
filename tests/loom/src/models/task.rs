//! Tasks, each a thread of the model.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Wake, Waker},
};

use loom::sync::{Condvar, Mutex};

use crate::engine::{thread, waker_id::WakerId};

/// A notification that waits to be taken.
pub(super) struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(super) fn new() -> Bell {
        Bell {
            rung: Mutex::new(false),
            ringing: Condvar::new(),
        }
    }

    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.ringing.notify_one();
    }

    pub(super) fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.ringing.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// One that the engine takes for a task of Tokio's. When it is woken, it has to be polled again. All are of one
/// type, because tasks are known by the vtable of their wakers.
pub(super) struct Task {
    /// That of a task which is a thread, and waits for it.
    bell: Option<Bell>,
    /// Whether any other task has been woken.
    is_woken: AtomicBool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        match &self.bell {
            Some(bell) => bell.ring(),
            None => self.is_woken.store(true, SeqCst),
        }
    }
}

impl Task {
    /// Creates a task for this thread.
    pub(super) fn new() -> (Arc<Task>, Waker) {
        let (task, waker) = Task::with(Some(Bell::new()));
        // Only a task that has cancelled the last timer of its thread leaves a spare.
        thread::with(|thread| thread.spares.note_cancelled(WakerId::learn(&waker)));
        (task, waker)
    }

    /// Creates a task that is no thread, and has to be asked whether it was woken.
    pub(super) fn without_thread() -> (Arc<Task>, Waker) {
        Task::with(None)
    }

    fn with(bell: Option<Bell>) -> (Arc<Task>, Waker) {
        let is_woken = AtomicBool::new(false);
        let task = Arc::new(Task { bell, is_woken });
        let waker = Waker::from(task.clone());
        (task, waker)
    }

    /// Waits until the task is woken.
    pub(super) fn wait(&self) {
        self.bell.as_ref().expect("it is a thread").wait();
    }

    /// Returns whether the task has been woken since it was last asked.
    pub(super) fn was_woken(&self) -> bool {
        self.is_woken.swap(false, SeqCst)
    }
}

/// Makes known the wakers that the models have. The process keeps what is known, whichever model runs beside
/// this one or has run before, and a model has to do the same each time.
pub(super) fn learn_wakers() {
    let (_, waker) = Task::without_thread();
    WakerId::learn_task(&waker);
    WakerId::learn(Waker::noop());
}
