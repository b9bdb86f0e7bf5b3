//! Random operations by several threads on one wheel, on the real clock. Afterwards nothing is left, and the counters add up.

use crate::support;

use std::{
    future::{Future, pending},
    pin::Pin,
    sync::atomic::Ordering,
    task::{Context, Waker},
    thread,
    time::Duration,
};

use tickwheel::{Sleep, Wheel};
use tokio::time::Instant;

use support::{
    SECOND, assert_arena_given_back, assert_at_rest, counting_waker, ms, random::Random, real_runtime,
    threaded_runtime,
};

/// Durations at random.
trait Durations {
    /// Up to a few ticks: long enough to wait in the wheel, short enough to be waited for.
    fn short(&mut self) -> Duration;
    fn long(&mut self) -> Duration;
}

impl Durations for Random {
    fn short(&mut self) -> Duration {
        Duration::from_micros(self.below(6_000))
    }

    fn long(&mut self) -> Duration {
        let bits = self.below(40);
        ms(60_000 + self.below(1 << bits))
    }
}

/// Polls once; what it says does not matter.
fn poll_once(future: &mut (impl Future + Unpin)) {
    let _ = Pin::new(future).poll(&mut Context::from_waker(Waker::noop()));
}

fn wheel() -> Wheel {
    Wheel::builder()
        .tick_duration(ms(1))
        .ticks_per_wheel(16)
        .levels(3)
        .shards(4)
        .build()
        .unwrap()
}

/// Registers `sleep`, resets it and waits for it; tells whether it came no earlier than `deadline`.
async fn late_enough_when_reset_to(deadline: Instant, mut sleep: Sleep) -> bool {
    poll_once(&mut sleep);
    sleep.reset(deadline);
    sleep.await;
    Instant::now() >= deadline
}

/// Does something at random, and checks what it was promised. `kept` are sleeps that stay pending from call to call.
async fn act(wheel: &Wheel, random: &mut Random, kept: &mut Vec<Sleep>) {
    let start = Instant::now();
    match random.below(13) {
        0 => {
            let duration = random.short();
            wheel.sleep(duration).await;
            assert!(start.elapsed() >= duration, "a sleep was early");
        }
        1 => {
            let duration = random.short();
            let elapsed = wheel.timeout(duration, pending::<()>()).await;
            assert!(elapsed.is_err());
            assert!(start.elapsed() >= duration, "a timeout was early");
        }
        2 => {
            let in_time = wheel.timeout(SECOND * 3600, tokio::task::yield_now()).await;
            assert_eq!(in_time, Ok(()));
        }
        3 => drop(wheel.timeout(random.long(), pending::<()>())),
        4 => {
            // Enough at once that the shard ticks, and all dropped again.
            let mut many: Vec<_> = (0..200)
                .map(|_| wheel.timeout(random.long(), pending::<()>()))
                .collect();
            many.iter_mut().for_each(poll_once);
        }
        5 => {
            let sleep = wheel.sleep(random.long());
            let earlier = start + random.short();
            assert!(late_enough_when_reset_to(earlier, sleep).await, "earlier still");
        }
        6 => {
            let sleep = wheel.sleep(random.short());
            let later = start + random.short() * 2;
            assert!(late_enough_when_reset_to(later, sleep).await, "not later");
        }
        7 => {
            let mut sleep = wheel.sleep(random.long());
            poll_once(&mut sleep);
            sleep.reset(start - random.short());
            if random.below(2) == 0 {
                sleep.await;
            }
        }
        8 => {
            let mut sleep = wheel.sleep(random.long());
            poll_once(&mut sleep);
            kept.push(sleep);
        }
        9 if !kept.is_empty() => {
            let at = random.below(kept.len() as u64) as usize;
            match random.below(3) {
                0 => drop(kept.swap_remove(at)),
                1 => kept[at].reset(start + random.long()),
                _ => kept[at].reset(start + random.short()),
            }
        }
        10 => {
            // Expired, perhaps, while nobody looks.
            let mut sleep = wheel.sleep(random.short());
            poll_once(&mut sleep);
            tokio::task::yield_now().await;
            kept.push(sleep);
        }
        11 => {
            let period = random.short() + ms(1);
            let mut interval = wheel.interval(period);
            for n in 0..3 {
                let tick = interval.tick().await;
                assert!(Instant::now() >= tick, "tick {n} was early");
            }
        }
        _ => {
            let idle = wheel.idle_timer(ms(2));
            let traffic = idle.handle();
            let touched = Instant::now();
            traffic.touch();
            idle.await;
            assert!(touched.elapsed() >= ms(2), "an idle timer was early");
        }
    }
}

/// Everything goes: half of what was kept is waited for, the rest dropped.
async fn wind_up(kept: Vec<Sleep>) {
    for (n, mut sleep) in kept.into_iter().enumerate() {
        if n % 2 == 0 {
            sleep.reset(Instant::now() + ms(1));
            sleep.await;
        }
    }
}

