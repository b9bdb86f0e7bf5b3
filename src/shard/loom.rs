//! The protocol between registration, a dozing or ticking driver, cancel, bringing forward, expiry, shutdown and a driver
//! that goes, in every order that loom can find. A lost wake-up shows as a deadlock of the model.
//!
//! Time is the model's own: a driver that has nothing to do before tick n sets the clock to n.

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

use super::{Drive, Limit, NEVER, Shard, Timer, Visited, Wakers};
use crate::{
    clock::{Clock, Epoch, EpochInstant, Source},
    error::Refusal,
    metrics::Metrics,
    sync::{AtomicU64, AtomicUsize, Ordering, lock},
    timing_wheel::{Nanos, Tick, TickDuration, TimingWheel},
};

const TICK: Duration = Duration::from_millis(1);

/// A notification that waits to be taken, as `tokio::sync::Notify` keeps one.
struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn new() -> Bell {
        Bell {
            rung: Mutex::new(false),
            ringing: Condvar::new(),
        }
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.ringing.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.ringing.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// What stands for the driver's task and its runtime.
struct Model {
    bell: Bell,
    start: Instant,
    tick: AtomicU64,
}

impl Drive for Model {
    fn wake_by(&self, _: Instant) {
        if cfg!(not(plant_lost_notification)) {
            self.bell.ring();
        }
    }

    fn wake_now(&self) {
        self.bell.ring();
    }

    fn instant_here(&self, instant: Instant) -> Instant {
        instant
    }

    fn would_keep_clock(&self) -> bool {
        true
    }

    fn sibling(&self, _: usize) -> Option<Arc<Shard>> {
        None
    }

    fn start(self: Arc<Self>) -> Result<(), Refusal> {
        // It is coming: `drive` is up to another thread.
        thread::yield_now();
        Ok(())
    }

    fn now(&self) -> Instant {
        self.start + TICK * self.tick.load(Ordering::SeqCst) as u32
    }
}

/// A task: woken, it is to be polled again.
struct Task(Bell);

impl Task {
    fn new() -> Arc<Task> {
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
enum Due {
    /// So long after its first poll.
    After(Duration),
    At(EpochInstant),
}

#[derive(Clone)]
struct World {
    model: Arc<Model>,
    shard: Arc<Shard>,
    clock: Clock,
}

impl World {
    /// A driven shard with small wheels; on a real clock it may tick.
    fn new(source: Source, limit: Option<u32>) -> World {
        let start = Instant::now();
        let model = Arc::new(Model {
            bell: Bell::new(),
            start,
            tick: AtomicU64::new(0),
        });
        let clock = Clock::new(start, Nanos::ZERO, TickDuration::new(TICK), source);
        let limit = limit.map(|limit| Arc::new(Limit::new(limit)));
        let shard = Shard::new(TimingWheel::new(2, 2), clock, 0, limit, model.clone(), (0, 0));
        shard.attach(clock, Epoch(1));
        World {
            model,
            shard: Arc::new(shard),
            clock,
        }
    }

    fn at(&self, tick: u32) -> Due {
        Due::At(EpochInstant {
            instant: self.model.start + TICK * tick,
            epoch: Epoch(1),
        })
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        self.shard.add_metrics(&mut metrics);
        assert_eq!(
            metrics.registered,
            metrics.expired + metrics.cancelled + metrics.pending as u64
        );
        metrics
    }

    /// Drives until `done`: visits, wakes, and waits as the driver's task does.
    fn drive(&self, done: impl Fn() -> bool) {
        let mut wakers = Wakers::default();
        loop {
            match self.turn(&mut wakers) {
                Visited::Unfinished => unreachable!("a turn goes on to its end"),
                Visited::Shutdown => return,
                Visited::Finished { .. } if done() => return,
                Visited::Finished { next: NEVER } => self.model.bell.wait(),
                Visited::Finished { next: Tick(next) } => {
                    self.model.tick.fetch_max(next, Ordering::SeqCst);
                }
            }
        }
    }

    fn timer(&self, due: Due) -> Timer {
        match due {
            Due::After(delay) => Timer::counting(&self.shard, delay),
            Due::At(deadline) => Timer::at(&self.shard, deadline),
        }
    }

    /// Starts a timer, which is not due yet.
    fn start(&self, due: Due, waker: &Waker) -> Result<Timer, Refusal> {
        let mut timer = self.timer(due);
        match timer.poll(waker) {
            Poll::Ready(outcome) => outcome.map(|()| timer),
            Poll::Pending => Ok(timer),
        }
    }

    fn count_down(&self, ticks: u32, waker: &Waker) -> Result<Timer, Refusal> {
        self.start(Due::After(TICK * ticks), waker)
    }

    /// Nothing is left behind, once a visit has been.
    fn assert_vacant(&self) {
        let mut wakers = Wakers::default();
        self.model.tick.fetch_add(9, Ordering::SeqCst);
        self.turn(&mut wakers);
        // What was put as the last visit began waits in its slot for the next, which nothing calls for: this ends that, too.
        if self.shard.detach_if_empty(&mut wakers) {
            self.shard.attach(self.clock, Epoch(1));
        }
        assert!(lock(&self.shard.state).wheel.is_vacant(), "a cell is lost");
    }

    /// A turn of the driver, by one reading of the clock, a timer at a time.
    fn turn(&self, wakers: &mut Wakers) -> Visited {
        let now = self.clock.nanos_of(self.model.now());
        let mut begins = true;
        loop {
            let visited = self.shard.visit(now, self.clock.source, begins, 1, wakers);
            wakers.spent.clear();
            wakers.due.drain(..).for_each(Waker::wake);
            match visited {
                Visited::Unfinished => begins = false,
                visited => return visited,
            }
        }
    }

    /// Polls a timer to its end, as its task does.
    fn sleep(&self, due: Due) -> Result<(), Refusal> {
        finish(&mut self.timer(due), &Task::new())
    }
}

fn finish(timer: &mut Timer, task: &Arc<Task>) -> Result<(), Refusal> {
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
struct Sleepers {
    left: Arc<AtomicUsize>,
    world: World,
}

impl Sleepers {
    fn new(world: &World, sleepers: usize) -> Sleepers {
        Sleepers {
            left: Arc::new(AtomicUsize::new(sleepers)),
            world: world.clone(),
        }
    }

    fn one_is_done(&self) {
        self.left.fetch_sub(1, Ordering::SeqCst);
        self.world.model.bell.ring();
    }

    fn are_done(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// Every order with at most three preemptions: more than that takes hours, and known bugs of this kind need no more.
fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

/// Two threads with one timer each, beside the driver.
fn two_sleepers(source: Source, dues: [fn(&World) -> Due; 2]) {
    model(move || {
        let world = World::new(source, None);
        let sleepers = Sleepers::new(&world, 2);
        for due in dues {
            let (world, sleepers) = (world.clone(), sleepers.clone());
            thread::spawn(move || {
                assert_eq!(world.sleep(due(&world)), Ok(()));
                sleepers.one_is_done();
            });
        }
        world.drive(|| sleepers.are_done());
        let metrics = world.metrics();
        assert_eq!((metrics.expired, metrics.pending), (metrics.registered, 0));
    });
}

#[test]
fn no_registration_is_slept_through_while_the_shard_dozes() {
    two_sleepers(Source::Test, [|world| world.at(3), |world| world.at(1)]);
}

#[test]
fn no_registration_is_slept_through_while_the_shard_goes_from_dozing_to_ticking_and_back() {
    two_sleepers(Source::Pausable, [|_| Due::After(TICK), |_| Due::After(TICK)]);
}

#[test]
fn exact_and_incoming_timers_mix() {
    two_sleepers(Source::Pausable, [|_| Due::After(TICK), |world| world.at(2)]);
}

#[test]
fn a_timer_is_cancelled_or_expires_never_both() {
    model(|| {
        let world = World::new(Source::Test, None);
        let sleepers = Sleepers::new(&world, 1);
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            let task = Task::new();
            drop(world.start(world.at(1), &Waker::from(task)).unwrap());
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        let metrics = world.metrics();
        assert_eq!(metrics.pending, 0);
        assert!(
            metrics.registered <= 1,
            "one that was due at once is not registered"
        );
    });
}

#[test]
fn a_timer_brought_forward_is_not_slept_through() {
    model(|| {
        let world = World::new(Source::Test, None);
        let sleepers = Sleepers::new(&world, 1);
        let task = Task::new();
        let waker = Waker::from(task.clone());
        let mut timer = world.start(world.at(1_000), &waker).unwrap();
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            let Due::At(deadline) = world.at(1) else {
                unreachable!()
            };
            timer.reset(deadline);
            assert_eq!(finish(&mut timer, &task), Ok(()));
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        assert_eq!(world.metrics().expired, 1);
    });
}

#[test]
fn a_timer_that_moved_on_is_registered_anew_and_expires_once_more() {
    model(|| {
        let world = World::new(Source::Test, None);
        let sleepers = Sleepers::new(&world, 1);
        let task = Task::new();
        let waker = Waker::from(task.clone());
        let mut timer = world.start(world.at(1), &waker).unwrap();
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            let Due::At(deadline) = world.at(3) else {
                unreachable!()
            };
            timer.reset(deadline);
            assert_eq!(finish(&mut timer, &task), Ok(()));
            assert!(world.model.tick.load(Ordering::SeqCst) >= 3, "never early");
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        assert_eq!(world.metrics().pending, 0);
    });
}

#[test]
fn a_timer_taken_over_is_never_early_and_not_slept_through() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let sleepers = Sleepers::new(&world, 1);
        // From here on the shard ticks.
        let first = world.count_down(1, Waker::noop()).unwrap();
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            let task = Task::new();
            let waker = Waker::from(task.clone());
            drop(world.count_down(1, &waker).unwrap());
            let started = world.model.tick.fetch_add(1, Ordering::SeqCst) + 1;
            let mut timer = world.count_down(1, &waker).unwrap();
            assert_eq!(finish(&mut timer, &task), Ok(()));
            let ended = world.model.tick.load(Ordering::SeqCst);
            assert!(ended > started, "started at {started}, ended at {ended}");
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        drop(first);
        world.assert_vacant();
        let metrics = world.metrics();
        // In a shard that dozes again, what was taken over re-arms at its old deadline, and counts anew.
        assert!((3..=4).contains(&metrics.registered), "{metrics:?}");
        assert_eq!(metrics.pending, 0);
    });
}

#[test]
fn a_kept_timer_leaves_nothing_behind() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(1, Waker::noop()).unwrap();
        let other = world.clone();
        let canceller = thread::spawn(move || {
            let waker = Waker::from(Task::new());
            let timer = other.count_down(1, &waker).unwrap();
            // Loom lets the visits come in between at a lock, if not at a load.
            other.metrics();
            drop(timer);
        });
        // The last visits may find nothing new, and have the shard doze.
        for _ in 0..4 {
            world.turn(&mut Wakers::default());
            world.model.tick.fetch_add(1, Ordering::SeqCst);
        }
        canceller.join().unwrap();
        drop(first);
        assert_eq!(world.metrics().pending, 0);
        world.assert_vacant();
        assert_eq!(world.metrics().registered, 2);
    });
}

