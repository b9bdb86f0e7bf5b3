//! `schedule`, `schedule_at` and `Scheduled`.

use crate::support;

use std::{
    future::{Future, pending},
    marker::PhantomPinned,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll},
    thread,
};

use tickwheel::{ScheduleError, Scheduled, ScheduledTask, Unprocessed, Wheel};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::yield_now,
    time::{Duration, Instant},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};

use support::{
    DAY, SECOND, TICK, advance, alive_tasks, counting_waker, ms, paused_runtime, register_for, settle,
    threaded_runtime, waker_of, within,
};

/// A future's possession, and a way to see whether it still exists.
fn possession() -> (Arc<()>, Weak<()>) {
    let owned = Arc::new(());
    let seen = Arc::downgrade(&owned);
    (owned, seen)
}

#[test]
fn its_types_can_go_anywhere() {
    fn anywhere<T: Send + Sync + Unpin + 'static>() {}
    fn sendable<T: Send + Unpin + 'static>() {}
    anywhere::<Scheduled<Vec<u8>>>();
    sendable::<ScheduledTask>();
    sendable::<Unprocessed>();
}

#[tokio::test(start_paused = true)]
async fn a_zero_delay_and_a_past_instant_start_by_the_next_tick() {
    let wheel = Wheel::new();
    wheel.sleep(ms(35)).await;
    let past = Instant::now() - ms(30);
    let at_once = wheel.schedule(Duration::ZERO, async {});
    let overdue = wheel.schedule_at(past, async {});
    assert_eq!(overdue.deadline(), past);
    advance(TICK).await;
    assert!(at_once.is_finished());
    assert!(overdue.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_delay_past_the_end_of_the_clock_waits_instead_of_panicking() {
    let wheel = Wheel::new();
    let task = wheel.schedule(Duration::MAX, async {});
    advance(DAY * 365).await;
    assert!(!task.is_started());
    assert_eq!(wheel.pending(), 1);
    assert!(task.deadline() > Instant::now() + DAY * 365 * 20);
    assert!(task.cancel());
}

#[tokio::test(start_paused = true)]
async fn until_it_is_due_it_costs_no_tokio_task() {
    let wheel = Wheel::new();
    let before = alive_tasks();
    let (release, held) = oneshot::channel::<()>();
    let first = wheel.schedule(SECOND, held);
    let _others: Vec<_> = (0..1000).map(|_| wheel.schedule(SECOND * 2, async {})).collect();
    settle().await;
    assert_eq!(wheel.pending(), 1001);
    assert_eq!(alive_tasks(), before + 1, "the driver, and nothing else");
    advance(SECOND).await;
    assert_eq!(alive_tasks(), before + 2, "the driver and the task that is due");
    release.send(()).unwrap();
    assert_eq!(first.await, Ok(Ok(())));
}

#[tokio::test(start_paused = true)]
async fn whoever_polled_the_handle_last_is_woken() {
    let wheel = Wheel::new();
    let mut handle = wheel.schedule(ms(20), async { 7 });
    let (first, first_woken) = counting_waker();
    let (second, second_woken) = counting_waker();
    for waker in [&first, &second] {
        register_for(waker, &mut handle);
    }
    advance(ms(20)).await;
    assert_eq!(first_woken.load(Ordering::Relaxed), 0);
    assert_eq!(second_woken.load(Ordering::Relaxed), 1);
    // Started by now: the handle waits on the Tokio task.
    assert_eq!(handle.await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn a_handle_polled_before_the_task_starts_is_woken_for_its_end() {
    let wheel = Wheel::new();
    let (release, held) = oneshot::channel::<u8>();
    let mut handle = task::spawn(wheel.schedule(ms(20), held));
    assert_pending!(handle.poll());
    advance(ms(20)).await;
    assert_pending!(handle.poll());
    release.send(7).unwrap();
    settle().await;
    assert!(handle.is_woken());
    assert_ready_eq!(handle.poll(), Ok(Ok(7)));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "JoinHandle polled after completion")]
async fn a_handle_polled_after_it_gave_its_result_panics() {
    let mut handle = Wheel::new().schedule(ms(20), async {});
    (&mut handle).await.unwrap();
    let _ = (&mut handle).await;
}

#[tokio::test(start_paused = true)]
async fn dropping_the_handle_detaches_the_task() {
    let wheel = Wheel::new();
    let (sender, mut receiver) = oneshot::channel();
    drop(wheel.schedule(SECOND, async { sender.send("ran") }));
    assert_eq!(wheel.pending(), 1);
    advance(ms(999)).await;
    assert!(receiver.try_recv().is_err());
    advance(ms(1)).await;
    assert_eq!(receiver.try_recv(), Ok("ran"));
}

#[tokio::test(start_paused = true)]
async fn a_running_task_whose_handle_is_dropped_runs_on() {
    let wheel = Wheel::new();
    let (sender, mut receiver) = oneshot::channel();
    let (release, held) = oneshot::channel::<()>();
    let handle = wheel.schedule(TICK, async {
        held.await.unwrap();
        sender.send("ran")
    });
    advance(TICK).await;
    assert!(handle.is_started());
    drop(handle);
    release.send(()).unwrap();
    settle().await;
    assert_eq!(receiver.try_recv(), Ok("ran"));
}

#[tokio::test(start_paused = true)]
async fn each_stage_of_a_task_that_runs_can_be_told() {
    let wheel = Wheel::new();
    let (release, held) = oneshot::channel::<()>();
    let task = wheel.schedule(SECOND, held);
    let stage = |task: &Scheduled<_>| (task.is_started(), task.is_cancelled(), task.is_finished());
    assert_eq!(stage(&task), (false, false, false));
    advance(SECOND).await;
    assert_eq!(stage(&task), (true, false, false));
    release.send(()).unwrap();
    settle().await;
    assert_eq!(stage(&task), (true, false, true));
    assert!(!task.cancel());
    assert_eq!(stage(&task), (true, false, true));
}

#[tokio::test(start_paused = true)]
async fn cancel_is_true_once_and_the_task_never_runs() {
    let wheel = Wheel::new();
    let (sender, mut receiver) = oneshot::channel();
    let task = wheel.schedule(SECOND, async { sender.send(()) });
    assert!(task.cancel());
    assert!(!task.cancel());
    assert_eq!(
        (task.is_started(), task.is_cancelled(), task.is_finished()),
        (false, true, true)
    );
    assert_eq!(wheel.pending(), 0);
    advance(SECOND * 2).await;
    assert_eq!(receiver.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(task.await.unwrap_err(), ScheduleError::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn cancel_is_false_once_the_task_has_started_and_leaves_it_alone() {
    let wheel = Wheel::new();
    let (release, held) = oneshot::channel::<u8>();
    let task = wheel.schedule(TICK, held);
    advance(TICK).await;
    assert!(!task.cancel());
    assert!(!task.is_cancelled());
    release.send(7).unwrap();
    assert_eq!(task.await, Ok(Ok(7)));
}

#[tokio::test(start_paused = true)]
async fn cancel_is_false_after_the_result_was_given() {
    let wheel = Wheel::new();
    let mut task = wheel.schedule(TICK, async {});
    (&mut task).await.unwrap();
    assert!(!task.cancel());
    assert_eq!(
        (task.is_started(), task.is_cancelled(), task.is_finished()),
        (true, false, true)
    );
}

#[tokio::test(start_paused = true)]
async fn cancel_wakes_whoever_awaits_the_task() {
    let wheel = Wheel::new();
    let handle = Arc::new(Mutex::new(wheel.schedule(SECOND, async {})));
    let awaited = handle.clone();
    let mut awaiting = task::spawn(std::future::poll_fn(move |cx| {
        Future::poll(Pin::new(&mut *awaited.lock().unwrap()), cx)
    }));
    assert_pending!(awaiting.poll());
    assert!(handle.lock().unwrap().cancel());
    assert!(awaiting.is_woken());
    assert_ready_eq!(awaiting.poll(), Err(ScheduleError::Cancelled));
    // The verdict stands however often it is asked for.
    assert_ready_eq!(awaiting.poll(), Err(ScheduleError::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn a_reset_task_starts_at_its_new_deadline_sooner_or_later() {
    let wheel = Wheel::new();
    let called = Instant::now();
    for (delay, moved) in [(100, 3_000), (3_600_000, 200), (100, 100), (60_000, 61_000)] {
        let start = Instant::now();
        let delay = ms(delay);
        let deadline = start + ms(moved);
        let task = wheel.schedule(delay, async { Instant::now() });
        assert!(task.reset(deadline));
        assert_eq!(task.deadline(), deadline);
        assert_eq!(wheel.pending(), 1);
        let started = task.await.unwrap();
        assert!(started >= deadline, "{:?} early", deadline - started);
        assert!(started < deadline + TICK, "{:?} late", started - deadline);
    }
    assert!(called.elapsed() < SECOND * 70, "no old deadline was waited for");
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_reset_again_and_again_starts_once_and_not_before_the_last_deadline() {
    let wheel = Wheel::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let task = wheel.schedule(ms(100), async move { counted.fetch_add(1, Ordering::Relaxed) });
    for _ in 0..100 {
        advance(ms(90)).await;
        assert!(task.reset(Instant::now() + ms(100)));
    }
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    advance(ms(110)).await;
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert!(task.is_started());
}

#[tokio::test(start_paused = true)]
async fn a_task_reset_to_a_past_instant_starts_by_the_next_tick() {
    let wheel = Wheel::new();
    advance(ms(55)).await;
    let task = wheel.schedule(SECOND * 3_600, async { Instant::now() });
    let called = Instant::now();
    assert!(task.reset(called - ms(30)));
    assert!(task.await.unwrap() < called + TICK);
}

#[tokio::test(start_paused = true)]
async fn reset_is_false_once_the_task_has_started_or_never_will() {
    let wheel = Wheel::new();
    let later = Instant::now() + SECOND * 60;
    let (release, held) = oneshot::channel::<u8>();
    let mut started = wheel.schedule(TICK, held);
    let due = started.deadline();
    let cancelled = wheel.schedule(TICK, async {});
    cancelled.cancel();
    advance(TICK).await;
    let handed_back = wheel.schedule(TICK, async {});
    let unprocessed = wheel.shutdown();
    let refused = wheel.schedule(TICK, async {});

    assert!(!started.reset(later));
    assert_eq!(started.deadline(), due);
    for task in [cancelled, handed_back, refused] {
        assert!(!task.reset(later));
        assert!(task.is_cancelled());
    }
    assert_eq!(unprocessed.tasks.len(), 1);
    release.send(7).unwrap();
    assert_eq!((&mut started).await, Ok(Ok(7)));
    assert!(!started.reset(later));
}

#[tokio::test(start_paused = true)]
async fn a_reset_task_can_be_cancelled_and_is_handed_back_with_its_new_deadline() {
    let wheel = Wheel::new();
    let later = Instant::now() + SECOND * 60;
    let cancelled = wheel.schedule(TICK, async {});
    assert!(cancelled.reset(later));
    assert!(cancelled.cancel());
    let kept = wheel.schedule(TICK, async {});
    assert!(kept.reset(later));
    assert_eq!(wheel.pending(), 1);
    assert_eq!(wheel.shutdown().tasks[0].deadline(), later);
}

#[tokio::test(start_paused = true)]
async fn a_task_reset_in_a_full_wheel_keeps_its_place() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let task = wheel.schedule(SECOND, async { "ran" });
    for _ in 0..3 {
        advance(ms(900)).await;
        assert!(task.reset(Instant::now() + SECOND));
        let refused = wheel.schedule(TICK, async {});
        assert_eq!(refused.await, Err(ScheduleError::AtCapacity { limit: 1 }));
    }
    assert_eq!(task.await, Ok("ran"));
}

/// Other threads reset tasks that are about to start: whoever is told `true` finds that the task starts no
/// sooner.
#[test]
fn a_reset_that_meets_the_start_says_which_of_the_two_came_first() {
    let runtime = threaded_runtime(2);
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let _entered = runtime.enter();
    let mut outcomes = [0, 0];
    for round in 0..200 {
        let task = wheel.schedule(ms(1), async { std::time::Instant::now() });
        let mut promised = task.deadline();
        // Up to two milliseconds, so that either may come first.
        thread::sleep(Duration::from_micros(round % 20 * 100));
        let later = Instant::now() + ms(3);
        let moved = task.reset(later);
        if moved {
            promised = later;
        }
        outcomes[usize::from(moved)] += 1;
        assert_eq!(task.deadline(), promised);
        let started = runtime.block_on(task).unwrap();
        assert!(started >= promised.into_std(), "round {round}: {moved}");
    }
    assert!(outcomes[1] > 0, "no reset was in time");
}

/// The driver has taken a task out that was reset since, and is kept from waking it. Meanwhile its runtime
/// goes.
#[test]
fn a_reset_task_that_is_woken_after_its_runtime_has_gone_is_cancelled() {
    let outcome = within(60 * SECOND, || {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        let runtime = threaded_runtime(2);
        let (at_work, working) = mpsc::channel();
        let (go_on, going_on) = mpsc::channel::<()>();
        let going_on = Mutex::new(going_on);
        let waker = waker_of(move || {
            at_work.send(()).unwrap();
            going_on.lock().unwrap().recv().unwrap();
        });
        runtime.block_on(async { wheel.sleep(ms(1)).await });
        runtime.block_on(runtime.spawn(async {})).unwrap();
        let entered = runtime.enter();
        let (_sleep, task) = loop {
            let due = Instant::now() + ms(50);
            let mut sleep = wheel.sleep_until(due);
            let waits = Pin::new(&mut sleep)
                .poll(&mut Context::from_waker(&waker))
                .is_pending();
            let task = wheel.schedule_at(due, async {});
            if waits && task.reset(Instant::now() + DAY) {
                break (sleep, task);
            }
        };
        drop(entered);
        working.recv().unwrap();
        runtime.shutdown_background();
        go_on.send(()).unwrap();
        futures::executor::block_on(task)
    });
    assert_eq!(outcome, Err(ScheduleError::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn abort_on_drop_cancels_a_task_that_has_not_started() {
    let wheel = Wheel::new();
    let (owned, seen) = possession();
    let task = wheel
        .schedule(SECOND * 3_600, async move { drop(owned) })
        .abort_on_drop();
    assert!(seen.upgrade().is_some());
    drop(task);
    assert!(seen.upgrade().is_none(), "dropped with its handle");
    assert_eq!((wheel.pending(), wheel.metrics().cancelled), (0, 1));
    assert!(wheel.shutdown().tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn abort_on_drop_ends_a_task_that_runs() {
    let wheel = Wheel::new();
    let (owned, seen) = possession();
    let task = wheel
        .schedule(TICK, async move {
            pending::<()>().await;
            drop(owned);
        })
        .abort_on_drop();
    advance(TICK).await;
    assert!(task.is_started());
    assert!(seen.upgrade().is_some());
    drop(task);
    settle().await;
    assert!(seen.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_aborts_on_drop_gives_the_result_first() {
    let wheel = Wheel::new();
    assert_eq!(wheel.schedule(TICK, async { 42 }).abort_on_drop().await, Ok(42));

    // Its task is dropped without anybody's harm also after an end of another kind.
    let cancelled = wheel.schedule(TICK, async {}).abort_on_drop();
    assert!(cancelled.cancel());
    assert_eq!(cancelled.await, Err(ScheduleError::Cancelled));
    let mut tasks = wheel.schedule(TICK, async {}).abort_on_drop();
    let handed_back = wheel.shutdown().tasks;
    assert_eq!((&mut tasks).await, Err(ScheduleError::Shutdown));
    drop(tasks);
    assert_eq!(handed_back.len(), 1, "what was handed back is the caller's");
}

#[test]
fn whoever_awaits_a_task_may_look_at_it_as_it_is_woken() {
    within(SECOND * 60, || {
        paused_runtime().block_on(async {
            for scene in ["cancelled", "started", "handed back"] {
                let wheel = Wheel::new();
                let slot = Arc::new(OnceLock::<Scheduled<()>>::new());
                let (looks, told) = (slot.clone(), Arc::new(AtomicBool::new(false)));
                let seen = told.clone();
                let waker = waker_of(move || {
                    let has_ended = looks
                        .get()
                        .is_some_and(|task| task.is_started() || task.is_finished());
                    seen.store(has_ended, Ordering::Relaxed);
                });
                let mut task = wheel.schedule(SECOND, pending());
                register_for(&waker, &mut task);
                let task = slot.get_or_init(|| task);
                match scene {
                    "cancelled" => assert!(task.cancel()),
                    "started" => advance(SECOND).await,
                    _ => drop(wheel.shutdown()),
                }
                assert!(told.load(Ordering::Relaxed), "{scene}");
            }
        });
    });
}

/// A runtime that ends drops the task inside `spawn` or `abort`: with that may go the last handle, or a look
/// at the task.
#[test]
fn a_task_that_looks_at_itself_as_it_is_dropped_does_not_lock_itself_out() {
    type Slot = Arc<Mutex<Option<Scheduled<()>>>>;
    struct Looks(Slot);
    impl Drop for Looks {
        fn drop(&mut self) {
            if let Some(task) = &*self.0.lock().unwrap() {
                assert!(!task.cancel());
                assert!(!task.reset(Instant::now()));
            }
        }
    }
    let runtime = threaded_runtime(1);
    let slot = Slot::default();
    let looks = Looks(slot.clone());
    let entered = runtime.enter();
    let task = Wheel::new().schedule(SECOND * 3_600, async move {
        let _looks = looks;
        pending::<()>().await
    });
    drop(entered);
    *slot.lock().unwrap() = Some(task);
    slot.lock().unwrap().as_ref().unwrap().reset(Instant::now());
    while !slot.lock().unwrap().as_ref().unwrap().is_started() {
        std::thread::yield_now();
    }
    drop(runtime);
    let task = slot.lock().unwrap().take().unwrap();
    drop(task.abort_on_drop());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_is_dropped_before_cancel_returns_with_all_it_owns() {
    let wheel = Wheel::new();
    let (owned, seen) = possession();
    let task = wheel.schedule(SECOND * 3_600, async move {
        pending::<()>().await;
        drop(owned);
    });
    assert!(seen.upgrade().is_some());
    assert!(task.cancel());
    assert!(seen.upgrade().is_none(), "and not at the old deadline");
    assert!(task.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_finished_task_is_dropped_at_once_though_its_handle_lives() {
    let wheel = Wheel::new();
    let (owned, seen) = possession();
    let task = wheel.schedule(TICK, async move {
        let _owned = owned;
    });
    advance(TICK).await;
    assert!(task.is_finished());
    assert!(seen.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_result_nobody_asks_for_goes_with_the_handle() {
    let wheel = Wheel::new();
    let (owned, seen) = possession();
    let task = wheel.schedule(TICK, async move { owned });
    advance(TICK).await;
    assert!(task.is_finished());
    assert!(seen.upgrade().is_some(), "the result waits for the handle");
    drop(task);
    settle().await;
    assert!(seen.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_tick_start_in_the_order_they_were_scheduled() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in 0..500 {
        let order = order.clone();
        drop(wheel.schedule(SECOND * 60, async move { order.lock().unwrap().push(number) }));
    }
    advance(SECOND * 60).await;
    settle().await;
    assert_eq!(*order.lock().unwrap(), (0..500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_task_can_schedule_the_next_one_and_cancel_another() {
    let wheel = Wheel::new();
    let doomed = wheel.schedule(SECOND * 5, async { unreachable!() });
    let inner = wheel.clone();
    let outer = wheel.schedule(SECOND, async move {
        assert!(doomed.cancel());
        let called = Instant::now();
        inner.schedule(SECOND, async move { called.elapsed() }).await
    });
    assert_eq!(outer.await, Ok(Ok(SECOND)));
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_not_unpin_runs_and_is_handed_back() {
    let wheel = Wheel::new();
    let pinned = || async {
        let _pinned = PhantomPinned;
        tokio::task::yield_now().await;
        7
    };
    assert_eq!(wheel.schedule(TICK, pinned()).await, Ok(7));
    drop(wheel.schedule(TICK, pinned()));
    assert_eq!(wheel.shutdown().tasks.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_loop_over_finished_handles_lets_other_tasks_run() {
    let wheel = Wheel::new();
    let ran = Arc::new(AtomicUsize::new(0));
    let other = ran.clone();
    let finished: Vec<_> = (0..10_000).map(|_| wheel.schedule(TICK, async {})).collect();
    advance(TICK).await;
    while !finished.iter().all(|task| task.is_finished()) {
        settle().await;
    }
    tokio::spawn(async move { other.fetch_add(1, Ordering::Relaxed) });
    for task in finished {
        task.await.unwrap();
        if ran.load(Ordering::Relaxed) > 0 {
            return;
        }
    }
    panic!("ten thousand awaits, and the runtime never had its turn");
}

#[test]
fn with_a_handle_it_can_be_called_and_awaited_outside_a_runtime() {
    let runtime = threaded_runtime(1);
    let wheel = Wheel::builder().handle(runtime.handle().clone()).build().unwrap();
    let task = wheel.schedule(ms(20), async { tokio::spawn(async { 7 }).await.unwrap() });
    assert_eq!(futures::executor::block_on(task), Ok(7));
}

#[test]
fn it_runs_on_the_runtime_it_was_scheduled_on() {
    let (drives, runs) = (threaded_runtime(1), threaded_runtime(1));
    let wheel = Wheel::new();
    drives.block_on(wheel.sleep(ms(1)));
    let task = {
        let _entered = runs.enter();
        wheel.schedule(ms(20), async { Handle::current().id() })
    };
    assert_eq!(futures::executor::block_on(task), Ok(runs.handle().id()));
}

#[tokio::test(start_paused = true)]
async fn its_debug_output_tells_the_stage() {
    let wheel = Wheel::new();
    let mut task = task::spawn(wheel.schedule(TICK, async {}));
    assert!(format!("{:?}", *task).contains("Waiting"));
    advance(TICK).await;
    assert!(format!("{:?}", *task).contains("Finished"));
    assert!(matches!(assert_ready!(task.poll()), Ok(())));
    let cancelled = wheel.schedule(TICK, async {});
    cancelled.cancel();
    assert!(format!("{cancelled:?}").contains("Never"));
    assert_eq!(
        task::spawn(cancelled).poll(),
        Poll::Ready(Err(ScheduleError::Cancelled))
    );
}

/// With Tokio's alternative timer too, which `.ci/alternative-timer` gives every runtime here: there, the engine
/// ends while other workers still poll tasks.
#[test]
fn what_is_scheduled_while_a_runtime_ends_ends_with_it() {
    let wheel = Wheel::new();
    for _ in 0..100 {
        let runtime = threaded_runtime(2);
        let (tell, told) = mpsc::channel();
        for _ in 0..4 {
            let (wheel, tell) = (wheel.clone(), tell.clone());
            runtime.spawn(async move {
                while tell.send(wheel.schedule(DAY, pending::<()>())).is_ok() {
                    yield_now().await;
                }
            });
        }
        drop(tell);
        drop(told.recv().unwrap());
        drop(runtime);
        for handle in told {
            assert!(handle.is_finished(), "nothing would ever end it");
        }
    }
    assert_eq!(wheel.pending(), 0);
}
