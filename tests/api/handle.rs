//! `Builder::handle`: a wheel whose timers wait on one runtime, whoever polls them, by the clock of that
//! runtime.

use crate::support;

use std::{future::pending, sync::mpsc, thread, time::Duration};

use tickwheel::Wheel;
use tokio::{
    runtime::{Handle, Runtime},
    time::Instant,
};

use support::{
    DAY, SECOND, advance, alive_tasks, assert_at_rest, assert_left_with, ms, paused_runtime, real_runtime,
    register, threaded_runtime, within,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn wheel_on(runtime: &Runtime) -> Wheel {
    Wheel::builder().handle(runtime.handle().clone()).build().unwrap()
}

#[test]
fn futures_are_awaited_on_a_foreign_executor() {
    let runtime = threaded_runtime(2);
    let wheel = wheel_on(&runtime);
    let start = std::time::Instant::now();
    futures::executor::block_on(async {
        wheel.sleep(ms(15)).await;
        assert!(start.elapsed() >= ms(15));
        assert!(wheel.timeout(ms(15), pending::<()>()).await.is_err());
        assert!(start.elapsed() >= ms(30));
        let mut interval = wheel.interval(ms(5));
        for _ in 0..3 {
            interval.tick().await;
        }
        wheel.idle_timer(ms(5)).await;
    });
    assert!(start.elapsed() >= ms(45));
    assert_at_rest(&wheel);
}

#[test]
fn its_runtime_turns_the_wheel_though_another_one_polls() {
    let dedicated = threaded_runtime(2);
    let wheel = wheel_on(&dedicated);
    for polling in [real_runtime(), paused_runtime(), threaded_runtime(1)] {
        polling.block_on(async {
            wheel.sleep(ms(5)).await;
            assert_eq!(alive_tasks(), 0, "the driver is not here");
            let runs_on = wheel.schedule(ms(2), async { Handle::current().id() });
            assert_eq!(runs_on.await.unwrap(), dedicated.handle().id());
        });
    }
    assert_eq!(wheel.metrics().engines, 1);
    // But there.
    assert_left_with(&dedicated, 1);
}

/// The clock of a paused runtime falls behind, unless a test moves it ahead.
#[test]
fn a_runtime_that_has_ended_is_asked_for_nothing_more() {
    for ahead in [Duration::ZERO, HOUR] {
        within(60 * SECOND, move || {
            let dedicated = paused_runtime();
            let wheel = wheel_on(&dedicated);
            dedicated.block_on(async {
                wheel.sleep(ms(5)).await;
                advance(ahead).await;
            });
            drop(dedicated);
            real_runtime().block_on(async {
                let start = std::time::Instant::now();
                wheel.sleep(ms(40)).await;
                assert!(start.elapsed() >= ms(40), "it is early");
                assert_eq!(wheel.schedule(ms(1), async { 7 }).await, Ok(7));
                let (sender, mut runs) = tokio::sync::mpsc::unbounded_channel();
                let _periodic = wheel.periodic(ms(1)).spawn_at_fixed_rate(move || {
                    let _ = sender.send(());
                    async {}
                });
                assert_eq!(runs.recv().await, Some(()));
            });
        });
    }
}

#[test]
fn a_paused_runtime_awaits_its_timers_by_a_clock_that_could_be_paused() {
    let driving = real_runtime();
    let wheel = wheel_on(&driving);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driving = thread::spawn(move || driving.block_on(stopped));
    paused_runtime().block_on(async {
        wheel.sleep(ms(1)).await;
        tokio::time::advance(DAY).await;
        let start = std::time::Instant::now();
        let (mut day, mut sleep) = (wheel.sleep(SECOND * 5), wheel.sleep(ms(20)));
        tokio::select! {
            biased;
            _ = &mut day => panic!("a sleep was put a day off"),
            slept = &mut sleep => slept,
        }
        assert!(start.elapsed() >= ms(20));
        assert!(
            sleep.deadline() < Instant::now() - DAY / 2,
            "it is of the other clock"
        );
    });
    drop(stop);
    driving.join().unwrap().unwrap_err();
    assert_at_rest(&wheel);
}

#[test]
fn a_touch_in_a_paused_runtime_counts_by_the_clock_of_the_wheel() {
    let driving = threaded_runtime(2);
    let wheel = wheel_on(&driving);
    paused_runtime().block_on(async {
        wheel.sleep(ms(1)).await;
        tokio::time::advance(DAY).await;
        let idle = wheel.idle_timer(ms(20));
        let start = std::time::Instant::now();
        idle.handle().touch();
        tokio::select! {
            silence = idle => silence,
            _ = wheel.sleep(SECOND * 5) => panic!("the touch put the deadline a day off"),
        }
        assert!(start.elapsed() >= ms(20));
    });
    assert_at_rest(&wheel);
}

#[test]
fn a_real_runtime_awaits_its_timers_by_a_paused_clock() {
    let paused = paused_runtime();
    let wheel = wheel_on(&paused);
    let (driven, is_driven) = mpsc::channel();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let driving = thread::spawn({
        let wheel = wheel.clone();
        move || {
            paused.block_on(async {
                let mut sleep = wheel.sleep(DAY * 365);
                register(&mut sleep);
                driven.send(()).unwrap();
                finished.await.unwrap();
            });
        }
    });
    is_driven.recv().unwrap();
    // Idle, the paused runtime advances its clock by itself: an hour passes at once.
    real_runtime().block_on(async {
        wheel.sleep(SECOND * 3600).await;
        assert!(wheel.timeout(SECOND * 3600, pending::<()>()).await.is_err());
    });
    finish.send(()).unwrap();
    driving.join().unwrap();
    assert_at_rest(&wheel);
}

#[test]
fn now_is_that_of_its_runtime() {
    let paused = paused_runtime();
    let wheel = wheel_on(&paused);
    let start = paused.block_on(async {
        let start = Instant::now();
        advance(DAY).await;
        start
    });
    assert_eq!(wheel.now(), start + DAY);
    assert_eq!(wheel.sleep(SECOND).deadline(), start + DAY + SECOND);
    threaded_runtime(1).block_on(async { assert_eq!(wheel.now(), start + DAY) });
    let real = threaded_runtime(1);
    paused.block_on(async { assert!(wheel_on(&real).now() < start + DAY / 2) });
}
