//! `Engine`: one runtime's part of a wheel, bound to that runtime for life: how it begins, has its turns made,
//! and ends.
//!
//! **How an engine ends.** A runtime that shuts down drops its tasks one by one, in any order, while others
//! are still polled, and destructors start timers, which have to work as Tokio's do. So dropping the engine's
//! task does not end the engine. It only marks the engine as closing, and makes sure that Tokio's timer is
//! set. Once the tasks are gone, Tokio fires all of its timers, even those whose moment has not come, and so
//! ends the engine: it leaves the list of engines and wakes all of its pending tasks. An engine that ended by
//! mistake would do no harm, because the next poll begins another one, which is closing from the start. Once
//! the runtime's timers have ended, a poll panics with Tokio's message.

use std::{
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
    time::timeout,
};

use super::{
    clock::{Clock, Moment},
    driver::{
        alarm::{Alarm, SetOutcome},
        alternative::{TokioTimers, timers_of},
        kernel_timer::KernelTimer,
        tokio_timer::{begin_of_millisecond, is_setting},
    },
    events,
    shard::Shard,
    shared::{Shared, WheelId},
    sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, lock},
    test_clock::Source,
    timing_wheel::TimingWheel,
    turn::{existing, turn, wake_all},
    waker_id::WakerId,
};

/// All engines of the process, of which there are few. The lock is taken when an engine begins or ends, by a
/// timer whose thread does not remember its shard, by a task that is scheduled on a builder's runtime, and to
/// collect metrics.
pub(super) type Engines = HashMap<(WheelId, Id), Arc<Engine>, BuildHasherDefault<DefaultHasher>>;

static ENGINES: LazyLock<Mutex<Engines>> = LazyLock::new(Mutex::default);

pub(super) fn engines() -> MutexGuard<'static, Engines> {
    lock(LazyLock::force(&ENGINES))
}

/// How long an engine is kept after it has become unused, because beginning one takes as long as hundreds of
/// timers.
const LINGER: Duration = Duration::from_millis(10);

pub(crate) struct Engine {
    runtime: Id,
    shared: Arc<Shared>,
    pub(crate) alarm: Arc<Alarm>,
    /// One for each number of a thread or worker, made for its first timer.
    pub(crate) shards: Box<[OnceLock<Arc<Shard>>]>,
}

impl Engine {
    /// Begins the engine of a runtime, or returns the one that another thread has begun meanwhile. It may have
    /// ended as one that nobody uses. Returns which timers the runtime has if those have ended.
    #[cold]
    #[track_caller]
    pub(super) fn begin(shared: &Arc<Shared>, runtime: &Handle) -> Result<Arc<Engine>, TokioTimers> {
        let (source, timers) = (Source::of(runtime), timers_of(runtime));
        // Timers of Tokio's and of the kernel's are those of the current runtime.
        let _entered = runtime.enter();
        let settings = &shared.settings;
        let asks_kernel = settings.has_kernel_timer() && source.is_kernels();
        let kernel_timer = if asks_kernel { KernelTimer::new() } else { None };
        // Ticks begin with Tokio's milliseconds, unless nothing is rounded up to those. The alternative timer
        // does not tell where they begin.
        let origin = if kernel_timer.is_some() || timers == TokioTimers::Alternative {
            Moment::now()
        } else {
            begin_of_millisecond(source.precision())
        };
        let clock = Clock::new(origin, settings.tick_duration, source.slack(settings.slack));
        let engine = Engine::new(shared, runtime, Alarm::new(source, clock, timers));
        let waker = Waker::from(engine.clone());
        engine.alarm.set_up(runtime, kernel_timer, waker);
        let task = EngineTask(engine.clone());
        // Before others can find the engine, which its task tells of the runtime's end. No lock is held here, because a
        // runtime that is shutting down drops the task at once.
        runtime.spawn(task.run());
        let key = (shared.wheel, engine.runtime);
        let mut engines = engines();
        // Another thread has been faster. The task of this engine finds it ended, and returns.
        if let Some(other) = engines.get(&key).cloned() {
            drop(engines);
            engine.end();
            return Ok(other);
        }
        // What has ended must not enter the list, because nothing would take it out. Either the runtime's timers
        // have ended since the task was spawned, or the task has found nobody who uses the engine. In that case
        // the caller's timer finds its shard ended, and begins another engine.
        if engine.alarm.has_ended() {
            return if engine.alarm.is_closing() {
                Err(timers)
            } else {
                Ok(engine)
            };
        }
        engines.insert(key, engine.clone());
        drop(engines);
        // The last handle may have gone before the engine could be found.
        engine.alarm.notify_if_no_handle(shared);
        events::engine_changed(shared.name(), "started");
        Ok(engine)
    }

