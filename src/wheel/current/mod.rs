//! The current runtime's wheel, as callers and futures find it. [`registry`] has the wheels of all runtimes.
//!
//! A future that is made in a task is bound to a wheel by its first pending poll. A thread keeps a table of the tasks of a multi-thread
//! runtime that it knows (`engine/shard/tasks.rs`), and binds the futures of these without the handle.

mod error;
mod registry;

use std::task::Waker;

use tokio::{
    runtime::{Handle, Id, RuntimeFlavor},
    task,
    time::Instant,
};

use crate::{
    engine::{
        clock::Moment,
        shard::{ShardRef, Timer},
    },
    wheel::{Wheel, builder::Builder},
};
use registry::{SETTINGS, TIMED, timed, with_last};

pub use error::{NoRuntime, SetDefaultError};

impl Wheel {
    /// Returns the wheel of the current runtime, which is created on first use.
    ///
    /// Each runtime has one wheel, which it drives, and whose timers use the clock of that runtime. Concurrent tests with
    /// paused clocks therefore do not disturb each other. The settings are those of [`Builder::set_default`], and by default
    /// the wheel has as many shards as the runtime has workers, rounded up to a power of two. This is the wheel of
    /// [`tickwheel::time`](crate::time).
    ///
    /// The wheel is dropped with its runtime. A handle that is kept longer still works: a runtime that polls its timers then
    /// drives them.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime, with Tokio's message.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// tickwheel::time::sleep(std::time::Duration::from_millis(20)).await;
    /// assert_eq!(Wheel::current().metrics().expired, 1);
    /// # }
    /// ```
    #[track_caller]
    pub fn current() -> Wheel {
        registry::wheel_of(&Handle::current())
    }

    /// Returns the wheel of the current runtime, as [`current`](Wheel::current) does, or an error outside a runtime.
    ///
    /// # Errors
    ///
    /// Returns [`NoRuntime`] outside a Tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// assert!(tickwheel::Wheel::try_current().is_err());
    /// ```
    pub fn try_current() -> Result<Wheel, NoRuntime> {
        let runtime = Handle::try_current().map_err(NoRuntime)?;
        Ok(registry::wheel_of(&runtime))
    }

    /// Returns the current wheels of all runtimes of the process, in no particular order, for an exporter of metrics.
    ///
    /// Runtimes that have not used their wheel yet have none.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// tickwheel::time::sleep(std::time::Duration::from_millis(20)).await;
    /// let expired: u64 = Wheel::current_all().iter().map(|wheel| wheel.metrics().expired).sum();
    /// assert_eq!(expired, 1);
    /// # }
    /// ```
    pub fn current_all() -> Vec<Wheel> {
        registry::all()
    }
}

/// Calls `act` with the wheel of the current runtime, which is known to have timers by then.
///
/// # Panics
///
/// Panics outside a Tokio runtime, and on one without timers, with Tokio's message.
#[track_caller]
#[inline]
pub(crate) fn with_wheel<R>(act: impl Fn(&Wheel) -> R) -> R {
    // The handle is dropped at once: all workers share its reference count, and contend for it less the sooner it is dropped.
    with_wheel_of(Handle::current().id(), act)
}

#[track_caller]
#[inline]
fn with_wheel_of<R>(runtime: Id, act: impl Fn(&Wheel) -> R) -> R {
    match with_last(runtime, TIMED, &act) {
        Some(made) => made,
        None => act(&timed(&Handle::current()).wheel),
    }
}

/// Returns the shard reference for a new future. In a task that is an unbound one, so that a future that is ready at its first poll
/// touches no wheel. A runtime that has ended gives an unbound one too, because it drives nothing any more.
///
/// # Panics
///
/// Outside a task, panics in the same cases as [`with_wheel`].
#[track_caller]
#[inline]
pub(crate) fn shard_ref() -> ShardRef {
    match task::try_id() {
        Some(_) => ShardRef::UNBOUND,
        None => shard_outside_task(),
    }
}

/// Returns the shard reference for a new future as [`shard_ref`] does, and the current moment.
#[track_caller]
#[inline]
pub(crate) fn shard_ref_and_now() -> (ShardRef, Moment) {
    match task::try_id() {
        // Tokio's thread-locals are there inside a task, so unlike `ShardRef::now` this need not ask.
        Some(_) => (ShardRef::UNBOUND, Moment::of(Instant::now())),
        None => shard_and_now_outside_task(),
    }
}

#[track_caller]
#[cold]
fn shard_and_now_outside_task() -> (ShardRef, Moment) {
    let shard = shard_outside_task();
    let now = shard.now();
    (shard, now)
}

#[track_caller]
#[cold]
fn shard_outside_task() -> ShardRef {
    let runtime = Handle::current().id();
    match ShardRef::kept_for(runtime) {
        Some(kept) => kept,
        None => match shard_of(runtime) {
            ended if ended.may_retire() => ShardRef::UNBOUND,
            shard => shard,
        },
    }
}

/// Binds a timer to the wheel of the runtime that polls it with `waker`.
///
/// # Panics
///
/// Panics in the same cases as [`with_wheel`].
#[inline(always)]
pub(crate) fn bind(timer: &mut Timer, waker: &Waker) {
    match ShardRef::at_home(waker) {
        Some(home) => timer.bind(home),
        None => bind_by_handle(timer, waker),
    }
}

/// Binds a timer to the current runtime's wheel.
#[inline(never)]
fn bind_by_handle(timer: &mut Timer, waker: &Waker) {
    let (runtime, flavor) = {
        let runtime = Handle::current();
        (runtime.id(), runtime.runtime_flavor())
    };
    match flavor {
        RuntimeFlavor::MultiThread => bind_on_worker(timer, waker, runtime),
        _ => timer.bind(ShardRef::kept_for(runtime).unwrap_or_else(|| shard_of(runtime))),
    }
}

/// Binds a timer to the wheel of a multi-thread runtime, and makes the task that polls it known to this thread. Out of line, so that a
/// current-thread runtime has a smaller frame.
#[inline(never)]
fn bind_on_worker(timer: &mut Timer, waker: &Waker, runtime: Id) {
    if let Some(home) = ShardRef::at_home_of(runtime, waker) {
        return timer.bind(home);
    }
    let shard = ShardRef::kept_for(runtime).unwrap_or_else(|| shard_of(runtime));
    shard.make_home(waker);
    timer.bind(shard);
}

#[track_caller]
#[inline(never)]
fn shard_of(runtime: Id) -> ShardRef {
    with_wheel_of(runtime, |wheel| wheel.shard().into())
}

impl Builder {
    /// Makes these the settings of every current wheel that is created from now on in this process.
    ///
    /// Call this once, at the start of the program. Wheels that runtimes already have keep the settings that they were created
    /// with.
    ///
    /// # Errors
    ///
    /// Returns a [`SetDefaultError`] if default settings have already been set, if a setting is outside its limits, or if a
    /// [`handle`](Builder::handle) was given, because a current wheel is driven by its own runtime. After a refused call, another
    /// call may succeed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Wheel;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tickwheel::SetDefaultError> {
    /// Wheel::builder().tick_duration(Duration::from_millis(1)).set_default()?;
    /// assert_eq!(Wheel::current().tick_duration(), Duration::from_millis(1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_default(self) -> Result<(), SetDefaultError> {
        if self.handle.is_some() {
            return Err(SetDefaultError::Handle);
        }
        self.check().map_err(SetDefaultError::Build)?;
        SETTINGS.set(self).map_err(|_| SetDefaultError::AlreadySet)
    }
}
