//! Timers that are registered, brought forward, cancelled, expired and shut down.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use loom::thread;

use super::super::{Drive, Wakers};
use super::{
    model, model_with_preemptions,
    world::{Due, Sleepers, TICK, Task, World, finish},
};
use crate::{
    engine::{
        clock::Source,
        sync::{Ordering, lock},
        timing_wheel::{Nanos, Tick},
    },
    error::SleepError,
};

/// Two threads with one timer each, beside the driver.
fn two_sleepers(source: Source, dues: [fn(&World) -> Due; 2], preemptions: usize) {
    model_with_preemptions(preemptions, move || {
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
        let usage = world.usage();
        assert_eq!(
            (usage.counters.expired, usage.pending),
            (usage.counters.registered, 0)
        );
    });
}

#[test]
fn no_registration_is_slept_through_while_the_shard_dozes() {
    two_sleepers(Source::Test, [|world| world.at(3), |world| world.at(1)], 3);
}

#[test]
fn no_registration_is_slept_through_while_the_shard_goes_from_dozing_to_ticking_and_back() {
    // With three preemptions, this model alone takes more than ten minutes.
    two_sleepers(Source::Pausable, [|_| Due::After(TICK), |_| Due::After(TICK)], 2);
}

#[test]
fn exact_and_incoming_timers_mix() {
    two_sleepers(Source::Pausable, [|_| Due::After(TICK), |world| world.at(2)], 3);
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
        let usage = world.usage();
        assert_eq!(usage.pending, 0);
        assert!(
            usage.counters.registered <= 1,
            "one that was due at once is not registered"
        );
    });
}

/// Lets a thread move its timer from tick `from` to each of `ticks`, beside the driver. `ended` checks the world when the timer
/// has ended.
fn a_thread_moves_its_timer(source: Source, from: u32, ticks: &'static [u32], ended: fn(&World)) {
    model(move || {
        let world = World::new(source, None);
        let sleepers = Sleepers::new(&world, 1);
        let task = Task::new();
        let waker = Waker::from(task.clone());
        let mut timer = world.start(world.at(from), &waker).unwrap();
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            for tick in ticks {
                timer.reset(world.deadline(*tick));
            }
            assert_eq!(finish(&mut timer, &task), Ok(()));
            ended(&world);
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        assert_eq!(world.usage().pending, 0);
    });
}

#[test]
fn a_timer_brought_forward_is_not_slept_through() {
    a_thread_moves_its_timer(Source::Test, 1_000, &[1], |world| {
        assert_eq!(world.usage().counters.expired, 1);
    });
}

/// The timer is moved to a later instant and then to one in between. The second move takes no lock, because the entry expires
/// early enough.
#[test]
fn a_timer_brought_half_way_back_is_not_slept_through() {
    a_thread_moves_its_timer(Source::Pausable, 1, &[5, 3], |world| {
        let tick = world.model.tick.load(Ordering::SeqCst);
        assert_eq!(tick, 3, "never early, and not as late as it was to be before");
    });
}

#[test]
fn an_entry_moves_only_to_expire_earlier_than_it_would() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let mut timer = world.start(world.at(1_000), Waker::noop()).unwrap();
        for (tick, expires) in [(5, 5), (9, 5), (7, 5), (3, 3)] {
            timer.reset(world.deadline(tick));
            world.turn(&mut Wakers::default());
            assert_eq!(world.shard.wake_at(), Tick(expires));
        }
        drop(timer);
    });
}

#[test]
fn a_timer_that_moved_on_is_registered_anew_and_expires_once_more() {
    a_thread_moves_its_timer(Source::Test, 1, &[3], |world| {
        assert!(world.model.tick.load(Ordering::SeqCst) >= 3, "never early");
    });
}

#[test]
fn a_visit_that_lasts_beyond_its_tick_is_gone_through_with() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let timers = [(); 3].map(|()| world.count_down(1, Waker::noop()).unwrap());
        world.model.tick.store(2, Ordering::SeqCst);
        let began = world.reading();
        world.model.tick.store(3, Ordering::SeqCst);
        let mut wakers = Wakers::default();
        for _ in 0..2 {
            let more = world.shard.visit(began, true, 1, &mut wakers);
            assert!(more, "some are incoming still");
        }
        for timer in timers {
            drop(timer);
        }
        world.assert_vacant();
    });
}

/// Between two full visits, at tick 1, the driver visits for the due timer. An incoming timer can be taken over until tick 2.
#[test]
fn a_light_visit_leaves_what_is_incoming() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let incoming = [(); 2].map(|()| world.count_down(1, Waker::noop()).unwrap());
        let due = world.start(world.at(1), Waker::noop()).unwrap();
        let beside = {
            let world = world.clone();
            thread::spawn(move || world.count_down(1, Waker::noop()).unwrap())
        };
        world.model.tick.store(1, Ordering::SeqCst);
        world.turn(&mut Wakers::default());
        assert!(lock(&world.shard.state).wheel.has_incoming());
        let usage = world.usage();
        assert_eq!((usage.counters.full_visits, usage.counters.light_visits), (0, 1));
        drop((incoming, due, beside.join().unwrap()));
        world.assert_vacant();
    });
}

/// There is no visit at tick 2. At tick 3 the incoming timer gets its deadline, and the next full visit is at tick 4.
#[test]
fn a_full_visit_that_comes_late_is_one() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let timers = [(); 2].map(|()| world.count_down(3, Waker::noop()).unwrap());
        world.model.tick.store(3, Ordering::SeqCst);
        let beside = {
            let world = world.clone();
            thread::spawn(move || drop(world.count_down(3, Waker::noop()).unwrap()))
        };
        world.turn(&mut Wakers::default());
        let usage = world.usage();
        assert_eq!(usage.counters.full_visits, 1);
        beside.join().unwrap();
        drop(timers);
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
            Err(refusal) => assert_eq!(refusal, SleepError::Shutdown),
        }
        assert_eq!(world.usage().pending, 0);
    });
}

#[test]
fn an_entry_has_its_owner_before_anything_can_panic() {
    model(|| {
        let world = World::new(Source::Test, None);
        world.model.panics.store(true, Ordering::Relaxed);
        let mut timer = world.timer(world.at(1));
        let polled = catch_unwind(AssertUnwindSafe(|| timer.poll(Waker::noop())));
        assert!(polled.is_err(), "the driver was not woken");
        drop(timer);
        assert_eq!(world.usage().pending, 0);
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
                assert!(matches!(
                    outcome,
                    Ok(()) | Err(SleepError::AtCapacity { limit: 1 })
                ));
                sleepers.one_is_done();
            });
        }
        world.drive(|| sleepers.are_done());
        let usage = world.usage();
        assert_eq!(usage.pending, 0);
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
        world.attach_next_driver();
        world.drive(|| sleepers.are_done());
        assert_eq!(world.usage().pending, 0);
    });
}
