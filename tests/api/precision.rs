//! Under a test's clock a duration in whole milliseconds ends at the very instant at which Tokio's would, on every kind of timer.

use std::{
    future::{Future, pending},
    time::Duration,
};

use futures::StreamExt;
use tickwheel::{DelayQueue, Wheel, deadline, time};
use tokio::time::{Instant, advance};

use crate::support::ms;

/// When `timer` ends, counted from now.
async fn lasts<T>(timer: impl Future<Output = T>) -> Duration {
    let start = Instant::now();
    timer.await;
    start.elapsed()
}

/// How long Tokio's own sleep of this duration lasts here.
async fn tokios(duration: Duration) -> Duration {
    lasts(tokio::time::sleep(duration)).await
}

async fn assert_all_end_as_tokios(duration: Duration) {
    let wheel = Wheel::new();
    let expected = tokios(duration).await;
    assert_eq!(lasts(wheel.sleep(duration)).await, expected, "sleep");
    let until = wheel.sleep_until(Instant::now() + duration);
    assert_eq!(lasts(until).await, expected, "sleep_until");
    let limited = wheel.timeout(duration, pending::<()>());
    assert_eq!(lasts(limited).await, expected, "timeout");
    let limited = wheel.timeout_at(Instant::now() + duration, pending::<()>());
    assert_eq!(lasts(limited).await, expected, "timeout_at");
    assert_eq!(lasts(wheel.idle_timer(duration)).await, expected, "idle_timer");
    assert_eq!(
        lasts(wheel.schedule(duration, async {})).await,
        expected,
        "schedule"
    );
    assert_eq!(lasts(time::sleep(duration)).await, expected, "time::sleep");
    let limited = time::timeout(duration, pending::<()>());
    assert_eq!(lasts(limited).await, expected, "time::timeout");
    let scope = deadline::within(duration, pending::<()>());
    assert_eq!(lasts(scope).await, expected, "deadline::within");
    let mut queue = DelayQueue::new();
    queue.insert((), duration);
    assert_eq!(lasts(queue.next()).await, expected, "DelayQueue");
}

#[tokio::test(start_paused = true)]
async fn every_timer_ends_when_tokios_does() {
    for millis in [
        1, 2, 5, 7, 10, 11, 20, 50, 255, 256, 257, 511, 512, 513, 1_000, 70_000, 86_400_000,
    ] {
        assert_all_end_as_tokios(ms(millis)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_timer_ends_when_tokios_does_at_any_whole_millisecond() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        advance(ms(random.u64(1..2_000))).await;
        assert_all_end_as_tokios(ms(random.u64(1..2_000))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn intervals_tick_when_tokios_do() {
    for period in [1, 2, 7, 10, 300, 512] {
        let wheel = Wheel::new();
        let mut tokios = tokio::time::interval(ms(period));
        let mut own = wheel.interval(ms(period));
        let mut current = time::interval(ms(period));
        for _ in 0..100 {
            let tick = tokios.tick().await;
            assert_eq!(own.tick().await, Ok(tick));
            assert_eq!(current.tick().await, tick);
            assert_eq!(Instant::now(), tick, "nobody waits longer than Tokio");
        }
    }
}
