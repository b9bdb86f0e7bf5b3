//! `snapshot`: the pending timers, by deadline and bucket, and that all of it adds up.

use crate::support;

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    task::Poll,
};

use tickwheel::{Snapshot, Wheel};
use tokio::time::{Duration, Instant};

use support::{
    DAY, SECOND, TICK, advance, ms, paused_runtime, real_runtime, register, settle, threaded_runtime,
};

/// What holds at every quiet point.
#[track_caller]
fn quiet(wheel: &Wheel) -> Snapshot {
    let snapshot = wheel.snapshot();
    assert_eq!(snapshot.pending, wheel.pending());
    assert_eq!(snapshot.due_within.iter().sum::<usize>(), snapshot.pending);
    assert_eq!(snapshot.levels.len(), wheel.levels());
    let engines = snapshot.shards.iter().map(|shard| shard.engine + 1).max();
    assert_eq!(engines.unwrap_or(0), wheel.metrics().engines);
    let shards = snapshot.shards.iter().map(|shard| shard.pending);
    assert_eq!(shards.sum::<usize>(), snapshot.pending);
    let levels = snapshot.levels.iter().map(|level| level.pending);
    assert_eq!(levels.sum::<usize>(), snapshot.pending);
    for level in &snapshot.levels {
        assert_eq!(
            level.buckets.iter().map(|bucket| bucket.pending).sum::<usize>(),
            level.pending
        );
        assert!(
            level
                .buckets
                .iter()
                .all(|bucket| bucket.index < wheel.ticks_per_wheel() && bucket.pending > 0)
        );
        assert!(level.buckets.is_sorted_by(|one, other| one.index < other.index));
    }
    snapshot
}