#[test]
fn tasks_of_several_workers_leave_nothing_behind() {
    let runtime = threaded_runtime(4);
    let wheel = wheel();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..32)
            .map(|seed| {
                let wheel = wheel.clone();
                tokio::spawn(async move {
                    let mut random = Random::new(seed);
                    let mut kept = Vec::new();
                    for _ in 0..150 {
                        act(&wheel, &mut random, &mut kept).await;
                    }
                    wind_up(kept).await;
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_at_rest(&wheel);
    let metrics = wheel.metrics();
    assert!(
        metrics.expired > 1_000 && metrics.cancelled > 1_000,
        "{metrics:?}"
    );
    assert_eq!(metrics.panics, 0);
    assert_eq!(metrics.rejected, 0);
}

#[test]
fn sleeps_that_travel_between_tasks_are_woken_where_they_are() {
    let runtime = threaded_runtime(4);
    let wheel = wheel();
    runtime.block_on(async {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel::<(Sleep, Instant)>();
        let makers: Vec<_> = (0..8)
            .map(|seed| {
                let (wheel, sender) = (wheel.clone(), sender.clone());
                tokio::spawn(async move {
                    let mut random = Random::new(seed);
                    for _ in 0..300 {
                        let mut sleep = wheel.sleep(random.short());
                        poll_once(&mut sleep);
                        if random.below(4) == 0 {
                            sleep.reset(Instant::now() + random.short());
                        }
                        let deadline = sleep.deadline();
                        sender.send((sleep, deadline)).unwrap();
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        drop(sender);
        let mut receiver = receiver;
        let mut waiting = Vec::new();
        while let Some((sleep, deadline)) = receiver.recv().await {
            waiting.push(tokio::spawn(async move {
                sleep.await;
                Instant::now() >= deadline
            }));
        }
        for maker in makers {
            maker.await.unwrap();
        }
        for sleep in waiting {
            assert!(sleep.await.unwrap(), "one was early");
        }
    });
    assert_at_rest(&wheel);
}

#[test]
fn bursts_of_every_worker_give_their_memory_back() {
    let runtime = threaded_runtime(4);
    let wheel = wheel();
    let peak = runtime.block_on(async {
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(8));
        let tasks: Vec<_> = (0..8)
            .map(|seed| {
                let (wheel, barrier) = (wheel.clone(), barrier.clone());
                tokio::spawn(async move {
                    let mut random = Random::new(seed);
                    let mut burst: Vec<_> = (0..10_000).map(|_| wheel.sleep(random.long())).collect();
                    burst.iter_mut().for_each(poll_once);
                    barrier.wait().await;
                    let peak = wheel.metrics().arena_bytes;
                    barrier.wait().await;
                    // A third is cancelled, a third expires unpolled, and a third is waited for.
                    burst.truncate(6_666);
                    for sleep in &mut burst {
                        sleep.reset(Instant::now() + random.short());
                    }
                    let unpolled = burst.split_off(3_333);
                    for sleep in burst {
                        sleep.await;
                    }
                    drop(unpolled);
                    peak
                })
            })
            .collect();
        let mut peak = 0;
        for task in tasks {
            peak = task.await.unwrap().max(peak);
        }
        peak
    });
    assert!(peak >= 80_000 * 32, "{peak} bytes at the peak");
    assert_at_rest(&wheel);
    // A timer that a worker dropped last, or as a visit began, may be kept until the next visit of its shard.
    let given_up = Instant::now() + SECOND * 60;
    while wheel.metrics().arena_bytes > peak / 10 && Instant::now() < given_up {
        let visits = (0..8).map(|_| {
            let wheel = wheel.clone();
            runtime.spawn(async move { wheel.sleep(ms(1)).await })
        });
        for visit in visits.collect::<Vec<_>>() {
            runtime.block_on(visit).unwrap();
        }
    }
    assert_arena_given_back(&wheel);
}

#[test]
fn threads_whose_runtimes_come_and_go_lose_no_timer() {
    let wheel = wheel();
    thread::scope(|scope| {
        for seed in 0..4_u64 {
            let wheel = &wheel;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                let mut kept = Vec::new();
                for round in 0..25 {
                    let runtime = if (round + seed) % 3 == 0 {
                        threaded_runtime(1)
                    } else {
                        real_runtime()
                    };
                    runtime.block_on(async {
                        for _ in 0..10 {
                            act(wheel, &mut random, &mut kept).await;
                        }
                        // These go with the runtime, whatever they wait for.
                        for _ in 0..10 {
                            tokio::spawn(wheel.timeout(random.long(), wheel.sleep(random.short())));
                        }
                    });
                }
                real_runtime().block_on(wind_up(kept));
            });
        }
    });
    assert_at_rest(&wheel);
    assert_eq!(wheel.metrics().panics, 0);
}

#[test]
fn a_sleep_polled_by_two_tasks_in_turn_wakes_at_least_the_last() {
    let runtime = threaded_runtime(2);
    let wheel = wheel();
    runtime.block_on(async {
        for n in 0..300_u64 {
            // Polled here, perhaps expired meanwhile, and awaited there: the hand-over is where a wake-up could be lost.
            let mut sleep = wheel.sleep(Duration::from_micros(900 + n * 7 % 400));
            while futures::poll!(&mut sleep).is_pending() {
                if n % 3 == 0 || sleep.deadline() <= Instant::now() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            tokio::spawn(sleep).await.unwrap();
        }
    });
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
        let given_up = Instant::now() + 20 * SECOND;
        while woken.load(Ordering::SeqCst) < waiting {
            assert!(Instant::now() < given_up, "one is never woken, in round {round}");
            thread::yield_now();
        }
    }
    assert!(waiting > 0);
}
