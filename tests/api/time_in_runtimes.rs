//! `tickwheel::time` in many runtimes: a future waits on the one that first polls it, and each has a clock
//! and an engine of its own.

use crate::support;

use std::{
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Barrier, mpsc},
    task::{Context, Poll, Waker},
    thread,
};

use futures::poll;
use support::{
    DAY, SECOND, TICK, advance, alive_tasks, assert_at_rest, assert_left_with, ms,
    own_process::in_own_process, paused_runtime, real_runtime, register, settle, threaded_runtime, waiting,
    within as within_limit,
};
use tickwheel::{Wheel, time};
use tokio::{
    runtime::{Handle, Runtime},
    task::LocalSet,
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

/// The runtime on which the first of them is awaited is alive, but not driven any more.
#[test]
fn what_outlives_its_runtime_waits_for_no_runtime_that_is_not_driven() {
    for was_polled in [false, true] {
        let made_on = real_runtime();
        let [first, second] = made_on.block_on(async {
            [30, 60].map(|millis| {
                let mut sleep = time::sleep(ms(millis));
                if was_polled {
                    register(&mut sleep);
                }
                sleep
            })
        });
        drop(made_on);
        let not_driven = real_runtime();
        not_driven.block_on(first);
        within_limit(SECOND * 20, || real_runtime().block_on(second));
        drop(not_driven);
    }
}

#[test]
fn what_outlives_its_runtime_outlives_the_next_ones_too() {
    for is_paused in [false, true] {
        let made_on = if is_paused {
            paused_runtime()
        } else {
            real_runtime()
        };
        let mut left = made_on.block_on(async {
            if is_paused {
                tokio::time::advance(DAY).await;
            }
            let mut sleep = time::sleep(DAY);
            register(&mut sleep);
            let timeout = waiting(Waker::noop(), || time::timeout(DAY, pending::<()>()));
            let mut interval = time::interval_at(Instant::now() + DAY, DAY);
            register(&mut Box::pin(interval.tick()));
            (sleep, timeout, interval)
        });
        drop(made_on);
        for next in [real_runtime(), threaded_runtime(1)] {
            next.block_on(async {
                let mut cx = Context::from_waker(Waker::noop());
                assert!(Pin::new(&mut left.0).poll(&mut cx).is_pending());
                assert!(Pin::new(&mut left.1).poll(&mut cx).is_pending());
                assert!(left.2.poll_tick(&mut cx).is_pending());
            });
        }
        paused_runtime().block_on(async move {
            left.0.await;
            assert!(left.1.await.is_err());
            left.2.tick().await;
        });
    }
}

#[test]
fn tasks_that_panic_as_they_are_dropped_with_a_runtime_disturb_nobody() {
    struct Panicking(mpsc::Sender<()>);
    impl Drop for Panicking {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
            panic!("on purpose");
        }
    }
    for runtime in runtimes() {
        let (dropped, drops) = mpsc::channel();
        runtime.block_on(async {
            for _ in 0..3 {
                let panicking = Panicking(dropped.clone());
                drop(Wheel::global().schedule(DAY, async move { drop(panicking) }));
            }
        });
        drop((dropped, runtime));
        assert_eq!(drops.iter().count(), 3);
    }
}

#[test]
fn what_is_made_while_a_runtime_ends_hangs_nobody() {
    struct Asking(mpsc::Sender<[time::Sleep; 2]>);
    impl Drop for Asking {
        fn drop(&mut self) {
            let mut polled = time::sleep(ms(10));
            register(&mut polled);
            self.0.send([polled, time::sleep(ms(10))]).unwrap();
        }
    }
    for runtime in runtimes() {
        let (sender, receiver) = mpsc::channel();
        runtime.block_on(async {
            for task in 0..20 {
                if task == 10 {
                    register(&mut time::sleep(ms(10)));
                }
                let asking = Asking(sender.clone());
                tokio::spawn(async move {
                    let _asking = asking;
                    pending::<()>().await
                });
            }
            settle().await;
        });
        drop(sender);
        drop(runtime);
        let made: Vec<_> = receiver.iter().collect();
        assert_eq!(made.len(), 20);
        let next = paused_runtime();
        for [polled, fresh] in made {
            next.block_on(polled);
            next.block_on(fresh);
        }
    }
}

