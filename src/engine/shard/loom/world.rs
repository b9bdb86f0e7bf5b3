//! The stand-ins for the driver, its runtime and the tasks.

use std::{
    sync::Arc,
    task::{Poll, Wake, Waker},
    time::Duration,
};

use loom::{
    sync::{Condvar, Mutex},
    thread,
};
use tokio::time::Instant;

use super::super::{Drive, Limit, NEVER, Reading, Shard, Timer, Usage, Wakers};
use crate::{
    engine::{
        clock::{Clock, Moment, Source},
        labels::Stripe,
        sync::{AtomicU64, Ordering, lock, planted},
        timing_wheel::{Nanos, Tick, TickDuration, TimingWheel},
    },
    error::SleepError,
};

pub(super) const TICK: Duration = Duration::from_millis(1);

/// A notification that waits to be taken, like that of `tokio::sync::Notify`.
pub(super) struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    pub(super) fn new() -> Bell {
        Bell {
            rung: Mutex::new(false),
            ringing: Condvar::new(),
        }
    }

    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.ringing.notify_one();
    }

    pub(super) fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.ringing.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// The stand-in for the driver's task and its runtime.
pub(super) struct Model {
    pub(super) bell: Bell,
    start: Instant,
    pub(super) tick: AtomicU64,
    /// The number of the driver. Not one of loom's atomics, because it adds nothing to what is modelled.
    pub(super) driver: std::sync::atomic::AtomicU64,
    /// Whether the runtime panics when a timer is set, as one that is shutting down does.
    pub(super) panics: std::sync::atomic::AtomicBool,
}

impl Drive for Model {
    fn wake_by(&self, _: Instant) -> bool {
        assert!(!self.panics.load(Ordering::Relaxed), "as planned");
        if !planted("lost_notification") {
            self.bell.ring();
        }
        false
    }

    fn wake_task(&self) {
        self.bell.ring();
    }

    fn has_come(&self, _: Instant) -> bool {
        true
    }

    fn instant_here(&self, instant: Instant) -> Instant {
        instant
    }

    fn sibling(&self, _: usize) -> Option<Arc<Shard>> {
        None
    }

    fn start(self: Arc<Self>) -> Result<(), SleepError> {
        // The driver is on its way, but another thread has to run `drive`.
        thread::yield_now();
        Ok(())
    }

    fn now(&self) -> Instant {
        self.start + TICK * self.tick.load(Ordering::SeqCst) as u32
    }
}

/// A task. When it is woken, it has to be polled again.
pub(super) struct Task(pub(super) Bell);

impl Task {
    pub(super) fn new() -> Arc<Task> {
        Arc::new(Task(Bell::new()))
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.ring();
    }
}

/// When a timer is due.
#[derive(Clone, Copy)]
pub(super) enum Due {
    /// This long after the timer's first poll.
    After(Duration),
    At(Moment),
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) model: Arc<Model>,
    pub(super) shard: Arc<Shard>,
    pub(super) clock: Clock,
}

impl World {
    /// Creates a driven shard with small wheels, which may tick if the clock is real.
    pub(super) fn new(source: Source, limit: Option<usize>) -> World {
        let start = Instant::now();
        let model = Arc::new(Model {
            bell: Bell::new(),
            start,
            tick: AtomicU64::new(0),
            driver: std::sync::atomic::AtomicU64::new(1),
            panics: std::sync::atomic::AtomicBool::new(false),
        });
        let clock = Clock::new(start, Nanos::ZERO, TickDuration::new(TICK), source);
        let limit = limit.map(|limit| Arc::new(Limit::new(limit)));
        let shard = Shard::new(
            TimingWheel::new(2, 2),
            clock,
            0,
            limit,
            Stripe::new(Arc::default()),
            model.clone(),
            (0, 0),
        );
        shard.attach(clock, start, 1);
        World {
            model,
            shard: Arc::new(shard),
            clock,
        }
    }

    pub(super) fn at(&self, tick: u32) -> Due {
        Due::At(self.deadline(tick))
    }

    pub(super) fn deadline(&self, tick: u32) -> Moment {
        self.shard.moment_of(self.model.start + TICK * tick)
    }

    pub(super) fn usage(&self) -> Usage {
        let usage = self.shard.usage();
        let counters = &usage.counters;
        assert_eq!(
            counters.registered,
            counters.expired + counters.cancelled + usage.pending as u64
        );
        usage
    }

