//! `tokio::runtime`: a runtime whose tasks and timers the models drive.

use std::{
    cell::RefCell,
    future::Future,
    mem,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Waker},
};

use loom::sync::Mutex;

use super::time::Timers;

/// Without the method that it has with `test-util`, so that clocks are the machine's.
pub struct Builder;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id(u64);

#[derive(PartialEq, Eq)]
pub enum RuntimeFlavor {
    CurrentThread,
    MultiThread,
}

#[derive(Clone)]
pub struct Handle(Arc<Runtime>);

struct Runtime {
    id: Id,
    timers: Arc<Timers>,
    /// `None` once the runtime has dropped them.
    tasks: Mutex<Option<Vec<Task>>>,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The runtime that a thread is in, and the index of the worker that it is.
struct Current(RefCell<Option<(Handle, usize)>>);

loom::thread_local! {
    static CURRENT: Current = Current(RefCell::new(None));
}

/// Returns the index of this worker.
pub fn worker_index() -> Option<usize> {
    CURRENT.with(|current| current.0.borrow().as_ref().map(|(_, index)| *index))
}

#[derive(Debug)]
pub struct TryCurrentError;

impl TryCurrentError {
    pub fn is_missing_context(&self) -> bool {
        true
    }

    pub fn is_thread_local_destroyed(&self) -> bool {
        false
    }
}

impl std::fmt::Display for TryCurrentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("there is no reactor running")
    }
}

pub struct EnterGuard(Option<(Handle, usize)>);

impl Drop for EnterGuard {
    fn drop(&mut self) {
        CURRENT.with(|current| current.0.replace(self.0.take()));
    }
}

pub struct RuntimeMetrics;

impl RuntimeMetrics {
    pub fn num_workers(&self) -> usize {
        1
    }
}

pub struct JoinHandle {
    is_finished: bool,
}

impl JoinHandle {
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// No model goes on with the task.
    pub fn abort(&self) {}
}

impl Handle {
    pub fn try_current() -> Result<Handle, TryCurrentError> {
        let current = CURRENT.with(|current| current.0.borrow().as_ref().map(|(handle, _)| handle.clone()));
        current.ok_or(TryCurrentError)
    }

    pub fn current() -> Handle {
        Handle::try_current().expect("there is no reactor running")
    }

    pub fn id(&self) -> Id {
        self.0.id
    }

    pub fn runtime_flavor(&self) -> RuntimeFlavor {
        RuntimeFlavor::CurrentThread
    }

    pub fn metrics(&self) -> RuntimeMetrics {
        RuntimeMetrics
    }

    pub fn enter(&self) -> EnterGuard {
        self.enter_as(0)
    }

    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> JoinHandle {
        let mut future = Some(Box::pin(future) as Task);
        if let Some(tasks) = &mut *self.0.tasks.lock().unwrap() {
            tasks.extend(future.take());
        }
        JoinHandle {
            is_finished: future.is_some(),
        }
    }
}

/// What Tokio does, and the models have to do here.
impl Handle {
    pub(crate) fn new(id: u64) -> Handle {
        Handle(Arc::new(Runtime {
            id: Id(id),
            timers: Arc::default(),
            tasks: Mutex::new(Some(Vec::new())),
        }))
    }

    pub(crate) fn timers(&self) -> &Arc<Timers> {
        &self.0.timers
    }

    pub(crate) fn enter_as(&self, worker: usize) -> EnterGuard {
        EnterGuard(CURRENT.with(|current| current.0.replace(Some((self.clone(), worker)))))
    }

    /// Polls each task once.
    pub(crate) fn poll_tasks(&self, waker: &Waker) {
        let mut tasks = self
            .0
            .tasks
            .lock()
            .unwrap()
            .as_mut()
            .map(mem::take)
            .unwrap_or_default();
        tasks.retain_mut(|task| task.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        if let Some(others) = &mut *self.0.tasks.lock().unwrap() {
            others.append(&mut tasks);
        }
    }

    /// Drops the tasks, as a runtime does first when it shuts down.
    pub(crate) fn drop_tasks(&self) {
        let tasks = self.0.tasks.lock().unwrap().take();
        drop(tasks);
    }

    /// Drops the tasks, and ends the timers.
    pub(crate) fn shut_down(&self) {
        self.drop_tasks();
        self.timers().end();
    }
}
