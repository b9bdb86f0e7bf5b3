//! Tests of what a thread learns and keeps as timers are polled on it.

use std::{
    future::poll_fn,
    sync::{Arc, mpsc},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle, Id, Runtime},
    task,
};

use super::{
    engine, registry,
    shared::{Settings, Shared, WheelId, WheelRef},
    thread::{place, with, worker_index},
    timer::Timer,
};

fn multi(workers: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(workers).enable_all().build().unwrap()
}

/// Starts a timer of the global wheel, and cancels it after the task has waited once.
async fn use_timer() {
    use_timer_of(Duration::from_secs(9)).await;
}

async fn use_timer_of(duration: Duration) {
    start_and_cancel(Timer::from_first_poll(WheelRef::GLOBAL, duration)).await;
}

async fn start_and_cancel(mut timer: Timer) {
    poll_fn(|cx| {
        let _ = timer.poll(cx.waker());
        Poll::Ready(())
    })
    .await;
    task::yield_now().await;
}

/// Returns the runtime and the worker index that this thread has learnt.
fn known() -> Option<(Id, usize)> {
    with(|thread| thread.known_worker()).unwrap()
}

/// Returns the runtime and the worker index that Tokio reports for this thread.
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
                // Tokio tells this from 1.54 on.
                return;
            }
            if let Some((id, index)) = known() {
                return assert_eq!((id, Some(index)), presented());
            }
            assert!(start.elapsed() < Duration::from_secs(120));
            // Gives workers other than worker 0 time to steal the task.
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

/// A task that blocks in place within another runtime moves its worker to a thread of the other runtime's
/// pool, which then works for the other runtime.
#[test]
fn a_thread_forgets_the_runtime_that_has_ended_before_it_works_for_another() {
    let (ends, stays) = (multi(3), multi(3));
    let lends_threads = |handle: Handle| async move {
        for _ in 0..40 {
            {
                let _entered = handle.enter();
                task::block_in_place(|| std::thread::sleep(Duration::from_millis(1)));
            }
            for _ in 0..5 {
                use_timer().await;
            }
        }
    };
    let tasks: Vec<_> = (0..6)
        .map(|_| ends.spawn(lends_threads(stays.handle().clone())))
        .collect();
    for task in tasks {
        ends.block_on(task).unwrap();
    }
    let has_engine = |id: Id| engine::engines().iter().any(|((_, of), _)| *of == id);
    let ended = ends.handle().id();
    drop(ends);
    // Its workers are on threads for which dropping the runtime does not wait.
    while has_engine(ended) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let knows_no_other = || async {
        for _ in 0..40 {
            task::block_in_place(|| std::thread::sleep(Duration::from_millis(1)));
            let mut timer = Timer::from_first_poll(WheelRef::GLOBAL, Duration::from_secs(9));
            poll_fn(|cx| Poll::Ready(timer.poll(cx.waker()).is_pending())).await;
            let ((id, index), known) = (presented(), known());
            let is_mistaken = |(of, number)| of != id && Some(number) == index;
            assert!(!known.is_some_and(is_mistaken), "{known:?} is not of {id}");
        }
    };
    let tasks: Vec<_> = (0..6).map(|_| stays.spawn(knows_no_other())).collect();
    for task in tasks {
        stays.block_on(task).unwrap();
    }
}

/// Calls `start_timers` on a thread inside a runtime with many shards, after `prepare`. `start_timers` must
/// not take the lock of all engines.
fn assert_starts_without_a_lock<T>(
    prepare: impl FnOnce() -> T + Send,
    start_timers: impl FnOnce(T) -> Vec<Timer> + Send,
) {
    let runtime = multi(8);
    let (prepared, is_prepared) = mpsc::channel();
    let (may_start, start) = mpsc::channel();
    let (started, is_started) = mpsc::channel();
    std::thread::scope(|scope| {
        let handle = runtime.handle();
        scope.spawn(move || {
            let _entered = handle.enter();
            let timers = prepare();
            prepared.send(()).unwrap();
            start.recv().unwrap();
            let timers = start_timers(timers);
            started.send(()).unwrap();
            drop(timers);
        });
        is_prepared.recv().unwrap();
        let engines = engine::engines();
        may_start.send(()).unwrap();
        let outcome = is_started.recv_timeout(Duration::from_secs(5));
        drop(engines);
        outcome.expect("started with the lock held by another thread");
    });
}

fn new_timer() -> Timer {
    Timer::from_first_poll(WheelRef::GLOBAL, Duration::from_secs(9))
}

fn started(mut timer: Timer) -> Timer {
    assert!(timer.poll(Waker::noop()).is_pending());
    timer
}

/// Tasks that sleep are often woken on another worker, and drop their timers there.
#[test]
fn a_thread_keeps_its_shard_as_timers_of_other_threads_end_on_it() {
    let of_another_thread = || {
        let handle = Handle::current();
        let start = || {
            let _entered = handle.enter();
            started(new_timer())
        };
        std::thread::scope(|scope| scope.spawn(start).join().unwrap())
    };
    assert_starts_without_a_lock(
        || {
            drop(started(new_timer()));
            // The other thread has the next number, which selects another shard.
            drop(of_another_thread());
        },
        |()| vec![started(new_timer())],
    );
}

/// Looking up a shard takes the lock of all engines.
#[test]
fn a_thread_remembers_its_shards_of_sixteen_wheels() {
    let mut wheels: Vec<Arc<Shared>> = Vec::new();
    while wheels.len() < 16 {
        // Other tests create wheels meanwhile, and of two wheels in one place only one is remembered.
        let wheel = WheelId::next();
        if wheels.iter().all(|other| place(other.wheel) != place(wheel)) {
            wheels.push(Arc::new(Shared::new(wheel, Settings::default(), None)));
        }
    }
    multi(1).block_on(async {
        for wheel in &wheels {
            let timer = Timer::from_first_poll(WheelRef::new(wheel), Duration::from_secs(9));
            start_and_cancel(timer).await;
        }
        for wheel in &wheels {
            assert!(with(|thread| thread.own_shard(wheel.wheel)).flatten().is_some());
        }
    });
}

/// As many wheels as a process may have made in years, each of which is a wheel of its own.
#[test]
fn two_wheels_whose_numbers_differ_by_a_power_of_two_are_not_one() {
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let wheels = [1, 1 << 31, 1 << 32, 1 << 63].map(|number| {
            let number = WheelId(number + 5);
            WheelRef::new(&Arc::new(Shared::new(number, Settings::default(), None)))
        });
        let timers: Vec<_> = wheels
            .iter()
            .map(|wheel| {
                let mut timer = Timer::from_first_poll(wheel.clone(), Duration::from_secs(9));
                assert!(timer.poll(Waker::noop()).is_pending());
                timer
            })
            .collect();
        for wheel in &wheels {
            assert_eq!(registry::usage(wheel.shared()).pending, 1);
        }
        drop(timers);
    });
}
