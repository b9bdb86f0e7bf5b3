//! What the models share: a wheel of four ticks, the runtime in which its timers wait, and the threads that
//! are the runtime's tasks.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Poll, Waker},
};

use loom::thread::{self, JoinHandle};

use super::task::{Bell, Task};
use crate::{
    engine::{
        clock::{Clock, Moment, Slack},
        driver::{
            alarm::{Alarm, Driver, Next},
            alternative::TokioTimers,
        },
        engine::Engine,
        registry,
        shard::Shard,
        shared::{Settings, Shared, Tally, WheelId, WheelRef},
        sync::{self, OnceLock},
        test_clock::Source,
        thread::with,
        timer::Timer,
        turn::{existing, turn},
    },
    runtime::Handle,
    stand_in::time,
    time::Instant,
};

pub(super) fn settings() -> Settings {
    Settings {
        ticks_per_wheel: 4,
        levels: 2,
        shards: Some(1),
        ..Settings::default()
    }
}

pub(super) fn moment(tick: u64) -> Moment {
    Moment::of(Instant::at(tick))
}

/// Runs `task` on a thread of the runtime.
pub(super) fn spawn<T: 'static>(runtime: &Handle, task: impl FnOnce() -> T + 'static) -> JoinHandle<T> {
    let runtime = runtime.clone();
    thread::spawn(move || {
        let entered = runtime.enter();
        let outcome = task();
        drop(entered);
        sync::drop_locals();
        outcome
    })
}

/// Polls a timer as a sleep does.
pub(super) fn poll(timer: &mut Timer, waker: &Waker) -> Poll<()> {
    if timer.waits(waker) {
        Poll::Pending
    } else {
        timer.poll(waker)
    }
}

/// Polls a timer until it completes, as its task does. Calls `pending` whenever it is pending.
pub(super) fn finish(timer: &mut Timer, (task, waker): &(Arc<Task>, Waker), pending: impl Fn()) {
    loop {
        if poll(timer, waker).is_ready() {
            return;
        }
        pending();
        task.wait();
    }
}

/// The shards of an engine, without the engine and its alarm: ticks go by, and the model makes a turn in each
/// of them.
#[derive(Clone)]
pub(super) struct Shards(Arc<Inner>);

struct Inner {
    runtime: Handle,
    shared: Arc<Shared>,
    alarm: Arc<Alarm>,
    shards: [OnceLock<Arc<Shard>>; 1],
    /// Says that a timer has been started or is done, as the alarm would.
    bell: Bell,
    /// The number of threads that wait for timers. Not one of loom's atomics, because it adds nothing to what
    /// is modelled.
    sleepers: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// What the shard had counted after the last turn.
    counts: Mutex<Tally>,
}

