//! Slack: timers may be late by a hundredth of their time, to fire in company.

use std::{collections::BTreeSet, future::pending, time::Duration};

use futures::future::join_all;
use tickwheel::Wheel;
use tokio::time::Instant;

use crate::support::{SECOND, ms, real_runtime};

fn wheel(slack: Duration) -> Wheel {
    Wheel::builder().slack(slack).shards(1).build().unwrap()
}

/// The number of the driver's visits to its only shard in which 400 timers of 1 s to 1.4 s, a millisecond apart, expire.
fn visits(slack: Duration) -> u64 {
    real_runtime().block_on(async {
        let wheel = wheel(slack);
        let start = Instant::now();
        let timers = (0..400).map(|timer| {
            let sleep = wheel.sleep_until(start + SECOND + ms(timer));
            async move {
                sleep.await;
                assert!(
                    Instant::now() >= start + SECOND + ms(timer),
                    "timer {timer} is early"
                );
            }
        });
        join_all(timers).await;
        let metrics = wheel.metrics();
        assert_eq!((metrics.expired, wheel.pending()), (400, 0));
        metrics.light_visits
    })
}

/// A stalled machine makes fewer visits and never more, so the bound holds on any. Without slack there can be 400.
#[test]
fn timers_with_slack_fire_in_company() {
    // A hundredth of a second allows 8 ms. The first visit is for none of them.
    let visits = visits(ms(300));
    assert!(visits <= 400 / 8 + 20, "{visits} visits");
}

#[test]
fn a_pending_timer_speaks_of_its_true_deadline() {
    real_runtime().block_on(async {
        let wheel = wheel(ms(300));
        let deadline = Instant::now() + 9 * SECOND + ms(950);
        let mut sleep = std::pin::pin!(wheel.sleep_until(deadline));
        assert!(futures::poll!(&mut sleep).is_pending());
        assert_eq!(sleep.deadline(), deadline);
        // 9.95 s may be rounded up past 10 s, but counts as what it is.
        assert_eq!(wheel.snapshot().horizon, [0, 0, 0, 0, 1, 0, 0, 0, 0]);
        sleep.as_mut().reset(deadline - 9 * SECOND - ms(900));
        sleep.await;
        assert!(Instant::now() >= deadline - 9 * SECOND - ms(900));
    });
}

#[tokio::test(start_paused = true)]
async fn on_a_paused_clock_there_is_no_slack() {
    let wheel = wheel(10 * SECOND);
    for millis in [1, 999, 1_000, 30_001, 3_600_123] {
        let start = Instant::now();
        wheel.sleep(ms(millis)).await;
        assert_eq!(start.elapsed(), ms(millis));
        wheel.timeout(ms(millis), pending::<()>()).await.unwrap_err();
        assert_eq!(start.elapsed(), ms(2 * millis));
        wheel.idle_timer(ms(millis)).await;
        assert_eq!(start.elapsed(), ms(3 * millis));
    }
}

/// The driver has seen a real clock, and learns only by its next turn that it has been paused.
#[tokio::test]
async fn a_clock_paused_by_hand_has_no_slack_either() {
    let wheel = wheel(10 * SECOND);
    wheel.sleep(ms(1)).await;
    let before = tokio::spawn(wheel.sleep(1_000 * SECOND));
    tokio::task::yield_now().await;
    tokio::time::pause();
    let deadline = Instant::now() + ms(30_001);
    let mut sleep = std::pin::pin!(wheel.sleep_until(deadline));
    assert!(futures::poll!(&mut sleep).is_pending());
    sleep.await;
    assert!(
        Instant::now() - deadline < ms(2),
        "{:?} late",
        Instant::now() - deadline
    );
    // This one was given its slack before the pause.
    before.await.unwrap();
}

#[test]
fn wheels_of_several_ticks_never_fire_early_and_end() {
    real_runtime().block_on(async {
        let wheels = [(1, 3), (7, 40), (50, 900)].map(|(tick, slack)| {
            let builder = Wheel::builder().tick_duration(ms(tick)).slack(ms(slack));
            builder.build().unwrap()
        });
        let timers = (0..300).map(|timer| {
            let wheel = wheels[timer as usize % 3].clone();
            let duration = ms(timer * 7);
            async move {
                let start = Instant::now();
                match timer % 2 {
                    0 => wheel.sleep(duration).await,
                    _ => drop(wheel.timeout(duration, pending::<()>()).await.unwrap_err()),
                }
                (start.elapsed() >= duration, timer)
            }
        });
        let early: BTreeSet<_> = join_all(timers)
            .await
            .into_iter()
            .filter(|(punctual, _)| !punctual)
            .collect();
        assert_eq!(early, BTreeSet::new());
    });
}
