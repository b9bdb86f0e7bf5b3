//! Which engine is a timer's: that of its wheel in the runtime in which it is polled, which begins if there is
//! none, or in the runtime that was given to the builder. And what all engines of a wheel add up to.

use tokio::runtime::{Handle, Id};

use super::{
    driver::{alternative::TokioTimers, tokio_timer::panic_as_ended},
    engine::{Engine, Engines, engines},
    shared::{Shared, Tally, WheelId, WheelRef},
    sync::Arc,
    turn::existing,
};

/// Returns the engine of a wheel for a timer that is polled in the runtime `here`, and begins one if there is
/// none. If the builder was given a runtime, this is the engine there. Returns `None` if the runtime drops its
/// tasks and has ended its alternative timers before: whoever polls there is about to be dropped.
///
/// # Panics
///
/// Panics as Tokio's timers do if the runtime has none, or they have ended.
#[track_caller]
pub(crate) fn engine_for(wheel: &WheelRef, here: Option<Id>) -> Option<Arc<Engine>> {
    let shared = wheel.shared();
    let given = engine_in_builder_runtime(shared);
    if given.is_some() {
        return given;
    }
    // No closure, because a panic in one would not name the caller.
    let here = match here {
        Some(runtime) => runtime,
        None => current(shared).id(),
    };
    let found = find(shared, here);
    if found.is_some() {
        return found;
    }
    // Asked again, because what the thread has learnt may be a runtime that has ended.
    match Engine::begin(shared, &current(shared)) {
        Err(TokioTimers::Usual) => panic_as_ended(),
        begun => begun.ok(),
    }
}

/// Finds or begins the engine of the runtime that was given to the builder. Returns `None` if that runtime
/// has ended, because each timer then waits on the runtime that polls it.
#[track_caller]
fn engine_in_builder_runtime(shared: &Arc<Shared>) -> Option<Arc<Engine>> {
    let runtime = shared.builder_runtime()?;
    if let Some(engine) = find(shared, runtime) {
        return Some(engine);
    }
    let begun = Engine::begin(shared, &shared.builder_handle()?);
    // Once its timers have ended, the wheel goes by the runtime that polls, as after the end of an engine.
    if begun.is_err() {
        shared.forget_builder_runtime(runtime);
    }
    begun.ok()
}

fn find(shared: &Shared, runtime: Id) -> Option<Arc<Engine>> {
    engines().get(&(shared.wheel, runtime)).cloned()
}

/// Returns the current runtime.
///
/// # Panics
///
/// Panics with Tokio's message if there is none. For a wheel other than that of `tickwheel::time`, the
/// message also says what to do.
#[track_caller]
fn current(shared: &Shared) -> Handle {
    match Handle::try_current() {
        Ok(runtime) => runtime,
        // In the destructor of a thread-local there is no runtime to poll it in.
        Err(error) if shared.wheel == WheelId::GLOBAL || error.is_thread_local_destroyed() => {
            panic!("{error}")
        }
        Err(error) => panic!("{error}: poll it in one, or give its wheel one with `Builder::handle`"),
    }
}

/// Returns a handle of the runtime that was given to the builder of a wheel, with the wheel's engine there,
/// unless it has ended.
pub(crate) fn builder_handle(shared: &Arc<Shared>) -> Option<Handle> {
    engine_in_builder_runtime(shared)?;
    shared.builder_handle()
}

/// Returns the engines of a wheel.
pub(crate) fn of_wheel(shared: &Shared) -> Vec<Arc<Engine>> {
    of_wheel_among(&engines(), shared).cloned().collect()
}

fn of_wheel_among<'a>(engines: &'a Engines, shared: &Shared) -> impl Iterator<Item = &'a Arc<Engine>> {
    let of_wheel = engines.iter().filter(|((wheel, _), _)| *wheel == shared.wheel);
    of_wheel.map(|(_, engine)| engine)
}

/// The counts and the memory of a wheel, in all runtimes.
#[derive(Debug, Default)]
pub(crate) struct WheelUsage {
    pub(crate) tally: Tally,
    pub(crate) pending: usize,
    pub(crate) engines: usize,
    pub(crate) arena_bytes: usize,
}

/// Adds up the counts and the memory of a wheel's engines, and the counts of engines that have ended.
pub(crate) fn usage(shared: &Shared) -> WheelUsage {
    // Under this lock no shard ends, which would count twice or not at all.
    let engines = engines();
    let mut usage = WheelUsage {
        // An engine that ends adds to this, and leaves the list, in one step.
        tally: shared.ended_tally(),
        ..WheelUsage::default()
    };
    for engine in of_wheel_among(&engines, shared) {
        usage.engines += 1;
        for shard in existing(&engine.shards) {
            // Each under its own lock, so the sum is exact only while no timer changes.
            let of_shard = shard.usage();
            usage.tally.add(of_shard.tally);
            usage.pending += of_shard.pending;
            usage.arena_bytes += of_shard.arena_bytes;
        }
    }
    usage
}

/// Returns whether the global wheel has due timers in the current runtime whose tasks have not been woken.
#[cfg(feature = "test-util")]
pub(crate) fn global_is_behind() -> bool {
    let engine = find(Shared::global(), Handle::current().id());
    engine.is_some_and(|engine| {
        let now = engine.alarm.now();
        existing(&engine.shards).any(|shard| shard.next_visit() <= now)
    })
}
