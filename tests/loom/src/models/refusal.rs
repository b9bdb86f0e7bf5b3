//! Timers that may be refused: a shutdown ends their shard, and a limit counts them.

use std::task::{Poll, Waker};

use loom::thread;

use super::{
    model,
    task::Task,
    world::{Shards, finish, moment},
};
use crate::engine::{
    shared::Refusal,
    timer::Timer,
    turn::wake_all,
};

/// Does what `Wheel::shutdown` does. Returns the number of timers that were ended.
fn shut_down(shards: &Shards) -> usize {
    let mut wakers = Vec::new();
    assert!(shards.shared().limit.shut_down());
    shards.refusable().end(&mut wakers);
    let taken = wakers.len();
    wake_all(&mut wakers, shards.shared());
    taken
}

fn drive_beside_a_shutdown(shards: &Shards, ticks: u64) {
    let other = shards.clone();
    let shutdown = thread::spawn(move || shut_down(&other));
    shards.drive(ticks);
    assert!(shutdown.join().unwrap() <= 1);
    shards.assert_vacant();
}

fn refusable(shards: &Shards, tick: u64) -> Timer {
    let mut timer = Timer::at(Some(shards.refusable().clone()), moment(tick));
    timer.let_refuse();
    timer
}

/// Shuts the wheel down beside a turn and a task that starts a timer and then does `act` with it.
fn beside_a_shutdown(act: fn(&Shards, &mut Timer, &(std::sync::Arc<Task>, Waker))) {
    model(3, move || {
        let shards = Shards::new(Some(2));
        shards.spawn(move |shards| {
            let task = Task::new();
            let mut timer = refusable(shards, 1);
            if shards.start(&mut timer, &task.1) {
                act(shards, &mut timer, &task);
            }
        });
        drive_beside_a_shutdown(&shards, 1);
    });
}

#[test]
fn a_timer_that_is_polled_beside_a_shutdown_elapses_or_is_refused() {
    beside_a_shutdown(|shards, timer, task| {
        let polled = finish(timer, task, || shards.say_started());
        assert!(matches!(
            polled,
            Poll::Ready(Ok(()) | Err(Refusal::Shutdown))
        ));
    });
}

#[test]
fn a_timer_that_another_task_polls_beside_a_shutdown_elapses_or_is_refused() {
    beside_a_shutdown(|shards, timer, _| {
        let polled = finish(timer, &Task::new(), || shards.say_started());
        assert!(matches!(
            polled,
            Poll::Ready(Ok(()) | Err(Refusal::Shutdown))
        ));
    });
}

#[test]
fn a_timer_that_is_moved_beside_a_shutdown_elapses_or_is_refused() {
    model(3, move || {
        let shards = Shards::new(Some(2));
        shards.spawn(move |shards| {
            let task = Task::new();
            let mut timer = refusable(shards, 3);
            if shards.start(&mut timer, &task.1) {
                timer.reset(moment(2)).into_iter().for_each(Waker::wake);
                let polled = finish(&mut timer, &task, || shards.say_started());
                assert!(matches!(
                    polled,
                    Poll::Ready(Ok(()) | Err(Refusal::Shutdown))
                ));
            }
        });
        drive_beside_a_shutdown(&shards, 2);
    });
}

/// Another timer, which cannot be refused, may be given the cell.
#[test]
fn a_timer_that_is_dropped_beside_a_shutdown_removes_its_own_entry_or_none() {
    model(3, move || {
        let shards = Shards::new(Some(2));
        shards.spawn(move |shards| {
            let mut timer = refusable(shards, 2);
            shards.start(&mut timer, &Task::new().1);
            drop(timer);
            shards.sleep_until(1, &mut shards.timer(1), &Task::new());
        });
        drive_beside_a_shutdown(&shards, 2);
    });
}

#[test]
fn a_limit_is_exact_and_its_room_comes_back() {
    model(3, || {
        let shards = Shards::new(Some(1));
        for _ in 0..2 {
            shards.spawn(|shards| {
                let polled = finish(&mut refusable(shards, 1), &Task::new(), || shards.say_started());
                assert!(matches!(
                    polled,
                    Poll::Ready(Ok(()) | Err(Refusal::AtCapacity))
                ));
            });
        }
        shards.drive(1);
        let _entered = shards.enter();
        let (mut one, mut another) = (refusable(&shards, 9), refusable(&shards, 9));
        assert_eq!(one.poll(Waker::noop()), Poll::Pending);
        assert_eq!(another.poll(Waker::noop()), Poll::Ready(Err(Refusal::AtCapacity)));
    });
}
