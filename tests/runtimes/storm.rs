//! Random storms on shared wheels: no timer is early, and none is lost.

use std::{
    future::{Future, pending},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::Context,
    thread,
    time::{Duration, Instant as Std},
};

use fastrand::Rng;
use futures::{StreamExt, stream::FuturesUnordered};
use tickwheel::{Sleep, Wheel};
use tokio::{sync::mpsc, task, time::Instant};

use crate::{
    play::{assert_not_early, current, end, found, ms, multi, poll_for_nobody, shared_wheels},
    support::waker_of,
};

/// How long each storm lasts.
fn lasting() -> Duration {
    match std::env::var("TICKWHEEL_STRESS_SECONDS") {
        Ok(seconds) => Duration::from_secs(seconds.parse().expect("TICKWHEEL_STRESS_SECONDS is a number")),
        Err(_) => ms(1_500),
    }
}

static DONE: AtomicU64 = AtomicU64::new(0);

fn check(deadline: Instant) {
    assert_not_early(deadline);
    DONE.fetch_add(1, Relaxed);
}

fn at_random(random: &mut Rng) -> Duration {
    Duration::from_micros(match random.u32(0..20) {
        0 => 0,
        1..=8 => random.u64(0..3_000),
        9..=18 => random.u64(0..30_000),
        _ => random.u64(0..200_000),
    })
}

/// One task of a storm.
async fn client(seed: u64, until: Std, to_others: mpsc::UnboundedSender<Sleep>) {
    let mut random = Rng::with_seed(seed);
    let wheels = shared_wheels();
    while Std::now() < until {
        let wheel = &wheels[random.usize(0..2)];
        match random.u32(0..12) {
            0 => {
                let deadline = Instant::now() + at_random(&mut random);
                found("a sleep", wheel.sleep_until(deadline)).await;
                check(deadline);
            }
            1 | 2 => cancelled_one_after_the_other(wheel, &mut random).await,
            3 => elapses_after_others(wheel, &mut random).await,
            4 => reset(wheel, &mut random).await,
            5 => select(wheel, &mut random).await,
            6 => {
                // Polled here, and by another task afterwards.
                let mut sleep = wheel.sleep(at_random(&mut random));
                let _ = futures::poll!(&mut sleep);
                let _ = to_others.send(sleep);
            }
            7 => unordered(wheel, &mut random).await,
            8 => {
                let mut interval = wheel.interval(at_random(&mut random) + ms(1) / 10);
                for _ in 0..random.u32(1..5) {
                    check(found("a tick", interval.tick()).await);
                }
            }
            9 => {
                let (wheel, deadline) = (wheel.clone(), Instant::now() + at_random(&mut random));
                let task = tokio::spawn(async move {
                    wheel.sleep_until(deadline).await;
                    check(deadline);
                });
                if random.bool() {
                    task.abort();
                }
                let ended = found("a spawned sleep", task).await;
                assert!(ended.is_ok() || ended.is_err_and(|error| error.is_cancelled()));
            }
            10 => {
                let deadline = Instant::now() + at_random(&mut random);
                let task = wheel.schedule_at(deadline, async move { check(deadline) });
                if random.bool() {
                    found("a scheduled task", task).await.unwrap();
                } else {
                    task.cancel();
                }
            }
            _ => task::yield_now().await,
        }
    }
}

async fn cancelled_one_after_the_other(wheel: &Wheel, random: &mut Rng) {
    let duration = at_random(random) + ms(1);
    for _ in 0..random.u32(1..20) {
        let _ = found("a timeout", wheel.timeout(duration, task::yield_now())).await;
    }
}

async fn elapses_after_others(wheel: &Wheel, random: &mut Rng) {
    let (duration, long) = (at_random(random), ms(random.u64(10..100_000)));
    for _ in 0..random.u32(0..4) {
        let _ = found("a timeout", wheel.timeout(long, task::yield_now())).await;
    }
    let deadline = Instant::now() + duration;
    let outcome = found("a timeout that elapses", wheel.timeout(duration, pending::<()>())).await;
    outcome.unwrap_err();
    check(deadline);
}

/// Earlier and later, while it is pending and after.
async fn reset(wheel: &Wheel, random: &mut Rng) {
    let mut sleep = wheel.sleep(at_random(random));
    for _ in 0..random.u32(1..6) {
        let pause = at_random(random) / 4;
        if tokio::time::timeout(pause, &mut sleep).await.is_ok() {
            check(sleep.deadline());
        }
        sleep.reset_at(Instant::now() + at_random(random));
    }
    found("a sleep that was reset", &mut sleep).await;
    check(sleep.deadline());
}

