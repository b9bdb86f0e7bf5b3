//! Nothing of a runtime that has ended is left: no engine, no task, no descriptor. Each in a process of its
//! own, because it counts what that has.

use std::{
    future::pending,
    panic,
    process::{self, Command, Stdio},
    sync::{Arc, mpsc},
    task::Poll,
    thread,
    time::Duration,
};

use tickwheel::{Wheel, time};
use tokio::{task, time::Instant};

use crate::{
    play::{
        SECOND, assert_no_engine_is_left, assert_not_early, current, descriptors, end, found, is_ready, ms,
        multi, poll_for_nobody, shared_wheels, wait_until,
    },
    support::{counting_waker, own_process::in_own_process, register_for},
};

/// What a request uses.
async fn use_timers(wheel: &Wheel) {
    let _ = wheel.timeout(SECOND * 30, task::yield_now()).await;
    let mut forgotten = Box::pin(wheel.sleep(SECOND * 3_600));
    assert!(!is_ready(&mut forgotten).await);
    tokio::spawn(wheel.sleep(SECOND * 3_600));
    drop(wheel.schedule(SECOND * 3_600, async {}));
    drop(wheel.periodic(SECOND * 60).spawn_at_fixed_rate(|| async {}));
    wheel.sleep(ms(1)).await;
}

#[test]
fn a_runtime_for_each_request_leaves_nothing() {
    if !in_own_process(a_runtime_for_each_request_leaves_nothing, "") {
        return;
    }
    let wheels = shared_wheels();
    current().block_on(use_timers(&wheels[0]));
    let before = descriptors();
    let mut kept = Vec::new();
    for round in 0..300 {
        let runtime = if round % 3 == 0 { multi(2) } else { current() };
        let handles = runtime.block_on(async {
            for wheel in &wheels {
                use_timers(wheel).await;
            }
            wheels
                .each_ref()
                .map(|wheel| wheel.schedule(SECOND * 3_600, async {}))
        });
        // Handles of scheduled tasks outlive their runtime, and must not keep it.
        kept.push(handles);
        end(runtime, round % 7 == 0);
    }
    for wheel in &wheels {
        assert_no_engine_is_left(wheel);
        let metrics = wheel.metrics();
        assert_eq!((metrics.pending, metrics.arena_bytes), (0, 0), "{metrics:?}");
        assert_eq!(metrics.registered, metrics.expired + metrics.cancelled);
    }
    wait_until("without descriptors", || descriptors() <= before);
}

/// The engine has ended before its runtime, because its wheel has neither handles nor timers.
#[test]
fn a_task_that_was_cancelled_keeps_no_runtime_of_a_builder() {
    if !in_own_process(a_task_that_was_cancelled_keeps_no_runtime_of_a_builder, "") {
        return;
    }
    let before = descriptors_before();
    let runtime = multi(1);
    let wheel = Wheel::builder().handle(runtime.handle().clone()).build().unwrap();
    let task = wheel.schedule(SECOND * 3_600, async {});
    assert!(task.cancel());
    drop(wheel);
    runtime.block_on(async { tokio::time::sleep(ms(100)).await });
    drop(runtime);
    wait_until("without descriptors", || descriptors() <= before);
    assert!(task.is_cancelled());
}

/// Returns the number of descriptors once the process has those that Tokio never closes.
fn descriptors_before() -> usize {
    drop(current());
    descriptors()
}

/// Runs `use_a_runtime` on each of ten threads, and asserts that it leaves no descriptor while they are
/// parked.
fn assert_parked_threads_leave_none(use_a_runtime: impl Fn() + Clone + Send + 'static) {
    let before = descriptors_before();
    let (sender, receiver) = mpsc::channel();
    let parked: Vec<_> = (0..10)
        .map(|_| {
            let (use_a_runtime, sender) = (use_a_runtime.clone(), sender.clone());
            thread::spawn(move || {
                use_a_runtime();
                sender.send(()).unwrap();
                thread::park_timeout(SECOND * 20);
            })
        })
        .collect();
    (0..10).for_each(|_| receiver.recv().unwrap());
    assert!(descriptors() <= before, "{before} to {}", descriptors());
    for parked in parked {
        parked.thread().unpark();
        parked.join().unwrap();
    }
}

