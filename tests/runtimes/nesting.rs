//! Runtimes within runtimes. Whichever one a timer is polled in is the one on which it waits.

use std::{
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    task::Poll,
    thread,
    time::{Duration, Instant as Std},
};

use tickwheel::{Wheel, time};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::{self, LocalSet},
    time::Instant,
};

use crate::{
    play::{SECOND, assert_not_early, current, found, is_ready, ms, multi, shared_wheels, wait_until},
    support::{counting_waker, register_for, within},
};

/// Sleeps and timeouts of both wheels, some after a spare has been left.
async fn use_timers() {
    for duration in [ms(1), ms(3)] {
        for wheel in shared_wheels() {
            let deadline = Instant::now() + duration;
            found("a timer in a nested runtime", async {
                let _ = wheel.timeout(SECOND * 20, task::yield_now()).await;
                wheel.sleep(duration).await;
                wheel.timeout(duration, pending::<()>()).await.unwrap_err();
            })
            .await;
            assert_not_early(deadline);
        }
    }
}

/// Plays a scene in eight tasks of a runtime with one worker, and of one with three.
fn in_tasks<F: Future<Output = ()> + Send + 'static>(scene: impl Fn(u32) -> F) {
    for workers in [1, 3] {
        let outer = multi(workers);
        let tasks: Vec<_> = (0..8).map(|number| outer.spawn(scene(number))).collect();
        for task in tasks {
            outer.block_on(task).unwrap();
        }
    }
}

#[test]
fn block_in_place_and_a_nested_current_thread_runtime() {
    in_tasks(|_| async {
        for _ in 0..5 {
            use_timers().await;
            task::block_in_place(|| current().block_on(use_timers()));
            use_timers().await;
        }
    });
}

#[test]
fn block_in_place_and_a_nested_multi_thread_runtime() {
    let nested = Arc::new(multi(2));
    in_tasks(|number| {
        let nested = nested.clone();
        async move {
            for _ in 0..5 {
                task::block_in_place(|| {
                    nested.block_on(async {
                        use_timers().await;
                        tokio::spawn(use_timers()).await.unwrap();
                    })
                });
                use_timers().await;
                if number == 0 {
                    // One that ends.
                    task::block_in_place(|| multi(1).block_on(use_timers()));
                }
                use_timers().await;
                task::block_in_place(|| Handle::current().block_on(use_timers()));
            }
            // The last reference must not be dropped by a task.
            task::block_in_place(|| drop(nested));
        }
    });
}

#[test]
fn runtimes_on_threads_of_the_pool() {
    multi(2).block_on(async {
        for _ in 0..10 {
            let blocking = (0..4).map(|_| {
                task::spawn_blocking(|| {
                    current().block_on(use_timers());
                    Handle::current().block_on(use_timers());
                })
            });
            let blocking: Vec<_> = blocking.collect();
            use_timers().await;
            for blocking in blocking {
                blocking.await.unwrap();
            }
        }
    });
}

/// Polls a future once within the `enter` of another runtime, for the task that awaits this.
async fn poll_within(handle: &Handle, future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|cx| {
        let _entered = handle.enter();
        Poll::Ready(Pin::new(&mut *future).poll(cx).is_ready())
    })
    .await
}

#[test]
fn another_runtime_entered_by_a_worker() {
    let (outer, other) = (multi(2), multi(1));
    let handle = other.handle().clone();
    outer.block_on(async {
        for _ in 0..10 {
            for wheel in shared_wheels() {
                let mut sleep = wheel.sleep(ms(2));
                poll_within(&handle, &mut sleep).await;
                found("a sleep of the entered runtime", sleep).await;
            }
            use_timers().await;
        }
    });
}

