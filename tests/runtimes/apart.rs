//! What one runtime does, no other notices.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant as Std},
};

use tickwheel::{Wheel, time};
use tokio::{
    task::{self, LocalSet},
    time::Instant,
};

use crate::{
    play::{
        PATIENCE, SECOND, assert_not_early, current, found, is_ready, ms, multi, poll_for_nobody,
        shared_wheels, wait_until,
    },
    support::{paused_runtime, register, within},
};

/// How long a runtime blocks, and how long it lets its tasks run in between.
const BLOCKS: Duration = ms(50);
const RUNS: Duration = ms(150);

const TASKS: usize = 300;

#[derive(Default)]
struct Lateness([Mutex<Vec<Duration>>; 3]);

impl Lateness {
    fn note(&self, kind: usize, late: Duration) {
        self.0[kind].lock().unwrap().push(late);
    }

    /// Returns how late nineteen of twenty sleeps of a kind were at most.
    fn of_most(&self, kind: usize) -> Duration {
        let mut late = self.0[kind].lock().unwrap();
        late.sort_unstable();
        late[late.len() * 19 / 20]
    }
}

async fn sleep_of_kind(kind: usize, duration: Duration) {
    match kind {
        0 => tokio::time::sleep(duration).await,
        1 => shared_wheels()[0].sleep(duration).await,
        _ => time::sleep(duration).await,
    }
}

/// One of two current-thread runtimes, the first of which blocks again and again. The tasks of each sleep, a
/// third of them by Tokio's timers.
fn sleep_beside_a_runtime_that_blocks(is_first: bool, late: &Arc<Lateness>, stop: &Arc<AtomicBool>) {
    let local = LocalSet::new();
    for number in 0..TASKS {
        let (late, stop) = (late.clone(), stop.clone());
        let mut random = fastrand::Rng::with_seed(number as u64);
        local.spawn_local(async move {
            while !stop.load(Relaxed) {
                let duration = Duration::from_micros(random.u64(1_000..100_000));
                let begun = Std::now();
                found("a sleep", sleep_of_kind(number % 3, duration)).await;
                let took = begun.elapsed();
                assert!(took >= duration, "{:?} early", duration - took);
                if !is_first {
                    late.note(number % 3, took - duration);
                }
            }
        });
    }
    let stop = stop.clone();
    local.spawn_local(async move {
        while is_first && !stop.load(Relaxed) {
            tokio::time::sleep(RUNS).await;
            thread::sleep(BLOCKS);
        }
    });
    current().block_on(local);
}

/// Thread per core. On a wheel that one of them drove for both, a quarter of the sleeps were up to 50 ms
/// late.
#[test]
fn a_runtime_that_blocks_delays_no_sleep_of_another_on_the_same_wheel() {
    let (late, stop) = (Arc::<Lateness>::default(), Arc::<AtomicBool>::default());
    thread::scope(|scope| {
        let (late, stop) = (&late, &stop);
        scope.spawn(move || sleep_beside_a_runtime_that_blocks(true, late, stop));
        // The one that blocks is the first to poll.
        thread::sleep(ms(50));
        scope.spawn(move || sleep_beside_a_runtime_that_blocks(false, late, stop));
        thread::sleep(2 * SECOND);
        stop.store(true, Relaxed);
    });
    let [tokios, wheels, globals] = [0, 1, 2].map(|kind| late.of_most(kind));
    let most = tokios + BLOCKS / 4;
    assert!(
        wheels < most && globals < most,
        "late by {wheels:?} and {globals:?}, Tokio's by {tokios:?}"
    );
}

/// Runtimes that are in trouble of every kind, each with timers on both wheels. Sleeps of another one go on.
#[test]
fn a_runtime_in_trouble_holds_up_no_other() {
    within(PATIENCE * 4, || {
        let register_all = || {
            for wheel in shared_wheels() {
                let mut sleep = wheel.sleep(ms(1));
                assert!(poll_for_nobody(&mut sleep).is_some());
                // It stays in the wheel, though nobody waits.
                std::mem::forget(sleep);
            }
        };
        // One is not driven between two `block_on`s.
        let undriven = current();
        undriven.block_on(async { register_all() });
        // The clock of one is paused, far from here.
        let paused = paused_runtime();
        paused.block_on(async {
            tokio::time::advance(SECOND * 86_400).await;
            register_all();
        });
        // One has a worker that blocks, in a task that was woken by a timer.
        let (blocked, stop) = (multi(1), Arc::new(AtomicBool::new(false)));
        let is_blocked = Arc::new(AtomicBool::new(false));
        {
            let (stop, is_blocked) = (stop.clone(), is_blocked.clone());
            blocked.spawn(async move {
                shared_wheels()[0].sleep(ms(1)).await;
                register_all();
                is_blocked.store(true, Relaxed);
                wait_until("over", || stop.load(Relaxed));
            });
        }
        wait_until("blocked", || is_blocked.load(Relaxed));

        for runtime in [current(), multi(2)] {
            runtime.block_on(async {
                for round in 0..100 {
                    let wheel = &shared_wheels()[round % 2];
                    let deadline = Instant::now() + ms(1);
                    found("a sleep beside trouble", wheel.sleep_until(deadline)).await;
                    assert_not_early(deadline);
                    let _ = wheel.timeout(SECOND, task::yield_now()).await;
                }
            });
        }
        stop.store(true, Relaxed);
        // What was forgotten expires once its runtime is driven.
        undriven.block_on(async { tokio::time::sleep(ms(5)).await });
    });
}

