//! `Task`: a scheduled task's stages, from the wheel to its result.

use std::{
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker, ready},
};

use tokio::{runtime::Handle, task::JoinHandle, time::Instant};

use crate::{
    budget,
    clock::Deadline,
    error::ScheduleError,
    shard::{Standing, Timer, Wakers},
    shutdown::{Roster, ScheduledTask, Unstarted},
    sync::{Mutex, lock},
    wheel::Wheel,
};

/// The one allocation of a scheduled task; as a waker, it is what the wheel wakes when the task is due.
pub(super) struct Task<F: Future> {
    deadline: Deadline,
    runtime: Handle,
    roster: Arc<Roster>,
    state: Mutex<State<F>>,
    /// Who awaits the handle.
    awaiting: Mutex<Option<Waker>>,
}

enum State<F: Future> {
    /// At `place` on the roster, and then in the wheel.
    Waiting {
        future: F,
        timer: Timer,
        place: Option<usize>,
    },
    /// Its time has come; about to be spawned.
    Starting,
    Started(JoinHandle<F::Output>),
    /// Its result has been given out.
    Reported,
    /// It will not start.
    Never(ScheduleError),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Started,
    Finished,
    Never,
}

/// What a handle can do with its task, whatever the task's future.
pub(super) trait Outcome<T>: Send + Sync {
    fn deadline(&self) -> Instant;
    fn stage(&self) -> Stage;
    fn cancel(&self) -> bool;
    fn poll_outcome(&self, cx: &mut Context<'_>) -> Poll<Result<T, ScheduleError>>;
}

impl<F> Task<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    /// Puts a new task on the roster, then into the wheel.
    #[track_caller]
    pub(super) fn enrol(wheel: &Wheel, deadline: Deadline, future: F) -> Arc<Task<F>> {
        let shard = wheel.shard();
        let task = Arc::new(Task {
            deadline,
            runtime: wheel.link().runtime(),
            roster: wheel.roster().clone(),
            state: Mutex::new(State::Waiting {
                future,
                timer: Timer::new(shard),
                place: None,
            }),
            awaiting: Mutex::new(None),
        });
        let place = task.roster.enlist(task.clone());
        let enlisted = place.is_some();
        // Unless a shutdown has handed it back meanwhile.
        if let State::Waiting { place: kept, .. } = &mut *lock(&task.state) {
            *kept = place;
        }
        if enlisted {
            task.clone().wake();
        } else {
            drop(task.give_up(ScheduleError::Shutdown));
        }
        task
    }

    /// Ends the wait: takes the task out of the wheel and off the roster. `None` when the wait had ended before.
    fn end_wait(&self, next: State<F>) -> Option<F> {
        let mut state = lock(&self.state);
        // With the state still locked: a task that no longer waits is not in the wheel either. The waker that goes with its
        // timer is one of the task itself, which is not the last.
        match &mut *state {
            State::Waiting { timer, .. } => timer.cancel(),
            _ => return None,
        }
        let State::Waiting { future, place, .. } = mem::replace(&mut *state, next) else {
            return None;
        };
        drop(state);
        if let Some(place) = place {
            self.roster.strike(place);
        }
        Some(future)
    }

    /// Ends the wait of a task that will not start, and tells whoever awaits it.
    fn give_up(&self, error: ScheduleError) -> Option<F> {
        let future = self.end_wait(State::Never(error))?;
        self.tell();
        Some(future)
    }

    fn tell(&self) {
        let awaiting = lock(&self.awaiting).take();
        awaiting.into_iter().for_each(Waker::wake);
    }
}

impl<F> Wake for Task<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let poll = || match &mut *lock(&self.state) {
            State::Waiting { timer, .. } => {
                // Where the driver's runtime is gone, the task's own will do.
                let _entered = self.runtime.enter();
                timer.poll(self.deadline, Standing::New, &waker)
            }
            _ => Poll::Pending,
        };
        // A runtime without timers cannot have a driver, and says so by a panic: the task is not to be lost over it.
        let due = catch_unwind(AssertUnwindSafe(poll)).unwrap_or_else(|panic| {
            drop(self.give_up(ScheduleError::Shutdown));
            resume_unwind(panic)
        });
        match due {
            Poll::Pending => {}
            Poll::Ready(Err(refusal)) => drop(self.give_up(refusal.into())),
            Poll::Ready(Ok(())) => {
                let Some(future) = self.end_wait(State::Starting) else {
                    return;
                };
                let started = self.runtime.spawn(future);
                *lock(&self.state) = State::Started(started);
                self.tell();
            }
        }
    }
}

impl<F> Unstarted for Task<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn hand_back(&self, wakers: &mut Wakers) -> Option<ScheduledTask> {
        let future = self.end_wait(State::Never(ScheduleError::Shutdown))?;
        wakers.due.extend(lock(&self.awaiting).take());
        Some(ScheduledTask::new(self.deadline.instant, future))
    }
}

impl<F> Outcome<F::Output> for Task<F>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn deadline(&self) -> Instant {
        self.deadline.instant
    }

    fn stage(&self) -> Stage {
        match &*lock(&self.state) {
            State::Waiting { .. } => Stage::Waiting,
            State::Starting => Stage::Started,
            State::Started(task) if !task.is_finished() => Stage::Started,
            State::Started(_) | State::Reported => Stage::Finished,
            State::Never(_) => Stage::Never,
        }
    }

    fn cancel(&self) -> bool {
        self.give_up(ScheduleError::Cancelled).is_some()
    }

    fn poll_outcome(&self, cx: &mut Context<'_>) -> Poll<Result<F::Output, ScheduleError>> {
        let awaiting = cx.waker().clone();
        let mut state = lock(&self.state);
        match &mut *state {
            State::Never(error) => {
                let error = error.clone();
                drop(state);
                ready!(budget::poll_spend(cx));
                Poll::Ready(Err(error))
            }
            State::Started(task) => {
                let result = ready!(Pin::new(task).poll(cx));
                *state = State::Reported;
                Poll::Ready(result.map_err(ScheduleError::from))
            }
            State::Reported => panic!("`Scheduled` polled after completion"),
            State::Waiting { .. } | State::Starting => {
                let outdated = lock(&self.awaiting).replace(awaiting);
                drop(state);
                drop(outdated);
                Poll::Pending
            }
        }
    }
}
