//! The wheels of the runtimes of the process: how each is found, and how it is dropped together with its runtime.
//!
//! 1. A registry maps runtime ids to wheels. Because an id may be reused after its runtime has ended, it is trusted only while that runtime
//!    lives.
//! 2. A keeper task, which never completes, marks the lifetime of a runtime. A runtime that ends drops its tasks, and the drop of the keeper
//!    removes the entry from the registry before another runtime can get the id. An entry is added only after its keeper has been spawned,
//!    so there is no entry without a keeper.
//! 3. Each thread caches the last wheel that it found, and uses it while it is in the same runtime and the keeper lives. That check only
//!    reads values that no worker writes often. The one shared value that workers write is Tokio's reference count of the runtime's handle,
//!    since only a clone of the handle tells which runtime has been entered.

use std::{
    cell::RefCell,
    future::poll_fn,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU8, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::runtime::{Handle, Id, RuntimeFlavor};

use crate::{
    engine::{
        driver::spawn,
        shard::{learn_vtable, visited_by_other_runtime},
        sync::lock,
    },
    wheel::{Wheel, builder::Builder},
};

/// The settings of current wheels.
pub(super) static SETTINGS: OnceLock<Builder> = OnceLock::new();

/// A list, because a process has few runtimes, and a thread looks here only when it enters another one.
static REGISTRY: Mutex<Vec<(Id, Arc<Current>)>> = Mutex::new(Vec::new());

/// The wheel of every runtime that had ended before it had one. It keeps none of them.
static ENDED: OnceLock<Arc<Current>> = OnceLock::new();

thread_local! {
    /// The wheel that this thread found last, and the id of its runtime.
    static LAST: RefCell<Option<(Id, Arc<Current>)>> = const { RefCell::new(None) };
}

/// The entry of a runtime and its wheel.
pub(super) struct Current {
    /// [`GONE`], [`ALIVE`] or [`TIMED`], in ascending order: each stage allows more than the one before.
    stage: AtomicU8,
    pub(super) wheel: Wheel,
}

/// The runtime has ended, or is about to end.
const GONE: u8 = 0;
/// The runtime is alive. Whether it has timers is unknown.
const ALIVE: u8 = 1;
/// The runtime is alive and is known to have timers. Without timers, no future of [`time`](crate::time) can be created.
pub(super) const TIMED: u8 = 2;

/// Finds or creates the wheel of a runtime.
pub(super) fn wheel_of(runtime: &Handle) -> Wheel {
    with_last(runtime.id(), ALIVE, Wheel::clone).unwrap_or_else(|| find(runtime).wheel.clone())
}

/// Returns the wheels of all runtimes that have used theirs.
pub(super) fn all() -> Vec<Wheel> {
    let registry = lock(&REGISTRY);
    registry
        .iter()
        .map(|(_, current)| current.wheel.clone())
        .collect()
}

/// Calls `act` with the wheel that this thread found last, if it belongs to `runtime` and that runtime has reached `stage`.
#[inline]
pub(super) fn with_last<R>(runtime: Id, stage: u8, act: impl FnOnce(&Wheel) -> R) -> Option<R> {
    LAST.try_with(|last| match &*last.try_borrow().ok()? {
        Some((known, current)) if *known == runtime && current.stage.load(Ordering::Acquire) >= stage => {
            Some(act(&current.wheel))
        }
        _ => None,
    })
    .ok()
    .flatten()
}

/// Finds the wheel of a runtime, after checking that the runtime has timers.
#[track_caller]
#[cold]
pub(super) fn timed(runtime: &Handle) -> Arc<Current> {
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
        self.0.wheel.end_without_handle();
        self.0.wheel.runtime_has_gone();
        // Usually, the thread that ends a runtime is the one that was in it.
        let kept = LAST.try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            last.take_if(|(_, current)| Arc::ptr_eq(current, &self.0))
        });
        drop(kept);
    }
}
