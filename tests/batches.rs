//! More timers due at one tick than the driver takes under one lock.

use std::time::Duration;

use tickwheel::Wheel;
use tokio::time::Instant;

async fn sleepers_of_one_instant_all_elapse() {
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
    assert_eq!(wheel.metrics().expired, 20_000);
}

#[tokio::test(start_paused = true)]
async fn a_tick_taken_in_many_batches_under_a_paused_clock() {
    sleepers_of_one_instant_all_elapse().await;
}

#[tokio::test]
async fn a_tick_taken_in_many_batches_on_a_current_thread_runtime() {
    sleepers_of_one_instant_all_elapse().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tick_taken_in_many_batches_while_other_workers_poll() {
    sleepers_of_one_instant_all_elapse().await;
}
