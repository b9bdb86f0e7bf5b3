//! Tokio's cooperative budget: the same two scenes for each future.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use futures::{FutureExt, future::LocalBoxFuture, poll};
use tickwheel::{Wheel, deadline, time};
use tokio::{task::coop::consume_budget, time::Instant};

use crate::support::{SECOND, full_wheel, ms};

#[tokio::test(start_paused = true)]
async fn a_loop_of_what_is_ready_does_not_starve_its_runtime() {
    let wheel = Wheel::new();
    let mut elapsed = wheel.sleep(ms(1));
    let mut ticks = wheel.interval(Duration::from_nanos(1));
    (&mut elapsed).await;
    ticks.tick().await;
    tokio::time::advance(ms(1)).await; // a million ticks
    let past = Instant::now() - SECOND;
    let (full, _occupant) = full_wheel();
    let closed = Wheel::new();
    drop(closed.shutdown());
    for kind in [
        "zero sleeps",
        "sleeps until the past",
        "polls of an elapsed sleep",
        "zero timeouts",
        "timeouts until the past",
        "tasks after a shutdown",
        "refused tasks",
        "cancelled tasks",
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
                "tasks after a shutdown" => drop(closed.schedule(SECOND, async {}).await.unwrap_err()),
                "refused tasks" => drop(full.schedule(SECOND, async {}).await.unwrap_err()),
                "cancelled tasks" => {
                    let task = wheel.schedule(SECOND, async {});
                    assert!(task.cancel());
                    task.await.unwrap_err();
                }
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

fn is_err<T, E>(outcome: Result<T, E>) -> bool {
    outcome.is_err()
}

/// Uses up the budget in each poll.
fn greedy() -> LocalBoxFuture<'static, ()> {
    poll_fn(|cx| {
        while pin!(consume_budget()).poll(cx).is_ready() {}
        Poll::Pending
    })
    .boxed_local()
}

#[tokio::test(start_paused = true)]
async fn a_future_that_uses_up_the_budget_does_not_keep_its_timeout_from_elapsing() {
    let wheel = Wheel::new();
    let (label, at) = (wheel.labelled("label"), Instant::now() + SECOND);
    let _clock = tokio::spawn(async {
        loop {
            tokio::time::advance(ms(50)).await;
        }
    });
    let timeouts = [
        (
            "timeout",
            wheel.timeout(SECOND, greedy()).map(is_err).boxed_local(),
        ),
        (
            "timeout_at",
            wheel.timeout_at(at, greedy()).map(is_err).boxed_local(),
        ),
        (
            "try_timeout",
            wheel.try_timeout(SECOND, greedy()).map(is_err).boxed_local(),
        ),
        (
            "labelled timeout",
            label.timeout(SECOND, greedy()).map(is_err).boxed_local(),
        ),
        (
            "scope",
            deadline::within(SECOND, greedy()).map(is_err).boxed_local(),
        ),
        (
            "global",
            time::timeout(SECOND, greedy()).map(is_err).boxed_local(),
        ),
        (
            "no time at all",
            time::timeout(ms(0), greedy()).map(is_err).boxed_local(),
        ),
    ];
    for (name, timeout) in timeouts {
        let start = Instant::now();
        assert!(timeout.await, "{name}");
        assert!(start.elapsed() < SECOND * 2, "{name}");
    }
}
