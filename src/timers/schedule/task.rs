//! `Task`: a scheduled task and its states, from its entry in the wheel to its result.
//!
//! ```text
//! Waiting --- it is due --> Starting --- spawned --> Started
//!    |                          |
//!    | cancelled, refused,      | aborted
//!    | or handed back           |
//!    +--------> Never <---------+
//! ```
//!
//! Only one caller can take the task out of `Waiting` and thereby own its future, so a task that is cancelled
//! while it becomes due either runs or is cancelled, but never both.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker, ready},
};

use tokio::{runtime::Handle, task::JoinHandle, time::Instant};

use crate::{
    engine::{
        clock::{Moment, Reading},
        shared::WheelRef,
        sync::{Mutex, MutexGuard, lock},
        timer::Timer,
    },
    error::ScheduleError,
    timers::{
        limit::Permit,
        sleep::{HadBudget, spend_budget},
    },
    wheel::{
        Wheel,
        roster::{ScheduledTask, Unstarted, UnstartedTask},
    },
};

/// A scheduled task in its one allocation, which is also the waker that the wheel wakes when the task is due.
pub(super) struct Task<F: Future> {
    state: Mutex<State<F>>,
}

struct State<F: Future> {
    /// In no shard before and after the wait. It keeps the deadline.
    timer: Timer,
    progress: Progress<F>,
    /// The waker of the task that awaits the handle.
    join_waker: Option<Waker>,
}

enum Progress<F: Future> {
    Waiting(Wait<F>),
    /// Due, and about to be spawned.
    Starting,
    Started(JoinHandle<F::Output>),
    /// The task will not start.
    Never(ScheduleError),
}

struct Wait<F> {
    future: F,
    /// Dropped when the wait ends, because it would keep the descriptors of a runtime that has ended.
    runtime: Handle,
    /// Its place on the roster refers to this task.
    permit: Permit<UnstartedTask>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Started,
    Finished,
    Never,
}

