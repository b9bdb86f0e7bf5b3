//! `Scheduled`: a handle to a task that starts later, and to its result.

mod task;

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::clock::{Moment, Nanos},
    error::ScheduleError,
    wheel::Wheel,
};
use task::{Outcome, Stage, Task};

impl Wheel {
    /// Runs `task` after `delay`, as Netty's `newTimeout` and the JDK's `schedule` do.
    ///
    /// A scheduled task costs one allocation, and no Tokio task until it is due. It is then spawned on the
    /// runtime given to the builder or, if none was given, on the runtime that `schedule` was called on. It
    /// is never early, and less than one tick late plus its slack and the runtime's own delay. If that
    /// runtime ends first, the task is dropped, and its handle resolves to `Cancelled` at once.
    ///
    /// # Cancellation
    ///
    /// Dropping the handle detaches the task. [`Scheduled::cancel`] cancels it. With
    /// [`abort_on_drop`](Scheduled::abort_on_drop), dropping the handle ends the task.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, unless the wheel was given a [`handle`](crate::Builder::handle), and
    /// in one without timers.
    ///
    /// # Errors
    ///
    /// The handle resolves to a [`ScheduleError`] when the wheel refuses the task or has been shut down, or
    /// when the task is cancelled or panics.
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
        let now = self.shared().now();
        Scheduled {
            task: Task::register(self, now.after(Nanos::of(delay)), now, task),
            abort_on_drop: false,
        }
    }

    /// Runs `task` at `deadline`, and otherwise behaves as [`schedule`](Wheel::schedule) does.
    ///
    /// If the deadline is in the past, the task starts at once or by the next tick.
    ///
    /// # Cancellation
    ///
    /// Dropping the handle detaches the task, as for [`schedule`](Wheel::schedule).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`schedule`](Wheel::schedule).
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`schedule`](Wheel::schedule).
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
        let now = self.shared().now();
        Scheduled {
            task: Task::register(self, Moment::of(deadline), now, task),
            abort_on_drop: false,
        }
    }
}

/// The handle returned by [`Wheel::schedule`] and [`Wheel::schedule_at`], and a future of the task's result.
///
/// Dropping the handle detaches the task, unless the handle was made with
/// [`abort_on_drop`](Scheduled::abort_on_drop).
///
/// # Panics
///
/// Panics if it is polled again after it has returned the result of a started task, as a `JoinHandle` does.
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
    abort_on_drop: bool,
}

impl<T> Scheduled<T> {
    /// Cancels the task, and returns `true` if it had not started, in which case it never will.
    ///
    /// The task's future is dropped before this method returns.
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

    /// Moves the task to another deadline, and returns `true` if it had not started, in which case it starts
    /// at the new deadline.
    ///
    /// The task then starts as late as one that [`schedule`](Wheel::schedule) was given that deadline. If the
    /// deadline is in the past, it starts at once. It keeps its place in the wheel, even if the wheel is
    /// full.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let mut flush = Wheel::new().schedule(Duration::from_secs(5), async { Instant::now() });
    /// let later = Instant::now() + Duration::from_secs(60);
    /// assert!(flush.reset(later));
    /// assert!((&mut flush).await.unwrap() >= later);
    /// assert!(!flush.reset(later), "it has run");
    /// # }
    /// ```
    pub fn reset(&self, deadline: Instant) -> bool {
        self.task.reset(deadline)
    }

    /// Makes dropping the handle end the task, as tokio-util's `AbortOnDropHandle` does.
    ///
    /// A task that has not started is cancelled, and its future is dropped before the handle's drop returns.
    /// A task that is running is aborted at its next `.await`, as by
    /// [`JoinHandle::abort`](tokio::task::JoinHandle::abort).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let retry = wheel.schedule(Duration::from_secs(5), async {}).abort_on_drop();
    /// assert_eq!(wheel.pending(), 1);
    /// drop(retry);
    /// assert_eq!(wheel.pending(), 0);
    /// # }
    /// ```
    #[must_use = "dropping it ends the task"]
    pub fn abort_on_drop(mut self) -> Scheduled<T> {
        self.abort_on_drop = true;
        self
    }

    /// Returns `true` if the task will never start, because it was cancelled, refused, or handed back by a
    /// shutdown.
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

    /// Returns `true` if the task has started.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let mut task = tickwheel::Wheel::new().schedule(Duration::from_millis(10), async {});
    /// assert!(!task.is_started());
    /// (&mut task).await.unwrap();
    /// assert!(task.is_started());
    /// # }
    /// ```
    pub fn is_started(&self) -> bool {
        matches!(self.task.stage(), Stage::Started | Stage::Finished)
    }

    /// Returns `true` if awaiting the handle would resolve at once.
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

impl<T> Drop for Scheduled<T> {
    fn drop(&mut self) {
        if self.abort_on_drop {
            self.task.abort();
        }
    }
}

impl<T> Future for Scheduled<T> {
    type Output = Result<T, ScheduleError>;

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