/// As tokio-util's `TokioContext` enters one for each poll. The task is known as one of another runtime,
/// which then blocks.
#[test]
fn a_timer_waits_on_the_runtime_that_is_entered_for_its_poll() {
    within(SECOND * 60, || {
        for outer in [current(), multi(1)] {
            let inner = multi(1);
            let handle = inner.handle().clone();
            let task = outer.spawn(async move {
                for wheel in shared_wheels() {
                    for _ in 0..50 {
                        let _ = wheel.timeout(SECOND * 10, task::yield_now()).await;
                    }
                    let (waker, woken) = counting_waker();
                    let mut sleep = wheel.sleep(ms(20));
                    let entered = handle.enter();
                    register_for(&waker, &mut sleep);
                    drop(entered);
                    // This blocks the task's own runtime. The other one wakes the sleep meanwhile.
                    wait_until("woken by the runtime that was entered", || woken.load(SeqCst) > 0);
                    assert!(is_ready(&mut sleep).await);
                }
            });
            outer.block_on(task).unwrap();
        }
    });
}

/// The worker is known by its tasks, one of which enters a runtime whose clock stands still, behind that of
/// the machine.
#[test]
fn a_timer_polled_within_a_paused_runtime_by_a_task_waits_for_that_clock() {
    let paused = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    let paused = paused.unwrap();
    thread::sleep(ms(100));
    let handle = paused.handle().clone();
    in_tasks(move |_| {
        let handle = handle.clone();
        async move {
            for wheel in shared_wheels() {
                for _ in 0..50 {
                    let _ = wheel.timeout(SECOND * 10, task::yield_now()).await;
                }
                let mut sleep = {
                    let _entered = handle.enter();
                    wheel.sleep(ms(5))
                };
                for _ in 0..10 {
                    assert!(
                        !poll_within(&handle, &mut sleep).await,
                        "on a clock that stands still"
                    );
                    tokio::time::sleep(ms(1)).await;
                }
            }
        }
    });
    drop(paused);
}

#[test]
fn a_local_set_whose_tasks_use_timers() {
    multi(2).block_on(async {
        let tasks = async {
            let tasks: Vec<_> = (0..10).map(|_| task::spawn_local(use_timers())).collect();
            for task in tasks {
                task.await.unwrap();
            }
        };
        LocalSet::new().run_until(tasks).await;
    });
}

/// What its tasks leave on one runtime they must not take over on the other.
#[test]
fn a_local_set_that_moves_from_runtime_to_runtime() {
    let (first, second) = (current(), current());
    let local = LocalSet::new();
    let done = Arc::new(AtomicBool::new(false));
    let done_too = done.clone();
    local.spawn_local(async move {
        for _ in 0..40 {
            for wheel in shared_wheels() {
                let _ = wheel.timeout(SECOND * 20, task::yield_now()).await;
            }
        }
        done_too.store(true, Relaxed);
    });
    for _ in 0..100 {
        local.block_on(&first, task::yield_now());
        local.block_on(&second, task::yield_now());
    }
    local.block_on(&second, async { tokio::time::sleep(ms(5)).await });
    assert!(done.load(Relaxed));
}

/// The runtime that it has left is not driven any more.
#[test]
fn a_local_set_that_has_left_a_runtime_for_good() {
    let (first, second) = (current(), current());
    let local = LocalSet::new();
    let handle = local.spawn_local(async {
        for wheel in shared_wheels() {
            // Left on the first runtime.
            let _ = wheel.timeout(SECOND * 20, task::yield_now()).await;
        }
        task::yield_now().await;
        task::yield_now().await;
        for wheel in shared_wheels() {
            wheel.timeout(ms(5), pending::<()>()).await.unwrap_err();
        }
    });
    local.block_on(&first, task::yield_now());
    local
        .block_on(&second, found("a task that moved", handle))
        .unwrap();
}

/// A sleep that must not wait for a runtime that computes for a second.
async fn assert_prompt(sleep: impl Future<Output = ()>) {
    let start = Std::now();
    found("a sleep beside a runtime that computes", sleep).await;
    let took = start.elapsed();
    assert!(took < COMPUTES * 9 / 10, "{took:?}");
}