/// The operations of a handle on its task, independent of the type of the task's future.
pub(super) trait Outcome<T>: Send + Sync {
    fn deadline(&self) -> Instant;
    fn stage(&self) -> Stage;
    fn cancel(&self) -> bool;
    fn reset(&self, deadline: Instant) -> bool;
    fn abort(&self);
    fn poll_outcome(&self, cx: &mut Context<'_>) -> Poll<Result<T, ScheduleError>>;
}

impl<F: Future> State<F> {
    /// Ends the wait and takes the task out of the wheel, or returns `None` if the wait had already ended.
    ///
    /// The caller holds the lock, so that a task which no longer waits is not in the wheel either. Cancelling
    /// drops the entry's waker, which is a reference to this task, but not the last one.
    #[inline]
    fn end_wait(&mut self, next: Progress<F>) -> Option<Wait<F>> {
        if !self.is_waiting() {
            return None;
        }
        // The handle needs its deadline, and may outlive the wheel.
        drop(self.timer.end());
        match mem::replace(&mut self.progress, next) {
            Progress::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(self.progress, Progress::Waiting(_))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Task<F> {
    /// Puts a new task into the wheel, then on the roster.
    #[track_caller]
    pub(super) fn register(wheel: &Wheel, deadline: Moment, now: Moment, future: F) -> Arc<Task<F>> {
        let shared = wheel.shared();
        let here = if shared.builder_runtime().is_some() {
            None
        } else {
            Some(Handle::current())
        };
        let mut permit = match Permit::take(&wheel.stripe().tasks) {
            Ok(permit) => permit,
            Err(refused) => return Task::new(deadline, Progress::Never(refused.into())),
        };
        // Kept until the task has a place on the roster, which gives none once the wheel has been shut down.
        let task = Task::new(deadline, Progress::Never(ScheduleError::Shutdown));
        // With no lock held, because this may begin an engine or end one, and panics if the runtime has no
        // timers.
        let waker = Waker::from(task.clone());
        let (id, now) = (here.as_ref().map(Handle::id), Reading::current(now));
        let timer = Timer::started(&wheel.stripe().reference, id, waker, deadline, now);
        // The start may have found that the builder's runtime has ended.
        let runtime = match here.or_else(|| shared.builder_handle()) {
            Some(runtime) => runtime,
            None => Handle::current(),
        };
        let mut state = lock(&task.state);
        // What has woken the task so far has found nothing to start or to end.
        let has_to_wake = !timer.has_entry();
        if permit.enroll(task.clone()).is_ok() {
            state.timer = timer;
            state.progress = Progress::Waiting(Wait {
                future,
                runtime,
                permit,
            });
        }
        drop(state);
        if has_to_wake {
            task.clone().wake();
        }
        task
    }

    fn new(deadline: Moment, progress: Progress<F>) -> Arc<Task<F>> {
        let state = State {
            timer: Timer::at(WheelRef::GLOBAL, deadline, Moment::ZERO),
            progress,
            join_waker: None,
        };
        Arc::new(Task {
            state: Mutex::new(state),
        })
    }

    /// Ends the wait of a task that will not start, and wakes the task that awaits the handle. Returns
    /// `false` if the wait had already ended. The caller holds the lock of the state.
    fn give_up(mut state: MutexGuard<'_, State<F>>) -> bool {
        let Some(wait) = state.end_wait(Progress::Never(ScheduleError::Cancelled)) else {
            return false;
        };
        let joiner = state.join_waker.take();
        drop(state);
        drop(wait.permit);
        joiner.into_iter().for_each(Waker::wake);
        true
    }

    /// Starts a task that is due. The caller holds the lock of its state.
    fn start(&self, mut state: MutexGuard<'_, State<F>>) {
        let Some(wait) = state.end_wait(Progress::Starting) else {
            return;
        };
        drop(state);
        drop(wait.permit);
        let started = wait.runtime.spawn(wait.future);
        let mut state = lock(&self.state);
        if let Progress::Starting = state.progress {
            state.progress = Progress::Started(started);
            let joiner = state.join_waker.take();
            drop(state);
            joiner.into_iter().for_each(Waker::wake);
        } else {
            // `abort` was called before there was a Tokio task to abort.
            drop(state);
            started.abort();
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Wake for Task<F> {
    /// Called when the task is due, its deadline was moved, or the engine in which it waits has ended, which
    /// ends the task, too.
    fn wake(self: Arc<Self>) {
        let mut state = lock(&self.state);
        if !state.is_waiting() {
            return;
        }
        if state.timer.has_lost_engine() {
            Task::give_up(state);
            return;
        }
        // The state stays locked, because a task that is due must no longer be reset.
        let waker = || Waker::from(self.clone());
        if state.timer.poll_with(waker, Moment::NEVER).is_ready() {
            self.start(state);
        } else if !state.timer.is_waiting() {
            // It cannot start, because the runtime ends.
            Task::give_up(state);
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Unstarted for Task<F> {
    fn hand_back(&self, joiners: &mut Vec<Waker>) -> Option<ScheduledTask> {
        let mut state = lock(&self.state);
        let deadline = state.timer.deadline().instant();
        let wait = state.end_wait(Progress::Never(ScheduleError::Shutdown))?;
        joiners.extend(state.join_waker.take());
        drop(state);
        drop(wait.permit);
        Some(ScheduledTask::new(deadline, wait.future))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Outcome<F::Output> for Task<F> {
    fn deadline(&self) -> Instant {
        lock(&self.state).timer.deadline().instant()
    }

    fn stage(&self) -> Stage {
        match &lock(&self.state).progress {
            Progress::Waiting(_) => Stage::Waiting,
            Progress::Started(task) if task.is_finished() => Stage::Finished,
            Progress::Starting | Progress::Started(_) => Stage::Started,
            Progress::Never(_) => Stage::Never,
        }
    }

    fn cancel(&self) -> bool {
        Task::give_up(lock(&self.state))
    }

    fn reset(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.state);
        if !state.is_waiting() {
            return false;
        }
        let waker = state.timer.reset(Moment::of(deadline), Moment::ZERO);
        if state.timer.has_completed() {
            // Here, and not by the waker, because a reset to a later deadline could come before that, and
            // then the timer would start anew in whichever runtime the waker is called, or panic outside of
            // all.
            self.start(state);
        } else {
            drop(state);
        }
        // Waking the task locks the state.
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn abort(&self) {
        if self.cancel() {
            return;
        }
        let mut state = lock(&self.state);
        let started = match &state.progress {
            Progress::Starting => {
                state.progress = Progress::Never(ScheduleError::Cancelled);
                return;
            }
            Progress::Started(task) => task.abort_handle(),
            Progress::Waiting(_) | Progress::Never(_) => return,
        };
        // If the runtime has ended, aborting drops the task, whose destructor may use the handle. So no lock
        // is held.
        drop(state);
        started.abort();
    }

    fn poll_outcome(&self, cx: &mut Context<'_>) -> Poll<Result<F::Output, ScheduleError>> {
        let join_waker = cx.waker().clone();
        let mut state = lock(&self.state);
        match &mut state.progress {
            Progress::Never(error) => {
                let error = error.clone();
                drop(state);
                ready!(HadBudget(false).poll(cx));
                spend_budget(cx).map(|()| Err(error))
            }
            Progress::Started(task) => {
                // Tokio may drop an older waker here, which is user code. It cannot lock this state, because
                // the only handle is borrowed for the poll, and a task that has started is on no roster and
                // in no wheel.
                let result = ready!(Pin::new(task).poll(cx));
                Poll::Ready(result.map_err(ScheduleError::of_task))
            }
            Progress::Waiting(_) | Progress::Starting => {
                let outdated = state.join_waker.replace(join_waker);
                drop(state);
                drop(outdated);
                Poll::Pending
            }
        }
    }
}