async fn select(wheel: &Wheel, random: &mut Rng) {
    let mut idle = wheel.sleep(ms(50));
    for _ in 0..random.u32(1..10) {
        tokio::select! {
            () = &mut idle => return check(idle.deadline()),
            () = wheel.sleep(at_random(random)) => {}
            () = task::yield_now() => {}
        }
        idle.reset_at(Instant::now() + ms(50));
    }
}

/// Each of these has a waker of its own.
async fn unordered(wheel: &Wheel, random: &mut Rng) {
    let sleeps = (0..random.usize(1..8)).map(|_| {
        let deadline = Instant::now() + at_random(random);
        async move {
            wheel.sleep_until(deadline).await;
            check(deadline);
        }
    });
    let mut all: FuturesUnordered<_> = sleeps.collect();
    while found("one of several", all.next()).await.is_some() {}
}

async fn storm(tasks: u64, seed: u64, until: Std) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<Sleep>();
    let clients: Vec<_> = (0..tasks)
        .map(|task| tokio::spawn(client(seed * 1_000 + task, until, sender.clone())))
        .collect();
    drop(sender);
    let others = tokio::spawn(async move {
        while let Some(mut sleep) = receiver.recv().await {
            tokio::spawn(async move {
                found("a sleep of another task", &mut sleep).await;
                check(sleep.deadline());
            });
        }
    });
    for client in clients {
        client.await.unwrap();
    }
    others.await.unwrap();
}

#[test]
fn on_one_runtime() {
    multi(4).block_on(storm(100, 1, Std::now() + lasting()));
    assert!(DONE.load(Relaxed) > 0);
}

#[test]
fn on_many_runtimes_that_begin_and_end() {
    let until = Std::now() + lasting();
    let rage = |number: u64| {
        let mut round = 0;
        while Std::now() < until {
            round += 1;
            let runtime = if number % 2 == 0 { current() } else { multi(2) };
            let end_of_round = Std::now() + ms(fastrand::u64(1..200));
            runtime.block_on(storm(8, number * 100 + round, end_of_round.min(until)));
            // Some tasks are left when it ends.
            end(runtime, fastrand::bool());
        }
    };
    thread::scope(|scope| {
        (0..6).for_each(|number| drop(scope.spawn(move || rage(number))));
    });
    assert!(DONE.load(Relaxed) > 0);
}

/// Several wheels at once, which are dropped and shut down meanwhile, in tasks and outside.
#[test]
fn on_wheels_that_begin_and_end() {
    let until = Std::now() + lasting();
    let runtime = multi(3);
    let tasks: Vec<_> = (0..20)
        .map(|seed| {
            runtime.spawn(async move {
                let mut random = Rng::with_seed(seed);
                while Std::now() < until {
                    let wheel = Wheel::new();
                    let mut sleeps: Vec<_> = (0..4).map(|_| wheel.sleep(at_random(&mut random))).collect();
                    for sleep in &mut sleeps {
                        let _ = futures::poll!(sleep);
                    }
                    let refusable = wheel.try_sleep(at_random(&mut random));
                    match random.u32(0..3) {
                        0 => drop(wheel.shutdown()),
                        1 => cancelled_one_after_the_other(&wheel, &mut random).await,
                        _ => {}
                    }
                    let is_shutdown = wheel.is_shutdown();
                    drop(wheel);
                    for sleep in &mut sleeps {
                        found("a sleep without a handle", &mut *sleep).await;
                        check(sleep.deadline());
                    }
                    assert_eq!(
                        found("one that may be refused", refusable).await.is_err(),
                        is_shutdown
                    );
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

/// Timers are started, reset and dropped from a thread of no runtime, on a wheel that was given one, while
/// wakers do the same.
#[test]
fn on_a_wheel_with_a_handle_from_threads_of_no_runtime() {
    let until = Std::now() + lasting();
    let timers = multi(1);
    let wheel = Wheel::builder().handle(timers.handle().clone()).build().unwrap();
    let rage = |seed: u64| {
        let mut random = Rng::with_seed(seed);
        while Std::now() < until {
            futures::executor::block_on(async {
                let deadline = Instant::now() + at_random(&mut random);
                let mut sleep = wheel.sleep_until(deadline);
                let mut another = wheel.sleep(at_random(&mut random));
                let own = wheel.clone();
                let waker = waker_of(move || {
                    let mut sleep = own.sleep(ms(1));
                    let _ = poll_for_nobody(&mut sleep).expect("it needs no runtime");
                    sleep.reset_at(Instant::now());
                });
                let _ = pin!(&mut another).poll(&mut Context::from_waker(&waker));
                (&mut sleep).await;
                check(deadline);
                another.reset_at(Instant::now() + at_random(&mut random));
                (&mut another).await;
                check(another.deadline());
            });
        }
    };
    thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(move || rage(seed)))));
}