/// The buckets in use on a level, each with its index and its number of timers.
fn buckets(snapshot: &Snapshot, level: usize) -> Vec<(usize, usize)> {
    let buckets = snapshot.levels[level].buckets.iter();
    buckets.map(|bucket| (bucket.index, bucket.pending)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_wheel_shows_nothing() {
    let snapshot = quiet(&Wheel::builder().shards(2).build().unwrap());
    assert_eq!(snapshot.pending, 0);
    assert_eq!(snapshot.lag.count(), 0);
    assert!(snapshot.labels.is_empty());
    assert!(snapshot.shards.is_empty(), "no timer has been polled");
}

#[tokio::test(start_paused = true)]
async fn what_is_less_than_a_long_tick_away_is_within_a_tick() {
    let wheel = Wheel::builder().tick_duration(SECOND * 2).build().unwrap();
    let mut sleep = wheel.sleep(ms(5));
    register(&mut sleep);
    assert_eq!(quiet(&wheel).due_within, [1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn timers_hang_in_the_bucket_of_the_digit_of_their_deadline() {
    let wheel = Wheel::builder().ticks_per_wheel(8).levels(3).build().unwrap();
    // Up to 7 on the finest level, up to 31 on the next, whose buckets span 4 ticks. Those of the last
    // span 16.
    let mut timers: Vec<_> = [1, 1, 7, 8, 31, 32, 5 * 128 + 32]
        .map(|ticks| wheel.sleep(TICK * ticks))
        .into();
    timers.iter_mut().for_each(register);
    let snapshot = quiet(&wheel);
    assert_eq!(buckets(&snapshot, 0), [(1, 2), (7, 1)]);
    assert_eq!(buckets(&snapshot, 1), [(2, 1), (7, 1)]);
    assert_eq!(buckets(&snapshot, 2), [(2, 2)], "also of a later round");
    advance(TICK * 8).await;
    let snapshot = quiet(&wheel);
    assert!(snapshot.levels[0].buckets.is_empty());
    assert_eq!(buckets(&snapshot, 1), [(7, 1)]);
}

/// Each by its own clock, of which one is a day ahead and another stands still.
#[test]
fn the_shards_of_all_runtimes_are_there_until_they_end() {
    let wheel = Wheel::builder().shards(2).build().unwrap();
    let runtimes = [paused_runtime(), paused_runtime(), real_runtime()];
    let mut sleeps = Vec::new();
    for (number, runtime) in runtimes.iter().enumerate() {
        runtime.block_on(async {
            if number == 0 {
                advance(DAY).await;
            }
            for _ in 0..=number {
                let mut sleep = wheel.sleep(SECOND * 500);
                register(&mut sleep);
                sleeps.push(sleep);
            }
        });
    }
    let snapshot = quiet(&wheel);
    assert_eq!((snapshot.pending, snapshot.due_within[6]), (6, 6));
    assert_eq!(snapshot.shards.len(), 6);
    let mut pending = [0; 3];
    for shard in &snapshot.shards {
        pending[shard.engine] += shard.pending;
    }
    pending.sort();
    assert_eq!(pending, [1, 2, 3]);
    let left = [5, 3, 0];
    for (runtime, left) in runtimes.into_iter().zip(left) {
        drop(runtime);
        assert_eq!(
            quiet(&wheel).pending,
            left,
            "what waits for another runtime waits in none"
        );
    }
    drop(sleeps);
    assert_eq!(quiet(&wheel).shards.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reset_to_later_shows_the_old_deadline_until_it_comes() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(ms(50));
    register(&mut sleep);
    sleep.reset_at(Instant::now() + SECOND * 5);
    assert_eq!(quiet(&wheel).due_within[2], 1);
    let sleeping = tokio::spawn(sleep);
    settle().await;
    advance(ms(60)).await;
    assert_eq!(quiet(&wheel).due_within[4], 1);
    sleeping.abort();
}

#[test]
fn spares_do_not_count() {
    let runtime = threaded_runtime(1);
    runtime
        .block_on(runtime.spawn(async {
            let wheel = Wheel::builder().shards(1).build().unwrap();
            let mut busy: Vec<_> = (0..20).map(|n| wheel.sleep(DAY - ms(n))).collect();
            busy.iter_mut().for_each(register);
            assert_eq!(quiet(&wheel).pending, busy.len());
            poll_fn(|cx| {
                // One after another, as a task starts and ends them.
                for _ in 0..10 {
                    let mut timeout = pin!(wheel.timeout(SECOND * 30, pending::<()>()));
                    assert!(timeout.as_mut().poll(cx).is_pending());
                    assert_eq!(quiet(&wheel).pending, busy.len() + 1);
                    timeout.set(wheel.timeout(SECOND * 30, pending()));
                    assert_eq!(quiet(&wheel).pending, busy.len());
                }
                Poll::Ready(())
            })
            .await;
            drop(busy);
            assert_eq!(quiet(&wheel).pending, 0);
        }))
        .unwrap();
}

#[test]
fn lag_is_counted_each_time_that_the_driver_comes() {
    real_runtime().block_on(async {
        let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
        for _ in 0..5 {
            wheel.sleep(ms(2)).await;
        }
        let (lag, metrics) = (wheel.snapshot().lag, wheel.metrics());
        assert!(lag.count() >= 5, "{}", lag.count());
        assert_eq!(lag.max(), metrics.max_lag);
        assert!(lag.quantile(0.0) <= lag.quantile(0.5) && lag.quantile(1.0) == lag.max());
    });
}

#[test]
fn a_snapshot_while_timers_come_and_go_shows_no_more_than_ever_waited() {
    let runtime = threaded_runtime(2);
    runtime.block_on(async {
        let wheel = Wheel::builder().shards(2).build().unwrap();
        let mut waiting: Vec<_> = (0..2_000).map(|_| wheel.sleep(DAY)).collect();
        waiting.iter_mut().for_each(register);
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let wheel = wheel.clone();
                tokio::spawn(async move {
                    for _ in 0..20_000 {
                        let mut timeout = wheel.timeout(Duration::from_secs(60), pending::<()>());
                        register(&mut timeout);
                    }
                })
            })
            .collect();
        for _ in 0..200 {
            let pending = wheel.snapshot().pending;
            // A timer that is cancelled while it is looked for, and its successor, may both be seen.
            assert!(
                (waiting.len()..waiting.len() + 100).contains(&pending),
                "{pending}"
            );
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(quiet(&wheel).pending, waiting.len());
    });
}

/// Only a task of Tokio's leaves an entry for its next timer. Whatever else waits is woken once, at its
/// deadline.
#[test]
fn a_long_timer_that_no_task_starts_is_due_at_its_deadline_whatever_was_cancelled_before() {
    let wheel = Wheel::new();
    threaded_runtime(1).block_on(async {
        for _ in 0..3 {
            let mut sleep = pin!(wheel.sleep(SECOND * 500));
            assert!(poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_pending())).await);
            let snapshot = quiet(&wheel);
            assert_eq!(snapshot.due_within[6], 1, "{snapshot:?}");
        }
    });
}