/// A test may pause the clock of each of several runtimes on one wheel, and move each by another time.
#[test]
fn paused_clocks_of_runtimes_on_one_wheel_are_their_own() {
    let wheel = Wheel::new();
    let runtimes: Vec<_> = (0..4).map(|_| paused_runtime()).collect();
    let mut sleeps: Vec<_> = runtimes
        .iter()
        .enumerate()
        .map(|(number, runtime)| {
            runtime.block_on(tokio::time::advance(SECOND * 1_000 * number as u32));
            let _entered = runtime.enter();
            let mut sleep = wheel.sleep(SECOND * 10);
            register(&mut sleep);
            sleep
        })
        .collect();
    for (number, runtime) in runtimes.iter().enumerate().rev() {
        runtime.block_on(async {
            let start = Instant::now();
            tokio::time::advance(SECOND * 9).await;
            assert!(!is_ready(&mut sleeps[number]).await);
            (&mut sleeps[number]).await;
            assert_eq!(start.elapsed(), SECOND * 10);
            // Whoever polls elsewhere than on the timer's own runtime moves no clock of it.
            for other in &mut sleeps[..number] {
                assert!(!is_ready(other).await);
            }
        });
    }
    assert_eq!(wheel.pending(), 0);
}

/// Its shard is another thread's than the one with the earliest timer.
#[test]
fn a_timer_cancelled_by_another_thread_puts_no_other_off() {
    within(SECOND * 30, || {
        let runtime = paused_runtime();
        let wheel = Wheel::builder().handle(runtime.handle().clone()).shards(64);
        let wheel = wheel.build().unwrap();
        runtime.block_on(async {
            let mut sleep = wheel.sleep(SECOND);
            register(&mut sleep);
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for seconds in [20, 10] {
                            register(&mut wheel.sleep(SECOND * seconds));
                        }
                    });
                }
            });
            let start = Instant::now();
            sleep.await;
            assert_eq!(start.elapsed(), SECOND);
        });
    });
}

/// As with Tokio's timers, a paused clock does not move to a timer that has been cancelled.
#[test]
fn a_paused_clock_moves_to_no_cancelled_timer() {
    paused_runtime().block_on(async {
        for wheel in shared_wheels() {
            let start = Instant::now();
            let mut cancelled = wheel.sleep(SECOND);
            assert!(!is_ready(&mut cancelled).await);
            let mut far = wheel.sleep(SECOND * 100);
            assert!(!is_ready(&mut far).await);
            drop((cancelled, far));
            // A thread answers, and no timer is there.
            let answer = task::spawn_blocking(|| thread::sleep(ms(20)));
            answer.await.unwrap();
            assert_eq!(start.elapsed(), Duration::ZERO);
        }
    });
}

/// A clock that is days ahead polls, resets and drops timers of the others all the time.
#[test]
fn a_runtime_on_another_clock_makes_no_timer_early() {
    let wheel = Wheel::new();
    let (behind, ahead) = (paused_runtime(), paused_runtime());
    let mut sleep = wheel.sleep(Duration::ZERO);
    behind.block_on(async {
        sleep.reset_at(Instant::now() + SECOND * 100);
        register(&mut sleep);
    });
    ahead.block_on(async {
        tokio::time::advance(SECOND * 86_400).await;
        wheel.sleep(ms(1)).await;
        assert!(!is_ready(&mut sleep).await);
        assert!(!sleep.is_elapsed());
    });
    behind.block_on(async {
        let deadline = sleep.deadline();
        assert!(!is_ready(&mut sleep).await);
        (&mut sleep).await;
        assert_eq!(Instant::now(), deadline);
    });
}

/// Registrations, cancellations and counts of fifty threads, each with a runtime, at once.
#[test]
fn many_runtimes_begin_on_one_wheel_at_once() {
    let (wheel, done) = (Wheel::new(), AtomicUsize::new(0));
    let barrier = std::sync::Barrier::new(50);
    thread::scope(|scope| {
        for _ in 0..50 {
            scope.spawn(|| {
                let runtime = current();
                barrier.wait();
                runtime.block_on(async {
                    let _ = wheel.timeout(SECOND, task::yield_now()).await;
                    found("a sleep", wheel.sleep(ms(2))).await;
                });
                done.fetch_add(1, Relaxed);
            });
        }
    });
    assert_eq!(done.load(Relaxed), 50);
    let metrics = wheel.metrics();
    assert_eq!(
        (
            metrics.engines,
            metrics.registered,
            metrics.expired,
            metrics.cancelled
        ),
        (0, 100, 50, 50)
    );
}
