//! backon's retries, paused on a wheel.

use crate::support;

use std::{future::ready, time::Duration};

use backon::{BackoffBuilder, ConstantBuilder, Retryable, Sleeper};
use tickwheel::{SleepError, Wheel};
use tokio::time::Instant;

use support::{TICK, full_wheel};

fn every_second(times: usize) -> impl BackoffBuilder {
    ConstantBuilder::default()
        .with_delay(Duration::from_secs(1))
        .with_max_times(times)
}

/// Fails at every attempt; returns when each was made, counted from the first.
async fn attempts(wheel: &Wheel, backoff: impl BackoffBuilder) -> Vec<Duration> {
    let start = Instant::now();
    let mut attempts = Vec::new();
    let outcome = (|| {
        attempts.push(start.elapsed());
        ready(Err::<(), _>("refused"))
    })
    .retry(backoff)
    .sleep(wheel.clone())
    .await;
    assert_eq!(outcome, Err("refused"));
    attempts
}

fn assert_paused_a_second_each(attempts: &[Duration]) {
    assert_eq!(attempts.len(), 4);
    for pause in attempts.windows(2).map(|pair| pair[1] - pair[0]) {
        assert!(
            pause >= Duration::from_secs(1) && pause < Duration::from_secs(1) + TICK,
            "{pause:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_between_retries_last_as_long_as_the_backoff_says() {
    let wheel = Wheel::new();
    assert_paused_a_second_each(&attempts(&wheel, every_second(3)).await);
    assert_eq!(wheel.metrics().expired, 3);
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wheel_that_is_full_or_shut_down_does_not_make_retries_come_early() {
    let (wheel, _occupant) = full_wheel();
    assert_paused_a_second_each(&attempts(&wheel, every_second(3)).await);
    assert_eq!(wheel.metrics().rejected, 3);
    assert_eq!(wheel.pending(), 1);
    drop(wheel.shutdown());
    assert_paused_a_second_each(&attempts(&wheel, every_second(3)).await);
}

/// When attempts were made that fail every minute, without a limit, on a wheel that is shut down after 90 s.
async fn attempts_until_shutdown<S: Sleeper>(wheel: &Wheel, sleeper: S) -> Vec<u64> {
    let start = Instant::now();
    let stop = wheel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(90)).await;
        drop(stop.shutdown());
    });
    let mut attempts = Vec::new();
    let outcome = (|| {
        attempts.push(start.elapsed().as_secs());
        ready(Err::<(), _>("unreachable"))
    })
    .retry(
        ConstantBuilder::default()
            .with_delay(Duration::from_secs(60))
            .without_max_times(),
    )
    .sleep(sleeper)
    .when(|_| !wheel.is_shutdown())
    .await;
    assert_eq!(outcome, Err("unreachable"));
    assert_eq!(start.elapsed().as_secs(), *attempts.last().unwrap());
    attempts
}

#[tokio::test(start_paused = true)]
async fn retries_end_after_a_shutdown_where_the_predicate_asks_for_it() {
    let wheel = Wheel::new();
    assert_eq!(attempts_until_shutdown(&wheel, wheel.clone()).await, [0, 60, 120]);
}

/// What the guide shows.
async fn pause(wheel: Wheel, duration: Duration) {
    if let Err(SleepError::AtCapacity { .. }) = wheel.try_sleep(duration).await {
        tokio::time::sleep(duration).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_ends_with_the_wheel_ends_the_retries_at_the_shutdown() {
    let wheel = Wheel::new();
    let pauses = wheel.clone();
    let sleeper = move |duration| pause(pauses.clone(), duration);
    assert_eq!(attempts_until_shutdown(&wheel, sleeper).await, [0, 60, 90]);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_ends_with_the_wheel_lasts_its_time_in_a_full_one() {
    let (wheel, _occupant) = full_wheel();
    let start = Instant::now();
    pause(wheel, Duration::from_secs(1)).await;
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn dropping_a_retry_cancels_its_pause() {
    let wheel = Wheel::new();
    let attempts = attempts(&wheel, every_second(3));
    assert!(
        tokio::time::timeout(Duration::from_millis(500), attempts)
            .await
            .is_err()
    );
    assert_eq!(wheel.pending(), 0);
    assert_eq!(wheel.metrics().cancelled, 1);
}
