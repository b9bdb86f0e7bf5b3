//! Checks the alarm's rules in every order that loom can find, with a stand-in for Tokio's timer. A missed deadline shows as a deadlock of
//! the model, or as a timer that is served late.
//!
//! Time is the model's own: when the stand-in fires, time moves to the instant for which the stand-in was set.

use std::{collections::BTreeSet, sync::Arc};

use loom::{
    sync::{Condvar, Mutex},
    thread,
};

use super::alarm::{Alarm, NextWake, WaitsOn};
use crate::engine::sync::planted;

type Tick = u32;

/// How late a timer may be served. The driver may pause before it, and each of two registrations whose deadlines have passed
/// makes it pause again.
const LATE: Tick = 3;

/// A driver that serves one timer in a slice.
struct Driver(u64);

/// The stand-in for Tokio's timer.
struct Timer {
    time: Arc<Time>,
    task: Arc<Task>,
}

/// The stand-in for Tokio's time driver.
#[derive(Default)]
struct Time {
    state: Mutex<TimeState>,
    set: Condvar,
}

#[derive(Default)]
struct TimeState {
    now: Tick,
    fires_at: Option<Tick>,
    /// Whether a thread is setting the timer, which that thread does not want to be woken by.
    setting: bool,
    over: bool,
}

impl Time {
    fn now(&self) -> Tick {
        self.state.lock().unwrap().now
    }

    /// Waits until the timer fires. Returns `false` when the model is over.
    fn fires(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        loop {
            if state.over {
                return false;
            }
            if let Some(at) = state.fires_at.take() {
                state.now = state.now.max(at);
                // Only the thread that sets the timer may ignore it, as `timer::sets_timer` says, because it may fire on another
                // thread at the same moment.
                if !(planted("sets_timer") && state.setting) {
                    return true;
                }
            }
            state = self.set.wait(state).unwrap();
        }
    }

    fn end(&self) {
        self.state.lock().unwrap().over = true;
        self.set.notify_one();
    }
}

impl WaitsOn for Timer {
    type Instant = Tick;

    fn set(&mut self, at: Tick, _ahead: Option<Tick>) -> bool {
        let has_come = {
            let mut state = self.time.state.lock().unwrap();
            state.setting = true;
            state.fires_at = (at > state.now).then_some(at);
            self.time.set.notify_one();
            at <= state.now
        };
        // The timer may fire here, on another thread.
        self.time.state.lock().unwrap().setting = false;
        has_come
    }

    fn set_soon(&mut self) -> Tick {
        let soon = self.time.now() + 1;
        self.set(soon, None);
        soon
    }

    fn wake_task(&self) {
        *self.task.woken.lock().unwrap() = true;
        self.task.waking.notify_one();
    }
}

/// The driver's task.
#[derive(Default)]
struct Task {
    woken: Mutex<bool>,
    waking: Condvar,
}

impl Task {
    fn wait(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            woken = self.waking.wait(woken).unwrap();
        }
        *woken = false;
    }
}

#[derive(Clone)]
struct World {
    alarm: Arc<Alarm<Driver, Timer>>,
    time: Arc<Time>,
    task: Arc<Task>,
    /// The stand-in for the shards: the pending timers, by deadline.
    pending: Arc<Mutex<BTreeSet<Tick>>>,
    left: Arc<std::sync::atomic::AtomicUsize>,
}

impl World {
    /// Creates a model in which driver 1 waits for `pending`, and which is over when `timers` have been served.
    fn new(pending: &[Tick], timers: usize) -> World {
        let world = World {
            alarm: Arc::default(),
            time: Arc::default(),
            task: Arc::default(),
            pending: Arc::new(Mutex::new(pending.iter().copied().collect())),
            left: Arc::new(timers.into()),
        };
        world.set_up(1);
        if let Some(first) = pending.first() {
            world.alarm.wake_by(*first);
        }
        world
    }

    fn set_up(&self, number: u64) {
        let timer = Timer {
            time: self.time.clone(),
            task: self.task.clone(),
        };
        drop(self.alarm.set_up(number, Driver(number), timer));
    }

    fn register(&self, deadline: Tick) {
        self.pending.lock().unwrap().insert(deadline);
        self.alarm.wake_by(deadline);
    }

    /// A turn, which serves one timer that is due.
    fn turn(&self) -> NextWake<Tick> {
        let now = self.time.now();
        let mut pending = self.pending.lock().unwrap();
        if let Some(deadline) = pending.first().copied().filter(|first| *first <= now) {
            assert!(now <= deadline + LATE, "timer {deadline} is served at {now}");
            pending.pop_first();
            if self.left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
                self.time.end();
            }
        }
        match pending.first() {
            None => NextWake::Never,
            Some(first) if *first <= now => NextWake::Soon,
            Some(first) => NextWake::At {
                at: *first,
                ahead: None,
            },
        }
    }

    /// Does what `Shared::work` does, with slices of one turn.
    fn work(&self, number: u64) -> bool {
        let mut pauses = false;
        while let Some((driver, _)) = self.alarm.take(number) {
            assert_eq!(driver.0, number);
            let next = self.turn();
            pauses = next == NextWake::Soon;
            if self.alarm.give_back(number, driver, next).is_none() {
                break;
            }
        }
        pauses
    }

    /// Does what Tokio's time driver does: runs the driver whenever the timer fires.
    fn run_time(&self) {
        while self.time.fires() {
            if self.work(1) {
                self.alarm.wake_task();
            }
        }
    }
}

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// The second registration has an earlier deadline than the first, and both are made while the driver may be at work.
#[test]
fn what_is_registered_while_the_driver_works_is_not_slept_through() {
    model(|| {
        let world = World::new(&[1], 3);
        let threads = [4, 3].map(|deadline| {
            let world = world.clone();
            thread::spawn(move || world.register(deadline))
        });
        world.run_time();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// The driver's task is behind many others, and is not polled.
#[test]
fn a_driver_that_pauses_comes_again_soon_whatever_is_registered() {
    model(|| {
        let world = World::new(&[1, 2], 3);
        // Both timers are due when the driver runs.
        world.time.state.lock().unwrap().now = 2;
        let other = world.clone();
        let registrar = thread::spawn(move || other.register(9));
        world.run_time();
        registrar.join().unwrap();
    });
}

#[test]
fn a_driver_is_run_by_its_timer_or_by_its_task_never_by_both() {
    model(|| {
        let world = World::new(&[1, 2], 2);
        let other = world.clone();
        let poll = thread::spawn(move || other.work(1));
        world.run_time();
        poll.join().unwrap();
        assert_eq!(world.alarm.take(1).map(|(driver, _)| driver.0), Some(1));
    });
}

#[test]
fn a_driver_that_has_been_replaced_leaves_the_plan_of_the_next_alone() {
    model(|| {
        let world = World::new(&[1], 1);
        let other = world.clone();
        let last = thread::spawn(move || other.run_time());
        drop(world.alarm.take_down(1));
        world.set_up(2);
        // Driver 1 may have ended before it served the timer.
        world.time.end();
        last.join().unwrap();
        assert_eq!(world.alarm.take(2).map(|(driver, _)| driver.0), Some(2));
    });
}

#[test]
fn the_task_of_a_driver_that_ends_ends_too() {
    model(|| {
        let world = World::new(&[], 1);
        let other = world.clone();
        let end = thread::spawn(move || {
            let driver = other.alarm.take(1);
            other.alarm.end(1);
            drop(driver);
        });
        while world.alarm.is_set_up(1) {
            world.task.wait();
        }
        end.join().unwrap();
    });
}
