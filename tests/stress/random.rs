//! Many tasks do at random what can be done with timers, on real multi-thread runtimes: none is early, none
//! is lost, and nothing is left.

use crate::support;

use std::{
    future::{Future, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tickwheel::{Sleep, Wheel};
use tokio::sync::mpsc;

use support::{SECOND, assert_adds_up, assert_at_rest, counting_waker, ms, random::Random, threaded_runtime};

/// Far longer than any wait here takes, and than a busy machine holds one up.
const LOST: Duration = Duration::from_secs(10);

impl Random {
    fn duration(&mut self) -> Duration {
        match self.below(4) {
            0 => Duration::from_micros(self.below(3_000)),
            1 => ms(self.below(10)),
            2 => ms(20),
            _ => SECOND * 3600,
        }
    }

    fn short(&mut self) -> Duration {
        Duration::from_micros(self.below(8_000))
    }

    /// On any level.
    fn long(&mut self) -> Duration {
        let bits = self.below(40);
        // Too long for a spare, which would keep the arena until it expires.
        ms(70_000 + self.below(1 << bits))
    }
}

fn seed() -> u64 {
    match std::env::var("TICKWHEEL_STRESS_SEED") {
        Ok(seed) => seed.parse().expect("TICKWHEEL_STRESS_SEED is a number"),
        Err(_) => 1,
    }
}

/// How long each of the tests goes on.
fn lasting() -> Duration {
    match std::env::var("TICKWHEEL_STRESS_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("TICKWHEEL_STRESS_SECONDS is a number")),
        Err(_) => ms(500),
    }
}

async fn poll_once(sleep: &mut Sleep) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *sleep).poll(cx).is_ready())).await
}

/// Waits for what is due at `due`, by a watchdog that is no timer of the wheel.
async fn watched(what: &str, due: Instant, wait: impl Future) {
    let watchdog = tokio::time::sleep(due.saturating_duration_since(Instant::now()) + LOST);
    let mut wait = pin!(wait);
    tokio::select! {
        biased;
        _ = &mut wait => assert!(Instant::now() >= due, "{what}: {:?} early", due - Instant::now()),
        () = watchdog => panic!("{what}: lost"),
    }
}

/// Sleeps that a task hands to others, registered.
type Handed = (Sleep, Instant);

