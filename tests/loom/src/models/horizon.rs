//! The rules of the horizon: timers that are started, taken over, moved and dropped beside a turn.

use std::{sync::Arc, task::Waker};

use super::{
    model,
    task::{Bell, Task},
    world::{Shards, moment},
};
use crate::stand_in::time;

#[test]
fn timers_are_neither_early_nor_slept_through() {
    model(3, || {
        let shards = Shards::new();
        for tick in [2, 1] {
            shards.spawn(move |shards| shards.sleep_until(tick, &mut shards.timer(tick), &Task::new()));
        }
        shards.drive(2);
    });
}

/// The timer moves the hand to its own reading of the clock, and the turn comes to the shard with an older one.
#[test]
fn a_timer_that_starts_beside_a_late_turn_is_not_slept_through() {
    model(3, || {
        let shards = Shards::new();
        let has_begun = Arc::new(Bell::new());
        let begun = has_begun.clone();
        shards.spawn(move |shards| {
            // Its visit stays planned, so that the next one does not ask whether it is due by now.
            shards.start(&mut shards.timer(1), Waker::noop());
            time::go_on_to(1);
            begun.ring();
            shards.sleep_until(2, &mut shards.timer_since(1, 2), &Task::new());
        });
        has_begun.wait();
        shards.turn_until(2);
        shards.drive(3);
    });
}

/// The task drops its first timer, for tick `first`, before or after that has expired, and sleeps until tick
/// `then`.
fn one_timer_after_the_other(first: u64, then: u64) {
    model(3, move || {
        let shards = Shards::new();
        shards.spawn(move |shards| {
            let task = Task::new();
            let mut timer = shards.timer(first);
            shards.start(&mut timer, &task.1);
            drop(timer);
            shards.sleep_until(then, &mut shards.timer(then), &task);
        });
        shards.drive(first.max(then));
    });
}

#[test]
fn a_later_timer_takes_over_an_earlier_entry() {
    one_timer_after_the_other(1, 2);
}

/// The task drops two timers, one in the other, and then waits for two again.
#[test]
fn two_timers_take_over_two_earlier_entries() {
    model(2, || {
        let shards = Shards::new();
        shards.spawn(|shards| {
            let task = Task::new();
            let mut timers = [2, 3].map(|tick| shards.timer(tick));
            for timer in &mut timers {
                shards.start(timer, &task.1);
            }
            drop(timers);
            let [mut inner, mut outer] = [2, 3].map(|tick| shards.timer(tick));
            shards.start(&mut inner, &task.1);
            shards.start(&mut outer, &task.1);
            shards.sleep_until(2, &mut inner, &task);
            shards.sleep_until(3, &mut outer, &task);
        });
        shards.drive(3);
    });
}

/// The spare stays, and is given up as the earlier timer is dropped.
#[test]
fn an_earlier_timer_leaves_a_later_spare_alone() {
    one_timer_after_the_other(2, 1);
}

#[test]
fn an_entry_that_has_woken_its_task_is_not_taken_over() {
    model(3, || {
        let shards = Shards::new();
        shards.spawn(|shards| {
            let task = Task::new();
            let mut timer = shards.timer(1);
            let is_pending = shards.start(&mut timer, &task.1);
            drop(timer);
            if is_pending {
                // As a task is polled that is woken by its own spare.
                task.0.wait();
            }
            // Its poll does not read the clock, and has only the horizon to go by.
            shards.sleep_until(3, &mut shards.timer_since(0, 3), &task);
        });
        shards.drive(3);
    });
}

/// What waited for the timer was not a task of Tokio's, so there is no spare. The other task may be given the
/// cell.
#[test]
fn a_timer_that_is_dropped_beside_a_turn_removes_its_own_entry_or_none() {
    model(3, || {
        let shards = Shards::new();
        shards.spawn(|shards| {
            let mut timer = shards.timer(1);
            shards.start(&mut timer, Waker::noop());
            drop(timer);
        });
        shards.spawn(|shards| shards.sleep_until(2, &mut shards.timer(2), &Task::new()));
        shards.drive(2);
    });
}

#[test]
fn a_timer_that_is_polled_by_another_task_wakes_that() {
    model(4, || {
        let shards = Shards::new();
        shards.spawn(|shards| {
            // It stays to the end. Loom does not know that whoever gets memory again knows what was stored
            // before that was freed, so a second task at the same address could read the horizon late.
            let first = Task::new();
            let mut timer = shards.timer(1);
            shards.start(&mut timer, &first.1);
            shards.sleep_until(1, &mut timer, &Task::new());
        });
        shards.drive(1);
    });
}

/// Lets a task move its timer from tick `from` to each of `ticks`, beside the turns.
fn a_task_moves_its_timer(from: u64, ticks: &'static [u64]) {
    model(3, move || {
        let shards = Shards::new();
        shards.spawn(move |shards| {
            let task = Task::new();
            let mut timer = shards.timer(from);
            shards.start(&mut timer, &task.1);
            for tick in ticks {
                timer
                    .reset(moment(*tick), moment(0))
                    .into_iter()
                    .for_each(Waker::wake);
            }
            shards.sleep_until(ticks[ticks.len() - 1], &mut timer, &task);
        });
        shards.drive(3);
    });
}

#[test]
fn a_timer_that_is_brought_forward_is_not_slept_through() {
    a_task_moves_its_timer(3, &[2]);
}

/// The second move takes no lock, because the entry is due early enough.
#[test]
fn a_timer_that_is_put_off_and_brought_forward_by_half_is_not_early() {
    a_task_moves_its_timer(1, &[3, 2]);
}

/// The task puts a timer off that it took over.
#[test]
fn a_taken_over_timer_that_is_put_off_is_neither_early_nor_slept_through() {
    model(3, || {
        let shards = Shards::new();
        shards.spawn(|shards| {
            let task = Task::new();
            let mut first = shards.timer(1);
            shards.start(&mut first, &task.1);
            drop(first);
            let mut timer = shards.timer(1);
            shards.start(&mut timer, &task.1);
            timer
                .reset(moment(2), moment(0))
                .into_iter()
                .for_each(Waker::wake);
            shards.sleep_until(2, &mut timer, &task);
        });
        shards.drive(2);
    });
}
