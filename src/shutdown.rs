//! `Wheel::shutdown`, and what it hands back.

use std::{
    fmt,
    future::{Future, IntoFuture},
    mem,
    pin::Pin,
    sync::Arc,
};

use slab::Slab;
use tokio::time::Instant;

use crate::{
    shard::{Drive, Wakers},
    sync::{Mutex, lock},
    wheel::Wheel,
};

impl Wheel {
    /// Stops the wheel once and for all, and hands back what it will not do.
    ///
    /// Every pending sleep, timeout and interval resolves to `Shutdown` at once, and every later one at its first poll. A
    /// task that has started runs on. Whatever is returned counts as cancelled. A second call returns nothing more.
    ///
    /// A task handed back runs only if the caller awaits or spawns it: a bare `wheel.shutdown();` drops them all, silently.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{ScheduleError, Wheel};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let flush = wheel.schedule(Duration::from_secs(60), async { println!("flushed") });
    ///
    /// for task in wheel.shutdown().tasks {
    ///     task.await; // run it now, or drop it
    /// }
    /// assert_eq!(flush.await, Err(ScheduleError::Shutdown));
    /// # }
    /// ```
    pub fn shutdown(&self) -> Unprocessed {
        let mut unprocessed = Unprocessed::default();
        let mut wakers = Wakers::default();
        // Dropped, like woken, with no lock held: with a task that started meanwhile may go its result.
        let enlisted: Vec<_>;
        {
            let _closing = self.closing();
            enlisted = self.rosters().flat_map(Roster::close).collect();
            // Before the shards: what they then count as pending is no task's.
            for task in &enlisted {
                unprocessed.tasks.extend(task.hand_back(&mut wakers));
            }
            for shard in self.shard_list() {
                unprocessed.timers += shard.shutdown(&mut wakers);
            }
        }
        self.link().wake(&mut wakers);
        self.link().notify();
        unprocessed
    }
}

/// What [`Wheel::shutdown`] hands back.
///
/// Dropping it drops the tasks in it, which then never run.
///
/// # Examples
///
/// ```
/// let unprocessed = tickwheel::Wheel::new().shutdown();
/// assert_eq!((unprocessed.timers, unprocessed.tasks.len()), (0, 0));
/// ```
#[derive(Debug, Default)]
pub struct Unprocessed {
    /// How many sleeps, timeouts, intervals, idle timers and periodic series were pending.
    pub timers: usize,
    /// Every scheduled task that had not started.
    pub tasks: Vec<ScheduledTask>,
}

/// A scheduled task handed back before it started: awaiting it runs it, dropping it drops it.
///
/// Its result is dropped; its handle has resolved to `Shutdown`. A panic of it comes out where it is awaited. What it starts
/// on the wheel that was shut down is refused: a task that sets timeouts of its own needs another wheel for them, or Tokio's.
///
/// It is no future itself: [`into_future`](IntoFuture::into_future) makes one, to be spawned.
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
/// Side by side, so that one that is slow or panics holds up no other:
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

/// Places an emptied roster keeps.
const RETAINED: usize = 1024;

/// The scheduled tasks that have not started: what a shutdown hands back. One for each shard.
pub(crate) struct Roster(Mutex<Option<Slab<Arc<dyn Unstarted>>>>);

impl Roster {
    pub(crate) fn new() -> Roster {
        Roster(Mutex::new(Some(Slab::new())))
    }

    /// Puts a task down; `None` when the roster has been closed.
    pub(crate) fn enlist(&self, task: Arc<dyn Unstarted>) -> Option<usize> {
        lock(&self.0).as_mut().map(|tasks| tasks.insert(task))
    }

    pub(crate) fn strike(&self, place: usize) {
        let struck = lock(&self.0).as_mut().map(|tasks| {
            let task = tasks.remove(place);
            // A burst is not paid for ever.
            let emptied = tasks.is_empty() && tasks.capacity() > RETAINED;
            (task, emptied.then(|| mem::take(tasks)))
        });
        drop(struck);
    }

    fn close(&self) -> impl Iterator<Item = Arc<dyn Unstarted>> + use<> {
        let tasks = lock(&self.0).take();
        tasks.into_iter().flatten().map(|(_, task)| task)
    }
}

/// What a shutdown can do with a task, whatever the task's future.
pub(crate) trait Unstarted: Send + Sync {
    /// Takes the task out of the wheel, unless it has started or been cancelled. Whoever awaits it is for the caller to wake.
    fn hand_back(&self, wakers: &mut Wakers) -> Option<ScheduledTask>;
}
