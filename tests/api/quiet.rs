//! An engine begins with the first timer that waits, does nothing while nothing is due, and ends when nobody
//! can need it.

use crate::support;

use std::future::pending;

use futures::FutureExt;
use tickwheel::Wheel;
use tokio::time::Instant;
use tokio_test::{assert_pending, task};

use support::{
    DAY, SECOND, advance, alive_tasks, assert_at_rest, ms, paused_runtime, real_runtime, register, settle,
    threaded_runtime,
};

#[test]
fn the_first_timer_that_waits_begins_it_and_nothing_before_does() {
    for runtime in [real_runtime(), paused_runtime(), threaded_runtime(1)] {
        runtime.block_on(async {
            let wheel = Wheel::new();
            let mut sleep = wheel.sleep(SECOND);
            sleep.reset_at(Instant::now() + SECOND);
            drop((wheel.interval(SECOND), wheel.idle_timer(SECOND)));
            wheel.timeout(SECOND, async {}).await.unwrap(); // ready
            assert_eq!((alive_tasks(), wheel.metrics().engines), (0, 0));

            register(&mut sleep);
            // With Tokio's unstable features, another one that asks which timer the runtime has is about to end.
            while alive_tasks() > 1 {
                tokio::task::yield_now().await;
            }
            assert_eq!((alive_tasks(), wheel.metrics().engines), (1, 1));
            register(&mut wheel.sleep(SECOND));
            assert_eq!(alive_tasks(), 1, "one task for each wheel in a runtime");
        });
    }
}

#[tokio::test(start_paused = true)]
async fn auto_advance_jumps_from_deadline_to_deadline() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let tasks: Vec<_> = (1..=20_u32)
        .map(|n| {
            let wheel = wheel.clone();
            tokio::spawn(async move {
                wheel
                    .timeout(SECOND * 600 * n, pending::<()>())
                    .await
                    .unwrap_err();
                start.elapsed()
            })
        })
        .collect();
    for (n, task) in (1..).zip(tasks) {
        assert_eq!(task.await.unwrap(), SECOND * 600 * n);
    }
    assert_eq!(wheel.metrics().turns, 20, "one for each deadline");
}

#[tokio::test(start_paused = true)]
async fn an_idle_wheel_makes_no_turn() {
    let wheel = Wheel::new();
    wheel.sleep(SECOND).await;
    settle().await;
    let before = wheel.metrics();
    for _ in 0..1_000 {
        advance(SECOND).await;
    }
    assert_eq!(wheel.metrics(), before);
}

#[tokio::test(start_paused = true)]
async fn timers_far_away_cost_no_turn_until_they_are_due() {
    let wheel = Wheel::new();
    let mut sleeps: Vec<_> = (0..1_000).map(|n| wheel.sleep(DAY + ms(n))).collect();
    sleeps.iter_mut().for_each(register);
    settle().await;
    for _ in 0..600 {
        advance(SECOND).await;
    }
    assert_eq!(wheel.metrics().turns, 0, "ten minutes of nothing");
}

#[tokio::test(start_paused = true)]
async fn futures_outlive_the_handles_and_the_engine_ends_with_the_last_of_them() {
    let wheel = Wheel::new();
    let mut first = task::spawn(wheel.sleep(SECOND));
    assert_pending!(first.poll());
    let mut second = wheel.sleep(SECOND * 3);
    let (mut later, mut earlier) = (wheel.sleep(SECOND * 3), wheel.sleep(SECOND * 3));
    drop((wheel, first));
    settle().await;
    assert_eq!(alive_tasks(), 0, "no timer waits");
    let start = Instant::now();
    advance(SECOND).await;
    later.reset_at(start + SECOND * 4);
    earlier.reset_at(start + SECOND * 2);
    (&mut second).await;
    assert_eq!(start.elapsed(), SECOND * 3);
    earlier.await;
    assert_eq!(start.elapsed(), SECOND * 3);
    later.await;
    assert_eq!(start.elapsed(), SECOND * 4);
    drop(second);
    settle().await;
    assert_eq!(alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_engine_stays_while_there_is_a_handle_or_a_timer_that_waits() {
    let wheel = Wheel::new();
    let (mut first, mut second) = (wheel.sleep(SECOND), wheel.sleep(SECOND * 2));
    (&mut first).await;
    settle().await;
    assert_eq!(alive_tasks(), 1, "there is a handle");
    register(&mut second);
    let weak = wheel.downgrade();
    drop(wheel);
    assert!(weak.upgrade().is_none());
    settle().await;
    assert_eq!(alive_tasks(), 1, "a timer waits");
    second.await;
    settle().await;
    assert_eq!(alive_tasks(), 0);
}

/// Whichever way the last of them goes.
#[test]
fn without_a_handle_the_last_timer_ends_the_engine() {
    type Way = (&'static str, fn(&Wheel));
    let ways: [Way; 4] = [
        ("dropped", |wheel| register(&mut wheel.sleep(SECOND))),
        ("dropped by its timeout", |wheel| {
            register(&mut wheel.timeout(SECOND, pending::<()>()));
        }),
        ("reset to the past", |wheel| {
            let mut sleep = wheel.sleep(SECOND);
            register(&mut sleep);
            sleep.reset_at(Instant::now() - SECOND);
            std::mem::forget(sleep);
        }),
        ("refused by a shutdown", |wheel| {
            let mut sleep = wheel.try_sleep(SECOND);
            register(&mut sleep);
            drop(wheel.shutdown());
            assert!((&mut sleep).now_or_never().unwrap().is_err());
            std::mem::forget(sleep);
        }),
    ];
    for (way, go) in ways {
        for runtime in [real_runtime(), paused_runtime()] {
            runtime.block_on(async {
                let wheel = Wheel::new();
                go(&wheel);
                assert_at_rest(&wheel);
                settle().await;
                assert_eq!(alive_tasks(), 1, "{way}: there is a handle");
                drop(wheel);
                settle().await;
                assert_eq!(alive_tasks(), 0, "{way}");
            });
        }
    }
}
