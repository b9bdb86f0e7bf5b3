//! `tickwheel::time` in many runtimes: a future waits on the one that first polls it, and each has a clock
//! and an engine of its own.

use crate::support;

use std::{
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Barrier,
    task::{Context, Poll, Waker},
    thread,
};

use support::{
    DAY, SECOND, TICK, advance, alive_tasks, assert_at_rest, assert_left_with, ms,
    own_process::in_own_process, paused_runtime, real_runtime, register, settle, threaded_runtime, waiting,
};
use tickwheel::{Wheel, time};
use tokio::{
    runtime::{Handle, Runtime},
    time::Instant,
};

fn runtimes() -> [Runtime; 3] {
    [real_runtime(), paused_runtime(), threaded_runtime(2)]
}

#[test]
fn all_who_poll_first_at_once_begin_one_engine() {
    if !in_own_process(all_who_poll_first_at_once_begin_one_engine, "") {
        return;
    }
    for _ in 0..50 {
        for runtime in runtimes() {
            let together = Barrier::new(4);
            let sleeps: Vec<_> = thread::scope(|scope| {
                let begin = || {
                    let _entered = runtime.enter();
                    let mut sleep = time::sleep(DAY);
                    together.wait();
                    register(&mut sleep);
                    sleep
                };
                let beginning = [(); 4].map(|()| scope.spawn(begin));
                beginning.into_iter().map(|begun| begun.join().unwrap()).collect()
            });
            let metrics = Wheel::global().metrics();
            assert_eq!((metrics.engines, metrics.pending), (1, 4));
            // Of those who came too late to be first, nothing is left on the runtime.
            runtime.block_on(async {
                while alive_tasks() > 1 {
                    tokio::task::yield_now().await;
                }
            });
            drop(sleeps);
        }
    }
    assert_at_rest(&Wheel::global());
}

#[test]
fn what_outlives_its_runtime_completes_where_it_is_polled() {
    for (made_on, polled_on) in [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
        (2, 0),
        (2, 1),
        (2, 2),
    ] {
        let polled_on = runtimes().into_iter().nth(polled_on).unwrap();
        let made_on = runtimes().into_iter().nth(made_on).unwrap();
        let (fresh, mut polled) = made_on.block_on(async {
            // On a busy machine its first tick may have come by then, and is then not left for later.
            let next_tick = || {
                let mut interval = time::interval_at(Instant::now() + ms(30), ms(30));
                let mut cx = Context::from_waker(Waker::noop());
                interval.poll_tick(&mut cx).is_pending().then_some(interval)
            };
            let polled = (
                waiting(Waker::noop(), || time::sleep(ms(30))),
                waiting(Waker::noop(), || time::timeout(ms(30), pending::<()>())),
                std::iter::repeat_with(next_tick).flatten().next().unwrap(),
            );
            let fresh = (time::sleep(ms(30)), time::timeout(ms(30), pending::<()>()));
            (fresh, polled)
        });
        drop(made_on);
        let start = std::time::Instant::now();
        polled_on.block_on(async {
            polled.0.await;
            assert!(polled.1.await.is_err());
            polled.2.tick().await;
            fresh.0.await;
            assert!(fresh.1.await.is_err());
        });
        assert!(start.elapsed() < SECOND * 10);
    }
}

/// What each of the runtimes side by side does: every timer is to be found on its own clock.
async fn live(seed: u64, is_paused: bool) {
    let pace = if is_paused { DAY } else { ms(3) };
    let start = Instant::now();
    for round in 0..10 {
        let duration = pace * u32::try_from(seed % 7 + round % 3 + 1).unwrap();
        let before = Instant::now();
        time::sleep(duration).await;
        let slept = before.elapsed();
        assert!(slept >= duration, "{slept:?} for {duration:?}");
        assert!(
            !is_paused || slept < duration + TICK * 2,
            "{slept:?} for {duration:?}"
        );
        let before = Instant::now();
        assert!(time::timeout(duration, pending::<()>()).await.is_err());
        let waited = before.elapsed();
        assert!(waited >= duration, "{waited:?} for {duration:?}");
        assert!(
            !is_paused || waited < duration + TICK * 3,
            "{waited:?} for {duration:?}"
        );
    }
    let mut interval = time::interval(pace);
    for _ in 0..5 {
        interval.tick().await;
    }
    assert!(is_paused == (start.elapsed() > DAY));
}

#[test]
fn a_hundred_runtimes_side_by_side_do_not_meet() {
    if !in_own_process(a_hundred_runtimes_side_by_side_do_not_meet, "") {
        return;
    }
    let together = Barrier::new(100);
    thread::scope(|scope| {
        for seed in 0..100 {
            let together = &together;
            scope.spawn(move || {
                let runtime = match seed % 3 {
                    0 => real_runtime(),
                    1 => threaded_runtime(1),
                    _ => paused_runtime(),
                };
                together.wait();
                runtime.block_on(live(seed, seed % 3 == 2));
            });
        }
    });
    let metrics = Wheel::global().metrics();
    assert_eq!((metrics.engines, metrics.cancelled), (0, 0));
    assert_at_rest(&Wheel::global());
}