/// The entry of a task's timer is kept by a thread that is parked for long, when the task's runtime has
/// ended.
#[test]
fn a_parked_thread_keeps_no_runtime() {
    if !in_own_process(a_parked_thread_keeps_no_runtime, "") {
        return;
    }
    assert_parked_threads_leave_none(|| {
        current().block_on(async {
            let task = tokio::spawn(async {
                for wheel in shared_wheels() {
                    for _ in 0..3 {
                        let _ = wheel.timeout(SECOND * 30, task::yield_now()).await;
                    }
                }
            });
            task.await.unwrap();
        });
    });
}

/// A sleep of one runtime is polled by a task of another, which ends.
#[test]
fn a_spare_keeps_no_task_of_another_runtime() {
    if !in_own_process(a_spare_keeps_no_task_of_another_runtime, "") {
        return;
    }
    let first = multi(1);
    // The engine of a runtime that goes on has a descriptor where it waits on a timer of the kernel.
    first.block_on(Wheel::global().sleep(ms(1)));
    let handle = first.handle().clone();
    assert_parked_threads_leave_none(move || {
        let mut sleep = Wheel::global().sleep(SECOND * 30);
        let entered = handle.enter();
        assert!(poll_for_nobody(&mut sleep).is_some());
        drop(entered);
        let polled = std::future::poll_fn(move |cx| {
            register_for(cx.waker(), &mut sleep);
            Poll::Ready(())
        });
        current().block_on(async { tokio::spawn(polled).await.unwrap() });
    });
}

/// As with `panic = "abort"`: no panic is survived, be it caught or not.
fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
}

#[test]
fn a_refusal_does_not_abort_a_process_that_aborts_on_panics() {
    if !in_own_process(a_refusal_does_not_abort_a_process_that_aborts_on_panics, "") {
        return;
    }
    abort_on_panic();
    for runtime in [current(), multi(2)] {
        runtime.block_on(async {
            let wheel = Wheel::builder().max_pending(1).build().unwrap();
            let mut full = wheel.try_sleep(SECOND * 60);
            assert!(!is_ready(&mut full).await);
            assert!(wheel.try_sleep(SECOND).await.is_err());
            assert!(wheel.try_timeout(SECOND, pending::<()>()).await.is_err());
            assert!(wheel.schedule(SECOND, async {}).await.is_err());
            assert!(
                wheel
                    .periodic(SECOND)
                    .spawn_at_fixed_rate(|| async {})
                    .await
                    .is_err()
            );
            wheel.shutdown();
            assert!(full.await.is_err() && wheel.try_sleep(SECOND).await.is_err());
            assert!(wheel.schedule(SECOND, async {}).await.is_err());
            found("a sleep", wheel.sleep(ms(1))).await;
        });
    }
}

/// Nothing that a program may do with timers of a runtime that ends panics inside, where it may not be
/// caught. (To poll one that is in no runtime does, as with Tokio's.)
#[test]
fn runtimes_that_end_do_not_abort_a_process_that_aborts_on_panics() {
    if !in_own_process(runtimes_that_end_do_not_abort_a_process_that_aborts_on_panics, "") {
        return;
    }
    abort_on_panic();
    for round in 0..100 {
        let timers = multi(1);
        let with_handle = Wheel::builder().handle(timers.handle().clone()).build().unwrap();
        let runtime = if round % 2 == 0 { multi(2) } else { current() };
        let [own, global] = shared_wheels();
        let wheels = [own, global, with_handle.clone()];
        let mut sleeps = Vec::new();
        runtime.block_on(async {
            for wheel in &wheels {
                for n in 0..10 {
                    let mut sleep = wheel.sleep(Duration::from_micros(500 * n));
                    is_ready(&mut sleep).await;
                    sleeps.push(sleep);
                }
                tokio::spawn(wheel.sleep(SECOND * 60));
                drop(wheel.schedule(SECOND, async {}));
            }
        });
        // They are reset, polled again and dropped elsewhere, as their runtimes end.
        let elsewhere = thread::spawn(move || {
            current().block_on(async {
                for (n, mut sleep) in sleeps.into_iter().enumerate() {
                    sleep.reset_at(Instant::now() + Duration::from_micros(fastrand::u64(0..1_000)));
                    if n % 3 == 0 {
                        found("a sleep of an ended runtime", &mut sleep).await;
                        assert_not_early(sleep.deadline());
                    } else {
                        is_ready(&mut sleep).await;
                    }
                    found("another", with_handle.sleep(ms(1) / 2)).await;
                }
            });
        });
        thread::sleep(Duration::from_micros(fastrand::u64(0..3_000)));
        end(runtime, round % 4 > 1);
        end(timers, round % 8 > 3);
        elsewhere.join().unwrap();
    }
}

