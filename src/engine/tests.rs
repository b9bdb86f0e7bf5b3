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
    clock::{Moment, Nanos},
    engines::{self, existing},
    shard::{Kind, Shard, TimerShard, kind_of},
    shared::{Settings, Shared, WheelId},
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
    start_and_cancel(Timer::from_first_poll(None, duration)).await;
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
            assert!(start.elapsed() < Duration::from_secs(20));
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
    let has_engine = |id: Id| engines::engines().iter().any(|((_, of), _)| *of == id);
    let ended = ends.handle().id();
    drop(ends);
    // Its workers are on threads for which dropping the runtime does not wait.
    while has_engine(ended) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let knows_no_other = || async {
        for _ in 0..40 {
            task::block_in_place(|| std::thread::sleep(Duration::from_millis(1)));
            let mut timer = Timer::from_first_poll(None, Duration::from_secs(9));
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
        let engines = engines::engines();
        may_start.send(()).unwrap();
        let outcome = is_started.recv_timeout(Duration::from_secs(5));
        drop(engines);
        outcome.expect("started with the lock held by another thread");
    });
}

fn new_timer(shard: TimerShard) -> Timer {
    Timer::from_first_poll(shard, Duration::from_secs(9))
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
            started(new_timer(None))
        };
        std::thread::scope(|scope| scope.spawn(start).join().unwrap())
    };
    assert_starts_without_a_lock(
        || {
            drop(started(new_timer(None)));
            // The other thread has the next number, which selects another shard.
            drop(of_another_thread());
        },
        |()| vec![started(new_timer(None))],
    );
}

/// `select!` polls in any order, for example.
#[test]
fn timers_of_one_thread_are_started_in_any_order() {
    assert_starts_without_a_lock(
        || {
            drop(started(new_timer(None)));
            let last = with(|thread| thread.take_shard(kind_of(&None))).flatten();
            assert!(last.is_some());
            [new_timer(last), new_timer(None)]
        },
        |[first, second]| vec![started(second), started(first)],
    );
}

#[test]
fn the_long_timers_of_a_task_reuse_one_entry_once_it_has_cancelled_one() {
    let task = multi(1).block_on(async {
        let keeps_spare = || {
            let deadline = with(|thread| thread.spare_deadline()).unwrap();
            deadline
                .is_some_and(|deadline| deadline < Moment::now().after(Nanos::of(Duration::from_secs(60))))
        };
        // Only after the first timer of a process can the wakers of tasks be told from others.
        tokio::spawn(use_timer()).await.unwrap();
        tokio::spawn(async move {
            let mut kept = Vec::new();
            for _ in 0..3 {
                use_timer_of(Duration::from_secs(3600)).await;
                kept.push(keeps_spare());
            }
            kept
        })
        .await
    });
    assert_eq!(task.unwrap(), [false, true, true]);
}

/// A timer that the wheel may refuse is in another shard, so that it has no use for the spare.
#[test]
fn a_timer_that_may_be_refused_leaves_its_task_the_spare() {
    let task = multi(1).block_on(async {
        tokio::spawn(use_timer()).await.unwrap();
        tokio::spawn(async {
            use_timer().await;
            let before = with(|thread| thread.spare_deadline()).unwrap();
            let [_, refusable] = Shard::unbound(Shared::global());
            let mut timer = Timer::from_first_poll(Some(refusable), Duration::from_secs(9));
            let polled = poll_fn(|cx| Poll::Ready(timer.poll(cx.waker()))).await;
            assert_eq!(polled, Poll::Pending);
            (before, with(|thread| thread.spare_deadline()).unwrap())
        })
        .await
    });
    let (before, after) = task.unwrap();
    assert!(before.is_some());
    assert_eq!(after, before);
}

#[test]
fn a_long_timer_waits_on_when_the_spare_that_it_took_over_has_expired() {
    let task = multi(1).block_on(async {
        tokio::spawn(use_timer()).await.unwrap();
        tokio::spawn(async {
            use_timer_of(Duration::from_secs(3600)).await;
            use_timer_of(Duration::from_secs(3600)).await;
            let kept = with(|thread| thread.spare_deadline()).unwrap();
            let mut timer = Timer::from_first_poll(None, Duration::from_secs(3600));
            let first = poll_fn(|cx| Poll::Ready(timer.poll(cx.waker()))).await;
            let is_left = with(|thread| thread.spare_deadline()).unwrap().is_some();
            // As if the driver were due only in a minute.
            let here = Handle::current().id();
            let engines = engines::of_wheel(Shared::global());
            let shards = engines.iter().flat_map(|engine| existing(&engine.shards));
            let woken: usize = shards
                .filter(|shard| shard.runtime == Some(here))
                .map(|shard| {
                    let in_a_minute = Moment::now().after(Nanos::of(Duration::from_secs(60)));
                    let tick = shard.clock.tick_at(in_a_minute);
                    let mut due = Vec::new();
                    shard.visit(tick, shard.clock.start_of(tick), usize::MAX, &mut due);
                    due.len()
                })
                .sum();
            let second = poll_fn(|cx| Poll::Ready(timer.poll(cx.waker()))).await;
            (kept.is_some(), first, is_left, woken, second, timer.is_elapsed())
        })
        .await
    });
    assert_eq!(
        task.unwrap(),
        (true, Poll::Pending, false, 1, Poll::Pending, false)
    );
}

