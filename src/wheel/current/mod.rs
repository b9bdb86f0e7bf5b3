//! The current runtime's wheel: how it is found, and how it is dropped together with its runtime.
//!
//! 1. A registry maps runtime ids to wheels. Because an id may be reused after its runtime has ended, it is trusted only while that runtime
//!    lives.
//! 2. A keeper task, which never completes, marks the lifetime of a runtime. A runtime that ends drops its tasks, and the drop of the keeper
//!    removes the entry from the registry before another runtime can get the id. An entry is added only after its keeper has been spawned,
//!    so there is no entry without a keeper.
//! 3. Each thread caches the last wheel that it found, and uses it while it is in the same runtime and the keeper lives. That check only
//!    reads values that no worker writes often. The one shared value that workers write is Tokio's reference count of the runtime's handle,
//!    since only a clone of the handle tells which runtime has been entered.
//! 4. A future that is made in a task is bound to a wheel by its first pending poll. A thread keeps a table of the tasks of a
//!    multi-thread runtime that it knows (`engine/shard/tasks.rs`), and binds the futures of these without the handle.

mod error;

use std::{
    cell::RefCell,
    future::poll_fn,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id, RuntimeFlavor},
    task,
    time::Instant,
};

use crate::{
    engine::{
        clock::Moment,
        driver::spawn,
        shard::{ShardRef, Timer, learn_vtable, visited_by_other_runtime},
        sync::lock,
    },
    wheel::{Wheel, builder::Builder},
};

pub use error::{NoRuntime, SetDefaultError};

/// The settings of current wheels.
static SETTINGS: OnceLock<Builder> = OnceLock::new();

/// A list, because a process has few runtimes, and a thread looks here only when it enters another one.
static REGISTRY: Mutex<Vec<(Id, Arc<Current>)>> = Mutex::new(Vec::new());

/// The wheel of every runtime that had ended before it had one. It keeps none of them.
static ENDED: OnceLock<Arc<Current>> = OnceLock::new();

thread_local! {
    /// The wheel that this thread found last, and the id of its runtime.
    static LAST: RefCell<Option<(Id, Arc<Current>)>> = const { RefCell::new(None) };
}

/// The entry of a runtime and its wheel.
struct Current {
    /// [`GONE`], [`ALIVE`] or [`TIMED`], in ascending order: each stage allows more than the one before.
    stage: AtomicU8,
    wheel: Wheel,
}

/// The runtime has ended, or is about to end.
const GONE: u8 = 0;
/// The runtime is alive. Whether it has timers is unknown.
const ALIVE: u8 = 1;
/// The runtime is alive and is known to have timers. Without timers, no future of [`time`](crate::time) can be created.
const TIMED: u8 = 2;

