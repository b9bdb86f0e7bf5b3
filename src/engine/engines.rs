//! `Engine`: one runtime's part of a wheel, bound to that runtime for life. This file has the list of all
//! engines, and how each begins, makes its turns and ends.
//!
//! **How an engine ends.** A runtime that shuts down drops its tasks one by one, in any order, while others
//! are still polled, and destructors start timers, which have to work as Tokio's do. So dropping the engine's
//! task does not end the engine. It only marks the engine as closing, and makes sure that Tokio's timer is
//! set. Once the tasks are gone, Tokio fires all of its timers, even those whose moment has not come, and so
//! ends the engine: it leaves the list of engines and wakes all of its pending tasks. An engine that ended by
//! mistake would do no harm, because the next poll begins another one, which is closing from the start. Once
//! the runtime's timers have ended, a poll panics with Tokio's message.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    collections::HashMap,
    future::poll_fn,
    hash::{BuildHasherDefault, DefaultHasher},
    ptr,
    task::{Poll, Wake, Waker},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    task::{unconstrained, yield_now},
    time::sleep,
};

use super::{
    clock::{Clock, Moment, Nanos, may_be_paused_in},
    driver::{
        TokioTimers,
        alarm::{Alarm, Driver, Next, SetOutcome},
        kernel_timer::KernelTimer,
        timers_of,
        tokio_timer::{begin_of_millisecond, is_setting, panic_as_ended},
    },
    events::{self, catch_panic},
    shard::Shard,
    shared::{Shared, Tally, WheelId, WheelRef},
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, Ordering::Relaxed, lock},
    waker_id::WakerId,
};

/// All engines of the process, of which there are few. The lock is taken when an engine begins or ends, by a
/// timer whose thread does not remember its shard, by a task that is scheduled on a builder's runtime, and to
/// collect metrics.
type Engines = HashMap<(WheelId, Id), Arc<Engine>, BuildHasherDefault<DefaultHasher>>;

static ENGINES: LazyLock<Mutex<Engines>> = LazyLock::new(Mutex::default);

pub(super) fn engines() -> MutexGuard<'static, Engines> {
    lock(LazyLock::force(&ENGINES))
}

/// How long an engine is kept after it has become unused, because beginning one takes as long as hundreds of
/// timers.
const LINGER: Duration = Duration::from_millis(10);

/// The number of timers that expire under one lock. With fewer, threads that register timers take the lock so
/// often in between that a storm, in which very many timers are due at once, takes longer. With more, a
/// thread that waits for the lock waits for milliseconds.
const BATCH: usize = 256;

/// After waking this many tasks, or after [`SLICE_TIME`], a turn lets other tasks run. Until then no worker
/// polls I/O, because the worker that makes the turn holds Tokio's driver.
const SLICE: usize = 1024;
const SLICE_TIME: Nanos = Nanos::MILLISECOND;

pub(crate) struct Engine {
    runtime: Id,
    shared: Arc<Shared>,
    pub(crate) alarm: Arc<Alarm>,
    /// One for each number of a thread or worker, made for its first timer.
    pub(crate) shards: Box<[OnceLock<Arc<Shard>>]>,
}

/// Returns the engines of a wheel.
pub(crate) fn of_wheel(shared: &Shared) -> Vec<Arc<Engine>> {
    of_wheel_among(&engines(), shared).cloned().collect()
}

fn of_wheel_among<'a>(engines: &'a Engines, shared: &Shared) -> impl Iterator<Item = &'a Arc<Engine>> {
    let of_wheel = engines.iter().filter(|((wheel, _), _)| *wheel == shared.wheel);
    of_wheel.map(|(_, engine)| engine)
}

/// Returns the engine of a wheel for a timer that is polled in the runtime `here`, and begins one if there is
/// none. If the builder was given a runtime, this is the engine there.
///
/// # Panics
///
/// Panics as Tokio's timers do if the runtime has none, or they have ended.
#[track_caller]
pub(crate) fn engine_for(wheel: &WheelRef, here: Option<Id>) -> Arc<Engine> {
    let shared = wheel.shared();
    if let Some(engine) = engine_in_builder_runtime(shared) {
        return engine;
    }
    // No closure, because a panic in one would not name the caller.
    let here = match here {
        Some(runtime) => runtime,
        None => current(shared).id(),
    };
    if let Some(engine) = find(shared, here) {
        return engine;
    }
    let runtime = current(shared);
    let timers = timers_of(&runtime);
    match begin(shared, &runtime, timers) {
        Some(engine) => engine,
        None if timers == TokioTimers::Alternative => undriven(shared, &runtime),
        None => panic_as_ended(),
    }
}

