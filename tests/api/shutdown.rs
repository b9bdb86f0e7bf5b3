//! `shutdown`: what may be refused resolves at once, everything else waits on, and tasks that never started
//! are handed back.

use crate::support;

use std::{
    future::{IntoFuture, pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
    thread,
};

use futures::FutureExt;
use tickwheel::{ScheduleError, SleepError, TimeoutError, Wheel};
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::unconstrained,
    time::{Duration, Instant},
};
use tokio_test::{assert_pending, assert_ready_eq, task};

use support::{
    DAY, SECOND, TICK, advance, counting_waker, ms, paused_runtime, real_runtime, register, register_for,
    settle, threaded_runtime, waiting_task,
};

#[tokio::test(start_paused = true)]
async fn it_resolves_at_once_what_may_be_refused() {
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.try_sleep(SECOND));
    let mut timeout = task::spawn(wheel.try_timeout(SECOND, pending::<()>()));
    let mut interval = task::spawn(wheel.interval_at(Instant::now() + SECOND, SECOND));
    let mut idle = task::spawn(wheel.idle_timer(SECOND));
    let mut scheduled = task::spawn(wheel.schedule(SECOND, async {}));
    let mut rate = task::spawn(wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {}));
    let mut delay = task::spawn(wheel.periodic(SECOND).spawn_with_fixed_delay(|| async {}));
    assert_pending!(sleep.poll());
    assert_pending!(timeout.poll());
    assert_pending!(interval.poll_next());
    assert_pending!(idle.poll());
    assert_pending!(scheduled.poll());
    assert_pending!(rate.poll());
    assert_pending!(delay.poll());
    settle().await;
    assert_eq!(wheel.pending(), 7);

    let unprocessed = wheel.shutdown();

    assert!(wheel.is_shutdown());
    assert_eq!(wheel.pending(), 6, "what is refused counts until it is polled");
    assert_eq!(unprocessed.tasks.len(), 1);
    assert!(sleep.is_woken());
    assert_ready_eq!(sleep.poll(), Err(SleepError::Shutdown));
    assert!(timeout.is_woken());
    assert_ready_eq!(timeout.poll(), Err(TimeoutError::Shutdown));
    assert!(!interval.is_woken() && !idle.is_woken());
    assert_pending!(interval.poll_next());
    assert_pending!(idle.poll());
    assert!(scheduled.is_woken());
    assert_ready_eq!(scheduled.poll(), Err(ScheduleError::Shutdown));
    // The series are tasks of their own, which have to run first.
    settle().await;
    assert!(rate.is_woken());
    assert_ready_eq!(rate.poll(), Err(ScheduleError::Shutdown));
    assert!(delay.is_woken());
    assert_ready_eq!(delay.poll(), Err(ScheduleError::Shutdown));
    assert_eq!(wheel.pending(), 2, "the interval and the idle timer");
}