/// One thread sets a timer aside and starts another for the same task, which lasts for `ticks`, while the other does `beside`.
fn next_of_the_same_task(ticks: u32, beside: impl Fn(&World) + Send + Sync + 'static) {
    model(move || {
        let world = World::new(Source::Pausable, None);
        let sleepers = Sleepers::new(&world, 1);
        let first = world.count_down(1, Waker::noop()).unwrap();
        let other = (world.clone(), sleepers.clone());
        let sleeper = thread::spawn(move || {
            let (world, sleepers) = other;
            let task = Task::new();
            let waker = Waker::from(task.clone());
            let outcome = world
                .count_down(1, &waker)
                .and_then(|timer| {
                    drop(timer);
                    world.count_down(ticks, &waker)
                })
                .and_then(|mut timer| finish(&mut timer, &task));
            sleepers.one_is_done();
            outcome
        });
        beside(&world);
        world.drive(|| sleepers.are_done());
        let outcome = sleeper.join().unwrap();
        assert!(matches!(outcome, Ok(()) | Err(Refusal::Shutdown)), "{outcome:?}");
        drop(first);
        assert_eq!(world.metrics().pending, 0);
        world.assert_vacant();
    });
}

/// One thread gives up a timer for tick `first`, then one that has expired, and starts another of the same task for tick `then`, beside the driver.
fn one_deadline_after_the_other(first: u32, then: u32) {
    model(move || {
        let world = World::new(Source::Pausable, None);
        let sleepers = Sleepers::new(&world, 1);
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            let task = Task::new();
            let waker = Waker::from(task.clone());
            // The first timer of a thread finds no slot in which an older one could be.
            drop(world.start(world.at(first), &waker).unwrap());
            // Given up as its task is polled for its expiry: no other wake-up will come of it.
            let mut timer = world.timer(world.at(first));
            if timer.poll(&waker).is_pending() {
                task.0.wait();
            }
            drop(timer);
            assert_eq!(finish(&mut world.timer(world.at(then)), &task), Ok(()));
            assert!(
                world.model.tick.load(Ordering::SeqCst) >= then.into(),
                "never early"
            );
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        assert_eq!(world.metrics().pending, 0);
        world.assert_vacant();
    });
}