/// Returns an engine that nobody drives, for timers that tasks start while a runtime with the alternative
/// timer drops them.
#[cold]
fn undriven(shared: &Arc<Shared>, runtime: &Handle) -> Arc<Engine> {
    let engine = Engine::new(shared, runtime, Moment::now(), TokioTimers::Alternative);
    engine.alarm.set_up(runtime, None, Waker::noop().clone());
    engine
}

/// Returns a handle of the runtime that was given to the builder of a wheel, with the wheel's engine there,
/// unless it has ended.
pub(crate) fn builder_handle(shared: &Arc<Shared>) -> Option<Handle> {
    engine_in_builder_runtime(shared)?;
    shared.builder_handle()
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

/// Returns whether the global wheel has due timers in the current runtime whose tasks have not been woken.
#[cfg(feature = "test-util")]
pub(crate) fn global_is_behind() -> bool {
    let engine = find(Shared::global(), Handle::current().id());
    engine.is_some_and(|engine| {
        let clock = &engine.alarm.clock;
        let begin = clock.start_of(clock.tick_at(engine.alarm.now()));
        existing(&engine.shards).any(|shard| shard.next_visit() <= begin)
    })
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
        tally: shared.ended_tally(),
        ..WheelUsage::default()
    };
    for engine in of_wheel_among(&engines, shared) {
        usage.engines += 1;
        for shard in existing(&engine.shards) {
            let of_shard = shard.usage();
            usage.tally.add(of_shard.tally);
            usage.pending += of_shard.pending;
            usage.arena_bytes += of_shard.arena_bytes;
        }
    }
    usage
}

fn find(shared: &Shared, runtime: Id) -> Option<Arc<Engine>> {
    find_among(&engines(), (shared.wheel, runtime))
}

fn find_among(engines: &Engines, key: (WheelId, Id)) -> Option<Arc<Engine>> {
    engines.get(&key).cloned()
}

/// Finds or begins the engine of the runtime that was given to the builder. Returns `None` if that runtime
/// has ended, because each timer then waits on the runtime that polls it.
#[track_caller]
fn engine_in_builder_runtime(shared: &Arc<Shared>) -> Option<Arc<Engine>> {
    let runtime = shared.builder_runtime()?;
    if let Some(engine) = find(shared, runtime) {
        return Some(engine);
    }
    let handle = shared.builder_handle()?;
    let timers = timers_of(&handle);
    let _entered = handle.enter();
    let engine = begin(shared, &handle, timers);
    if engine.is_none() {
        shared.forget_builder_runtime(runtime);
    }
    engine
}

/// Begins the engine of the current runtime, or returns the one that another thread has begun meanwhile.
/// Returns `None` if the runtime's timers have ended.
#[cold]
#[track_caller]
fn begin(shared: &Arc<Shared>, runtime: &Handle, timers: TokioTimers) -> Option<Arc<Engine>> {
    let asks_kernel = shared.settings.has_kernel_timer() && !may_be_paused_in(runtime);
    let kernel_timer = if asks_kernel { KernelTimer::new() } else { None };
    let origin = if kernel_timer.is_some() || timers == TokioTimers::Alternative {
        Moment::now()
    } else {
        begin_of_millisecond()
    };
    let engine = Engine::new(shared, runtime, origin, timers);
    let waker = Waker::from(engine.clone());
    engine.alarm.set_up(runtime, kernel_timer, waker);
    // No lock is held here, because a runtime that is shutting down drops the task at once.
    let task = EngineTask {
        engine: engine.clone(),
    };
    runtime.spawn(task.run());
    let key = (shared.wheel, engine.runtime);
    let mut engines = engines();
    if let Some(other) = find_among(&engines, key) {
        drop(engines);
        engine.end();
        return Some(other);
    }
    if engine.alarm.has_ended() {
        return None;
    }
    engines.insert(key, engine.clone());
    drop(engines);
    // Its first timer may turn out to be due, and then no entry of it is ever cancelled.
    engine.alarm.notify_if_no_handle(shared);
    events::engine_changed(shared.name(), "started");
    Some(engine)
}

