//! `Scheduled`.

use std::{
    any::Any,
    fmt,
    future::Future,
    mem,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task::{JoinError, JoinHandle},
    time::Instant,
};

use crate::{
    clock::{self, Deadline},
    error::ScheduleError,
    shard::{Standing, Timer, Wakers},
    shutdown::{Roster, ScheduledTask, Unstarted},
    sync::{Mutex, lock},
    wheel::Wheel,
};

impl Wheel {
    /// Runs `task` after `delay`, as Netty's `newTimeout` and the JDK's `schedule` do.
    ///
    /// The task costs one allocation, and no Tokio task until it is due; then it is spawned on the runtime this is called
    /// on, or that the builder was given. It starts never early, and less than one tick late plus what the runtime adds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the handle detaches the task; [`Scheduled::cancel`] cancels it.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, unless the wheel was given a [`handle`](crate::Builder::handle).
    ///
    /// # Errors
    ///
    /// The handle resolves to a [`ScheduleError`] when the wheel refuses the task, or the task panics.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let answer = wheel.schedule(Duration::from_millis(20), async { 42 });
    /// assert_eq!(answer.await, Ok(42));
    /// # }
    /// ```
    #[track_caller]
    pub fn schedule<F>(&self, delay: Duration, task: F) -> Scheduled<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.schedule_at(clock::saturating_add(self.shard().now(), delay), task)
    }

    /// Runs `task` at `deadline`; otherwise the same as [`schedule`](Wheel::schedule).
    ///
    /// A deadline in the past starts the task at once or by the next tick.
    ///
    /// # Cancel safety
    ///
    /// Dropping the handle detaches the task; [`Scheduled::cancel`] cancels it.
    ///
    /// # Panics
    ///
    /// As [`schedule`](Wheel::schedule) does.
    ///
    /// # Errors
    ///
    /// As [`schedule`](Wheel::schedule) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let deadline = Instant::now() + Duration::from_millis(20);
    /// let started = Wheel::new().schedule_at(deadline, async { Instant::now() });
    /// assert!(started.await.unwrap() >= deadline);
    /// # }
    /// ```
    #[track_caller]
    pub fn schedule_at<F>(&self, deadline: Instant, task: F) -> Scheduled<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let shard = self.shard();
        let timer = Timer::new(shard);
        let task = Arc::new(Task {
            deadline: shard.stamp(deadline),
            runtime: self.link().runtime(),
            roster: self.roster().clone(),
            state: Mutex::new(State::Waiting {
                future: task,
                timer,
                place: None,
            }),
            awaiting: Mutex::new(None),
        });
        task.enrol();
        Scheduled { task }
    }
}

/// The handle of a task scheduled by [`Wheel::schedule`] or [`Wheel::schedule_at`]: a future of its result.
///
/// Dropping it detaches the task.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let retry = wheel.schedule(Duration::from_secs(5), async { "retried" });
/// assert!(retry.cancel());
/// assert_eq!(wheel.pending(), 0);
/// # }
/// ```
#[must_use = "dropping it detaches the task: say so with `drop`, or keep it to cancel or await the task"]
pub struct Scheduled<T> {
    task: Arc<dyn Outcome<T>>,
}

impl<T> Scheduled<T> {
    /// Cancels the task; true exactly when it had not started and now never will.
    ///
    /// The task's future is dropped before this returns.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let task = tickwheel::Wheel::new().schedule(Duration::from_secs(5), async {});
    /// assert!(task.cancel());
    /// assert!(!task.cancel());
    /// # }
    /// ```
    pub fn cancel(&self) -> bool {
        self.task.cancel()
    }

    /// Tells whether the task will never start: it was cancelled, refused, or handed back by a shutdown.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let task = tickwheel::Wheel::new().schedule(Duration::from_secs(5), async {});
    /// assert!(!task.is_cancelled());
    /// task.cancel();
    /// assert!(task.is_cancelled());
    /// # }
    /// ```
    pub fn is_cancelled(&self) -> bool {
        self.task.stage() == Stage::Never
    }

