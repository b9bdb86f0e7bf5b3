//! Tests of what a thread learns of its runtime, which it does as timers are polled.

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle, Id, Runtime},
    task,
};

use super::{
    thread::{with, worker_index},
    timer::Timer,
};

fn multi(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().unwrap()
}

/// Starts a timer of the global wheel, and cancels it after the task has waited once.
async fn use_timer() {
    let mut timer = Timer::counting(None, Duration::from_secs(9));
    poll_fn(|cx| {
        timer.poll(cx.waker());
        Poll::Ready(())
    })
    .await;
    task::yield_now().await;
}

/// Returns the worker as which this thread knows itself.
fn known() -> Option<(Id, usize)> {
    with(|thread| thread.known_worker()).unwrap()
}

/// Returns the worker as which Tokio presents this thread.
fn presented() -> (Id, Option<usize>) {
    (Handle::current().id(), worker_index())
}

#[test]
fn workers_learn_what_they_are() {
    let runtime = multi(3);
    let start = Instant::now();
    let learns = || async move {
        loop {
            use_timer().await;
            if presented().1.is_none() {
                // Before Tokio 1.54, nobody is told.
                return;
            }
            if let Some((id, index)) = known() {
                return assert_eq!((id, Some(index)), presented());
            }
            assert!(start.elapsed() < Duration::from_secs(20));
            // So that others than worker 0 take it.
            task::block_in_place(|| std::thread::sleep(Duration::from_micros(50)));
        }
    };
    let tasks: Vec<_> = (0..9).map(|_| runtime.spawn(learns())).collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

#[test]
fn nothing_else_teaches_them() {
    let (outer, other) = (multi(3), multi(2));
    let bridges = |handle: Handle| async move {
        for _ in 0..200 {
            task::block_in_place(|| handle.block_on(use_timer()));
            task::block_in_place(|| {
                let current = Builder::new_current_thread().enable_all().build().unwrap();
                current.block_on(use_timer());
            });
            use_timer().await;
            let (id, known) = (presented().0, known());
            assert!(known.is_none_or(|(of, _)| of == id), "{known:?} is of {id}");
        }
    };
    let tasks: Vec<_> = (0..4)
        .map(|_| outer.spawn(bridges(other.handle().clone())))
        .collect();
    for task in tasks {
        outer.block_on(task).unwrap();
    }
}
