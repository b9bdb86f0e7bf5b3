//! Bugs found by reviews, each with the test that failed before its fix.

use crate::support::{DAY, SECOND, paused_runtime, real_runtime, register, settle, threaded_runtime, within};

use std::{
    cell::RefCell,
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
    time::Duration,
};

use tickwheel::{IdleHandle, Scheduled, Wheel};
use tokio::{
    runtime,
    time::{Instant, advance, pause},
};

const HOUR: Duration = Duration::from_secs(3600);

async fn assert_takes(duration: Duration, sleep: impl Future) {
    let start = Instant::now();
    sleep.await;
    let took = start.elapsed();
    assert!(
        duration <= took && took <= duration + SECOND,
        "{took:?} instead of {duration:?}"
    );
}

#[tokio::test]
async fn a_clock_stopped_while_the_driver_waits_makes_no_sleep_early() {
    let wheel = Wheel::new();
    wheel.sleep(Duration::from_millis(10)).await;
    pause();
    advance(DAY).await;
    assert_takes(HOUR, wheel.sleep(HOUR)).await;
}

#[tokio::test]
async fn a_clock_stopped_while_the_driver_waits_makes_no_timeout_early() {
    let wheel = Wheel::new();
    wheel.sleep(Duration::from_millis(10)).await;
    let mut far = pin!(wheel.sleep(1000 * HOUR));
    register(&mut far);
    tokio::task::yield_now().await;
    pause();
    advance(DAY).await;
    assert_takes(HOUR, wheel.timeout(HOUR, pending::<()>())).await;
}

/// The driver is overdue, and its task has not run since the clock was paused.
#[tokio::test]
async fn timers_that_are_due_under_a_clock_just_paused_are_over() {
    let wheel = Wheel::new();
    let (mut near, mut far, mut fresh) = (wheel.sleep(SECOND), wheel.sleep(HOUR), wheel.sleep(HOUR));
    register(&mut near);
    register(&mut far);
    tokio::task::yield_now().await;
    pause();
    advance(2 * SECOND).await;
    far.reset_at(Instant::now() - SECOND / 2);
    assert!(futures::poll!(&mut far).is_ready());
    fresh.reset_at(Instant::now() - SECOND / 2);
    assert!(futures::poll!(&mut fresh).is_ready());
    assert!(futures::poll!(&mut near).is_ready());
}