    /// Tells whether the task's time came and it started.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut task = tickwheel::Wheel::new().schedule(Duration::from_millis(10), async {});
    /// assert!(!task.is_expired());
    /// (&mut task).await.unwrap();
    /// assert!(task.is_expired());
    /// # }
    /// ```
    pub fn is_expired(&self) -> bool {
        matches!(self.task.stage(), Stage::Started | Stage::Finished)
    }

    /// Tells whether awaiting the handle would resolve at once.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let task = tickwheel::Wheel::new().schedule(Duration::from_secs(5), async {});
    /// assert!(!task.is_finished());
    /// task.cancel();
    /// assert!(task.is_finished());
    /// # }
    /// ```
    pub fn is_finished(&self) -> bool {
        matches!(self.task.stage(), Stage::Never | Stage::Finished)
    }

    /// Returns the instant at which the task is due.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tokio::time::{Duration, Instant};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let deadline = Instant::now() + Duration::from_secs(5);
    /// let task = tickwheel::Wheel::new().schedule_at(deadline, async {});
    /// assert_eq!(task.deadline(), deadline);
    /// # }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.task.deadline()
    }
}

impl<T> Future for Scheduled<T> {
    type Output = Result<T, ScheduleError>;

    /// # Panics
    ///
    /// When polled again after the result of a started task was returned.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.task.poll_outcome(cx)
    }
}

impl<T> fmt::Debug for Scheduled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduled")
            .field("deadline", &self.deadline())
            .field("stage", &self.task.stage())
            .finish()
    }
}

/// The one allocation of a scheduled task; as a waker, it is what the wheel wakes when the task is due.
struct Task<F: Future> {
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
enum Stage {
    Waiting,
    Started,
    Finished,
    Never,
}

/// What a handle can do with its task, whatever the task's future.
trait Outcome<T>: Send + Sync {
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
    fn enrol(self: &Arc<Self>) {
        let place = self.roster.enlist(self.clone());
        let enlisted = place.is_some();
        // Unless a shutdown has handed it back meanwhile.
        if let State::Waiting { place: kept, .. } = &mut *lock(&self.state) {
            *kept = place;
        }
        if enlisted {
            self.clone().wake();
        } else {
            drop(self.give_up(ScheduleError::Shutdown));
        }
    }

    /// Ends the wait: takes the task out of the wheel and off the roster. `None` when the wait had ended before.
    /// The waker is somebody's, to be dropped with no lock held.
    fn end_wait(&self, next: State<F>) -> Option<(F, Option<Waker>)> {
        let mut state = lock(&self.state);
        // With the state still locked: a task that no longer waits is not in the wheel either.
        let waker = match &mut *state {
            State::Waiting { timer, .. } => timer.withdraw(),
            _ => return None,
        };
        let State::Waiting { future, place, .. } = mem::replace(&mut *state, next) else {
            return None;
        };
        drop(state);
        if let Some(place) = place {
            self.roster.strike(place);
        }
        Some((future, waker))
    }

    /// Ends the wait of a task that will not start, and tells whoever awaits it.
    fn give_up(&self, error: ScheduleError) -> Option<F> {
        let (future, waker) = self.end_wait(State::Never(error))?;
        drop(waker);
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
                let Some((future, waker)) = self.end_wait(State::Starting) else {
                    return;
                };
                drop(waker);
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
        let (future, waker) = self.end_wait(State::Never(ScheduleError::Shutdown))?;
        wakers.spent.extend(waker);
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
            State::Never(error) => Poll::Ready(Err(error.clone())),
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

impl From<JoinError> for ScheduleError {
    fn from(error: JoinError) -> ScheduleError {
        match error.try_into_panic() {
            Ok(panic) => ScheduleError::Panicked(message(panic)),
            Err(_) => ScheduleError::Shutdown,
        }
    }
}

fn message(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"no message").to_string(),
    }
}