/// What a task does, again and again.
async fn act(
    wheel: &Wheel,
    random: &mut Random,
    to: &mpsc::UnboundedSender<Handed>,
    from: &mut mpsc::UnboundedReceiver<Handed>,
) {
    match random.below(13) {
        // Given up at once.
        0 => {
            for _ in 0..random.below(20) {
                let mut sleep = wheel.sleep(random.duration());
                poll_once(&mut sleep).await;
            }
        }
        // Timeouts that their futures are too quick for.
        1 => {
            for _ in 0..random.below(20) {
                let _ = wheel.timeout(random.duration(), tokio::task::yield_now()).await;
            }
        }
        2 => {
            let due = Instant::now() + random.short();
            watched("sleep", due, wheel.sleep_until(due.into())).await;
        }
        3 => {
            let duration = random.short();
            let due = Instant::now() + duration;
            watched("timeout", due, wheel.timeout(duration, pending::<()>())).await;
        }
        // One taken over, then moved to an earlier instant.
        4 => {
            let mut sleep = wheel.sleep(random.duration());
            poll_once(&mut sleep).await;
            drop(sleep);
            let mut sleep = wheel.sleep(SECOND * 7200);
            assert!(!poll_once(&mut sleep).await);
            let due = Instant::now() + random.short();
            sleep.reset_at(due.into());
            watched("brought forward", due, sleep).await;
        }
        // One moved to a later instant, and back.
        5 => {
            let mut sleep = wheel.sleep(random.short());
            poll_once(&mut sleep).await;
            let due = Instant::now() + random.short();
            sleep.reset_at((due + random.short()).into());
            if random.below(2) == 0 {
                poll_once(&mut sleep).await;
            }
            sleep.reset_at(due.into());
            watched("moved", due, sleep).await;
        }
        // Handed to another task, on another thread perhaps.
        6 => {
            let due = Instant::now() + random.short();
            let mut sleep = wheel.sleep_until(due.into());
            poll_once(&mut sleep).await;
            let _ = to.send((sleep, due));
        }
        // Many at once, and all dropped again.
        7 => {
            let mut many: Vec<_> = (0..200)
                .map(|_| wheel.timeout(random.long(), pending::<()>()))
                .collect();
            for timeout in &mut many {
                assert!(futures::poll!(timeout).is_pending());
            }
        }
        8 => {
            let mut interval = wheel.interval(random.short() + ms(1));
            for _ in 0..3 {
                let tick = interval.tick().await;
                assert!(tokio::time::Instant::now() >= tick, "a tick was early");
            }
        }
        9 => {
            let idle = wheel.idle_timer(ms(2));
            // It counts from the touch, after which this thread may be descheduled.
            let due = Instant::now() + ms(2);
            idle.handle().touch();
            watched("idle", due, idle).await;
        }
        // Moved to the past.
        10 => {
            let mut sleep = wheel.sleep(random.long());
            poll_once(&mut sleep).await;
            let past = Instant::now() - random.short();
            sleep.reset_at(past.into());
            watched("moved to the past", past, sleep).await;
        }
        _ => {
            while let Ok((mut sleep, mut due)) = from.try_recv() {
                match random.below(4) {
                    0 => drop(sleep),
                    1 => {
                        due = Instant::now() + random.short();
                        sleep.reset_at(due.into());
                        watched("handed over and moved", due, sleep).await;
                    }
                    _ => watched("handed over", due, sleep).await,
                }
            }
            if random.below(3) == 0 {
                // On another thread, next time.
                let pause = Duration::from_micros(random.below(3_000));
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// So many tasks act on the wheel, until the time is over.
async fn many_tasks(wheel: &Wheel, tasks: u64, seed: u64, until: Instant) {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..tasks).map(|_| mpsc::unbounded_channel()).unzip();
    let acting: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(n, mut from)| {
            let to = senders[(n + 1) % senders.len()].clone();
            let wheel = wheel.clone();
            let mut random = Random::new(seed ^ (n as u64) << 32);
            tokio::spawn(async move {
                while Instant::now() < until {
                    act(&wheel, &mut random, &to, &mut from).await;
                }
            })
        })
        .collect();
    drop(senders);
    for task in acting {
        task.await.unwrap();
    }
}

fn no_timer_is_early_or_lost(tick: Duration, shards: usize, workers: usize, tasks: u64) {
    let wheel = Wheel::builder()
        .tick_duration(tick)
        .shards(shards)
        .build()
        .unwrap();
    let runtime = threaded_runtime(workers);
    runtime.block_on(many_tasks(&wheel, tasks, seed(), Instant::now() + lasting()));
    assert_at_rest(&wheel);
    drop(runtime);
    assert_at_rest(&wheel);
}

#[test]
fn none_is_early_or_lost_in_a_quiet_wheel() {
    no_timer_is_early_or_lost(ms(1), 2, 2, 6);
}

#[test]
fn none_is_early_or_lost_in_a_busy_wheel() {
    no_timer_is_early_or_lost(ms(1), 1, 4, 400);
}

#[test]
fn none_is_early_or_lost_in_many_shards() {
    no_timer_is_early_or_lost(ms(3), 8, 4, 100);
}

/// Runtimes come and go under one wheel. A task that is dropped with its runtime leaves nothing behind.
#[test]
fn none_is_early_or_lost_while_runtimes_come_and_go() {
    let wheel = Wheel::builder().tick_duration(ms(1)).shards(2).build().unwrap();
    let until = Instant::now() + lasting();
    let mut seed = seed();
    let stays = threaded_runtime(2);
    let other = wheel.clone();
    let staying = stays.spawn(async move { many_tasks(&other, 20, seed, until).await });
    while Instant::now() < until {
        seed += 1;
        let runtime = threaded_runtime(2);
        let other = wheel.clone();
        let acting = runtime.spawn(async move { many_tasks(&other, 20, seed, until).await });
        std::thread::sleep(ms(1 + seed % 17));
        assert!(
            !acting.is_finished() || Instant::now() + ms(100) > until,
            "a task failed"
        );
        match seed % 2 {
            0 => drop(runtime),
            _ => runtime.shutdown_background(),
        }
    }
    stays.block_on(staying).unwrap();
    drop(stays);
    // A runtime that is shut down in the background drops its tasks a little later.
    let latest = Instant::now() + LOST;
    while wheel.pending() > 0 && Instant::now() < latest {
        std::thread::yield_now();
    }
    assert_at_rest(&wheel);
}

/// Metrics that are read meanwhile never show more pending than there can be.
#[test]
fn metrics_never_show_more_pending_than_there_can_be() {
    let wheel = Wheel::builder().tick_duration(ms(1)).shards(1).build().unwrap();
    let runtime = threaded_runtime(3);
    let stop = Arc::new(AtomicBool::new(false));
    let turns = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let (wheel, stop, turns) = (wheel.clone(), stop.clone(), turns.clone());
            runtime.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..1_000 {
                        let mut sleep = wheel.sleep(SECOND * 60);
                        assert!(!poll_once(&mut sleep).await);
                    }
                    turns.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let until = Instant::now() + lasting();
    while Instant::now() < until {
        assert!(wheel.pending() <= 3);
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert!(turns.load(Ordering::Relaxed) > 0);
    assert_adds_up(&wheel);
    assert_at_rest(&wheel);
}

/// The deadline that a thread has just told Tokio's timer may come in that very moment, on another thread.
#[test]
fn no_deadline_is_missed_that_comes_as_the_timer_is_set() {
    let runtime = threaded_runtime(2);
    let wheels: Vec<_> = (0..100)
        .map(|_| {
            let builder = Wheel::builder().tick_duration(ms(1)).shards(1);
            builder.handle(runtime.handle().clone()).build().unwrap()
        })
        .collect();
    let (waker, woken) = counting_waker();
    let mut waiting = 0;
    for round in 0..300 {
        let start = |wheel: &Wheel| {
            let mut sleep = wheel.sleep(ms(1));
            let polled = Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker));
            polled.is_pending().then_some(sleep)
        };
        let sleeps: Vec<_> = wheels.iter().filter_map(start).collect();
        waiting += sleeps.len();
        let given_up = Instant::now() + LOST;
        while woken.load(Ordering::SeqCst) < waiting {
            assert!(Instant::now() < given_up, "one is never woken, in round {round}");
            std::thread::yield_now();
        }
    }
    assert!(waiting > 0);
}
