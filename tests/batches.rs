//! More timers due at one tick than the driver takes under one lock.

mod support;

use std::time::Duration;

use tickwheel::Wheel;
use tokio::{task::yield_now, time::Instant};

use support::{ms, register};

/// Returns how many of them waited. On a machine that is busy, the last ones may be polled first when their instant has come.
async fn sleepers_of_one_instant_all_elapse() -> u64 {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let deadline = Instant::now() + Duration::from_millis(300);
    let sleepers: Vec<_> = (0..20_000)
        .map(|_| {
            let wheel = wheel.clone();
            tokio::spawn(async move { wheel.sleep_until(deadline).await })
        })
        .collect();
    for sleeper in sleepers {
        assert_eq!(sleeper.await.unwrap(), Ok(()));
    }
    let metrics = wheel.metrics();
    assert_eq!(metrics.expired, metrics.registered);
    metrics.expired
}

#[tokio::test(start_paused = true)]
async fn a_tick_taken_in_many_batches_under_a_paused_clock() {
    assert_eq!(sleepers_of_one_instant_all_elapse().await, 20_000);
}

#[tokio::test]
async fn a_tick_taken_in_many_batches_on_a_current_thread_runtime() {
    sleepers_of_one_instant_all_elapse().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_taken_in_many_batches_while_other_workers_poll() {
    sleepers_of_one_instant_all_elapse().await;
}

#[tokio::test]
async fn a_cascade_in_many_batches_lets_other_tasks_run() {
    const TIMERS: usize = 100_000;
    let wheel = Wheel::builder()
        .tick_duration(ms(10))
        .ticks_per_wheel(16)
        .levels(2)
        .shards(1)
        .build()
        .unwrap();
    // All in one bucket of the coarser level.
    let deadline = Instant::now() + ms(2_000);
    let mut sleeps: Vec<_> = (0..TIMERS).map(|_| wheel.sleep_until(deadline)).collect();
    sleeps.iter_mut().for_each(register);
    let mut seen_under_way = 0;
    loop {
        yield_now().await;
        match wheel.metrics().cascaded as usize {
            0 => {}
            TIMERS => break,
            _ => seen_under_way += 1,
        }
    }
    assert!(seen_under_way > 0, "the cascade was done in one go");
}
