//! Feature `tracing`: events about the wheel, and none about individual timers.

#[path = "support/lines.rs"]
mod lines;
mod support;

use std::{io, task::Waker, time::Duration};

use tickwheel::Wheel;
use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, task};

use lines::Lines;
use support::{SECOND, assert_due, ms, paused_runtime, register_for, waker_of};

#[track_caller]
fn assert_told(lines: &Lines, level: &str, event: &str) {
    let told = lines.of_the_wheel();
    assert!(
        told.iter()
            .any(|line| line.contains(level) && line.contains(event)),
        "{told:?}"
    );
}

#[test]
fn an_engine_starts_and_ends_in_each_runtime() {
    let (lines, _recording) = Lines::record();
    let wheel = Wheel::builder().name("leases").build().unwrap();
    for _ in 0..2 {
        paused_runtime().block_on(wheel.sleep(ms(30)));
    }
    let told = lines.of_the_wheel();
    for (line, event) in told
        .iter()
        .zip(["engine started", "engine ended", "engine started", "engine ended"])
    {
        assert!(line.contains(event) && line.contains("leases"), "{event}: {line}");
    }
    assert_eq!(told.len(), 4, "{told:?}");
}

/// The runtime drops the engine's task as it is spawned.
#[test]
fn of_an_engine_in_a_runtime_that_has_ended_both_or_neither_is_told() {
    let (lines, _recording) = Lines::record();
    let wheel = Wheel::new();
    let runtime = paused_runtime();
    let handle = runtime.handle().clone();
    drop(runtime);
    let polled = std::panic::catch_unwind(|| {
        let _entered = handle.enter();
        register_for(Waker::noop(), &mut wheel.sleep(ms(30)));
    });
    assert!(polled.is_err(), "as Tokio's sleep panics");
    let told = lines.of_the_wheel();
    let count = |event| told.iter().filter(|line| line.contains(event)).count();
    assert_eq!(count("engine started"), count("engine ended"), "{told:?}");
}

/// Between two ticks of its intervals it has no timer. An engine that ended at once would be begun again at
/// the next.
#[test]
fn a_wheel_without_a_handle_keeps_its_engine_between_two_timers() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .finish();
    let subscriber = tracing::Dispatch::new(subscriber);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        // For as long as the thread lives.
        .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&subscriber)))
        .build()
        .unwrap();
    let wheel = Wheel::new();
    let ticking = [(); 3].map(|()| {
        let mut interval = wheel.interval(ms(1));
        runtime.spawn(async move {
            for _ in 0..300 {
                interval.tick().await;
            }
        })
    });
    drop(wheel);
    for task in ticking {
        runtime.block_on(task).unwrap();
    }
    let told = lines.of_the_wheel();
    assert!(!told.is_empty(), "nothing is recorded");
    // On a busy machine, a tick may come so late that the engine has ended.
    assert!(told.len() < 40, "{} events", told.len());
}

#[test]
fn a_subscriber_that_panics_when_an_engine_starts_costs_the_wheel_nothing() {
    let wheel = Wheel::new();
    let runtime = paused_runtime();
    {
        let subscriber = tracing_subscriber::fmt()
            .with_writer(|| -> io::Sink { panic!("as planned") })
            .with_max_level(tracing::Level::DEBUG)
            .finish();
        let _panicking = tracing::subscriber::set_default(subscriber);
        let _entered = runtime.enter();
        let mut sleep = wheel.sleep(ms(30));
        register_for(Waker::noop(), &mut sleep);
    }
    runtime.block_on(async {
        let start = Instant::now();
        let sleep = tokio::time::timeout(SECOND, wheel.sleep(ms(30)));
        assert_eq!(sleep.await, Ok(()));
        assert_due(start, ms(30));
    });
}

/// The clock jumps over a sleep of 30 ms.
fn jump_over_a_sleep(wheel: &Wheel, jump: Duration) {
    paused_runtime().block_on(async {
        let mut sleep = task::spawn(wheel.sleep(ms(30)));
        assert_pending!(sleep.poll());
        tokio::task::yield_now().await;
        advance(jump).await;
        tokio::task::yield_now().await;
        assert!(sleep.is_woken());
    });
}

#[test]
fn a_driver_that_came_late_says_so() {
    let (lines, _recording) = Lines::record();
    jump_over_a_sleep(&Wheel::new(), SECOND);
    assert_told(&lines, "WARN", "came late");
}

#[test]
fn a_driver_that_came_a_few_ticks_late_says_nothing_of_it() {
    let (lines, _recording) = Lines::record();
    let wheel = Wheel::new();
    jump_over_a_sleep(&wheel, ms(70));
    assert!(wheel.metrics().max_lag > ms(20));
    let told = lines.of_the_wheel();
    assert!(!told.iter().any(|line| line.contains("came late")), "{told:?}");
}

#[test]
fn a_panicking_waker_is_reported() {
    let (lines, _recording) = Lines::record();
    let wheel = Wheel::new();
    paused_runtime().block_on(async {
        let mut sleep = wheel.sleep(ms(30));
        register_for(&waker_of(|| panic!("on purpose")), &mut sleep);
        wheel.sleep(ms(50)).await;
    });
    assert_eq!(wheel.metrics().panics, 1);
    assert_told(&lines, "ERROR", "a waker panicked");
}

/// A log that panics over every error.
#[derive(Clone)]
struct Fragile;

impl io::Write for Fragile {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        panic!("on purpose")
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_subscriber_that_panics_over_a_late_driver_costs_nobody_a_timer() {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::WARN)
        .with_writer(|| Fragile)
        .finish();
    let _panicking = tracing::subscriber::set_default(subscriber);
    let wheel = Wheel::new();
    support::real_runtime().block_on(async {
        for _ in 0..3 {
            let mut sleep = wheel.sleep(ms(30));
            support::register(&mut sleep);
            support::settle().await;
            std::thread::sleep(ms(100));
            sleep.await;
        }
    });
}

#[test]
fn a_subscriber_that_panics_over_a_panicking_waker_keeps_nobody_from_being_woken() {
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::ERROR)
        .with_writer(|| Fragile)
        .finish();
    let _panicking = tracing::subscriber::set_default(subscriber);
    let wheel = Wheel::builder().shards(1).build().unwrap();
    paused_runtime().block_on(async {
        let mut sleep = wheel.sleep(ms(30));
        register_for(&waker_of(|| panic!("on purpose")), &mut sleep);
        let mut second = task::spawn(wheel.sleep(ms(30)));
        assert_pending!(second.poll());
        advance(ms(30)).await;
        support::settle().await;
        assert!(
            second.is_woken(),
            "what came due beside the panicking waker is lost"
        );
        let mut later = task::spawn(wheel.sleep(ms(30)));
        assert_pending!(later.poll());
        advance(ms(30)).await;
        support::settle().await;
        assert!(later.is_woken(), "the wheel stands still");
    });
}

#[test]
fn nothing_is_told_of_a_timer() {
    let (lines, _recording) = Lines::record();
    let wheel = Wheel::new();
    paused_runtime().block_on(async {
        wheel.sleep(ms(10)).await;
        let before = lines.of_the_wheel();
        for _ in 0..10 {
            wheel.sleep(ms(10)).await;
            wheel
                .timeout(ms(10), std::future::pending::<()>())
                .await
                .unwrap_err();
        }
        assert_eq!(lines.of_the_wheel(), before);
    });
}
