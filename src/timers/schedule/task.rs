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
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker, ready},
};

use tokio::{runtime::Handle, task::JoinHandle, time::Instant};

use crate::{
    engine::{
        clock::Moment,
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
        roster::{ScheduledTask, Unstarted},
    },
};

/// A scheduled task in its one allocation, which is also the waker that the wheel wakes when the task is due.
pub(super) struct Task<F: Future> {
    state: Mutex<State<F>>,
}

struct State<F: Future> {
    deadline: Instant,
    progress: Progress<F>,
    /// The waker of the task that awaits the handle.
    join_waker: Option<Waker>,
}

enum Progress<F: Future> {
    Waiting {
        future: F,
        /// Dropped when the wait ends, because it would keep the descriptors of a runtime that has ended.
        runtime: Handle,
        timer: Timer,
        /// Its place on the roster refers to this task.
        permit: Permit,
    },
    /// Due, and about to be spawned.
    Starting,
    Started(JoinHandle<F::Output>),
    /// The task will not start.
    Never(ScheduleError),
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

impl<F: Future<Output: Send> + Send + 'static> Task<F> {
    /// Puts a new task into the wheel, then on the roster.
    #[track_caller]
    pub(super) fn register(wheel: &Wheel, deadline: Instant, mut timer: Timer, future: F) -> Arc<Task<F>> {
        let runtime = wheel.runtime();
        let mut permit = match Permit::take(wheel) {
            Ok(permit) => permit,
            Err(refused) => return Task::new(deadline, Progress::Never(refused.into())),
        };
        // Kept until the task has a place on the roster, which gives none once the wheel has been shut down.
        let task = Task::new(deadline, Progress::Never(ScheduleError::Shutdown));
        // With no lock held, because this may begin an engine or end one, and panics if the runtime has no
        // timers.
        let _ = timer.poll(&Waker::from(task.clone()));
        let mut state = lock(&task.state);
        let mut has_to_wake = false;
        if permit.enroll(task.clone()).is_ok() {
            // What has woken the task so far has found nothing to start or to end.
            has_to_wake = !timer.has_entry();
            state.progress = Progress::Waiting {
                future,
                runtime,
                timer,
                permit,
            };
        }
        drop(state);
        if has_to_wake {
            task.clone().wake();
        }
        task
    }

    fn new(deadline: Instant, progress: Progress<F>) -> Arc<Task<F>> {
        let state = State {
            deadline,
            progress,
            join_waker: None,
        };
        Arc::new(Task {
            state: Mutex::new(state),
        })
    }

    /// Ends the wait: takes the task out of the wheel and off the roster. Returns `None` if the wait had
    /// already ended. Also returns whoever has to learn that the task will not start.
    fn end_wait(
        &self,
        mut state: MutexGuard<'_, State<F>>,
        next: Progress<F>,
    ) -> Option<(F, Handle, Option<Waker>)> {
        // The state stays locked meanwhile, so that a task that no longer waits is not in the wheel either.
        // Cancelling drops the timer's waker, which is a reference to this task, but not the last one.
        let Progress::Waiting { timer, .. } = &mut state.progress else {
            return None;
        };
        drop(timer.cancel());
        let joiner = if let Progress::Never(_) = next {
            state.join_waker.take()
        } else {
            None
        };
        let Progress::Waiting {
            future,
            runtime,
            permit,
            ..
        } = mem::replace(&mut state.progress, next)
        else {
            return None;
        };
        drop(state);
        drop(permit);
        Some((future, runtime, joiner))
    }

    /// Ends the wait of a task that will not start, and wakes the task that awaits the handle.
    fn give_up(&self, error: ScheduleError) -> Option<(F, Handle)> {
        let (future, runtime, joiner) = self.end_wait(lock(&self.state), Progress::Never(error))?;
        joiner.into_iter().for_each(Waker::wake);
        Some((future, runtime))
    }

    fn start(&self, future: F, runtime: &Handle) {
        let started = runtime.spawn(future);
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
        let waker = Waker::from(self.clone());
        let mut state = lock(&self.state);
        let Progress::Waiting { timer, .. } = &mut state.progress else {
            return;
        };
        if timer.has_lost_engine() {
            drop(state);
            return drop(self.give_up(ScheduleError::Cancelled));
        }
        // The state stays locked, because a task that is due must no longer be reset.
        if timer.poll(&waker).is_ready() {
            if let Some((future, runtime, _)) = self.end_wait(state, Progress::Starting) {
                self.start(future, &runtime);
            }
        }
    }
}

impl<F: Future<Output: Send> + Send + 'static> Unstarted for Task<F> {
    fn hand_back(&self, joiners: &mut Vec<Waker>) -> Option<ScheduledTask> {
        let state = lock(&self.state);
        let deadline = state.deadline;
        let (future, _, joiner) = self.end_wait(state, Progress::Never(ScheduleError::Shutdown))?;
        joiners.extend(joiner);
        Some(ScheduledTask::new(deadline, future))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Outcome<F::Output> for Task<F> {
    fn deadline(&self) -> Instant {
        lock(&self.state).deadline
    }

    fn stage(&self) -> Stage {
        match &lock(&self.state).progress {
            Progress::Waiting { .. } => Stage::Waiting,
            Progress::Starting => Stage::Started,
            Progress::Started(task) if !task.is_finished() => Stage::Started,
            Progress::Started(_) => Stage::Finished,
            Progress::Never(_) => Stage::Never,
        }
    }

    fn cancel(&self) -> bool {
        self.give_up(ScheduleError::Cancelled).is_some()
    }

    fn reset(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.state);
        let Progress::Waiting { timer, .. } = &mut state.progress else {
            return false;
        };
        let waker = timer.reset(Moment::of(deadline));
        state.deadline = deadline;
        drop(state);
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
            Progress::Waiting { .. } | Progress::Never(_) => return,
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
            Progress::Waiting { .. } | Progress::Starting => {
                let outdated = state.join_waker.replace(join_waker);
                drop(state);
                drop(outdated);
                Poll::Pending
            }
        }
    }
}
