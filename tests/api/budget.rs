//! Tokio's cooperative budget: the same two scenes for each future.

use std::{future::pending, time::Duration};

use futures::poll;
use tickwheel::Wheel;
use tokio::time::Instant;

use crate::support::{SECOND, ms};

#[tokio::test(start_paused = true)]
async fn a_loop_of_what_is_ready_does_not_starve_its_runtime() {
    let wheel = Wheel::new();
    let mut elapsed = wheel.sleep(ms(1));
    let mut ticks = wheel.interval(Duration::from_nanos(1));
    (&mut elapsed).await;
    ticks.tick().await;
    tokio::time::advance(ms(1)).await; // a million ticks
    let past = Instant::now() - SECOND;
    for kind in [
        "zero sleeps",
        "sleeps until the past",
        "polls of an elapsed sleep",
        "zero timeouts",
        "timeouts until the past",
        "ticks",
    ] {
        let other = tokio::spawn(async {});
        for _ in 0..1_000 {
            match kind {
                "zero sleeps" => wheel.sleep(Duration::ZERO).await,
                "sleeps until the past" => wheel.sleep_until(past).await,
                "polls of an elapsed sleep" => (&mut elapsed).await,
                "zero timeouts" => drop(wheel.timeout(Duration::ZERO, pending::<()>()).await.unwrap_err()),
                "timeouts until the past" => drop(wheel.timeout_at(past, pending::<()>()).await.unwrap_err()),
                _ => drop(ticks.tick().await),
            }
        }
        assert!(other.is_finished(), "{kind} starved the runtime");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_polled_without_budget_is_not_lost() {
    let wheel = Wheel::new();
    let due = Instant::now() + ms(10);
    let mut sleep = wheel.sleep(ms(10));
    let mut timeout = wheel.timeout(ms(10), pending::<()>());
    let mut ticks = wheel.interval_at(due, ms(100));
    assert!(poll!(&mut sleep).is_pending());
    assert!(poll!(&mut timeout).is_pending());
    assert!(poll!(Box::pin(ticks.tick())).is_pending());
    tokio::time::advance(ms(10)).await;
    while tokio::task::coop::has_budget_remaining() {
        tokio::task::coop::consume_budget().await;
    }
    // All three are due.
    assert!(poll!(&mut sleep).is_pending());
    assert!(poll!(&mut timeout).is_pending());
    assert!(poll!(Box::pin(ticks.tick())).is_pending());

    sleep.await;
    timeout.await.unwrap_err();
    assert_eq!(ticks.tick().await, due);
    assert_eq!(ticks.tick().await, due + ms(100));
}