#[test]
fn a_later_deadline_takes_an_earlier_one_over_and_is_neither_early_nor_slept_through() {
    one_deadline_after_the_other(1, 2);
}

#[test]
fn an_earlier_deadline_is_not_slept_through_for_a_later_one() {
    one_deadline_after_the_other(2, 1);
}

#[test]
fn a_timer_of_another_delay_is_taken_over_beside_a_visit() {
    next_of_the_same_task(2, |_| {});
}

#[test]
fn a_timer_is_taken_over_while_the_driver_is_replaced() {
    next_of_the_same_task(1, |world| {
        let mut wakers = Wakers::default();
        world.shard.detach(Nanos::ZERO, &mut wakers);
        wakers.due.drain(..).for_each(Waker::wake);
        world.shard.attach(world.clock, Epoch(1));
    });
}

#[test]
fn a_timer_of_another_delay_is_taken_over_while_the_wheel_is_shut_down() {
    next_of_the_same_task(2, |world| {
        let mut wakers = Wakers::default();
        world.shard.shutdown(&mut wakers);
        wakers.due.drain(..).for_each(Waker::wake);
    });
}

#[test]
fn two_threads_keep_timers_of_one_shard() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(1, Waker::noop()).unwrap();
        let tasks = [1, 2].map(|ticks| {
            let world = world.clone();
            thread::spawn(move || {
                let waker = Waker::from(Task::new());
                for _ in 0..2 {
                    let timer = world.count_down(ticks, &waker).unwrap();
                    drop(timer);
                }
            })
        });
        world.turn(&mut Wakers::default());
        for task in tasks {
            task.join().unwrap();
        }
        drop(first);
        assert_eq!(world.metrics().pending, 0);
        world.assert_vacant();
        assert_eq!(world.metrics().registered, 5);
        // A thread of a model drops its locals after it can be joined. This one's slot stays.
        while lock(&world.shard.state).ledger.len() > 1 {
            thread::yield_now();
            world.assert_vacant();
        }
    });
}

