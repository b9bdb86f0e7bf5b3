//! Under a test's clock a duration in whole milliseconds ends at the very instant at which Tokio's would, on
//! every kind of timer. On the machine's clock none is early.

use std::{
    future::{Future, pending},
    time::Duration,
};

use futures::StreamExt;
use tickwheel::{DelayQueue, PeriodicBuilder, Wheel, deadline, time};
use tokio::{
    sync::mpsc,
    time::{Instant, advance},
};

use crate::support::{assert_at_rest, ms};

static LABEL: time::Label = time::Label::new("precision");

/// Awaits `timer` beside Tokio's own sleep of this duration, and compares the instants at which they end.
async fn assert_ends_as_tokios<T>(name: &str, duration: Duration, timer: impl Future<Output = T>) {
    let start = Instant::now();
    let own = async {
        timer.await;
        start.elapsed()
    };
    let tokios = async {
        tokio::time::sleep(duration).await;
        start.elapsed()
    };
    let (own, tokios) = futures::join!(own, tokios);
    assert_eq!(own, tokios, "{name} of {duration:?}");
}

/// Compares each kind of timer with Tokio's sleep, the clock moved on by `step` before each.
async fn assert_all_end_as_tokios(duration: Duration, mut step: impl FnMut() -> Duration) {
    let wheel = Wheel::new();
    let labelled = wheel.labelled("precision");
    let until = || Instant::now() + duration;
    macro_rules! assert_each {
        ($($timer:expr),* $(,)?) => {$(
            advance(step()).await;
            assert_ends_as_tokios(stringify!($timer), duration, $timer).await;
        )*};
    }
    assert_each!(
        wheel.sleep(duration),
        wheel.sleep_until(until()),
        wheel.timeout(duration, pending::<()>()),
        wheel.timeout_at(until(), pending::<()>()),
        labelled.timeout(duration, pending::<()>()),
        labelled.timeout_at(until(), pending::<()>()),
        wheel.idle_timer(duration),
        wheel.schedule(duration, async {}),
        wheel.schedule_at(until(), async {}),
        first_run(wheel.periodic(duration)),
        time::sleep(duration),
        time::sleep_until(until()),
        time::timeout(duration, pending::<()>()),
        time::timeout_at(until(), pending::<()>()),
        deadline::within(duration, pending::<()>()),
        deadline::until(until(), pending::<()>()),
        deadline::timeout(duration, pending::<()>()),
        labelled.within(duration, pending::<()>()),
        LABEL.within(duration, pending::<()>()),
        expires_in(DelayQueue::new(), duration),
        expires_in(DelayQueue::on(&wheel), duration),
    );
}

async fn first_run(periodic: PeriodicBuilder) {
    let (ran, mut runs) = mpsc::unbounded_channel();
    let series = periodic.spawn_at_fixed_rate(move || {
        let ran = ran.clone();
        async move { ran.send(()).unwrap_or_default() }
    });
    runs.recv().await;
    series.stop();
}

async fn expires_in(mut queue: DelayQueue<()>, duration: Duration) {
    queue.insert((), duration);
    queue.next().await;
}

#[tokio::test(start_paused = true)]
async fn every_timer_ends_when_tokios_does() {
    for millis in [
        1, 2, 5, 7, 10, 11, 20, 50, 255, 256, 257, 511, 512, 513, 1_000, 70_000, 86_400_000,
    ] {
        assert_all_end_as_tokios(ms(millis), || Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_timer_ends_when_tokios_does_at_any_whole_millisecond() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let duration = ms(random.u64(1..2_000));
        assert_all_end_as_tokios(duration, || ms(random.u64(1..2_000))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_is_early_among_thousands_that_come_and_go() {
    let wheel = Wheel::new();
    let tasks: Vec<_> = (0..2_000)
        .map(|n| {
            let (wheel, duration) = (wheel.clone(), ms(n / 2 % 50));
            tokio::spawn(async move {
                let start = std::time::Instant::now();
                if n % 2 == 0 {
                    let slept = wheel.timeout(ms(60_000), wheel.sleep(duration)).await;
                    assert_eq!(slept, Ok(()));
                } else {
                    wheel.timeout(duration, pending::<()>()).await.unwrap_err();
                }
                assert!(start.elapsed() >= duration, "timer {n} was early");
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_at_rest(&wheel);
}