impl Engine {
    fn new(shared: &Arc<Shared>, runtime: &Handle, origin: Moment, timers: TokioTimers) -> Arc<Engine> {
        let settings = &shared.settings;
        let clock = Clock::new(origin, settings.tick_duration, settings.slack());
        let shards = settings.shards.unwrap_or_else(|| runtime.metrics().num_workers());
        let places = 0..shards.next_power_of_two();
        Arc::new(Engine {
            runtime: runtime.id(),
            shared: shared.clone(),
            alarm: Arc::new(Alarm::new(clock, timers)),
            shards: places.map(|_| OnceLock::new()).collect(),
        })
    }

    /// Returns the shard of worker or thread `number`. Once the engine has ended, so has the shard.
    pub(crate) fn shard(&self, number: usize) -> Arc<Shard> {
        let shards = self.shards.len();
        let index = number & (shards - 1);
        let new = || {
            let (shared, alarm) = (self.shared.clone(), self.alarm.clone());
            Arc::new(Shard::new(shared, alarm, self.runtime, (index, shards)))
        };
        // An engine ends under this lock, together with the shards that it has by then. A shard that is made
        // afterwards has to be ended here.
        let _engines = engines();
        let shard = self.shards[index].get_or_init(new);
        if self.alarm.has_ended() {
            shard.end(&mut Vec::new());
        }
        shard.clone()
    }

    /// Makes turns until the driver waits, unless another thread is doing so. Returns whether the driver has
    /// more to do once other tasks have run.
    fn run_driver(&self) -> bool {
        while let Some((mut driver, at)) = self.alarm.take() {
            let now = self.alarm.now();
            if self.alarm.is_closing() && at > now {
                // The timer has fired before its moment, because the runtime ends its timers.
                self.end();
                return false;
            }
            if at <= now {
                let tick = self.alarm.clock.tick();
                self.shared.record_turn(tick, now.since(at));
            }
            let next = turn(&self.shards, &self.alarm, &self.shared, &mut driver, now);
            match self.alarm.give_back(driver, now, next) {
                SetOutcome::HasPassed => continue,
                SetOutcome::Ended => self.end(),
                SetOutcome::Waits if at > now => {}
                // There may be no entries left except those of spares.
                SetOutcome::Waits => self.alarm.notify_if_no_handle(&self.shared),
            }
            return next == Next::More;
        }
        false
    }

    /// Gives tasks that have just been woken, or have just dropped a timer, time to start another one.
    async fn linger(&self) {
        if self.alarm.clock.may_be_paused() {
            // A timer would move a paused clock.
            yield_now().await;
        } else {
            sleep(LINGER).await;
        }
    }

    /// Returns whether the engine can end, because its wheel has no handle and no timers here.
    fn is_unused(&self) -> bool {
        if !self.shared.has_no_handle() {
            return false;
        }
        existing(&self.shards).all(|shard| shard.usage().pending == 0)
    }

    /// Ends the engine, unless it has ended already. Its pending futures are woken, and bound to another
    /// engine when they are polled next. The caller holds no lock.
    fn end(&self) {
        let mut engines = engines();
        // Dropped with no lock held, as is the list's reference to this engine.
        let Some(_seat) = self.alarm.take_down() else {
            return;
        };
        let mut wakers = Vec::new();
        let key = (self.shared.wheel, self.runtime);
        // Another thread may have begun the engine that is in the list.
        let is_listed = engines.get(&key).is_some_and(|engine| ptr::eq(&**engine, self));
        let removed = is_listed.then(|| engines.remove(&key)).flatten();
        for shard in existing(&self.shards) {
            shard.end(&mut wakers);
        }
        drop(engines);
        if self.alarm.is_closing() {
            self.shared.forget_builder_runtime(self.runtime);
        }
        self.alarm.engine_task.notify_one();
        wake_all(&mut wakers, &self.shared);
        if removed.is_some() {
            events::engine_changed(self.shared.name(), "ended");
        }
    }
}