impl Wheel {
    /// Returns the wheel of the current runtime, which is created on first use.
    ///
    /// Each runtime has one wheel, which it drives, and whose timers use the clock of that runtime. Concurrent tests with paused
    /// clocks therefore do not disturb each other. The settings are those of [`Builder::set_default`], and by default the wheel
    /// has as many shards as the runtime has workers. This is the wheel of [`tickwheel::time`](crate::time).
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
        let runtime = Handle::current();
        with_last(runtime.id(), ALIVE, Wheel::clone).unwrap_or_else(|| find(&runtime).wheel.clone())
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
        Ok(with_last(runtime.id(), ALIVE, Wheel::clone).unwrap_or_else(|| find(&runtime).wheel.clone()))
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
        let registry = lock(&REGISTRY);
        registry
            .iter()
            .map(|(_, current)| current.wheel.clone())
            .collect()
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

/// Calls `act` with the wheel that this thread found last, if it belongs to `runtime` and that runtime has reached `stage`.
#[inline]
fn with_last<R>(runtime: Id, stage: u8, act: impl FnOnce(&Wheel) -> R) -> Option<R> {
    LAST.try_with(|last| match &*last.try_borrow().ok()? {
        Some((known, current)) if *known == runtime && current.has_reached(stage) => {
            Some(act(&current.wheel))
        }
        _ => None,
    })
    .ok()
    .flatten()
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
#[inline(never)]
pub(crate) fn bind(timer: &mut Timer, waker: &Waker) {
    if !timer.bind_at_home(waker, None) {
        bind_by_handle(timer, waker);
    }
}

/// Binds a timer to the current runtime's wheel, and makes the task that polls it known to this thread.
#[inline(never)]
fn bind_by_handle(timer: &mut Timer, waker: &Waker) {
    let (runtime, flavor) = {
        let runtime = Handle::current();
        (runtime.id(), runtime.runtime_flavor())
    };
    let is_multi_thread = flavor == RuntimeFlavor::MultiThread;
    if is_multi_thread && timer.bind_at_home(waker, Some(runtime)) {
        return;
    }
    let shard = ShardRef::kept_for(runtime).unwrap_or_else(|| shard_of(runtime));
    if is_multi_thread {
        shard.make_home(waker);
    }
    timer.bind(shard);
}

#[track_caller]
#[inline(never)]
fn shard_of(runtime: Id) -> ShardRef {
    with_wheel_of(runtime, |wheel| wheel.shard().into())
}

/// Finds the wheel of a runtime, after checking that the runtime has timers.
#[track_caller]
#[cold]
fn timed(runtime: &Handle) -> Arc<Current> {
    // Tokio panics here, with its own message, if the runtime has no timers.
    drop(tokio::time::sleep(Duration::ZERO));
    let current = find(runtime);
    // A runtime that has ended meanwhile stays `GONE`.
    let _ = current
        .stage
        .compare_exchange(ALIVE, TIMED, Ordering::AcqRel, Ordering::Relaxed);
    for shard in &current.wheel.parts.shards {
        shard.belongs_to(runtime.id());
    }
    current
}

/// Finds or creates the wheel of a runtime, and caches it for this thread.
#[cold]
fn find(runtime: &Handle) -> Arc<Current> {
    if runtime.runtime_flavor() != RuntimeFlavor::MultiThread {
        visited_by_other_runtime();
    }
    let id = runtime.id();
    let registered = entry_of(id, &lock(&REGISTRY));
    // An entry that this thread knows and that is registered no more is of a runtime that has ended. To ask the runtime itself, a task has
    // to be spawned on it. A new runtime with the same id is taken for the old one until another thread registers it. Tokio only reserves
    // the right to reuse ids; the timers of such a runtime would be on the wheel of `ENDED` ones, and driven by the runtime all the same.
    let has_ended = registered.is_none() && with_last(id, GONE, |_| ()).is_some();
    let alive = match has_ended {
        true => None,
        false => registered.or_else(|| register(id, runtime)),
    };
    let current = alive.unwrap_or_else(|| ENDED.get_or_init(|| ended(runtime)).clone());
    // The former entry is dropped outside the borrow, because its drop may run other code that may come here.
    let former = LAST.try_with(|last| Some(last.try_borrow_mut().ok()?.replace((id, current.clone()))));
    drop(former);
    current
}

fn ended(runtime: &Handle) -> Arc<Current> {
    let ended = Current::create(GONE, runtime);
    ended.wheel.runtime_has_gone();
    ended
}

/// Creates and registers the wheel of a runtime. If another thread was first, this returns that thread's entry, and if the runtime has
/// ended, `None`.
fn register(id: Id, runtime: &Handle) -> Option<Arc<Current>> {
    let current = Current::create(ALIVE, runtime);
    // No lock is held here, because a runtime that has been shut down drops the keeper at once, which takes the lock.
    let task = spawn(runtime, Box::pin(Keeper(current.clone()).keep()));
    let first = {
        let mut registry = lock(&REGISTRY);
        if current.stage.load(Ordering::Relaxed) == GONE {
            return None;
        }
        entry_of(id, &registry).unwrap_or_else(|| {
            registry.push((id, current.clone()));
            current.clone()
        })
    };
    if !Arc::ptr_eq(&first, &current) {
        task.abort();
    }
    Some(first)
}

fn entry_of(id: Id, registry: &[(Id, Arc<Current>)]) -> Option<Arc<Current>> {
    let found = registry.iter().find(|(runtime, _)| *runtime == id);
    found.map(|(_, current)| current.clone())
}

impl Current {
    fn create(stage: u8, runtime: &Handle) -> Arc<Current> {
        let settings = SETTINGS.get().cloned().unwrap_or_default();
        Arc::new(Current {
            stage: AtomicU8::new(stage),
            wheel: settings.build_current(runtime),
        })
    }

    #[inline]
    fn has_reached(&self, stage: u8) -> bool {
        self.stage.load(Ordering::Acquire) >= stage
    }
}

/// A task whose drop shows that its runtime ends.
struct Keeper(Arc<Current>);

impl Keeper {
    async fn keep(self) {
        let _keeper = self;
        poll_fn(|cx| {
            learn_vtable(cx.waker());
            Poll::Pending
        })
        .await
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        {
            let mut registry = lock(&REGISTRY);
            self.0.stage.store(GONE, Ordering::Release);
            registry.retain(|(_, current)| !Arc::ptr_eq(current, &self.0));
            // The memory for many runtimes is not kept once all of them have ended.
            if registry.is_empty() {
                *registry = Vec::new();
            }
        }
        self.0.wheel.runtime_has_gone();
        // Usually, the thread that ends a runtime is the one that was in it.
        let kept = LAST.try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            last.take_if(|(_, current)| Arc::ptr_eq(current, &self.0))
        });
        drop(kept);
    }
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
