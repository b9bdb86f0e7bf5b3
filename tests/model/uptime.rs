//! Three years of uptime in virtual time: every kind of timer ends at the expected instant, with distant
//! timers beside it.
//!
//! Tokio's own wheel once stopped intervals after 12 days if there was one distant timer
//! (tokio-rs/tokio#8334). The clock is paused and auto-advances to each deadline, so a timer that is early,
//! late or forgotten ends at another instant than expected. Now and then the clock jumps by up to a month,
//! and the timers of that month end when it lands. `TICKWHEEL_UPTIME_SEED` plays another three years,
//! `TICKWHEEL_UPTIME_YEARS` more of them (up to 200, because wheel time ends after 219), and
//! `TICKWHEEL_UPTIME_SECONDS` one seed after another for that long.

use std::{
    env,
    future::pending,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use fastrand::Rng;
use futures::StreamExt;
use tickwheel::{DelayQueue, Wheel, deadline, time};
use tokio::time::{Duration, Instant, MissedTickBehavior};

use crate::support::{DAY, SECOND, assert_adds_up, ms, paused_runtime, settle};

/// So many tasks have a timer at any time.
const TASKS: u64 = 24;

/// What the timers of a wheel are checked against.
#[derive(Clone)]
struct World {
    wheel: Wheel,
    /// The last jump of the clock, from and to.
    jump: Arc<Mutex<RangeInclusive<Instant>>>,
    ended: Arc<AtomicU64>,
}

impl World {
    /// A timer for `due` has ended now.
    #[track_caller]
    fn ends(&self, due: Instant, what: &str) {
        let now = Instant::now();
        let jump = self.jump.lock().unwrap().clone();
        let landed = now == *jump.end() && jump.contains(&due);
        assert!(
            now == due || landed,
            "{what} for {due:?} ended at {now:?}, after a jump {jump:?}"
        );
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    /// One timer after another, of every kind.
    async fn play(self, mut random: Rng) {
        loop {
            let span = span(&mut random);
            let due = Instant::now() + span;
            let wheel = &self.wheel;
            match random.u32(..13) {
                0 => {
                    wheel.sleep(span).await;
                    self.ends(due, "a sleep");
                }
                1 => {
                    wheel.timeout(span, pending::<()>()).await.unwrap_err();
                    self.ends(due, "a timeout");
                }
                2 => {
                    let longer = wheel.timeout(span * 2, tokio::time::sleep(span)).await;
                    // After a jump past both, the wheel may be ahead of Tokio's timers.
                    let jumped = *self.jump.lock().unwrap().end() == Instant::now();
                    assert!(longer.is_ok() || jumped, "a timeout that was longer elapsed");
                    self.ends(due, "Tokio's sleep in a timeout");
                }
                3 => {
                    let mut sleep = wheel.sleep(span * 2);
                    assert!(futures::poll!(&mut sleep).is_pending());
                    sleep.reset_at(due);
                    sleep.await;
                    self.ends(due, "a sleep reset to earlier");
                }
                4 => {
                    let mut sleep = wheel.sleep(span);
                    assert!(futures::poll!(&mut sleep).is_pending());
                    sleep.reset_at(due + span);
                    sleep.await;
                    self.ends(due + span, "a sleep reset to later");
                }
                5 => self.tick(span, &mut random).await,
                6 => {
                    let idle = wheel.idle_timer(span);
                    let activity = idle.handle();
                    let toucher = async {
                        tokio::time::sleep(span / 2).await;
                        activity.touch();
                        Instant::now() + span
                    };
                    let (touched, ()) = tokio::join!(toucher, idle);
                    // A jump may have passed the deadline before the touch came.
                    self.ends(touched.min(Instant::now()), "an idle timer");
                }
                7 => {
                    wheel.schedule(span, async {}).abort_on_drop().await.unwrap();
                    self.ends(due, "a scheduled task");
                }
                8 => {
                    let series = wheel
                        .periodic(span)
                        .spawn_with_fixed_delay(|| async {})
                        .abort_on_drop();
                    wheel.sleep(span).await;
                    settle().await;
                    assert_eq!(series.runs(), 1, "of a series with a delay of {span:?}");
                    series.stop();
                    self.ended.fetch_add(1, Ordering::Relaxed);
                }
                9 => {
                    let mut queue = DelayQueue::on(wheel);
                    queue.insert("far", span * 3);
                    queue.insert("near", span);
                    assert_eq!(queue.next().await.unwrap().into_inner(), "near");
                    self.ends(due, "a queue's value");
                }
                10 => {
                    deadline::within(span, pending::<()>()).await.unwrap_err();
                    self.ends(due, "a scope");
                }
                11 => {
                    time::sleep(span).await;
                    self.ends(due, "time::sleep");
                }
                _ => {
                    time::timeout(span, pending::<()>()).await.unwrap_err();
                    self.ends(due, "time::timeout");
                }
            }
        }
    }

    /// An interval for some ticks, each late by nothing but a jump.
    async fn tick(&self, period: Duration, random: &mut Rng) {
        let mut interval = self.wheel.interval_at(Instant::now() + period, period);
        interval.set_missed_tick_behavior(match random.u32(..3) {
            0 => MissedTickBehavior::Burst,
            1 => MissedTickBehavior::Delay,
            _ => MissedTickBehavior::Skip,
        });
        for _ in 0..random.u32(1..20) {
            let due = interval.tick().await;
            let now = Instant::now();
            assert!(due <= now, "a tick for {due:?} came at {now:?}");
            let jumped = *self.jump.lock().unwrap().end() == now;
            assert!(due == now || jumped, "a tick for {due:?} came at {now:?}");
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// From a millisecond to a month, each magnitude as often.
fn span(random: &mut Rng) -> Duration {
    let most = 1_u64 << random.u32(1..32);
    ms(random.u64(most / 2..most).max(1))
}

fn from_environment(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect(name))
}

#[test]
fn three_years_pass_and_every_timer_ends_when_it_should() {
    let first = from_environment("TICKWHEEL_UPTIME_SEED", 7);
    let years = from_environment("TICKWHEEL_UPTIME_YEARS", 3);
    let time = SECOND * from_environment("TICKWHEEL_UPTIME_SECONDS", 0) as u32;
    let begun = std::time::Instant::now();
    for seed in first.. {
        println!("TICKWHEEL_UPTIME_SEED={seed}");
        play_years(seed, years);
        if begun.elapsed() >= time {
            break;
        }
    }
}

fn play_years(seed: u64, years: u64) {
    const FAR: [u32; 4] = [1, 2, 5, 30];

    paused_runtime().block_on(async {
        let mut random = Rng::with_seed(seed);
        let start = Instant::now();
        let world = World {
            wheel: Wheel::builder().shards(1).build().unwrap(),
            jump: Arc::new(Mutex::new(start..=start)),
            ended: Arc::default(),
        };
        let far = FAR.map(|years| tokio::spawn(world.wheel.sleep(DAY * 365 * years)));
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| tokio::spawn(world.clone().play(random.fork())))
            .collect();
        let end = start + DAY * 365 * years as u32;
        while Instant::now() < end {
            if let Some(failed) = tasks.iter().position(|task| task.is_finished()) {
                panic!("task {failed} failed");
            }
            match random.u32(..20) {
                0 => {
                    let by = span(&mut random);
                    let from = Instant::now();
                    *world.jump.lock().unwrap() = from..=from + by;
                    tokio::time::advance(by).await;
                    settle().await;
                }
                _ => tokio::time::sleep(span(&mut random)).await,
            }
        }
        let ended = world.ended.load(Ordering::Relaxed);
        assert!(ended > 1_000 * years, "{ended} timers ended");
        tasks.iter().for_each(|task| task.abort());
        settle().await;
        let passed = FAR.map(|years| start + DAY * 365 * years <= Instant::now());
        assert_eq!(far.each_ref().map(|sleep| sleep.is_finished()), passed);
        far.iter().for_each(|sleep| sleep.abort());
        settle().await;
        assert_eq!(world.wheel.pending(), 0);
        assert_adds_up(&world.wheel);
    });
}