    /// Drives until `done`: visits, wakes, and waits as the driver's task does.
    pub(super) fn drive(&self, done: impl Fn() -> bool) {
        let mut wakers = Wakers::default();
        loop {
            self.turn(&mut wakers);
            if self.shard.is_shutdown() || done() {
                return;
            }
            match self.shard.wake_at() {
                NEVER => self.model.bell.wait(),
                Tick(next) => {
                    self.model.tick.fetch_max(next, Ordering::SeqCst);
                }
            }
        }
    }

    pub(super) fn timer(&self, due: Due) -> Timer {
        match due {
            Due::After(delay) => Timer::counting(&self.shard, delay),
            Due::At(deadline) => Timer::at(&self.shard, deadline),
        }
    }

    /// Starts a timer that is not due yet.
    pub(super) fn start(&self, due: Due, waker: &Waker) -> Result<Timer, SleepError> {
        let mut timer = self.timer(due);
        match timer.poll(waker) {
            Poll::Ready(outcome) => outcome.map(|()| timer),
            Poll::Pending => Ok(timer),
        }
    }

    pub(super) fn count_down(&self, ticks: u32, waker: &Waker) -> Result<Timer, SleepError> {
        self.start(Due::After(TICK * ticks), waker)
    }

    /// Cancels a timer of a task, if the shard is driven, so that the next one that this thread cancels needs no lock to be kept.
    pub(super) fn open_slot(&self, waker: &Waker) {
        let _ = self.start(self.at(9), waker);
    }

    /// Asserts that nothing is left behind once the last visit has been made.
    pub(super) fn assert_vacant(&self) {
        let mut wakers = Wakers::default();
        self.model.tick.fetch_add(9, Ordering::SeqCst);
        self.turn(&mut wakers);
        // A timer that was put as the last visit began waits in its slot for the next visit, which nothing requests. Replacing
        // the driver ends that timer too.
        self.replace_driver();
        assert!(lock(&self.shard.state).wheel.is_vacant(), "a cell is lost");
    }

    pub(super) fn reading(&self) -> Reading {
        let now = self.clock.wheel_time(self.model.now());
        Reading::new(&self.clock, now, self.model.driver.load(Ordering::Relaxed))
    }

    /// A turn of the driver, with one reading of the clock, one timer at a time.
    pub(super) fn turn(&self, wakers: &mut Wakers) {
        let reading = self.reading();
        let mut begins = true;
        let mut more = self.shard.is_due(reading);
        while more {
            more = self.shard.visit(reading, begins, 1, wakers);
            wakers.spent.clear();
            wakers.due.drain(..).for_each(Waker::wake);
            begins = false;
        }
    }

    /// Ends the driver and starts another one with the same clock.
    pub(super) fn replace_driver(&self) {
        let mut wakers = Wakers::default();
        self.shard.detach(Nanos::ZERO, &mut wakers);
        wakers.due.drain(..).for_each(Waker::wake);
        self.attach_next_driver();
    }

    pub(super) fn attach_next_driver(&self) {
        let next = self.model.driver.fetch_add(1, Ordering::Relaxed) + 1;
        self.shard.attach(self.clock, self.model.now(), next);
    }

    /// Polls a timer until it completes, as its task does.
    pub(super) fn sleep(&self, due: Due) -> Result<(), SleepError> {
        finish(&mut self.timer(due), &Task::new())
    }
}

pub(super) fn finish(timer: &mut Timer, task: &Arc<Task>) -> Result<(), SleepError> {
    let waker = Waker::from(task.clone());
    loop {
        match timer.poll(&waker) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => task.0.wait(),
        }
    }
}

/// A count that lets the model's driver stop when all its sleepers have.
#[derive(Clone)]
pub(super) struct Sleepers {
    /// This is not part of the checked protocol. If it were loom's, loom would try every order of its steps too, and take twice
    /// as long.
    pub(super) left: Arc<std::sync::atomic::AtomicUsize>,
    pub(super) world: World,
}

impl Sleepers {
    pub(super) fn new(world: &World, sleepers: usize) -> Sleepers {
        Sleepers {
            left: Arc::new(std::sync::atomic::AtomicUsize::new(sleepers)),
            world: world.clone(),
        }
    }

    pub(super) fn one_is_done(&self) {
        self.left.fetch_sub(1, Ordering::SeqCst);
        self.world.model.bell.ring();
    }

    pub(super) fn are_done(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}