#[tokio::test(start_paused = true)]
async fn an_interval_whose_handles_are_gone_keeps_its_rate() {
    let wheel = Wheel::new();
    let mut interval = wheel.interval(SECOND);
    drop(wheel);
    let start = Instant::now();
    for tick in 0..10 {
        interval.tick().await;
        let late = start.elapsed() - SECOND * tick;
        assert!(late <= Duration::from_millis(12), "tick {tick} is {late:?} late");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// A waker whose drop asks the wheel something, which no lock may be held for.
struct Asks(Box<dyn Fn() + Send + Sync>);

impl Wake for Asks {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Asks {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[tokio::test]
async fn the_waker_of_a_timeout_that_is_refused_is_dropped_outside_the_lock() {
    let wheel = Wheel::builder().shards(1).max_pending(1).build().unwrap();
    let mut occupant = wheel.try_sleep(HOUR);
    register(&mut occupant);
    let asked = wheel.clone();
    let waker = Waker::from(Arc::new(Asks(Box::new(move || assert_eq!(asked.pending(), 1)))));
    let mut refused = pin!(wheel.try_timeout(HOUR, pending::<()>()));
    assert!(refused.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    drop(waker);
}

#[test]
fn a_pending_future_whose_handles_are_gone_is_not_refused() {
    let runtime = threaded_runtime(1);
    let _entered = runtime.enter();
    for _ in 0..2_000 {
        let mut sleep = Wheel::builder()
            .shards(1)
            .ticks_per_wheel(2)
            .levels(1)
            .build()
            .unwrap()
            .sleep(SECOND);
        register(&mut sleep);
    }
}

#[test]
fn a_task_of_a_runtime_without_timers_is_not_leaked() {
    let token = Arc::new(());
    let held = token.clone();
    let without_timers = runtime::Builder::new_current_thread().build().unwrap();
    let wheel = Wheel::new();
    let scheduled = catch_unwind(AssertUnwindSafe(|| {
        without_timers.block_on(async { drop(wheel.schedule(SECOND, async move { drop(held) })) });
    }));
    assert!(scheduled.is_err());
    drop((without_timers, wheel));
    assert_eq!(Arc::strong_count(&token), 1);
}

/// In the destructor of a thread-local, Tokio's own thread-locals may be gone. A panic there aborts the
/// process.
#[test]
fn a_touch_in_the_destructor_of_a_thread_local_is_one() {
    struct Touches(Option<IdleHandle>);
    impl Drop for Touches {
        fn drop(&mut self) {
            self.0.iter().for_each(IdleHandle::touch);
        }
    }
    thread_local! {
        static TOUCHES: RefCell<Touches> = const { RefCell::new(Touches(None)) };
    }
    let driving = real_runtime();
    for driven in [false, true] {
        let wheel = Wheel::new();
        if driven {
            driving.block_on(async { wheel.sleep(Duration::from_millis(1)).await });
        }
        let idle = wheel.idle_timer(HOUR);
        let touched = format!("{idle:?}");
        let handle = idle.handle();
        let thread = std::thread::spawn(|| {
            // Dropped last, because it is made first.
            TOUCHES.with_borrow_mut(|touches| touches.0 = Some(handle));
            paused_runtime().block_on(async { tokio::task::yield_now().await });
            std::thread::sleep(Duration::from_millis(2));
        });
        thread.join().unwrap();
        assert_ne!(format!("{idle:?}"), touched, "driven: {driven}");
    }
}

/// As the touch above. Where there is no engine yet, none can begin.
#[test]
fn a_task_scheduled_in_the_destructor_of_a_thread_local_runs_if_there_is_an_engine() {
    type Sender = std::sync::mpsc::Sender<[Scheduled<u32>; 2]>;
    struct Schedules(Option<(Wheel, Instant, Sender)>);
    impl Drop for Schedules {
        fn drop(&mut self) {
            if let Some((wheel, past, sender)) = &self.0 {
                let later = wheel.schedule(Duration::from_millis(1), async { 7 });
                let at_once = wheel.schedule_at(*past, async { 8 });
                sender.send([later, at_once]).unwrap();
            }
        }
    }
    thread_local! {
        static SCHEDULES: RefCell<Schedules> = const { RefCell::new(Schedules(None)) };
    }
    for clock in [real_runtime, paused_runtime, || threaded_runtime(1)] {
        let driving = clock();
        let wheel = Wheel::builder().handle(driving.handle().clone()).build().unwrap();
        let past = driving.block_on(async {
            wheel.sleep(Duration::from_millis(1)).await;
            let past = Instant::now() + Duration::from_millis(5);
            // Tokio has processed this instant, and the wheel has not.
            tokio::time::sleep(Duration::from_millis(10)).await;
            past
        });
        let (sender, tasks) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            SCHEDULES.with_borrow_mut(|schedules| schedules.0 = Some((wheel, past, sender)));
            paused_runtime().block_on(async { tokio::task::yield_now().await });
        });
        thread.join().unwrap();
        let tasks = tasks.recv().unwrap();
        let results = driving.block_on(futures::future::join_all(tasks));
        assert_eq!(results, [Ok(7), Ok(8)]);
    }
}

/// A moment is at most 511 years after the beginning. Beyond, the clock of the wheel stands still.
#[test]
fn sleeps_end_also_after_centuries() {
    // A timeout whose duration overflows the clock never elapses.
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    within(SECOND * 60, || {
        paused_runtime().block_on(async {
            let wheel = Wheel::new();
            for _ in 0..12 {
                wheel.sleep(Duration::MAX).await;
                assert!(wheel.timeout(CENTURY, pending::<()>()).await.is_err());
            }
        });
    });
}

/// Plays `scene` on a paused clock in a runtime that then ends. Returns whether there still is a handle of the runtime.
fn keeps_its_runtime(scene: impl AsyncFnOnce(Wheel)) -> bool {
    let of_runtime = Arc::new(());
    let kept = of_runtime.clone();
    // The builder does not live on.
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .on_thread_park(move || {
            let _ = &kept;
        })
        .build()
        .unwrap();
    runtime.block_on(scene(Wheel::new()));
    drop(runtime);
    Arc::strong_count(&of_runtime) > 1
}

/// Tokio has fired the engine's timer, and the task that makes its turn has not run yet.
#[test]
fn starts_between_tokios_timer_and_its_turn_keep_no_runtime() {
    for starts in [1, 2] {
        let keeps_it = keeps_its_runtime(async |wheel| {
            let mut near = wheel.sleep(Duration::from_millis(10));
            register(&mut near);
            // The engine's task waits to be told.
            settle().await;
            advance(SECOND).await;
            (0..starts).for_each(|_| register(&mut wheel.sleep(SECOND)));
        });
        assert!(!keeps_it, "after {starts}");
    }
}

/// Tokio's timer is never set as far ahead as this, so it has fired before its moment.
#[test]
fn an_engine_whose_far_timer_has_fired_ends_before_its_turn() {
    let keeps_it = keeps_its_runtime(async |wheel| {
        let mut far = wheel.sleep(30 * DAY);
        register(&mut far);
        settle().await;
        advance(7 * DAY).await;
    });
    assert!(!keeps_it);
}
