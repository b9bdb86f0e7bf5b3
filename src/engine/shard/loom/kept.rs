//! Timers that are kept for reuse: each is taken, removed and counted once, and none stays for good.

use std::{sync::Arc, task::Waker};

use loom::{sync::Mutex, thread};

use super::super::{NEVER, Wakers};
use super::{
    model, model_with_preemptions,
    world::{Task, World},
};
use crate::engine::{
    clock::Source,
    sync::{Ordering, lock},
    timing_wheel::Tick,
};

#[test]
fn a_kept_timer_leaves_nothing_behind() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(1, Waker::noop()).unwrap();
        let other = world.clone();
        let canceller = thread::spawn(move || {
            let waker = Waker::from(Task::new());
            let timer = other.count_down(1, &waker).unwrap();
            // Loom can run the visits in between at a lock, but not at a load.
            other.usage();
            drop(timer);
        });
        // The last visits may find no new registrations, and make the shard doze.
        for _ in 0..4 {
            world.turn(&mut Wakers::default());
            world.model.tick.fetch_add(1, Ordering::SeqCst);
        }
        canceller.join().unwrap();
        drop(first);
        assert_eq!(world.usage().pending, 0);
        world.assert_vacant();
        assert_eq!(world.usage().counters.registered, 2);
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
        assert_eq!(world.usage().pending, 0);
        world.assert_vacant();
        assert_eq!(world.usage().counters.registered, 5);
        // A thread of a model drops its thread-locals after it can be joined, and the slot of this one stays.
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
        let onlooker = thread::spawn(move || onlooker.usage().pending);
        *handed_over.0.lock().unwrap() = Some(world.count_down(1, &waker).unwrap());
        handed_over.1.0.ring();
        assert!(onlooker.join().unwrap() <= 1);
        second.join().unwrap();
        assert_eq!(world.usage().pending, 0);
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
            world.replace_driver();
        }
        canceller.join().unwrap();
        assert_eq!(world.usage().pending, 0);
        world.assert_vacant();
        drop(wakers);
        assert_eq!(Arc::strong_count(&task), 1, "a waker is kept");
    });
}

#[test]
fn a_timer_kept_while_the_driver_goes_is_not_removed_and_taken() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(9, Waker::noop()).unwrap();
        let waker = Waker::from(Task::new());
        world.open_slot(&waker);
        let timer = world.count_down(3, &waker).unwrap();
        let other = world.clone();
        let driver = thread::spawn(move || other.replace_driver());
        drop(timer);
        let mut timer = world.count_down(3, &waker).unwrap();
        assert!(timer.poll(&waker).is_pending());
        driver.join().unwrap();
        assert_eq!(world.usage().pending, 2, "what was taken was removed, too");
        drop((timer, first));
    });
}

#[test]
fn a_timer_kept_as_a_visit_begins_is_not_removed_and_taken() {
    a_timer_kept_as_a_visit_begins(1);
}

#[test]
fn a_timer_kept_as_its_slot_is_closed_is_not_removed_and_taken() {
    a_timer_kept_as_a_visit_begins(5);
}

fn a_timer_kept_as_a_visit_begins(at: u32) {
    model(move || {
        let world = World::new(Source::Pausable, None);
        let waker = Waker::from(Task::new());
        world.open_slot(&waker);
        // The visit is made for this timer, and the other one outlasts it.
        let first = world.start(world.at(at), Waker::noop()).unwrap();
        let timer = world.start(world.at(9), &waker).unwrap();
        world.model.tick.store(at.into(), Ordering::SeqCst);
        let other = world.clone();
        let driver = thread::spawn(move || other.turn(&mut Wakers::default()));
        drop(timer);
        let mut timer = world.start(world.at(9), &waker).unwrap();
        assert!(timer.poll(&waker).is_pending());
        driver.join().unwrap();
        let arena = lock(&world.shard.state).wheel.len();
        assert_eq!(
            (arena, world.usage().pending),
            (1, 1),
            "what was taken was removed, too"
        );
        drop((timer, first));
        assert_eq!(world.usage().pending, 0);
    });
}

/// A full visit has been since the timer was taken over, so it fits no slot.
#[test]
fn a_timer_that_cannot_be_kept_is_counted_as_cancelled_once_and_for_all() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let first = world.count_down(9, Waker::noop()).unwrap();
        let waker = Waker::from(Task::new());
        world.open_slot(&waker);
        // Incoming timers, of which the second takes over the first. A slot that has not been used would be closed.
        drop(world.count_down(3, &waker).unwrap());
        let timer = world.count_down(3, &waker).unwrap();
        world.model.tick.fetch_add(2, Ordering::SeqCst);
        world.turn(&mut Wakers::default());
        let other = world.clone();
        assert!(!timer.waits(&waker), "the visit was not a full one");
        let reader = thread::spawn(move || {
            let [one, next] = [(); 2].map(|()| other.usage());
            assert!(one.counters.cancelled <= next.counters.cancelled);
            assert!(one.pending >= next.pending);
        });
        drop(timer);
        reader.join().unwrap();
        drop(first);
        assert_eq!(world.usage().pending, 0);
    });
}

/// One of two timers for this tick is dropped in the middle of the visit that expires both, one after the other.
#[test]
fn a_timer_that_expires_in_a_slot_was_never_counted_as_cancelled() {
    model_with_preemptions(4, || {
        let world = World::new(Source::Pausable, None);
        let waker = Waker::from(Task::new());
        world.open_slot(&waker);
        // A slot that has not been used would be closed.
        let taken = world.start(world.at(9), &waker).unwrap();
        let other = world.start(world.at(1), Waker::noop()).unwrap();
        let dropped = world.start(world.at(1), &waker).unwrap();
        world.model.tick.fetch_add(1, Ordering::SeqCst);
        let [driving, reading] = [world.clone(), world.clone()];
        let driver = thread::spawn(move || driving.turn(&mut Wakers::default()));
        let reader = thread::spawn(move || {
            let [one, next] = [(); 2].map(|()| reading.usage());
            assert!(one.counters.cancelled <= next.counters.cancelled);
        });
        drop(dropped);
        driver.join().unwrap();
        reader.join().unwrap();
        drop((taken, other));
        assert_eq!(world.usage().pending, 0);
    });
}

/// Beside the driver, a thread keeps two timers in turn. The first opens its slot.
#[test]
fn a_kept_timer_soon_leaves_a_shard_that_dozes() {
    model(|| {
        let world = World::new(Source::Pausable, None);
        let other = world.clone();
        let task = Task::new();
        let waker = Waker::from(task.clone());
        let canceller = thread::spawn(move || {
            for _ in 0..2 {
                drop(other.start(other.at(1_000), &waker).unwrap());
            }
        });
        world.turn(&mut Wakers::default());
        canceller.join().unwrap();
        while world.shard.wake_at() < NEVER {
            let Tick(next) = world.shard.wake_at();
            world.model.tick.fetch_max(next, Ordering::SeqCst);
            world.turn(&mut Wakers::default());
        }
        assert!(
            world.model.tick.load(Ordering::SeqCst) < 1_000,
            "it is kept until its deadline"
        );
        assert_eq!(Arc::strong_count(&task), 1, "a waker is kept");
        assert!(lock(&world.shard.state).wheel.is_vacant(), "a cell is lost");
    });
}
