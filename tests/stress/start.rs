//! Drivers that start on runtimes which have ended, or are about to.

use crate::support;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
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
