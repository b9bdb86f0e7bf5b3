//! `metrics` and `pending`: every field means what its documentation says, and they add up.

use crate::support;

use std::{future::pending, sync::Barrier, thread};

use tickwheel::{Metrics, Wheel};
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};

use support::{DAY, SECOND, TICK, advance, ms, paused_runtime, register, settle, threaded_runtime};

/// Asserts the sum that holds at every quiet point, and returns what was summed.
#[track_caller]
fn sum(wheel: &Wheel) -> (u64, u64, u64, usize) {
    let Metrics {
        registered,
        expired,
        cancelled,
        pending,
        ..
    } = wheel.metrics();
    assert_eq!(registered, expired + cancelled + pending as u64);
    assert_eq!(pending, wheel.pending());
    (registered, expired, cancelled, pending)
}

#[tokio::test(start_paused = true)]
async fn a_new_wheel_reports_nothing_at_all() {
    assert_eq!(Wheel::new().metrics(), Metrics::default());
}

#[tokio::test(start_paused = true)]
async fn registered_is_expired_and_cancelled_and_pending_at_every_quiet_point() {
    let wheel = Wheel::new();
    assert_eq!(sum(&wheel), (0, 0, 0, 0));

    let mut sleep = task::spawn(wheel.sleep(SECOND));
    assert_eq!(
        sum(&wheel),
        (0, 0, 0, 0),
        "a timer is registered by its first poll"
    );
    assert_pending!(sleep.poll());
    assert_eq!(sum(&wheel), (1, 0, 0, 1));

    let mut timeout = task::spawn(wheel.timeout(SECOND * 3, pending::<()>()));
    assert_pending!(timeout.poll());
    let task = wheel.schedule(SECOND, async {});
    assert_eq!(sum(&wheel), (3, 0, 0, 3));

    advance(SECOND).await;
    assert_eq!(sum(&wheel), (3, 2, 0, 1), "expired, polled or not");
    assert_ready!(sleep.poll());
    assert_eq!(sum(&wheel), (3, 2, 0, 1));
    assert_eq!(task.await, Ok(()));

    drop(timeout);
    assert_eq!(sum(&wheel), (3, 2, 1, 0));

    let task = wheel.schedule(SECOND, async {});
    assert_eq!(sum(&wheel), (4, 2, 1, 1));
    assert!(task.cancel());
    assert_eq!(sum(&wheel), (4, 2, 2, 0));

    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(wheel.timeout(SECOND, receiver));
    assert_pending!(timeout.poll());
    assert_eq!(sum(&wheel), (5, 2, 2, 1));
    sender.send(()).unwrap();
    assert_ready_eq!(timeout.poll(), Ok(Ok(())));
    assert_eq!(
        sum(&wheel),
        (5, 2, 3, 0),
        "a timeout that was not needed was cancelled"
    );

    let mut sleep = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(sleep.poll());
    drop(wheel.schedule(SECOND, async {}));
    assert_eq!(sum(&wheel), (7, 2, 3, 2));
    drop(wheel.shutdown());
    assert_eq!(sum(&wheel), (7, 2, 4, 1), "what a shutdown returns was cancelled");
    drop(sleep);
    assert_eq!(
        sum(&wheel),
        (7, 2, 5, 0),
        "and what it refuses, once that is dropped"
    );
}

#[test]
fn engines_are_the_runtimes_that_have_a_part_now_and_counters_those_of_all() {
    let wheel = Wheel::new();
    let first = paused_runtime();
    first.block_on(wheel.sleep(SECOND));
    let second = threaded_runtime(2);
    second.block_on(wheel.sleep(ms(5)));
    let mut sleep = wheel.sleep(SECOND);
    first.block_on(async { register(&mut sleep) });
    let metrics = wheel.metrics();
    assert_eq!((metrics.engines, metrics.registered, metrics.expired), (2, 3, 2));
    assert!(metrics.turns >= 2 && metrics.arena_bytes > 0);
    drop(first);
    let metrics = wheel.metrics();
    assert_eq!(metrics.engines, 1);
    assert_eq!(
        sum(&wheel),
        (3, 2, 1, 0),
        "a runtime that ends cancels what waits there"
    );
    drop(second);
    let ended = wheel.metrics();
    assert_eq!(
        (ended.engines, ended.arena_bytes, ended.turns),
        (0, 0, metrics.turns)
    );
    assert_eq!(sum(&wheel), (3, 2, 1, 0));
    paused_runtime().block_on(sleep);
    assert_eq!(
        sum(&wheel),
        (4, 3, 1, 0),
        "and registers it anew where it goes on"
    );
}

/// Who exports the counters takes one that goes back for that of a process which has begun anew.
#[test]
fn no_counter_goes_back_as_shards_end() {
    for _ in 0..200 {
        let runtime = threaded_runtime(1);
        let wheel = Wheel::builder().shards(64).build().unwrap();
        let is_registered = Barrier::new(2);
        let handle = runtime.handle().clone();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut sleep = wheel.sleep(DAY);
                let entered = handle.enter();
                register(&mut sleep);
                drop(entered);
                is_registered.wait();
                loop {
                    let metrics = wheel.metrics();
                    assert_eq!(metrics.registered, 1);
                    if metrics.pending == 0 {
                        return;
                    }
                }
            });
            is_registered.wait();
            drop(runtime);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn the_sum_is_over_all_shards() {
    let wheel = Wheel::builder().shards(8).build().unwrap();
    let runtime = tokio::runtime::Handle::current();
    let kept: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let _entered = runtime.enter();
                    let schedule = |_| wheel.schedule(SECOND, async {});
                    (0..10).map(schedule).collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(sum(&wheel), (80, 0, 0, 80));
    assert!(kept.iter().step_by(2).all(|handle| handle.cancel()));
    assert_eq!(sum(&wheel), (80, 0, 40, 40));
    advance(SECOND).await;
    settle().await;
    assert_eq!(sum(&wheel), (80, 40, 40, 0));
}

#[tokio::test(start_paused = true)]
async fn a_timer_far_away_cascades_from_level_to_level() {
    let wheel = Wheel::builder()
        .ticks_per_wheel(4)
        .levels(3)
        .shards(1)
        .build()
        .unwrap();
    wheel.sleep(TICK * 3).await;
    assert_eq!(wheel.metrics().cascaded, 0, "within the first level");
    let mut sleep = task::spawn(wheel.sleep(TICK * 60));
    assert_pending!(sleep.poll());
    while sleep.poll().is_pending() {
        advance(TICK).await;
    }
    let cascaded = wheel.metrics().cascaded;
    assert!(
        (1..=2).contains(&cascaded),
        "{cascaded} moves through three levels"
    );
}

#[tokio::test(start_paused = true)]
async fn a_jump_over_many_ticks_is_one_turn() {
    let wheel = Wheel::new();
    let mut sleeps: Vec<_> = (1..=50)
        .map(|ticks| task::spawn(wheel.sleep(TICK * ticks)))
        .collect();
    for sleep in &mut sleeps {
        assert_pending!(sleep.poll());
    }
    settle().await;
    let before = wheel.metrics();
    advance(TICK * 100).await;
    let after = wheel.metrics();
    assert_eq!(after.expired - before.expired, 50);
    assert_eq!(after.turns - before.turns, 1);
    assert_eq!(after.max_lag, TICK * 99, "it was to come at the first deadline");
    assert_eq!(after.last_lag, after.max_lag);
}
