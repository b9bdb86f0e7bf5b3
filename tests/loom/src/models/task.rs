//! Tasks, each a thread of the model.

use std::{
    sync::Arc,
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

/// One that the engine takes for a task of Tokio's. When it is woken, it has to be polled again.
pub(super) struct Task(Bell);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

impl Task {
    pub(super) fn new() -> (Arc<Task>, Waker) {
        let task = Arc::new(Task(Bell::new()));
        let waker = Waker::from(task.clone());
        WakerId::learn_task(&waker);
        // Only a task that has cancelled the last timer of its thread leaves a spare.
        thread::with(|thread| thread.spares.note_cancelled(WakerId::learn(&waker)));
        (task, waker)
    }

    /// Waits until the task is woken.
    pub(super) fn wait(&self) {
        self.0.wait();
    }
}
