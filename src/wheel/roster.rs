//! The roster: the tasks that a shutdown hands back or wakes.

use std::{fmt, mem, pin::Pin, sync::Arc, task::Waker};

use slab::Slab;
use tokio::time::Instant;

use crate::{
    engine::{
        shared::{Shared, WheelRef},
        sync::{Mutex, lock},
    },
    error::SleepError,
    wheel::permits::Permits,
};

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

/// What a shutdown of the wheel has to reach: the [`Waker`]s of tasks that then find the wheel shut down, or
/// the [`UnstartedTask`]s that it hands back.
pub(crate) struct Roster<M> {
    pub(crate) permits: Arc<Permits>,
    /// `None` once the wheel has been shut down.
    members: Mutex<Option<Slab<M>>>,
}

impl<M> Roster<M> {
    pub(crate) fn new(permits: Arc<Permits>) -> Roster<M> {
        Roster {
            permits,
            members: Mutex::new(Some(Slab::new())),
        }
    }

    /// Adds a member and returns its place. Fails if the wheel has been shut down.
    ///
    /// # Panics
    ///
    /// Panics if the roster has four billion members.
    #[inline]
    pub(crate) fn add(&self, member: M) -> Result<u32, SleepError> {
        let mut members = lock(&self.members);
        let place = members.as_mut().ok_or(SleepError::Shutdown)?.insert(member);
        Ok(u32::try_from(place).expect("a roster has at most four billion members"))
    }

    pub(crate) fn remove(&self, place: u32) {
        let mut guard = lock(&self.members);
        let Some(members) = guard.as_mut() else { return };
        let member = members.remove(place as usize);
        // Two ways to the end take 17 instructions less than one with an `Option`.
        if members.is_empty() && members.capacity() > RETAINED {
            // After a burst, an empty roster frees its memory.
            let emptied = mem::take(members);
            drop(guard);
            drop(emptied);
        } else {
            drop(guard);
        }
        // With no lock held, because its destructor may be code of the user's.
        drop(member);
    }

    pub(crate) fn close(&self) -> impl Iterator<Item = M> + use<M> {
        let members = lock(&self.members).take();
        members.into_iter().flatten().map(|(_, member)| member)
    }
}

impl Roster<Waker> {
    /// Makes a place wake another task. Fails if the wheel has been shut down.
    pub(crate) fn redirect(&self, place: u32, waker: &Waker) -> Result<(), SleepError> {
        // Cloned before the lock is taken, and dropped after it, because that may be code of the user's.
        let mut waker = waker.clone();
        let mut members = lock(&self.members);
        let members = members.as_mut().ok_or(SleepError::Shutdown)?;
        mem::swap(&mut members[place as usize], &mut waker);
        Ok(())
    }
}

/// What the threads of one stripe share for the timers that begin there.
pub(crate) struct Stripe {
    /// Of which those of the timers are clones.
    pub(crate) reference: WheelRef,
    pub(crate) sleepers: Arc<Roster<Waker>>,
    pub(crate) tasks: Arc<Roster<UnstartedTask>>,
}

impl Stripe {
    pub(crate) fn new(shared: &Arc<Shared>, permits: &Arc<Permits>) -> Stripe {
        Stripe {
            reference: WheelRef::new(shared),
            sleepers: Arc::new(Roster::new(permits.clone())),
            tasks: Arc::new(Roster::new(permits.clone())),
        }
    }
}

/// A scheduled task that has not started.
pub(crate) type UnstartedTask = Arc<dyn Unstarted>;

/// The operations of a shutdown on a task, independent of the type of the task's future.
pub(crate) trait Unstarted: Send + Sync {
    /// Takes the task out of the wheel, unless it has started or been cancelled. The caller wakes the
    /// `joiners`, who wait for its result.
    fn hand_back(&self, joiners: &mut Vec<Waker>) -> Option<ScheduledTask>;
}