/// A runtime that polls such a future, and is then not driven any more, holds up no other.
#[test]
fn what_is_made_within_a_runtime_that_ended_belongs_to_the_one_that_polls_it() {
    for runtime in runtimes() {
        let ended = runtime.handle().clone();
        drop(runtime);
        let polled_on = runtimes();
        for polled_on in &polled_on {
            let (sleep, timeout, mut interval) = {
                let _entered = ended.enter();
                (
                    time::sleep(ms(10)),
                    time::timeout(ms(10), pending::<()>()),
                    time::interval(ms(10)),
                )
            };
            polled_on.block_on(async {
                sleep.await;
                assert!(timeout.await.is_err());
                interval.tick().await;
                interval.tick().await;
            });
        }
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

/// Lets two days pass by a paused clock, and by no other.
async fn live_by_a_paused_clock() {
    let start = Instant::now();
    time::sleep(DAY).await;
    assert_eq!(start.elapsed(), DAY);
    assert!(time::timeout(DAY, pending::<()>()).await.is_err());
    assert_eq!(start.elapsed(), DAY * 2);
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

/// As Tokio's own tests expect it.
#[test]
fn without_timers_a_timeout_outside_tasks_panics_where_it_is_made() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _entered = runtime.enter();
    let timeout = || drop(time::timeout(SECOND, pending::<()>()));
    let timeout_at = || drop(time::timeout_at(Instant::now(), pending::<()>()));
    assert!(catch_unwind(AssertUnwindSafe(timeout)).is_err());
    assert!(catch_unwind(AssertUnwindSafe(timeout_at)).is_err());
}

#[test]
fn without_timers_a_task_panics_at_the_first_pending_poll() {
    let runtimes = [
        tokio::runtime::Builder::new_current_thread().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().build().unwrap(),
    ];
    for runtime in runtimes {
        runtime.block_on(async {
            let ready = tokio::spawn(async { time::timeout(SECOND, async { 7 }).await });
            assert_eq!(ready.await.unwrap(), Ok(7));
            let tokios = tokio::spawn(async { tokio::time::sleep(SECOND).await });
            let ours = [
                tokio::spawn(async { time::sleep(SECOND).await }),
                tokio::spawn(async { drop(time::timeout(SECOND, pending::<()>()).await) }),
                tokio::spawn(async {
                    let start = Instant::now() + SECOND;
                    time::interval_at(start, SECOND).tick().await;
                }),
            ];
            let words = |panicked: tokio::task::JoinError| match panicked.into_panic().downcast::<&str>() {
                Ok(words) => words.to_string(),
                Err(other) => *other.downcast::<String>().unwrap(),
            };
            let expected = words(tokios.await.unwrap_err());
            let [sleep, timeout, interval] = ours;
            assert_eq!(words(sleep.await.unwrap_err()), expected);
            assert_eq!(words(timeout.await.unwrap_err()), expected);
            assert_eq!(words(interval.await.unwrap_err()), expected);
        });
    }
}

#[test]
fn what_was_never_polled_answers_as_it_would_on_a_wheel() {
    let answers = async {
        let own = Wheel::new();
        let start = Instant::now();
        let mut ours = time::sleep_until(start + DAY);
        let mut on_a_wheel = own.sleep_until(start + DAY);
        for deadline in [start + DAY, start + DAY * 2, start + SECOND, start] {
            assert_eq!(ours.deadline(), deadline);
            assert_eq!(
                ours.is_elapsed(),
                on_a_wheel.is_elapsed(),
                "{:?}",
                deadline - start
            );
            assert!(format!("{ours:?}").contains("deadline"));
            let next = match deadline - start {
                DAY => start + DAY * 2,
                SECOND => start,
                _ => start + SECOND,
            };
            Pin::new(&mut ours).reset(next);
            on_a_wheel.reset_at(next);
        }
        let mut interval = time::interval(DAY);
        interval.reset_after(SECOND);
        interval.reset();
        interval.reset_immediately();
        drop(format!("{interval:?} {:?}", time::timeout(DAY, pending::<()>())));
        interval.tick().await;
        ours.await;
    };
    paused_runtime().block_on(async { tokio::spawn(answers).await.unwrap() });
}

#[test]
fn a_ready_timeout_in_a_task_needs_no_engine() {
    paused_runtime().block_on(async {
        let task = tokio::spawn(async {
            assert_eq!(time::timeout(SECOND, async { 7 }).await, Ok(7));
            drop((time::sleep(SECOND), time::interval(SECOND)));
            alive_tasks()
        });
        assert_eq!(task.await.unwrap(), 1);
    });
}

#[test]
fn a_runtime_nested_in_a_worker_follows_its_own_clock() {
    let outer = threaded_runtime(2);
    let task = async {
        for _ in 0..3 {
            use_timers_for_a_while().await;
            tokio::task::block_in_place(|| {
                let inner = paused_runtime();
                inner.block_on(live_by_a_paused_clock());
                inner.block_on(async { tokio::spawn(live_by_a_paused_clock()).await.unwrap() });
                // What was made in the task outside, and polled within.
                let made = time::sleep(ms(10));
                inner.block_on(made);
            });
        }
    };
    outer.block_on(async { tokio::spawn(task).await.unwrap() });
}

/// Polls so that each poll takes place in another runtime, which is left again.
async fn within<T>(runtime: &Handle, mut future: impl Future<Output = T> + Unpin) -> T {
    std::future::poll_fn(|cx| {
        let _entered = runtime.enter();
        Pin::new(&mut future).poll(cx)
    })
    .await
}

#[test]
fn a_runtime_that_is_entered_for_a_call_leaves_the_task_where_it_was() {
    let other = threaded_runtime(1);
    let handle = other.handle().clone();
    let task = async move {
        for _ in 0..10 {
            let made_elsewhere = {
                let _entered = handle.enter();
                time::sleep(DAY)
            };
            made_elsewhere.await;
            let made_elsewhere = {
                let _entered = handle.enter();
                // Long enough that it is still pending at its first poll, on a busy machine too: one that is
                // due then is not registered.
                time::sleep(ms(50))
            };
            let start = std::time::Instant::now();
            within(&handle, made_elsewhere).await;
            assert!(start.elapsed() >= ms(45), "it has waited on the paused clock");
            live_by_a_paused_clock().await;
        }
    };
    paused_runtime().block_on(async { tokio::spawn(task).await.unwrap() });
    assert_left_with(&other, 1);
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
                    // They have waited there.
                    assert_left_with(&inner, 1);
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
fn a_task_that_polls_timers_within_another_runtime_teaches_its_worker_nothing() {
    within_limit(60 * SECOND, || {
        let (not_driven, runtime) = (real_runtime(), threaded_runtime(3));
        let handle = not_driven.handle();
        let tasks: Vec<_> = (0..9)
            .map(|_| {
                let handle = handle.clone();
                runtime.spawn(async move {
                    for _ in 0..100 {
                        let timeout = time::timeout(DAY, tokio::task::yield_now());
                        within(&handle, Box::pin(timeout)).await.unwrap();
                    }
                    // Of the runtime whose worker this is, because nobody drives the other.
                    time::sleep(ms(2)).await;
                })
            })
            .collect();
        for task in tasks {
            runtime.block_on(task).unwrap();
        }
    });
}

#[test]
fn a_task_of_a_local_set_moves_on_from_a_runtime_with_workers() {
    for next in [paused_runtime(), real_runtime(), threaded_runtime(1)] {
        let first = threaded_runtime(1);
        let set = LocalSet::new();
        let (go_on, mut turns) = tokio::sync::mpsc::unbounded_channel();
        let (sender, mut slept) = tokio::sync::mpsc::unbounded_channel();
        set.spawn_local(async move {
            while let Some(()) = turns.recv().await {
                use_timers_for_a_while().await;
                time::sleep(ms(5)).await;
                sender.send(()).unwrap();
            }
        });
        let mut turn = |runtime: &Runtime| {
            go_on.send(()).unwrap();
            set.block_on(runtime, slept.recv()).unwrap()
        };
        for runtime in [&first, &next, &first] {
            turn(runtime);
        }
        drop(first);
        turn(&next);
    }
}

#[test]
fn a_task_of_a_local_set_waits_in_the_runtime_that_polls_it() {
    let [left, right] = [real_runtime(), real_runtime()];
    for runtimes in [[paused_runtime(), paused_runtime()], [left, right]] {
        let set = LocalSet::new();
        let (go_on, mut turns) = tokio::sync::mpsc::unbounded_channel();
        let (sender, mut slept) = tokio::sync::mpsc::unbounded_channel();
        set.spawn_local(async move {
            while let Some(times) = turns.recv().await {
                for _ in 0..times {
                    time::timeout(DAY, tokio::task::yield_now()).await.unwrap();
                }
                time::sleep(ms(5)).await;
                sender.send(()).unwrap();
            }
        });
        // The runtime that it was on before is alive, and is not driven.
        for runtime in [&runtimes[0], &runtimes[1], &runtimes[0]] {
            go_on.send(20).unwrap();
            set.block_on(runtime, slept.recv()).unwrap();
            go_on.send(0).unwrap();
            set.block_on(runtime, slept.recv()).unwrap();
        }
    }
}

#[test]
fn what_a_known_task_began_to_wait_for_outlives_its_runtime() {
    for polled_on in runtimes() {
        let made_on = threaded_runtime(1);
        let begun = made_on.block_on(async {
            let task = tokio::spawn(async {
                use_timers_for_a_while().await;
                let mut sleep = time::sleep(ms(50));
                let is_pending = poll!(&mut sleep).is_pending();
                (sleep, is_pending, time::sleep(ms(5)))
            });
            task.await.unwrap()
        });
        drop(made_on);
        let (sleep, is_pending, fresh) = begun;
        assert!(is_pending);
        polled_on.block_on(async {
            sleep.await;
            fresh.await;
        });
    }
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
