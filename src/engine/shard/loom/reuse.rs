//! A timer that takes over the cancelled one of its task: it is never early, and is not slept through.

use std::task::Waker;

use loom::thread;

use super::super::Wakers;
use super::{
    model,
    world::{Sleepers, Task, World, finish},
};
use crate::{
    engine::{clock::Source, sync::Ordering},
    error::SleepError,
};

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
            world.open_slot(&waker);
            drop(world.count_down(1, &waker).unwrap());
            let started = world.model.tick.fetch_add(1, Ordering::SeqCst) + 1;
            let mut timer = world.count_down(1, &waker).unwrap();
            assert_eq!(finish(&mut timer, &task), Ok(()));
            let ended = world.model.tick.load(Ordering::SeqCst);
            assert!(ended > started, "started at {started}, ended at {ended}");
            // A timer that has elapsed keeps its cell.
            drop(timer);
            sleepers.one_is_done();
        });
        world.drive(|| sleepers.are_done());
        drop(first);
        world.assert_vacant();
        let usage = world.usage();
        // In a shard that dozes again, a timer that was taken over is re-armed at its old deadline, and counts again.
        assert!((3..=4).contains(&usage.counters.registered));
        assert_eq!(usage.pending, 0);
    });
}

/// One thread keeps a timer for reuse and starts another for the same task, which lasts for `ticks`, while the other thread does
/// `beside`.
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
            world.open_slot(&waker);
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
        assert!(
            matches!(outcome, Ok(()) | Err(SleepError::Shutdown)),
            "{outcome:?}"
        );
        drop(first);
        assert_eq!(world.usage().pending, 0);
        world.assert_vacant();
    });
}

/// Beside the driver, one thread drops a timer for tick `first`, and then one that has expired. It starts another timer of the
/// same task for tick `then`.
fn one_deadline_after_the_other(first: u32, then: u32) {
    model(move || {
        let world = World::new(Source::Pausable, None);
        let sleepers = Sleepers::new(&world, 1);
        let other = (world.clone(), sleepers.clone());
        thread::spawn(move || {
            let (world, sleepers) = other;
            let task = Task::new();
            let waker = Waker::from(task.clone());
            world.open_slot(&waker);
            // The first timer of a thread finds no slot that could contain an older one.
            drop(world.start(world.at(first), &waker).unwrap());
            // The timer is dropped as its task is polled for its expiry, so it will cause no other wake-up.
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
        assert_eq!(world.usage().pending, 0);
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
        world.replace_driver();
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
