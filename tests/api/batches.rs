//! More timers due at one tick than the driver takes under one lock.

use crate::support;

use std::time::Duration;

use futures::FutureExt;
use tickwheel::Wheel;
use tokio::{task::yield_now, time::Instant};

use support::{SECOND, ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_taken_in_many_batches_while_other_workers_poll() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let deadline = Instant::now() + ms(300);
    let sleepers: Vec<_> = (0..20_000)
        .map(|_| {
            let wheel = wheel.clone();
            tokio::spawn(async move { wheel.sleep_until(deadline).await })
        })
        .collect();
    for sleeper in sleepers {
        sleeper.await.unwrap();
    }
    let metrics = wheel.metrics();
    assert_eq!(metrics.expired, metrics.registered);
}

/// How often another task finds a cascade under way. None if the machine was too busy to register all timers
/// in time for it.
async fn seen_in_the_middle_of_a_cascade(due_in: Duration) -> Option<usize> {
    const TIMERS: u64 = 100_000;
    let wheel = Wheel::builder()
        .tick_duration(ms(10))
        .ticks_per_wheel(64)
        .levels(2)
        .shards(1)
        .build()
        .unwrap();
    // All in one bucket of the coarser level.
    let deadline = Instant::now() + due_in;
    let mut sleeps: Vec<_> = (0..TIMERS).map(|_| wheel.sleep_until(deadline)).collect();
    if sleeps.iter_mut().any(|sleep| sleep.now_or_never().is_some()) {
        return None;
    }
    let mut seen = 0;
    loop {
        yield_now().await;
        let metrics = wheel.metrics();
        match metrics.cascaded {
            0 if metrics.pending > 0 => {}
            TIMERS => return Some(seen),
            _ if metrics.pending > 0 => seen += 1,
            _ => return None,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_cascade_in_many_batches_lets_other_tasks_run() {
    for seconds in [2, 8, 32] {
        // On the worker that makes the turns.
        let scene = tokio::spawn(seen_in_the_middle_of_a_cascade(seconds * SECOND));
        if let Some(seen) = scene.await.unwrap() {
            assert!(seen > 0, "the cascade was done in one go");
            return;
        }
    }
    panic!("half a minute was not enough to register the timers");
}
