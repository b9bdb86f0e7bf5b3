//! Timers that may be refused: a shutdown ends their shards, and a limit counts them.

use std::task::{Poll, Waker};

use super::{
    model,
    task::Task,
    world::{Shards, World, finish, moment, spawn},
};
use crate::engine::{
    engines::wake_all,
    shared::Refusal,
    timer::{Polled, Timer},
};

/// Does what `Wheel::shutdown` does.
fn shut_down(world: &World) {
    let mut wakers = Vec::new();
    assert!(world.shared.limit.shut_down());
    world.engine().shut_down(&mut wakers);
    assert!(wakers.len() <= 1);
    wake_all(&mut wakers, &world.shared);
}

/// Shuts the wheel down beside a task that starts a timer of the given tick and then does `act` with it.
fn beside_a_shutdown(tick: u64, act: fn(&World, Timer, &(std::sync::Arc<Task>, Waker))) {
    model(3, move || {
        let world = World::new();
        let engine = world.engine();
        let sleeper = world.spawn(move |world| {
            let task = Task::new();
            let mut timer = world.refusable(tick);
            if timer.poll(&task.1) == Poll::Pending {
                act(world, timer, &task);
            }
        });
        let other = world.clone();
        let shutdown = spawn(&world.runtime, move || shut_down(&other));
        world.runtime.timers().run();
        sleeper.join().unwrap();
        shutdown.join().unwrap();
        drop(engine);
        world.shut_down();
    });
}

fn assert_elapsed_or_refused(polled: Polled) {
    assert!(matches!(polled, Poll::Ready(Ok(()) | Err(Refusal::Shutdown))));
}

#[test]
fn a_timer_that_is_polled_beside_a_shutdown_elapses_or_is_refused() {
    beside_a_shutdown(1, |_, mut timer, task| {
        assert_elapsed_or_refused(finish(&mut timer, task, || ()));
    });
}

#[test]
fn a_timer_that_another_task_polls_beside_a_shutdown_elapses_or_is_refused() {
    beside_a_shutdown(1, |_, mut timer, _| {
        assert_elapsed_or_refused(finish(&mut timer, &Task::new(), || ()));
    });
}

#[test]
fn a_timer_that_is_moved_beside_a_shutdown_elapses_or_is_refused() {
    beside_a_shutdown(3, |_, mut timer, task| {
        timer.reset(moment(2)).into_iter().for_each(Waker::wake);
        assert_elapsed_or_refused(finish(&mut timer, task, || ()));
    });
}

/// A timer that cannot be refused is started where it was.
#[test]
fn a_timer_that_is_dropped_beside_a_shutdown_removes_its_own_entry_or_none() {
    beside_a_shutdown(2, |world, timer, _| {
        drop(timer);
        world.sleep_until(1);
    });
}

#[test]
fn a_limit_is_exact_and_its_room_comes_back() {
    model(3, || {
        let shards = Shards::new(Some(1));
        for _ in 0..2 {
            shards.spawn(|shards| {
                let polled = finish(&mut shards.refusable(1), &Task::new(), || shards.say_started());
                assert!(matches!(polled, Poll::Ready(Ok(()) | Err(Refusal::AtCapacity))));
            });
        }
        shards.drive(1);
        let _entered = shards.enter();
        let (mut one, mut another) = (shards.refusable(9), shards.refusable(9));
        assert_eq!(one.poll(Waker::noop()), Poll::Pending);
        assert_eq!(another.poll(Waker::noop()), Poll::Ready(Err(Refusal::AtCapacity)));
    });
}