#[tokio::test(start_paused = true)]
async fn later_ones_resolve_at_their_first_poll_zero_durations_included() {
    let wheel = Wheel::new();
    wheel.try_sleep(TICK).await.unwrap();
    drop(wheel.shutdown());
    for duration in [Duration::ZERO, TICK, SECOND, Duration::MAX] {
        assert_ready_eq!(
            task::spawn(wheel.try_sleep(duration)).poll(),
            Err(SleepError::Shutdown)
        );
        assert_ready_eq!(
            task::spawn(wheel.try_timeout(duration, pending::<()>())).poll(),
            Err(TimeoutError::Shutdown)
        );
        let mut scheduled = task::spawn(wheel.schedule(duration, async {}));
        assert_ready_eq!(scheduled.poll(), Err(ScheduleError::Shutdown));
        assert!(scheduled.is_cancelled());
    }
    for first_after in [Duration::ZERO, SECOND] {
        let builder = wheel.periodic(SECOND).first_after(first_after);
        let run = || async { unreachable!() };
        assert_eq!(
            builder.clone().spawn_at_fixed_rate(run).await,
            Err(ScheduleError::Shutdown)
        );
        assert_eq!(
            builder.spawn_with_fixed_delay(run).await,
            Err(ScheduleError::Shutdown)
        );
    }
    assert_eq!(wheel.metrics().registered, 1);
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn it_wakes_the_task_that_polled_last() {
    let wheel = Wheel::new();
    let mut sleep = wheel.try_sleep(SECOND);
    let [(first, first_woken), (last, last_woken)] = [(); 2].map(|()| counting_waker());
    register_for(&first, &mut sleep);
    register_for(&last, &mut sleep);
    drop(wheel.shutdown());
    let woken = [first_woken, last_woken].map(|woken| woken.load(Ordering::Relaxed));
    assert_eq!(woken, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_it_ended_has_not_elapsed() {
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(sleep.poll());
    drop(wheel.shutdown());
    assert!(!sleep.is_elapsed());
    assert_ready_eq!(sleep.poll(), Err(SleepError::Shutdown));
    advance(SECOND * 2).await;
    assert!(!sleep.is_elapsed(), "its deadline came, but not in the wheel");
}

#[tokio::test(start_paused = true)]
async fn a_reset_does_not_bring_a_sleep_back() {
    for ago in [Duration::ZERO, TICK, SECOND] {
        let wheel = Wheel::new();
        let [mut to_the_past, mut after_zero] = [(); 2].map(|()| task::spawn(wheel.try_sleep(SECOND)));
        assert_pending!(to_the_past.poll());
        assert_pending!(after_zero.poll());
        drop(wheel.shutdown());
        to_the_past.reset_at(Instant::now() - ago);
        after_zero.reset_after(Duration::ZERO);
        assert_ready_eq!(to_the_past.poll(), Err(SleepError::Shutdown));
        assert_ready_eq!(after_zero.poll(), Err(SleepError::Shutdown));
    }
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(sleep.poll());
    drop(wheel.shutdown());
    sleep.reset_at(Instant::now() + SECOND);
    assert_ready_eq!(sleep.poll(), Err(SleepError::Shutdown));
    sleep.reset_at(Instant::now() - TICK);
    assert_ready_eq!(sleep.poll(), Err(SleepError::Shutdown));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_whose_future_is_ready_still_succeeds() {
    let wheel = Wheel::new();
    let (sender, receiver) = oneshot::channel();
    let mut pending_before = task::spawn(wheel.try_timeout(SECOND, receiver));
    assert_pending!(pending_before.poll());
    drop(wheel.shutdown());
    sender.send(7).unwrap();
    assert_ready_eq!(pending_before.poll(), Ok(Ok(7)));
    assert_eq!(wheel.try_timeout(SECOND, ready(7)).await, Ok(7));
    assert_eq!(wheel.try_timeout(Duration::ZERO, ready(7)).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_was_due_before_has_elapsed_even_if_polled_after() {
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.try_sleep(TICK));
    let mut timeout = task::spawn(wheel.try_timeout(TICK, pending::<()>()));
    assert_pending!(sleep.poll());
    assert_pending!(timeout.poll());
    advance(TICK).await;
    assert!(sleep.is_woken() && timeout.is_woken());
    drop(wheel.shutdown());
    assert_ready_eq!(sleep.poll(), Ok(()));
    assert_ready_eq!(timeout.poll(), Err(TimeoutError::Elapsed));
}

/// The only worker was blocked meanwhile.
#[test]
fn a_timer_that_was_due_before_elapses_even_if_the_driver_is_late() {
    let runtime = threaded_runtime(1);
    let wheel = Wheel::new();
    let scene = runtime.spawn(async move {
        let mut sleep = waiting_task(|| wheel.try_sleep(ms(2)));
        let mut timeout = waiting_task(|| wheel.try_timeout(ms(2), pending::<()>()));
        let mut later = waiting_task(|| wheel.try_sleep(DAY));
        thread::sleep(ms(10));
        drop(wheel.shutdown());
        assert_ready_eq!(sleep.poll(), Ok(()));
        assert_ready_eq!(timeout.poll(), Err(TimeoutError::Elapsed));
        assert_ready_eq!(later.poll(), Err(SleepError::Shutdown));
        let metrics = wheel.metrics();
        assert_eq!((metrics.pending, metrics.cancelled), (0, 1));
    });
    runtime.block_on(scene).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_periodic_run_in_progress_finishes_and_is_the_last() {
    let wheel = Wheel::new();
    for rate in [true, false] {
        let wheel = if rate { wheel.clone() } else { Wheel::new() };
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let run = move || {
            let counted = counted.clone();
            async move {
                tokio::time::sleep(SECOND).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        let builder = wheel.periodic(TICK);
        let series = if rate {
            builder.spawn_at_fixed_rate(run)
        } else {
            builder.spawn_with_fixed_delay(run)
        };
        tokio::time::sleep(SECOND / 2).await;
        drop(wheel.shutdown());
        assert_eq!(runs.load(Ordering::Relaxed), 0);
        tokio::time::sleep(SECOND).await;
        assert_eq!((runs.load(Ordering::Relaxed), series.runs()), (1, 1));
        assert_eq!(series.await, Err(ScheduleError::Shutdown));
    }
}

#[tokio::test(start_paused = true)]
async fn a_series_stopped_before_ends_well() {
    let wheel = Wheel::new();
    let series = wheel.periodic(TICK).spawn_at_fixed_rate(|| async {});
    settle().await;
    series.stop();
    drop(wheel.shutdown());
    assert_eq!(series.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn every_task_that_had_not_started_is_handed_back_once_and_runs_by_awaiting() {
    let wheel = Wheel::new();
    let called = Instant::now();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let handles: Vec<_> = (1..=100_u32)
        .map(|number| {
            let ran = ran.clone();
            wheel.schedule(SECOND * number, async move {
                tokio::task::yield_now().await;
                ran.lock().unwrap().push(number);
            })
        })
        .collect();
    advance(SECOND * 30).await;
    assert!(handles[80].cancel());

    let unprocessed = wheel.shutdown();

    assert_eq!(unprocessed.tasks.len(), 69);
    assert_eq!(ran.lock().unwrap().len(), 30);
    let mut deadlines: Vec<_> = unprocessed
        .tasks
        .iter()
        .map(|task| task.deadline() - called)
        .collect();
    deadlines.sort();
    let expected = (31..=100)
        .filter(|number| *number != 81)
        .map(|number| SECOND * number);
    assert_eq!(deadlines, expected.collect::<Vec<_>>());
    for task in unprocessed.tasks {
        task.await;
    }
    let mut ran = ran.lock().unwrap().clone();
    ran.sort();
    assert_eq!(ran, (1..=100).filter(|number| *number != 81).collect::<Vec<_>>());
    for (number, handle) in (1..).zip(handles) {
        let expected = match number {
            ..=30 => Ok(()),
            81 => Err(ScheduleError::Cancelled),
            _ => Err(ScheduleError::Shutdown),
        };
        assert_eq!(handle.is_cancelled(), expected.is_err());
        assert!(!handle.cancel());
        assert_eq!(handle.await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_handed_back_can_be_spawned_elsewhere_or_dropped() {
    let wheel = Wheel::new();
    let (sender, mut receiver) = oneshot::channel();
    let owned = Arc::new(());
    let seen = Arc::downgrade(&owned);
    drop(wheel.schedule(SECOND, async { sender.send(7) }));
    drop(wheel.schedule(SECOND * 2, async move {
        pending::<()>().await;
        drop(owned);
    }));
    let mut tasks = wheel.shutdown().tasks;
    tasks.sort_by_key(|task| task.deadline());
    let [spawned, dropped] = <[_; 2]>::try_from(tasks).unwrap();
    tokio::spawn(spawned.into_future());
    settle().await;
    assert_eq!(receiver.try_recv(), Ok(7));
    assert!(
        seen.upgrade().is_some(),
        "the other's future is the caller's until it is dropped"
    );
    drop(dropped);
    assert!(seen.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_task_handed_back_is_its_callers() {
    let wheel = Wheel::new();
    drop(wheel.schedule(SECOND, async { panic!("boom") }));
    let task = wheel.shutdown().tasks.pop().unwrap();
    let joined = tokio::spawn(task.into_future()).await;
    assert!(joined.unwrap_err().is_panic());
}

#[tokio::test(start_paused = true)]
async fn a_second_call_returns_nothing_more() {
    let wheel = Wheel::new();
    let mut sleep = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(sleep.poll());
    drop(wheel.schedule(SECOND, async {}));
    assert_eq!(wheel.shutdown().tasks.len(), 1);
    drop(wheel.schedule(SECOND, async {}));
    for wheel in [wheel.clone(), wheel] {
        assert!(wheel.shutdown().tasks.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn it_ends_every_task_of_the_wheel_but_that_of_the_engine() {
    let wheel = Wheel::new();
    let alive = || Handle::current().metrics().num_alive_tasks();
    drop(wheel.schedule(SECOND, async {}));
    drop(wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {}));
    settle().await;
    assert_eq!(alive(), 2, "the engine's and the series'");
    drop(wheel.shutdown());
    settle().await;
    assert_eq!(alive(), 1, "the engine's, for timers that go on");
    drop(wheel);
    settle().await;
    assert_eq!(alive(), 0);
}

/// In each of three runtimes, one of which is not driven.
#[test]
fn it_concerns_all_runtimes() {
    let wheel = Wheel::new();
    let runtimes = [real_runtime(), paused_runtime(), threaded_runtime(1)];
    let mut pending: Vec<_> = runtimes
        .iter()
        .map(|runtime| {
            let _entered = runtime.enter();
            let mut sleep = task::spawn(wheel.try_sleep(DAY));
            assert_pending!(sleep.poll());
            (sleep, wheel.schedule(DAY, async {}))
        })
        .collect();
    assert_eq!(wheel.pending(), 6);
    let unprocessed = wheel.shutdown();
    assert_eq!(unprocessed.tasks.len(), 3);
    assert_eq!(wheel.pending(), 3);
    for (sleep, task) in &mut pending {
        assert!(sleep.is_woken() && task.is_cancelled());
        assert_ready_eq!(sleep.poll(), Err(SleepError::Shutdown));
    }
    assert_eq!(wheel.pending(), 0);
}

#[test]
fn it_needs_no_runtime() {
    let wheel = Wheel::new();
    let runtime = real_runtime();
    let handle = {
        let _entered = runtime.enter();
        wheel.schedule(SECOND, async {})
    };
    let unprocessed = wheel.shutdown();
    for task in unprocessed.tasks {
        futures::executor::block_on(task.into_future());
    }
    assert_eq!(futures::executor::block_on(handle), Err(ScheduleError::Shutdown));
}

/// Shuts the wheel down when woken: from inside the driver, or inside another shutdown.
struct ShutsDown(Wheel, AtomicUsize);

impl Wake for ShutsDown {
    fn wake(self: Arc<Self>) {
        assert!(self.0.shutdown().tasks.len() <= 1);
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_may_shut_the_wheel_down_from_inside_a_shutdown() {
    let wheel = Wheel::new();
    let shuts = Arc::new(ShutsDown(wheel.clone(), AtomicUsize::new(0)));
    let waker = Waker::from(shuts.clone());
    let mut sleep = wheel.try_sleep(SECOND);
    register_for(&waker, &mut sleep);
    let mut handle = wheel.schedule(SECOND, async {});
    register_for(&waker, &mut handle);
    let unprocessed = wheel.shutdown();
    assert_eq!(unprocessed.tasks.len(), 1);
    assert_eq!(
        shuts.1.load(Ordering::Relaxed),
        2,
        "both were woken, and found nothing left"
    );
}

#[tokio::test(start_paused = true)]
async fn one_in_the_middle_of_a_turn_ends_no_timer_that_is_due() {
    let wheel = Wheel::new();
    let shuts = Arc::new(ShutsDown(wheel.clone(), AtomicUsize::new(0)));
    let waker = Waker::from(shuts.clone());
    // More than a turn takes out under one lock.
    let mut sleeps: Vec<_> = (0..1_000).map(|_| wheel.try_sleep(SECOND)).collect();
    sleeps.iter_mut().for_each(|sleep| register_for(&waker, sleep));
    let mut later = wheel.try_sleep(2 * SECOND);
    register(&mut later);
    advance(SECOND).await;
    // Each was woken when it was due, and those whose turn came later by the shutdown too.
    assert!(shuts.1.load(Ordering::Relaxed) > 1_000);
    assert_eq!(wheel.metrics().expired, 1_000);
    for sleep in sleeps {
        assert_eq!(unconstrained(sleep).now_or_never(), Some(Ok(())));
    }
    assert_eq!(later.now_or_never(), Some(Err(SleepError::Shutdown)));
}
