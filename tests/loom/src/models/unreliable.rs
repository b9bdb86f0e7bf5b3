//! Tokio's timer loses, delays, repeats and brings forward wake-ups, at random. No timer is early, none waits
//! for longer than 100 ms and until the next one of its runtime starts, and another runtime of the same wheel
//! notices nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Poll, Waker},
};

use fastrand::Rng;

use super::{
    simulate,
    task::Task,
    world::{World, poll},
};
use crate::{
    engine::{thread, timer::Timer, waker_id::WakerId},
    runtime::Handle,
    stand_in::time::{self, Fate},
};

/// How many wake-ups of Tokio's timer there are.
const WAKE_UPS: usize = 100_000;

/// How often the time moves in each simulation. Loom counts the steps of a simulation in 16 bits.
const MOVES: u32 = 40;

/// How late a timer may be when another one starts.
const LATEST: u64 = 100;

/// The longest timer, in ticks.
const LONGEST: u64 = 60;

/// A task with one timer at a time.
struct Sleeper {
    task: Arc<Task>,
    waker: Waker,
    /// With the tick of its deadline.
    timer: Option<(Timer, u64)>,
}

impl Sleeper {
    fn new() -> Sleeper {
        let (task, waker) = Task::without_thread();
        Sleeper {
            task,
            waker,
            timer: None,
        }
    }

    /// Polls the timer if the task was woken.
    fn run(&mut self) {
        if self.task.was_woken() {
            self.poll();
        }
    }

    fn poll(&mut self) {
        let Some((timer, tick)) = &mut self.timer else {
            return;
        };
        if poll(timer, &self.waker) != Poll::Pending {
            assert!(time::elapsed() >= *tick, "early");
            self.timer = None;
        }
    }

    /// Starts a timer in place of the one that there is. The entry of that one may become a spare.
    fn start(&mut self, timer: Timer, tick: u64) {
        thread::with(|thread| thread.spares.note_cancelled(WakerId::learn(&self.waker)));
        self.timer = None;
        self.timer = Some((timer, tick));
        self.poll();
    }

    fn is_late(&self, by: u64) -> bool {
        let waits_for = self.timer.as_ref().map(|(_, tick)| *tick);
        waits_for.is_some_and(|tick| tick + by < time::elapsed())
    }
}

/// A runtime and its tasks.
struct Tasks {
    world: World,
    tasks: Vec<Sleeper>,
}

impl Tasks {
    fn new(world: World, tasks: usize) -> Tasks {
        Tasks {
            world,
            tasks: (0..tasks).map(|_| Sleeper::new()).collect(),
        }
    }

    /// Lets the runtime run all tasks that are ready.
    fn run(&mut self) {
        let _entered = self.world.runtime.enter();
        self.world.runtime.poll_tasks(&Task::without_thread().1);
        self.tasks.iter_mut().for_each(Sleeper::run);
    }

    /// A task starts a timer.
    fn start(&mut self, random: &mut Rng) {
        let tick = time::elapsed() + random.u64(1..=LONGEST);
        let timer = self.world.timer(tick);
        let _entered = self.world.runtime.enter();
        random
            .choice(&mut self.tasks)
            .expect("there are some")
            .start(timer, tick);
    }

    fn assert_late_by_at_most(&self, late: u64) {
        assert!(
            !self.tasks.iter().any(|task| task.is_late(late)),
            "a timer waits although another has started"
        );
    }
}

fn fate(random: &mut Rng) -> Fate {
    match random.u32(..10) {
        0 | 1 => Fate::IsLost,
        2 | 3 => Fate::IsDelayed(random.u64(1..300)),
        4 => Fate::ComesTwice,
        _ => Fate::Comes,
    }
}

/// Returns the number of wake-ups that something has befallen, or nothing.
fn play(seed: u64) -> usize {
    let mut random = Rng::with_seed(seed);
    let world = World::new();
    let mut reliable = Tasks::new(world.beside(Handle::new(2)), 4);
    let mut unreliable = Tasks::new(world, 16);
    let mut wake_ups = 0;
    for _ in 0..MOVES {
        let now = time::elapsed() + random.u64(..30);
        let mut early = random.fork();
        let fate = || {
            wake_ups += 1;
            fate(&mut random)
        };
        let timers = unreliable.world.runtime.timers().clone();
        timers.process_at_random(now, fate, || early.u32(..20) == 0);
        reliable.world.runtime.timers().process(now);
        unreliable.run();
        reliable.run();
        reliable.assert_late_by_at_most(0);
        if random.bool() {
            unreliable.start(&mut random);
            unreliable.run();
            unreliable.assert_late_by_at_most(LATEST);
        }
        reliable.start(&mut random);
    }
    // The timer may be lost, and be set again before that shows: one that was given up because it was delayed may come
    // now, and make a turn.
    for _ in 0..2 {
        unreliable
            .world
            .runtime
            .timers()
            .process(time::elapsed() + 2 * LATEST);
        unreliable.start(&mut random);
        unreliable.run();
    }
    for tasks in [&mut unreliable, &mut reliable] {
        // As far ahead as the last deadline.
        for _ in 0..=LONGEST {
            tasks.world.runtime.timers().process(time::elapsed() + 1);
            tasks.run();
        }
        assert!(
            tasks.tasks.iter().all(|task| task.timer.is_none()),
            "a timer is lost"
        );
    }
    unreliable.world.runtime.shut_down();
    reliable.world.shut_down();
    wake_ups
}

#[test]
fn no_timer_is_early_and_none_is_lost_whatever_befalls_tokios() {
    let wake_ups = Arc::new(AtomicUsize::new(0));
    for seed in 0.. {
        let counted = wake_ups.clone();
        simulate(move || _ = counted.fetch_add(play(seed), SeqCst));
        if wake_ups.load(SeqCst) >= WAKE_UPS {
            break;
        }
    }
}