#[test]
fn a_runtime_dropped_before_it_ever_ran_leaves_no_future_hanging() {
    // A runtime drops its tasks in an order that depends on their ids, which one more task in each round
    // moves on.
    for _ in 0..8 {
        // The engine's task has not run, and never will.
        let runtime = real_runtime();
        runtime.spawn(pending::<()>());
        let _entered = runtime.enter();
        let mut sleep = Box::pin(time::sleep(DAY));
        register(&mut sleep);
        drop(_entered);
        drop(runtime);
        let mut cx = Context::from_waker(Waker::noop());
        let polled = catch_unwind(AssertUnwindSafe(|| {
            Pin::new(&mut sleep).poll(&mut cx) == Poll::Pending
        }));
        assert!(polled.is_err(), "where there is no runtime, it does not hang");
        assert!(Handle::try_current().is_err());
    }
}

/// What `RuntimeMetrics::num_alive_tasks` counts on our account.
#[tokio::test(start_paused = true)]
async fn a_runtime_has_one_more_task_from_its_first_timer_on() {
    assert_eq!(alive_tasks(), 0);
    let mut sleep = time::sleep(DAY);
    assert_eq!(alive_tasks(), 0, "a timer that is not polled needs no engine");
    register(&mut sleep);
    settle().await;
    assert_eq!(alive_tasks(), 1);
    drop(sleep);
    advance(DAY).await;
    assert_eq!(alive_tasks(), 1, "it stays for the next timer");
}

/// Uses timers until each worker that polls this task knows it.
async fn use_timers_for_a_while() {
    for _ in 0..100 {
        time::timeout(DAY, tokio::task::yield_now()).await.unwrap();
    }
}

#[test]
fn what_is_made_on_one_runtime_belongs_to_the_one_that_polls_it_first() {
    for made_on in runtimes() {
        let make = || {
            (
                time::sleep(ms(10)),
                time::timeout(DAY, pending::<()>()),
                time::interval(ms(10)),
            )
        };
        let in_a_task = made_on.block_on(async { tokio::spawn(async move { make() }).await.unwrap() });
        let entered = made_on.enter();
        let beside_it = make();
        drop(entered);
        // The runtime that it was made on is alive, but is perhaps never driven again.
        for (sleep, timeout, mut interval) in [in_a_task, beside_it] {
            paused_runtime().block_on(async {
                sleep.await;
                let start = Instant::now();
                assert!(timeout.await.is_err());
                assert_eq!(start.elapsed(), DAY);
                interval.tick().await;
                assert_eq!(alive_tasks(), 1);
            });
        }
        // No engine has begun there.
        assert_left_with(&made_on, 0);
    }
}

/// The thread of the task keeps a timer that each of these could take over.
#[test]
fn a_known_task_that_enters_any_runtime_for_a_call_stays_where_it_was() {
    let not_driven = real_runtime();
    let without_timers = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ended = runtimes().map(|runtime| runtime.handle().clone());
    let handles = [not_driven.handle().clone(), without_timers.handle().clone()];
    let handles: Vec<_> = handles.into_iter().chain(ended).collect();
    let runtime = threaded_runtime(1);
    let task = async move {
        for handle in &handles {
            use_timers_for_a_while().await;
            let (sleep, timeout, mut interval) = {
                let _entered = handle.enter();
                (
                    time::sleep(ms(2)),
                    time::timeout(ms(2), pending::<()>()),
                    time::interval(ms(2)),
                )
            };
            sleep.await;
            assert!(timeout.await.is_err());
            interval.tick().await;
            interval.tick().await;
            time::sleep(ms(2)).await;
        }
    };
    runtime.block_on(async { tokio::spawn(task).await.unwrap() });
}

/// The thread of the task keeps a timer that each of these could take over.
#[test]
fn a_known_task_blocks_on_any_runtime() {
    let outer = threaded_runtime(2);
    let task = async {
        for _ in 0..3 {
            use_timers_for_a_while().await;
            tokio::task::block_in_place(|| {
                for inner in runtimes() {
                    inner.block_on(async {
                        time::sleep(ms(2)).await;
                        assert!(time::timeout(ms(2), pending::<()>()).await.is_err());
                    });
                    inner.block_on(time::sleep(ms(2)));
                }
                Handle::current().block_on(time::sleep(ms(2)));
                let without_timers = tokio::runtime::Builder::new_current_thread().build().unwrap();
                let panics = catch_unwind(AssertUnwindSafe(|| without_timers.block_on(time::sleep(ms(2)))));
                assert!(panics.is_err());
                let ended = real_runtime().handle().clone();
                let _entered = ended.enter();
                futures::executor::block_on(async {
                    assert!(time::timeout(DAY, async {}).await.is_ok());
                });
            });
            time::sleep(ms(2)).await;
        }
    };
    outer.block_on(async { tokio::spawn(task).await.unwrap() });
}

#[test]
fn executors_within_a_task_need_no_waker_of_tokios() {
    let runtime = threaded_runtime(2);
    let task = async {
        use_timers_for_a_while().await;
        let mut sleeps: futures::stream::FuturesUnordered<_> = (0..10).map(|n| time::sleep(ms(n))).collect();
        while futures::StreamExt::next(&mut sleeps).await.is_some() {}
        tokio::task::block_in_place(|| {
            futures::executor::block_on(time::sleep(ms(2)));
            assert!(futures::executor::block_on(time::timeout(ms(2), pending::<()>())).is_err());
        });
        let blocking = tokio::task::spawn_blocking(|| futures::executor::block_on(time::sleep(ms(2))));
        blocking.await.unwrap();
    };
    runtime.block_on(async { tokio::spawn(task).await.unwrap() });
}