    fn new(shared: &Arc<Shared>, runtime: &Handle, alarm: Alarm) -> Arc<Engine> {
        let shards = shared.settings.shards;
        let shards = shards.unwrap_or_else(|| runtime.metrics().num_workers());
        // A power of two, so that a thread's number selects a shard by a mask.
        let places = 0..shards.next_power_of_two();
        Arc::new(Engine {
            runtime: runtime.id(),
            shared: shared.clone(),
            alarm: Arc::new(alarm),
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
            // It has had no timer yet, so there is no wheel.
            shard.end();
        }
        shard.clone()
    }

    /// Makes turns until the driver waits, unless another thread is doing so. A turn that is cut short waits, too,
    /// and goes on when the engine's task runs, or a millisecond later.
    fn run_driver(&self) {
        while let Some((mut driver, at)) = self.alarm.take() {
            let now = self.alarm.now();
            if self.alarm.is_closing() && at > now {
                // The timer has fired before its moment, because the runtime ends its timers.
                return self.end();
            }
            let by = self.alarm.expires_by(now, at);
            // A turn that comes early, or was asked for by the engine's task, says nothing about lateness.
            if at <= by {
                let tick = self.alarm.clock.tick();
                self.shared.record_turn(tick, now.since(at));
            }
            let next = turn(&self.shards, &self.alarm, &self.shared, &mut driver, by);
            match self.alarm.give_back(driver, next) {
                // Its moment has come during this turn. No waker will say so, because Tokio called it while the
                // timer was being set.
                SetOutcome::HasPassed => {}
                SetOutcome::Ended => return self.end(),
                SetOutcome::Waits => return,
            }
        }
    }

    /// Returns whether the engine can end, because its wheel has no handle and no timers here.
    fn is_unused(&self) -> bool {
        // Nearly always there is a handle, and no shard is locked.
        if !self.shared.has_no_handle() {
            return false;
        }
        // While a turn wakes timers that it has taken out, some may be about to start again.
        self.alarm
            .is_idle_and(|| existing(&self.shards).all(|shard| shard.usage().pending == 0))
    }

    /// Ends the engine, unless it has ended already. Its pending futures are woken, and bound to another
    /// engine when they are polled next. The caller holds no lock.
    fn end(&self) {
        // Under this lock, no shard is made, nobody counts, and no other thread begins an engine in its place.
        let mut engines = engines();
        // Dropped with no lock held, as is the list's reference to this engine.
        let Some(_seat) = self.alarm.take_down() else {
            return;
        };
        let key = (self.shared.wheel, self.runtime);
        // Another thread may have begun the engine that is in the list.
        let is_listed = engines.get(&key).is_some_and(|engine| ptr::eq(&**engine, self));
        let removed = is_listed.then(|| engines.remove(&key)).flatten();
        let wheels: Vec<_> = existing(&self.shards).filter_map(|shard| shard.end()).collect();
        drop(engines);
        // Before anybody is woken, or its timer would look for an engine in the runtime that ends.
        if self.alarm.is_closing() {
            self.shared.forget_builder_runtime(self.runtime);
        }
        // So that the task returns, and gives up its reference to this engine.
        self.alarm.task_notify.notify_one();
        // With no lock held, because a million timers take long.
        let wakers = wheels.into_iter().flat_map(TimingWheel::into_values);
        wake_all(&mut wakers.collect(), &self.shared);
        if removed.is_some() {
            events::engine_changed(self.shared.name(), "ended");
        }
    }
}

/// The waker of Tokio's timer.
impl Wake for Engine {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        // The thread that sets the timer holds the alarm's lock, and learns from the outcome that it has fired.
        if is_setting() {
            return;
        }
        if self.alarm.is_turned_by_task() {
            self.alarm.task_notify.notify_one();
        } else {
            self.run_driver();
            // There may be no entries left except those of spares.
            self.alarm.notify_if_no_handle(&self.shared);
        }
    }
}

/// Owned by a task of the engine's runtime, which lives until the engine or the runtime ends.
struct EngineTask(Arc<Engine>);

impl EngineTask {
    async fn run(self) {
        // This is a task of Tokio's for certain, so its waker shows the vtable of all of them.
        poll_fn(|cx| {
            WakerId::learn_task(cx.waker());
            Poll::Ready(())
        })
        .await;
        let engine = &self.0;
        while !engine.alarm.has_ended() {
            // Wakers that poll timers within a turn must not use up the budget of this task.
            unconstrained(async { engine.run_driver() }).await;
            // Other tasks run, although this turn may have been cut short, or another one may be due by now.
            yield_now().await;
            // After a turn, and so also as the engine begins: its first timer may have been due at once, and
            // then no entry of it is ever cancelled.
            if engine.is_unused() {
                // Tasks that have just been woken, or have just dropped a timer, may be about to start another
                // one. A paused clock would jump to the end of this sleep, and has let them run above.
                if !engine.alarm.source.jumps() {
                    let notified = engine.alarm.task_notify.notified();
                    // A timer that has started meanwhile may need this task for its turn.
                    if timeout(LINGER, notified).await.is_ok() {
                        continue;
                    }
                }
                // A future that outlives the handles may have started a timer meanwhile. If one starts from
                // here on, it finds its shard ended, and begins another engine.
                if engine.is_unused() {
                    return engine.end();
                }
            }
            engine.alarm.task_notify.notified().await;
        }
    }
}

impl Drop for EngineTask {
    fn drop(&mut self) {
        let alarm = &self.0.alarm;
        // The task has returned, because nobody used the engine. Its runtime goes on, so the engine must not count as
        // closing, by which a timer tells whether its runtime has ended.
        if alarm.has_ended() {
            return;
        }
        let ended = alarm.close();
        // Those timers have ended before the tasks, and nothing else tells of it.
        if alarm.has_alternative_timers() {
            return self.0.end();
        }
        // The engine's own waker, which takes the driver and finds that Tokio's timers have ended.
        ended.into_iter().for_each(Waker::wake);
    }
}