impl Shards {
    pub(super) fn new() -> Shards {
        let runtime = Handle::new(1);
        let shared = Arc::new(Shared::new(WheelId::next(), settings(), None));
        let clock = Clock::new(moment(0), shared.settings.tick_duration, Slack::DEFAULT);
        let alarm = Arc::new(Alarm::new(Source::Machine, clock, TokioTimers::Usual));
        let shards = [OnceLock::new()];
        shards[0].get_or_init(|| Arc::new(Shard::new(shared.clone(), alarm.clone(), runtime.id(), (0, 1))));
        Shards(Arc::new(Inner {
            runtime,
            shared,
            alarm,
            shards,
            bell: Bell::new(),
            sleepers: AtomicUsize::new(0),
            threads: Mutex::default(),
            counts: Mutex::default(),
        }))
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(super) fn shard(&self) -> &Arc<Shard> {
        self.0.shards[0].get().expect("it has been made")
    }

    pub(super) fn timer(&self, tick: u64) -> Timer {
        Timer::at(WheelRef::new(&self.0.shared), moment(tick), Moment::ZERO)
    }

    /// Creates a timer for tick `tick`, of which no more is known than that tick `since` has begun.
    pub(super) fn timer_since(&self, since: u64, tick: u64) -> Timer {
        Timer::at(WheelRef::new(&self.0.shared), moment(tick), moment(since))
    }

    /// Runs `sleeper` on a thread of its own, beside the turns.
    pub(super) fn spawn(&self, sleeper: impl FnOnce(&Shards) + 'static) {
        let shards = self.clone();
        shards.0.sleepers.fetch_add(1, SeqCst);
        let thread = spawn(&self.0.runtime, move || {
            // There is no engine in which to look it up.
            with(|thread| thread.remember(shards.shard()));
            sleeper(&shards);
            sync::drop_locals();
            shards.0.sleepers.fetch_sub(1, SeqCst);
            shards.0.bell.ring();
        });
        self.0.threads.lock().expect("nobody has panicked").push(thread);
    }

    /// Starts a timer, for a task that does not wait for it at once. Returns whether it is pending.
    pub(super) fn start(&self, timer: &mut Timer, waker: &Waker) -> bool {
        let is_pending = poll(timer, waker) == Poll::Pending;
        if is_pending {
            self.say_started();
        }
        is_pending
    }

    /// Says that a timer has been started, as the alarm would.
    pub(super) fn say_started(&self) {
        self.0.bell.ring();
    }

    /// Waits for a timer to elapse, which must not be before `tick`.
    pub(super) fn sleep_until(&self, tick: u64, timer: &mut Timer, task: &(Arc<Task>, Waker)) {
        finish(timer, task, || self.say_started());
        assert!(time::elapsed() >= tick, "early");
    }

    /// Lets ticks go by until nobody sleeps any more: as many as `ticks`, and then one whenever a timer has
    /// been started.
    pub(super) fn drive(&self, ticks: u64) {
        let mut tick = time::elapsed();
        while tick < ticks || self.0.sleepers.load(SeqCst) > 0 {
            if tick >= ticks {
                self.0.bell.wait();
            }
            tick += 1;
            time::go_on_to(tick);
            self.turn();
        }
        // What a timer has counted without the lock is known to whoever knows that its thread has ended.
        let threads = mem::take(&mut *self.0.threads.lock().expect("nobody has panicked"));
        for thread in threads {
            thread.join().expect("it has not panicked");
        }
        self.assert_vacant();
    }

    pub(super) fn turn(&self) {
        self.turn_for(self.0.alarm.now());
    }

    /// Makes a turn while time goes on, of which the turn knows nothing.
    pub(super) fn turn_until(&self, tick: u64) {
        let now = self.0.alarm.now();
        time::go_on_to(tick);
        self.turn_for(now);
    }

    fn turn_for(&self, now: Moment) {
        let Inner {
            shared,
            alarm,
            shards,
            ..
        } = &*self.0;
        // It has none, but its lock makes known what has been registered.
        assert!(alarm.take().is_none());
        let next = turn(shards, alarm, shared, &mut Driver::default(), now);
        assert_ne!(next, Next::More);
        self.assert_no_panic();
        self.assert_no_count_decreases();
    }

    fn assert_no_panic(&self) {
        assert_eq!(self.shared().stats.panics.load(SeqCst), 0, "a waker has panicked");
    }

    fn assert_no_count_decreases(&self) {
        let mut last = self.0.counts.lock().expect("nobody has panicked");
        let counts = self.shard().usage().tally;
        assert!(
            counts.registered >= last.registered
                && counts.expired >= last.expired
                && counts.cancelled >= last.cancelled,
            "a count has decreased"
        );
        *last = counts;
    }

    /// Asserts that no entry is left behind, and that all timers are counted.
    pub(super) fn assert_vacant(&self) {
        let pending: usize = existing(&self.0.shards).map(|shard| shard.usage().pending).sum();
        assert_eq!(pending, 0, "an entry is lost");
        for shard in existing(&self.0.shards) {
            let counts = shard.usage().tally;
            assert_eq!(counts.registered, counts.expired + counts.cancelled);
        }
    }
}

/// A runtime with an engine.
#[derive(Clone)]
pub(super) struct World {
    pub(super) runtime: Handle,
    pub(super) shared: Arc<Shared>,
    /// The number of threads that wait for timers.
    sleepers: Arc<AtomicUsize>,
}

impl World {
    pub(super) fn new() -> World {
        World::with(Handle::new(1), None)
    }

    pub(super) fn with(runtime: Handle, builder_handle: Option<Handle>) -> World {
        World {
            runtime,
            shared: Arc::new(Shared::new(WheelId::next(), settings(), builder_handle)),
            sleepers: Arc::default(),
        }
    }

    /// A wheel that waits on a timer of the kernel.
    pub(super) fn on_kernel_timer() -> World {
        let settings = Settings {
            kernel_timer: true,
            ..settings()
        };
        World {
            shared: Arc::new(Shared::new(WheelId::next(), settings, None)),
            ..World::new()
        }
    }

    /// The same wheel in another runtime.
    pub(super) fn beside(&self, runtime: Handle) -> World {
        World {
            runtime,
            ..self.clone()
        }
    }

    /// Returns the engine, which begins if there is none.
    pub(super) fn engine(&self) -> Arc<Engine> {
        let _entered = self.runtime.enter();
        let engine = registry::engine_for(&WheelRef::new(&self.shared), Some(self.runtime.id()));
        engine.expect("its timers are the usual ones")
    }

    pub(super) fn timer(&self, tick: u64) -> Timer {
        Timer::at(WheelRef::new(&self.shared), moment(tick), Moment::ZERO)
    }

    /// Runs `sleeper` on a thread of the runtime. When the last one is done, the runtime's timers need not go
    /// on.
    pub(super) fn spawn(&self, sleeper: impl FnOnce(&World) + 'static) -> JoinHandle<()> {
        let world = self.clone();
        world.sleepers.fetch_add(1, SeqCst);
        spawn(&self.runtime, move || {
            sleeper(&world);
            sync::drop_locals();
            if world.sleepers.fetch_sub(1, SeqCst) == 1 {
                world.runtime.timers().be_over();
            }
        })
    }

    /// Waits for a timer to elapse, which must not be before `tick`.
    pub(super) fn sleep_until(&self, tick: u64) {
        finish(&mut self.timer(tick), &Task::new(), || ());
        assert!(time::elapsed() >= tick, "early");
    }

    /// Shuts the runtime down. After that there is no engine, and nothing is pending.
    pub(super) fn shut_down(&self) {
        self.runtime.shut_down();
        self.assert_ended();
    }

    pub(super) fn assert_ended(&self) {
        assert!(
            registry::of_wheel(&self.shared).is_empty(),
            "an engine has not ended"
        );
        let counts = registry::usage(&self.shared).tally;
        assert_eq!(counts.registered, counts.expired + counts.cancelled);
        assert_eq!(self.shared.stats.panics.load(SeqCst), 0, "a waker has panicked");
        assert!(!self.runtime.timers().has_panicked(), "Tokio's timer was set too late");
    }
}
