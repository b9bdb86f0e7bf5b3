//! Slack: timers may be late by a part of their time, to fire in company.

use std::{collections::BTreeSet, future::pending, time::Duration};

use futures::future::join_all;
use tickwheel::Wheel;
use tokio::time::{Instant, MissedTickBehavior};

use crate::support::{SECOND, ms, real_runtime, threaded_runtime};

fn wheel(slack: Duration) -> Wheel {
    Wheel::builder().slack(slack).shards(1).build().unwrap()
}

/// The number of turns in which the 400 timers that `start` starts expire, a millisecond apart from 1 s on. A
/// stalled machine makes fewer turns and never more, so a bound on them holds on any.
fn turns<F: Future<Output = ()>>(slack: Duration, start: impl AsyncFnOnce(&Wheel, Instant) -> Vec<F>) -> u64 {
    real_runtime().block_on(async {
        let wheel = wheel(slack);
        let begin = Instant::now();
        let timers = start(&wheel, begin).await;
        join_all(timers.into_iter().enumerate().map(async |(timer, waiting)| {
            waiting.await;
            assert!(
                Instant::now() >= begin + SECOND + ms(timer as u64),
                "timer {timer} is early"
            );
        }))
        .await;
        assert_eq!(wheel.pending(), 0);
        wheel.metrics().turns
    })
}

/// As many as there are multiples of 8 ms, which is what a hundredth of a second allows, and some for other
/// timers. Without slack there can be 400.
const IN_COMPANY: u64 = 400 / 8 + 20;

#[test]
fn timers_with_slack_fire_in_company() {
    let turns = turns(ms(300), async |wheel, begin| {
        let sleeps = (0..400).map(|timer| wheel.sleep_until(begin + SECOND + ms(timer)));
        sleeps.collect()
    });
    assert!(turns <= IN_COMPANY, "{turns} turns");
}

/// They have the slack of the time that is left when their first deadline comes.
#[test]
fn sleeps_that_were_reset_fire_in_company() {
    let turns = turns(ms(300), async |wheel, begin| {
        let mut sleeps: Vec<_> = (0..400).map(|_| wheel.sleep_until(begin + ms(50))).collect();
        for (timer, sleep) in sleeps.iter_mut().enumerate() {
            assert!(futures::poll!(&mut *sleep).is_pending());
            sleep.reset_at(begin + SECOND + ms(timer as u64));
        }
        sleeps
    });
    assert!(turns <= IN_COMPANY, "{turns} turns");
}

#[test]
fn idle_timers_with_traffic_fire_in_company() {
    let turns = turns(ms(300), async |wheel, begin| {
        let mut timers: Vec<_> = (0..400).map(|_| wheel.idle_timer(SECOND)).collect();
        for timer in &mut timers {
            assert!(futures::poll!(&mut *timer).is_pending());
        }
        for (millis, timer) in timers.iter().enumerate() {
            tokio::time::sleep_until(begin + ms(millis as u64)).await;
            timer.handle().touch();
        }
        timers
    });
    assert!(turns <= IN_COMPANY, "{turns} turns");
}

#[test]
fn a_pending_timer_speaks_of_its_true_deadline() {
    real_runtime().block_on(async {
        let wheel = wheel(ms(300));
        let deadline = Instant::now() + 9 * SECOND + ms(950);
        let mut sleep = std::pin::pin!(wheel.sleep_until(deadline));
        assert!(futures::poll!(&mut sleep).is_pending());
        assert_eq!(sleep.deadline(), deadline);
        sleep.as_mut().reset(deadline - 9 * SECOND - ms(900));
        sleep.await;
        assert!(Instant::now() >= deadline - 9 * SECOND - ms(900));
    });
}

#[tokio::test(start_paused = true)]
async fn on_a_paused_clock_there_is_no_slack() {
    let wheel = Wheel::new();
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

#[tokio::test]
async fn a_clock_that_a_test_may_pause_has_no_slack_either() {
    let wheel = Wheel::new();
    wheel.sleep(ms(1)).await;
    let before = wheel.sleep(1_000 * SECOND);
    let before = tokio::spawn(async move {
        let deadline = before.deadline();
        before.await;
        Instant::now() - deadline
    });
    tokio::task::yield_now().await;
    tokio::time::pause();
    let deadline = Instant::now() + ms(30_001);
    wheel.sleep_until(deadline).await;
    for late in [Instant::now() - deadline, before.await.unwrap()] {
        assert!(late < ms(2), "{late:?} late");
    }
}

#[tokio::test(start_paused = true)]
async fn on_a_paused_clock_there_is_the_slack_that_was_asked_for() {
    let wheel = wheel(ms(300));
    let mut ends = BTreeSet::new();
    for millis in 0..300 {
        let start = Instant::now();
        wheel.sleep(ms(30_000 + millis)).await;
        let late = start.elapsed() - ms(30_000 + millis);
        assert!(late < ms(300), "{late:?} late");
        ends.insert(late);
    }
    assert!(ends.len() > 20, "they are not rounded up: {ends:?}");
    for millis in [1, 50, 199] {
        let start = Instant::now();
        wheel.sleep(ms(millis)).await;
        assert_eq!(start.elapsed(), ms(millis), "too short for slack");
    }
}

/// Those of 4 s by 4 ms.
#[test]
fn by_default_a_timer_may_be_late_by_a_thousandth_of_its_time() {
    let runtime = threaded_runtime(1);
    let wheel = Wheel::builder().shards(1).build().unwrap();
    runtime.block_on(async {
        let begin = Instant::now();
        let sleeps = (0..200).map(|timer| wheel.sleep_until(begin + ms(4_100 + timer)));
        join_all(sleeps.map(async |sleep| {
            let deadline = sleep.deadline();
            sleep.await;
            assert!(Instant::now() >= deadline, "early");
        }))
        .await;
    });
    // Fewer on a machine that stalls, and never more.
    let turns = wheel.metrics().turns;
    assert!(turns <= 200 / 4 + 20, "{turns} turns");
}

/// The slack of a timer that had long to wait is not that of the short time for which it was reset.
#[tokio::test(start_paused = true)]
async fn a_reset_to_a_later_instant_does_not_inherit_slack() {
    for millis in 1..20 {
        let wheel = wheel(10 * SECOND);
        let deadline = Instant::now() + 1_000 * SECOND;
        let mut sleep = wheel.sleep_until(deadline);
        assert!(futures::poll!(&mut sleep).is_pending());
        tokio::time::advance(999 * SECOND + ms(500)).await;
        let later = deadline + ms(millis);
        sleep.reset_at(later);
        sleep.await;
        // A hundredth of the half second, and of the millis.
        let late = Instant::now() - later;
        assert!(late <= ms(5), "{late:?} late, by {millis} ms");
    }
}

/// The first tick may be late by more than a period, because it had long to wait.
#[tokio::test(start_paused = true)]
async fn an_interval_does_not_drift_by_the_slack_of_its_first_tick() {
    for behavior in [MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
        let wheel = wheel(10 * SECOND);
        let start = Instant::now() + 1_000 * SECOND;
        let mut interval = wheel.interval_at(start, SECOND);
        interval.set_missed_tick_behavior(behavior);
        for tick in 0..20 {
            assert_eq!(interval.tick().await, start + tick * SECOND, "{behavior:?}");
        }
    }
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
                if timer % 2 == 0 {
                    wheel.sleep(duration).await;
                } else {
                    wheel.timeout(duration, pending::<()>()).await.unwrap_err();
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