/// Each entry would otherwise be moved, only to be removed when the next one takes its place.
#[test]
fn a_task_that_gives_up_many_long_timers_keeps_one_of_their_entries() {
    let task = multi(1).block_on(async {
        tokio::spawn(use_timer()).await.unwrap();
        tokio::spawn(async {
            let mut timers: Vec<_> = (0..4)
                .map(|_| Timer::from_first_poll(None, Duration::from_secs(3600)))
                .collect();
            poll_fn(|cx| {
                timers.iter_mut().for_each(|timer| _ = timer.poll(cx.waker()));
                Poll::Ready(())
            })
            .await;
            let mut kept = Vec::new();
            for timer in timers {
                drop(timer);
                kept.push(with(|thread| thread.spare_deadline()).unwrap());
                std::thread::sleep(Duration::from_millis(2));
            }
            kept
        })
        .await
    });
    let kept = task.unwrap();
    assert_eq!((kept[0], kept[1].is_some()), (None, true));
    assert_eq!(kept[1..], [kept[1]; 3]);
}

/// Putting the entry off would leave the spare a void key if the bucket had meanwhile expired as a whole.
#[test]
fn the_entry_of_a_long_timer_that_is_due_soon_is_not_put_off_as_it_is_cancelled() {
    let task = multi(1).block_on(async {
        tokio::spawn(use_timer()).await.unwrap();
        tokio::spawn(async {
            let soon = Moment::now().after(Nanos::of(Duration::from_secs(9)));
            for _ in 0..2 {
                let mut timer = Timer::from_first_poll(None, Duration::from_secs(3600));
                let polled = poll_fn(|cx| Poll::Ready(timer.poll(cx.waker()))).await;
                assert_eq!(polled, Poll::Pending);
                assert!(timer.reset(soon).is_none());
            }
            let deadline = with(|thread| thread.spare_deadline()).unwrap();
            (deadline, soon.after(Nanos::of(Duration::from_secs(1))))
        })
        .await
    });
    let (deadline, soon) = task.unwrap();
    assert!(
        deadline.is_some_and(|deadline| deadline < soon),
        "{deadline:?} is not {soon:?}"
    );
}

/// Otherwise the entry would expire in between during every wait of a connection that is idle for most of its
/// timeout.
#[test]
fn the_long_timers_of_tasks_that_take_turns_are_due_at_their_deadlines() {
    let runtime = multi(1);
    let waits = || async {
        let mut kept = false;
        for _ in 0..3 {
            use_timer_of(Duration::from_secs(3600)).await;
            kept |= with(|thread| thread.spare_deadline()).unwrap().is_some();
        }
        kept
    };
    let kept = runtime.block_on(async {
        tokio::spawn(use_timer()).await.unwrap();
        // Spawned by a task of the only worker, so that both exist before one of them runs.
        let both = tokio::spawn(async move {
            let [one, other] = [tokio::spawn(waits()), tokio::spawn(waits())];
            one.await.unwrap() || other.await.unwrap()
        });
        both.await.unwrap()
    });
    assert!(!kept);
}

/// Looking up a shard takes the lock of all engines.
#[test]
fn a_thread_remembers_its_shards_of_sixteen_wheels() {
    let place = |wheel| place(Kind::both_of(wheel)[0]);
    let mut wheels: Vec<Arc<Shared>> = Vec::new();
    while wheels.len() < 16 {
        // Other tests create wheels meanwhile, and of two wheels in one place only one is remembered.
        let wheel = WheelId::next();
        if wheels.iter().all(|other| place(other.wheel) != place(wheel)) {
            wheels.push(Arc::new(Shared::new(wheel, Settings::default(), None)));
        }
    }
    multi(1).block_on(async {
        let unbound = wheels.iter().map(|wheel| Shard::unbound(wheel)[0].clone());
        let unbound: Vec<_> = unbound.collect();
        for shard in &unbound {
            start_and_cancel(Timer::from_first_poll(
                Some(shard.clone()),
                Duration::from_secs(9),
            ))
            .await;
        }
        for shard in &unbound {
            assert!(with(|thread| thread.own_shard(shard.kind)).flatten().is_some());
        }
    });
}
