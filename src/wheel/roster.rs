//! The roster: the scheduled tasks that have not started, which a shutdown hands back.

use std::{
    fmt,
    future::{Future, IntoFuture},
    mem,
    pin::Pin,
    sync::Arc,
    task::Waker,
};

use slab::Slab;
use tokio::time::Instant;

use crate::engine::sync::{Mutex, lock};

/// A scheduled task that a shutdown handed back before it started.
///
/// Awaiting it runs the task, and dropping it drops the task.
///
/// The task's result is dropped, because its handle has already resolved to `Shutdown`. A panic of the task
/// propagates to the code that awaits it. Timers that the task starts on the wheel that was shut down work as
/// before, except for those that report a refusal, such as `try_timeout` and `schedule`, which need another
/// wheel.
///
/// A `ScheduledTask` is not itself a future. Its [`into_future`](IntoFuture::into_future) returns one, which
/// can be spawned.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = tickwheel::Wheel::new();
/// drop(wheel.schedule(Duration::from_secs(60), async { println!("at last") }));
/// for task in wheel.shutdown().tasks {
///     task.await;
/// }
/// # }
/// ```
///
/// To run several tasks concurrently, so that a slow or panicking one does not hold up the others:
///
/// ```
/// use std::{future::IntoFuture, time::Duration};
/// use tickwheel::Wheel;
/// use tokio::task::JoinSet;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// drop(wheel.schedule(Duration::from_secs(60), async { println!("at last") }));
/// drop(wheel.schedule(Duration::from_secs(60), async { panic!("on purpose") }));
///
/// let mut set = JoinSet::new();
/// for task in wheel.shutdown().tasks {
///     set.spawn(task.into_future());
/// }
/// let mut panicked = 0;
/// while let Some(ended) = set.join_next().await {
///     panicked += usize::from(ended.is_err());
/// }
/// assert_eq!(panicked, 1);
/// # }
/// ```
#[must_use = "dropping it drops a task that never ran"]
pub struct ScheduledTask {
    deadline: Instant,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl ScheduledTask {
    pub(crate) fn new(deadline: Instant, task: impl Future + Send + 'static) -> ScheduledTask {
        let future = Box::pin(async {
            task.await;
        });
        ScheduledTask { deadline, future }
    }

    /// Returns the instant at which the task would have been due.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tokio::time::{Duration, Instant};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// drop(wheel.schedule(Duration::from_secs(60), async {}));
    /// assert!(wheel.shutdown().tasks[0].deadline() > Instant::now());
    /// # }
    /// ```
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl IntoFuture for ScheduledTask {
    type Output = ();
    type IntoFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        self.future
    }
}

impl fmt::Debug for ScheduledTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScheduledTask")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// The number of places that a roster keeps once it is empty.
const RETAINED: usize = 1024;

/// Some of the scheduled tasks of a wheel that have not started.
pub(crate) struct Roster(Mutex<Option<Slab<Arc<dyn Unstarted>>>>);

impl Roster {
    pub(crate) fn new() -> Roster {
        Roster(Mutex::new(Some(Slab::new())))
    }

    /// Adds a task and returns its place, or `None` if the roster has been closed.
    pub(crate) fn add(&self, task: Arc<dyn Unstarted>) -> Option<usize> {
        lock(&self.0).as_mut().map(|tasks| tasks.insert(task))
    }

    pub(crate) fn remove(&self, place: usize) {
        let removed = lock(&self.0).as_mut().map(|tasks| {
            let task = tasks.remove(place);
            // After a burst, an empty roster frees its memory.
            let emptied = tasks.is_empty() && tasks.capacity() > RETAINED;
            (task, emptied.then(|| mem::take(tasks)))
        });
        drop(removed);
    }

    pub(crate) fn close(&self) -> impl Iterator<Item = Arc<dyn Unstarted>> + use<> {
        let tasks = lock(&self.0).take();
        tasks.into_iter().flatten().map(|(_, task)| task)
    }
}

/// The operations of a shutdown on a task, independent of the type of the task's future.
pub(crate) trait Unstarted: Send + Sync {
    /// Takes the task out of the wheel, unless it has started or been cancelled. The caller wakes the
    /// `joiners`, who wait for its result.
    fn hand_back(&self, joiners: &mut Vec<Waker>) -> Option<ScheduledTask>;
}