#[test]
fn a_timer_that_goes_from_slot_to_slot_is_counted_once() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(1, Waker::noop()).unwrap();
        let waker = Waker::from(Task::new());
        drop(world.count_down(1, &waker).unwrap());
        drop(first);
        let handed_over = Arc::new((Mutex::new(None), Task::new()));
        let (other, receiver) = (world.clone(), handed_over.clone());
        let ready = Task::new();
        let has_a_slot = ready.clone();
        let second = thread::spawn(move || {
            drop(other.count_down(1, Waker::noop()).unwrap());
            has_a_slot.0.ring();
            receiver.1.0.wait();
            let timer = receiver.0.lock().unwrap().take();
            drop(timer.unwrap());
        });
        ready.0.wait();
        let onlooker = world.clone();
        let onlooker = thread::spawn(move || onlooker.metrics().pending);
        *handed_over.0.lock().unwrap() = Some(world.count_down(1, &waker).unwrap());
        handed_over.1.0.ring();
        assert!(onlooker.join().unwrap() <= 1);
        second.join().unwrap();
        assert_eq!(world.metrics().pending, 0);
        world.assert_vacant();
    });
}

#[test]
fn a_driver_that_has_nothing_left_to_drive_for_leaves_nothing_in_a_slot() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(1, Waker::noop()).unwrap();
        let other = world.clone();
        let task = Task::new();
        let waker = Waker::from(task.clone());
        let canceller = thread::spawn(move || {
            for _ in 0..2 {
                let timer = other.count_down(3, &waker).unwrap();
                drop(timer);
            }
        });
        world.shard.release_handles();
        drop(first);
        let mut wakers = Wakers::default();
        for _ in 0..2 {
            world.turn(&mut wakers);
            world.model.tick.fetch_add(1, Ordering::SeqCst);
            if world.shard.detach_if_empty(&mut wakers) {
                world.shard.attach(world.clock, Epoch(1));
            }
        }
        canceller.join().unwrap();
        assert_eq!(world.metrics().pending, 0);
        world.assert_vacant();
        drop(wakers);
        assert_eq!(Arc::strong_count(&task), 1, "a waker is kept");
    });
}

