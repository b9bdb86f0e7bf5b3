//! `snapshot`: the pending timers, by deadline and bucket, and that all of it adds up.

use crate::support;

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    task::Poll,
};

use tickwheel::{Mode, Snapshot, Wheel};
use tokio::time::{Duration, Instant};

use support::{
    DAY, SECOND, TICK, advance, make_tick, ms, paused_runtime, real_runtime, register, settle,
    threaded_runtime,
};

/// What holds at every quiet point.
#[track_caller]
fn quiet(wheel: &Wheel) -> Snapshot {
    let snapshot = wheel.snapshot();
    assert_eq!(snapshot.pending, wheel.pending());
    assert_eq!(snapshot.horizon.iter().sum::<usize>(), snapshot.pending);
    assert_eq!(snapshot.levels.len(), wheel.levels());
    assert_eq!(snapshot.shards.len(), wheel.shards());
    let shards = snapshot.shards.iter().map(|shard| shard.pending);
    assert_eq!(shards.sum::<usize>(), snapshot.pending);
    let levels = snapshot.levels.iter().map(|level| level.pending);
    assert_eq!(levels.sum::<usize>(), snapshot.pending);
    for level in &snapshot.levels {
        assert_eq!(
            level.buckets.iter().map(|(_, count)| count).sum::<usize>(),
            level.pending
        );
        assert!(
            level
                .buckets
                .iter()
                .all(|(bucket, count)| *bucket < wheel.ticks_per_wheel() && *count > 0)
        );
        assert!(level.buckets.is_sorted_by(|one, other| one.0 < other.0));
    }
    snapshot
}

#[tokio::test(start_paused = true)]
async fn a_new_wheel_shows_nothing() {
    let snapshot = quiet(&Wheel::builder().shards(2).build().unwrap());
    assert_eq!(snapshot.pending, 0);
    assert_eq!(snapshot.lag.count(), 0);
    assert!(snapshot.labels.is_empty());
    assert!(snapshot.shards.iter().all(|shard| shard.mode == Mode::Driverless));
}

#[tokio::test(start_paused = true)]
async fn what_is_less_than_a_long_tick_away_is_within_a_tick() {
    let wheel = Wheel::builder().tick_duration(SECOND * 2).build().unwrap();
    let mut sleep = wheel.sleep(ms(5));
    register(&mut sleep);
    assert_eq!(quiet(&wheel).horizon, [1, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn timers_hang_in_the_bucket_of_the_digit_of_their_deadline() {
    let wheel = Wheel::builder().ticks_per_wheel(8).levels(3).build().unwrap();
    // Up to 7 on the finest level, up to 31 on the next, whose buckets span 4 ticks. Those of the last span 16.
    let mut timers: Vec<_> = [1, 1, 7, 8, 31, 32, 5 * 128 + 32]
        .map(|ticks| wheel.sleep(TICK * ticks))
        .into();
    timers.iter_mut().for_each(register);
    let snapshot = quiet(&wheel);
    assert_eq!(snapshot.tick, 0);
    assert_eq!(snapshot.levels[0].buckets, [(1, 2), (7, 1)]);
    assert_eq!(snapshot.levels[1].buckets, [(2, 1), (7, 1)]);
    assert_eq!(snapshot.levels[2].buckets, [(2, 2)], "also of a later round");
    advance(TICK * 8).await;
    let snapshot = quiet(&wheel);
    assert_eq!(snapshot.tick, 8);
    assert!(snapshot.levels[0].buckets.is_empty());
    assert_eq!(snapshot.levels[1].buckets, [(7, 1)]);
}

/// Each shard stays where its last visit was, and the wheel is where the one is that came furthest.
#[test]
fn without_a_driver_the_wheel_stands_still() {
    let wheel = Wheel::builder().shards(2).build().unwrap();
    let mut sleep = None;
    paused_runtime().block_on(async {
        wheel.sleep(TICK * 20).await;
        register(sleep.insert(wheel.sleep(ms(500))));
    });
    paused_runtime().block_on(async {
        advance(DAY).await;
        let snapshot = quiet(&wheel);
        assert_eq!(snapshot.tick, 20);
        assert_eq!(snapshot.horizon[3], 1);
        assert!(snapshot.shards.iter().all(|shard| shard.mode == Mode::Driverless));
    });
    drop(sleep);
}

#[tokio::test(start_paused = true)]
async fn a_reset_to_later_shows_the_old_deadline_until_it_comes() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(ms(50));
    register(&mut sleep);
    sleep.reset(Instant::now() + SECOND * 5);
    assert_eq!(quiet(&wheel).horizon[2], 1);
    let sleeping = tokio::spawn(sleep);
    settle().await;
    advance(ms(60)).await;
    assert_eq!(quiet(&wheel).horizon[4], 1);
    sleeping.abort();
}

#[tokio::test(start_paused = true)]
async fn shards_doze_under_a_drivers_care_and_say_when_it_is_over() {
    let wheel = Wheel::builder().shards(2).build().unwrap();
    let mut sleep = wheel.sleep(DAY);
    register(&mut sleep);
    assert!(
        quiet(&wheel)
            .shards
            .iter()
            .all(|shard| shard.mode == Mode::Dozing)
    );
    wheel.shutdown();
    let snapshot = quiet(&wheel);
    assert_eq!(snapshot.pending, 0);
    assert!(snapshot.shards.iter().all(|shard| shard.mode == Mode::Shutdown));
}

#[test]
fn what_is_incoming_counts_and_what_is_kept_for_reuse_does_not() {
    let runtime = real_runtime();
    runtime
        .block_on(runtime.spawn(async {
            // The tick is so long that nothing is transferred meanwhile.
            let wheel = Wheel::builder()
                .shards(1)
                .tick_duration(SECOND * 600)
                .build()
                .unwrap();
            let busy = make_tick(&wheel);
            assert_eq!(quiet(&wheel).shards[0].mode, Mode::Ticking);
            assert_eq!(quiet(&wheel).pending, busy.len());
            poll_fn(|cx| {
                // One after another, as a task starts and ends them.
                for _ in 0..10 {
                    let mut timeout = pin!(wheel.timeout(DAY, pending::<()>()));
                    assert!(timeout.as_mut().poll(cx).is_pending());
                    assert_eq!(quiet(&wheel).pending, busy.len() + 1);
                    timeout.set(wheel.timeout(DAY, pending()));
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