const COMPUTES: Duration = ms(1_500);

fn one_worker(blocking: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).max_blocking_threads(blocking);
    builder.enable_all().build().unwrap()
}

#[test]
fn a_current_thread_runtime_on_a_worker_that_nobody_replaces() {
    let outer = one_worker(1);
    let task = outer.spawn(async {
        let _ = time::timeout(SECOND * 20, task::yield_now()).await;
        let (sender, receiver) = mpsc::channel::<()>();
        task::spawn_blocking(move || {
            let _ = receiver.recv();
        });
        thread::sleep(ms(50));
        task::block_in_place(|| current().block_on(assert_prompt(time::sleep(ms(5)))));
        drop(sender);
    });
    outer.block_on(task).unwrap();
}

#[test]
fn a_current_thread_runtime_on_a_thread_that_was_a_worker() {
    let outer = one_worker(4);
    let task = outer.spawn(async {
        // Threads of the pool take over as worker 0, use timers, and go back to the pool.
        for _ in 0..6 {
            task::block_in_place(|| thread::sleep(ms(5)));
            let timeout = time::timeout(SECOND * 10, task::yield_now());
            tokio::spawn(timeout).await.unwrap().unwrap();
        }
        let tasks = (0..4).map(|_| {
            task::spawn_blocking(|| {
                thread::sleep(ms(20));
                current().block_on(assert_prompt(time::sleep(ms(5))));
            })
        });
        let tasks: Vec<_> = tasks.collect();
        // On the only worker.
        thread::sleep(COMPUTES);
        for task in tasks {
            task.await.unwrap();
        }
    });
    outer.block_on(task).unwrap();
}

#[test]
fn a_poll_within_another_runtime_teaches_a_worker_nothing() {
    let (outer, other) = (multi(1), multi(1));
    let handle = other.handle().clone();
    let (sender, receiver) = mpsc::channel::<()>();
    let task = outer.spawn(async move {
        let mut sleep = Wheel::global().sleep(ms(1));
        poll_within(&handle, &mut sleep).await;
        tokio::time::sleep(ms(5)).await;
        handle.spawn(async move { receiver.recv() });
        thread::sleep(ms(20));
        for _ in 0..5 {
            assert_prompt(time::sleep(ms(5))).await;
        }
        drop(sender);
    });
    outer.block_on(task).unwrap();
}

/// A worker can learn nothing from a task that is spawned there.
#[test]
fn tasks_that_poll_within_another_runtime_do_not_keep_it_awake() {
    let (outer, other) = (multi(3), multi(1));
    let tasks: Vec<_> = (0..6)
        .map(|_| {
            let handle = other.handle().clone();
            outer.spawn(async move {
                for number in 0..2_000 {
                    // Each is due before the one before, so that it takes over no entry.
                    let mut sleep = Wheel::global().sleep(SECOND * (9 - number % 9));
                    poll_within(&handle, &mut sleep).await;
                    drop(sleep);
                    task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        outer.block_on(task).unwrap();
    }
    let parks = other.metrics().worker_park_count(0);
    assert!(parks < 500, "it was awake {parks} times for 12,000 timers");
}

#[test]
fn a_bridge_to_synchronous_code_teaches_a_worker_nothing() {
    let (outer, other) = (multi(2), multi(1));
    let handle = other.handle().clone();
    let task = outer.spawn(async move {
        task::block_in_place(|| {
            for _ in 0..300 {
                handle.block_on(async {
                    let _ = time::timeout(SECOND * 10, task::yield_now()).await;
                })
            }
        });
        handle.spawn(async { thread::sleep(COMPUTES) });
        thread::sleep(ms(5));
        assert_prompt(time::sleep(ms(5))).await;
    });
    outer.block_on(task).unwrap();
}