#[test]
fn a_visit_that_lasts_beyond_its_tick_is_gone_through_with() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let timers = [(); 3].map(|()| world.count_down(1, Waker::noop()).unwrap());
        world.model.tick.store(1, Ordering::SeqCst);
        let began = world.clock.nanos_of(world.model.now());
        world.model.tick.store(2, Ordering::SeqCst);
        let mut wakers = Wakers::default();
        for _ in 0..2 {
            let visited = world.shard.visit(began, world.clock.source, true, 1, &mut wakers);
            assert!(matches!(visited, Visited::Unfinished), "some are incoming still");
        }
        for timer in timers {
            drop(timer);
        }
        world.assert_vacant();
    });
}

#[test]
fn a_shutdown_leaves_nobody_hanging() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let sleeper = world.clone();
        let sleeper = thread::spawn(move || sleeper.sleep(Due::After(TICK)));
        let stopper = world.clone();
        let stopper = thread::spawn(move || {
            let mut wakers = Wakers::default();
            let cancelled = stopper.shard.shutdown(&mut wakers);
            wakers.due.into_iter().for_each(Waker::wake);
            stopper.model.bell.ring();
            cancelled
        });
        world.drive(|| false);
        let (outcome, cancelled) = (sleeper.join().unwrap(), stopper.join().unwrap());
        match outcome {
            Ok(()) => assert_eq!(cancelled, 0),
            Err(refusal) => assert_eq!(refusal, Refusal::Shutdown),
        }
        assert_eq!(world.metrics().pending, 0);
    });
}

#[test]
fn a_limit_is_exact_and_all_room_comes_back() {
    model(|| {
        let world = World::new(Source::Test, Some(1));
        let sleepers = Sleepers::new(&world, 2);
        for _ in 0..2 {
            let (world, sleepers) = (world.clone(), sleepers.clone());
            thread::spawn(move || {
                let outcome = world.sleep(world.at(1));
                assert!(matches!(outcome, Ok(()) | Err(Refusal::AtCapacity { limit: 1 })));
                sleepers.one_is_done();
            });
        }
        world.drive(|| sleepers.are_done());
        let metrics = world.metrics();
        assert_eq!(metrics.pending, 0);
        assert!(world.start(world.at(9), Waker::noop()).is_ok());
    });
}

#[test]
fn a_driver_that_goes_has_every_future_look_for_another() {
    model(|| {
        let world = World::new(Source::Test, None);
        let sleepers = Sleepers::new(&world, 1);
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            assert_eq!(world.sleep(world.at(2)), Ok(()));
            sleepers.one_is_done();
        });
        let mut wakers = Wakers::default();
        world.shard.detach(Nanos::ZERO, &mut wakers);
        wakers.due.drain(..).for_each(Waker::wake);
        world.shard.attach(world.clock, Epoch(1));
        world.drive(|| sleepers.are_done());
        assert_eq!(world.metrics().pending, 0);
    });
}

#[test]
fn a_timer_kept_while_the_wheel_retires_is_not_removed_and_taken() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(9, Waker::noop()).unwrap();
        let waker = Waker::from(Task::new());
        let timer = world.count_down(3, &waker).unwrap();
        let other = world.clone();
        // What `Shared::retire` does at every turn of a wheel without handles.
        let driver = thread::spawn(move || assert!(!other.shard.detach_if_empty(&mut Wakers::default())));
        drop(timer);
        let mut timer = world.count_down(3, &waker).unwrap();
        assert!(timer.poll(&waker).is_pending());
        driver.join().unwrap();
        assert_eq!(world.metrics().pending, 2, "what was taken was removed, too");
        drop((timer, first));
    });
}

#[test]
fn a_timer_kept_as_a_visit_begins_is_not_removed_and_taken() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let waker = Waker::from(Task::new());
        // The visit is for this one; the other outlasts it.
        let first = world.start(world.at(1), Waker::noop()).unwrap();
        let timer = world.start(world.at(9), &waker).unwrap();
        world.model.tick.store(1, Ordering::SeqCst);
        let other = world.clone();
        let driver = thread::spawn(move || other.turn(&mut Wakers::default()));
        drop(timer);
        let mut timer = world.start(world.at(9), &waker).unwrap();
        assert!(timer.poll(&waker).is_pending());
        driver.join().unwrap();
        let arena = lock(&world.shard.state).wheel.len();
        assert_eq!(
            (arena, world.metrics().pending),
            (1, 1),
            "what was taken was removed, too"
        );
        drop((timer, first));
        assert_eq!(world.metrics().pending, 0);
    });
}