/// A container's quota stops a process for some milliseconds, again and again: the alarm must not be set to a
/// moment that has come by then.
#[test]
fn a_process_that_is_stopped_again_and_again_loses_no_timer() {
    if !in_own_process(a_process_that_is_stopped_again_and_again_loses_no_timer, "") {
        return;
    }
    let stop = format!(
        "for i in $(seq 150); do kill -STOP {0}; sleep 0.005; kill -CONT {0}; sleep 0.004; done",
        process::id()
    );
    let mut stopping = Command::new("sh")
        .args(["-c", &stop])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let runtime = multi(2);
    let current = thread::spawn(|| {
        let runtime = current();
        runtime.block_on(async {
            for _ in 0..400 {
                found("a sleep on one thread", time::sleep(ms(1))).await;
            }
        });
    });
    while stopping.try_wait().unwrap().is_none() {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..50)
                .map(|_| {
                    tokio::spawn(async {
                        for _ in 0..20 {
                            let deadline = Instant::now() + Duration::from_micros(fastrand::u64(0..3_000));
                            found("a sleep of a stopped process", time::sleep_until(deadline)).await;
                            assert_not_early(deadline);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    }
    current.join().unwrap();
}

/// The handle that was given to the builder is dropped when its runtime has ended, not when the wheel is used
/// next.
#[test]
fn a_wheel_with_a_handle_keeps_no_descriptor_of_its_runtime() {
    if !in_own_process(a_wheel_with_a_handle_keeps_no_descriptor_of_its_runtime, "") {
        return;
    }
    let before = descriptors_before();
    let wheels: Vec<_> = (0..10)
        .map(|round| {
            let timers = if round % 2 == 0 { multi(1) } else { current() };
            let wheel = Wheel::builder().handle(timers.handle().clone()).build().unwrap();
            timers.block_on(use_timers(&wheel));
            drop(timers);
            wheel
        })
        .collect();
    assert!(descriptors() <= before, "{before} to {}", descriptors());
    drop(wheels);
}

#[test]
fn a_wheel_with_a_handle_that_has_gone_keeps_no_descriptor_of_a_runtime_on_which_no_timer_waited() {
    if !in_own_process(
        a_wheel_with_a_handle_that_has_gone_keeps_no_descriptor_of_a_runtime_on_which_no_timer_waited,
        "",
    ) {
        return;
    }
    let before = descriptors_before();
    let timers = multi(1);
    let wheel = Wheel::builder().handle(timers.handle().clone()).build().unwrap();
    drop(wheel.sleep(SECOND));
    assert!(current().block_on(wheel.timeout(SECOND, async {})).is_ok());
    drop((wheel, timers));
    assert!(descriptors() <= before, "{before} to {}", descriptors());
}

/// A spare would keep the memory of a task of another runtime, and so that runtime's descriptors.
#[test]
fn a_wheel_with_a_handle_keeps_no_descriptor_of_a_runtime_that_polls() {
    if !in_own_process(
        a_wheel_with_a_handle_keeps_no_descriptor_of_a_runtime_that_polls,
        "",
    ) {
        return;
    }
    let timers = multi(1);
    let wheel = Wheel::builder().handle(timers.handle().clone()).build().unwrap();
    // From its first timer on, the process can tell wakers of tasks from others.
    timers.block_on(wheel.sleep(ms(1)));
    let before = descriptors_before();
    let polling = current();
    let of_task = wheel.clone();
    let task = polling.spawn(async move {
        for duration in [SECOND * 30, SECOND * 3_600] {
            let _ = of_task.timeout(duration, task::yield_now()).await;
        }
    });
    polling.block_on(task).unwrap();
    drop(polling);
    assert!(descriptors() <= before, "{before} to {}", descriptors());
}

/// A waker that is left in a wheel is dropped with its engine, also where its timer is never polled again.
#[test]
fn no_waker_outlives_its_engine() {
    for wheel in shared_wheels() {
        let runtime = current();
        let (waker, woken) = counting_waker();
        let mut sleep = wheel.sleep(SECOND * 60);
        runtime.block_on(async { register_for(&waker, &mut sleep) });
        std::mem::forget(sleep);
        drop((runtime, waker));
        assert_eq!(Arc::strong_count(&woken), 1);
    }
}
