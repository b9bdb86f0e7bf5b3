//! Drivers that start on runtimes which have ended, or are about to.

use crate::support;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Waker},
    thread,
    time::Duration,
};

use tickwheel::Wheel;
use tokio::task::yield_now;

use support::{SECOND, assert_adds_up, real_runtime, threaded_runtime};

const THREADS: usize = 8;
const ROUNDS: usize = 60;

/// Lets threads with runtimes of their own use the wheel all at once. Returns how many of their requests
/// panicked.
fn requests_of_many_runtimes(wheel: &Wheel) -> usize {
    let (begin, panicked) = (Barrier::new(THREADS), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let runtime = real_runtime();
                begin.wait();
                for _ in 0..20 {
                    let request = AssertUnwindSafe(|| {
                        runtime.block_on(async { wheel.timeout(SECOND * 3600, yield_now()).await.is_ok() })
                    });
                    if catch_unwind(request).is_err() {
                        panicked.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    panicked.into_inner()
}

#[test]
fn a_runtime_that_ended_before_the_first_timer_costs_no_request_and_leaves_no_timer() {
    for round in 0..ROUNDS {
        let ended = match round % 2 {
            0 => real_runtime(),
            _ => threaded_runtime(1),
        };
        let wheel = Wheel::builder().handle(ended.handle().clone()).max_pending(1_000);
        let wheel = wheel.build().unwrap();
        drop(ended);
        assert_eq!(requests_of_many_runtimes(&wheel), 0, "panics in round {round}");
        assert_eq!(wheel.pending(), 0, "timers without a future in round {round}");
        assert_adds_up(&wheel);
    }
}

/// A blocking thread is still in the context of its runtime when that has ended, and may be the first to ask
/// for a driver.
#[test]
fn a_stray_thread_of_an_ended_runtime_costs_no_request_and_leaves_no_timer() {
    for round in 0..ROUNDS {
        let wheel = Wheel::builder().max_pending(1_000).build().unwrap();
        let ended = real_runtime();
        let handle = ended.handle().clone();
        ended.shutdown_timeout(Duration::ZERO);
        let stop = AtomicUsize::new(0);
        let panicked = thread::scope(|scope| {
            scope.spawn(|| {
                let _entered = handle.enter();
                while stop.load(Ordering::Relaxed) == 0 {
                    let mut sleep = wheel.sleep(SECOND * 3600);
                    // Whether it waits, is refused, or panics as Tokio's timer does there, it disturbs no
                    // other thread.
                    let mut cx = Context::from_waker(Waker::noop());
                    let poll = || Pin::new(&mut sleep).poll(&mut cx).is_pending();
                    let _ = catch_unwind(AssertUnwindSafe(poll));
                    thread::yield_now();
                }
            });
            let panicked = requests_of_many_runtimes(&wheel);
            stop.store(1, Ordering::Relaxed);
            panicked
        });
        assert_eq!(panicked, 0, "panics in round {round}");
        assert_eq!(wheel.pending(), 0, "timers without a future in round {round}");
    }
}

/// The engine's task may run, and find that nobody uses the engine, before the thread that begins the engine has
/// started its timer.
#[test]
fn a_first_timer_that_outlives_the_handles_starts_whenever_the_task_of_its_engine_runs() {
    let (send_handle, handle) = mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    // On a clock that a test may pause, the task does not wait before it ends the engine.
    let driven = thread::spawn(move || {
        let runtime = real_runtime();
        send_handle.send(runtime.handle().clone()).unwrap();
        let _ended = runtime.block_on(ended);
    });
    let handle = handle.recv().unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    let wheel = Wheel::builder().handle(handle.clone()).build().unwrap();
                    let mut sleep = wheel.sleep(SECOND * 3600);
                    drop(wheel);
                    let mut cx = Context::from_waker(Waker::noop());
                    assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
                }
            });
        }
    });
    end.send(()).unwrap();
    driven.join().unwrap();
}