/// Makes a turn for the tick in progress at `now`. Entries that become due meanwhile are left to the next
/// turn, because in a storm a turn would otherwise never end.
pub(crate) fn turn(
    shards: &[OnceLock<Arc<Shard>>],
    alarm: &Alarm,
    shared: &Shared,
    driver: &mut Driver,
    now: Moment,
) -> Next {
    let tick = alarm.clock.tick_at(now);
    let begin = alarm.clock.start_of(tick);
    let mut woken = 0;
    loop {
        let mut soonest = (Moment::NEVER, Moment::NEVER);
        let mut has_more = false;
        // Shards are visited in rotation, a batch at a time, so that none waits for the storm of another.
        for index in 0..shards.len() {
            // Their number is a power of two.
            let Some(shard) = shards[(driver.first + index) & (shards.len() - 1)].get() else {
                continue;
            };
            if shard.next_visit() <= begin {
                let advanced = shard.visit(tick, begin, BATCH, &mut driver.wakers);
                if advanced.cascaded > 0 {
                    shared.stats.cascaded.fetch_add(advanced.cascaded as u64, Relaxed);
                }
                wake_all(&mut driver.wakers, shared);
                has_more |= advanced.more;
                woken += advanced.expired;
                let is_spent = woken >= SLICE || advanced.more && alarm.now().since(now) >= SLICE_TIME;
                if is_spent && existing(shards).any(|shard| shard.next_visit() <= begin) {
                    driver.first = driver.first.wrapping_add(1);
                    return Next::More;
                }
            }
            soonest = two_earliest(soonest, shard.next_visit(), shard.visit_after_next());
        }
        if !has_more {
            return Next::At(soonest.0, soonest.1);
        }
    }
}

/// Merges two ordered pairs of moments into the two earliest. A moment that is the first of both pairs counts
/// once.
fn two_earliest((first, second): (Moment, Moment), at: Moment, later: Moment) -> (Moment, Moment) {
    match at.cmp(&first) {
        Less => (at, later.min(first)),
        Equal => (first, later.min(second)),
        Greater => (first, at.min(second)),
    }
}

/// Returns the shards that have been made.
pub(crate) fn existing(shards: &[OnceLock<Arc<Shard>>]) -> impl Iterator<Item = &Arc<Shard>> {
    shards.iter().filter_map(OnceLock::get)
}

/// Wakes the tasks of wakers, with no lock held. If a waker panics, the others are still woken.
pub(crate) fn wake_all(wakers: &mut Vec<Waker>, shared: &Shared) {
    let mut wakers = wakers.drain(..);
    while wakers.len() > 0 && catch_panic(|| wakers.by_ref().for_each(Waker::wake)) {
        shared.stats.panics.fetch_add(1, Relaxed);
        events::waker_panicked(shared.name());
    }
}

/// The waker of Tokio's timer.
impl Wake for Engine {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        if is_setting() {
            return;
        }
        if self.alarm.is_turned_by_task() {
            self.alarm.engine_task.notify_one();
        } else {
            // If there is more to do, `Alarm::give_back` has notified the engine's task.
            let _ = self.run_driver();
        }
    }
}

/// Owned by a task of the engine's runtime, which lives until the engine or the runtime ends.
struct EngineTask {
    engine: Arc<Engine>,
}

impl EngineTask {
    async fn run(self) {
        poll_fn(|cx| {
            WakerId::learn_task(cx.waker());
            Poll::Ready(())
        })
        .await;
        let engine = &self.engine;
        loop {
            engine.alarm.engine_task.notified().await;
            if engine.alarm.has_ended() {
                return;
            }
            if engine.is_unused() {
                engine.linger().await;
                if engine.is_unused() {
                    return engine.end();
                }
            }
            if engine.alarm.clock.is_moved() {
                // A paused clock would move to the next turn, though nothing is due.
                existing(&engine.shards).for_each(|shard| shard.put_off());
            }
            // Wakers that poll timers within a turn must not use up the budget of this task.
            let has_more = unconstrained(poll_fn(|_| Poll::Ready(engine.run_driver()))).await;
            if has_more {
                yield_now().await;
            }
        }
    }
}

impl Drop for EngineTask {
    fn drop(&mut self) {
        let alarm = &self.engine.alarm;
        let ended = alarm.close();
        if alarm.has_alternative_timers() {
            return self.engine.end();
        }
        ended.into_iter().for_each(Waker::wake);
    }
}
