//! A runtime that ends, is not driven, or has no timers: what waited on it goes on elsewhere, and nothing
//! hangs.

// Futures that outlive their runtime are what many of these tests are about.
#![allow(clippy::async_yields_async)]

use crate::support;

use std::{
    future::{Future, pending, poll_fn},
    panic::{self, AssertUnwindSafe, catch_unwind},
    pin::Pin,
    process,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tickwheel::{Sleep, Wheel};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, assert_adds_up, assert_at_rest, block_until, ms, own_process::in_own_process,
    paused_runtime, real_runtime, register, threaded_runtime, waiting, waiting_task, waker_of, within,
};

const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn on_a_runtime_that_is_not_driven_timers_wait_until_it_is() {
    let runtime = real_runtime();
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let mut sleep = runtime.block_on(async { waiting_task(|| wheel.sleep(ms(2))) });
    // The real clock goes on while its runtime does not; a paused one would stop with it.
    block_until(sleep.deadline() + ms(2));
    assert!(!sleep.is_woken(), "nobody turns its part of the wheel");
    runtime.block_on(wheel.sleep(ms(2)));
    assert!(sleep.is_woken());
    assert_ready!(sleep.poll());
}

#[test]
fn a_runtime_dropped_at_every_stage_of_a_sleep_leaves_no_timer_behind() {
    const STAGES: [&str; 6] = [
        "not polled",
        "waiting",
        "reset to later",
        "reset to earlier",
        "expired",
        "completed",
    ];
    for make_runtime in [real_runtime, paused_runtime, || threaded_runtime(2)] {
        for (stage, goes_on) in STAGES.iter().flat_map(|stage| [(*stage, false), (*stage, true)]) {
            let wheel = Wheel::new();
            let runtime = make_runtime();
            let kept = runtime.block_on(async {
                if stage == "not polled" {
                    return task::spawn(wheel.sleep(ms(20)));
                }
                let mut sleep = waiting_task(|| wheel.sleep(ms(20)));
                match stage {
                    "reset to later" => sleep.reset_at(Instant::now() + ms(40)),
                    "reset to earlier" => sleep.reset_at(Instant::now() + ms(1)),
                    "expired" => wheel.sleep(ms(40)).await,
                    "completed" => {
                        wheel.sleep(ms(40)).await;
                        assert_ready!(sleep.poll());
                    }
                    _ => {}
                }
                sleep
            });
            drop(runtime);
            let is_waiting = ["waiting", "reset to later", "reset to earlier"].contains(&stage);
            assert!(kept.is_woken() || !is_waiting, "{stage}: to be polled elsewhere");
            assert_adds_up(&wheel);
            let other = wheel.sleep(ms(5));
            if goes_on {
                make_runtime().block_on(kept);
            } else {
                drop(kept);
                assert_at_rest(&wheel);
            }
            make_runtime().block_on(other);
            assert_at_rest(&wheel);
        }
    }
}

/// Tokio's alternative timer fires all its timers when the runtime shuts down, and only then are tasks
/// dropped.
#[test]
fn a_runtime_shuts_down_however_far_away_the_next_timer_is() {
    for make_runtime in [real_runtime, || threaded_runtime(1), || threaded_runtime(2)] {
        within(60 * SECOND, move || {
            let (wheel, runtime) = (Wheel::new(), make_runtime());
            let mut sleep = runtime.block_on(async {
                // From here on, the driver waits for its next timer.
                wheel.sleep(ms(1)).await;
                waiting_task(|| wheel.sleep(DAY))
            });
            drop(runtime);
            assert!(sleep.is_woken());
            assert_pending!(paused_runtime().block_on(async { sleep.poll() }));
        });
    }
}

/// Further than Tokio takes for the far future.
#[test]
fn a_runtime_shuts_down_after_decades_of_a_paused_clock() {
    within(60 * SECOND, || {
        let (wheel, runtime) = (Wheel::new(), paused_runtime());
        let sleep = runtime.block_on(async {
            wheel.sleep(DAY * 365 * 45).await;
            waiting_task(|| wheel.sleep(DAY * 365 * 29))
        });
        drop(runtime);
        assert!(sleep.is_woken());
        assert_eq!(wheel.metrics().engines, 0);
        let deadline = sleep.deadline();
        paused_runtime().block_on(async {
            sleep.await;
            assert!(Instant::now() >= deadline);
        });
    });
}

#[test]
fn a_runtime_dropped_in_the_middle_of_a_turn_loses_no_timer() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let runtime = paused_runtime();
    // More than the driver wakes before it yields, and it is dropped at the yield.
    let mut sleeps: Vec<_> = runtime.block_on(async {
        let mut sleeps: Vec<_> = (0..5_000).map(|_| task::spawn(wheel.sleep(ms(100)))).collect();
        sleeps.iter_mut().for_each(|sleep| assert_pending!(sleep.poll()));
        tokio::time::advance(ms(100)).await;
        sleeps
    });
    drop(runtime);
    assert!(sleeps.iter().all(|sleep| sleep.is_woken()));
    assert_adds_up(&wheel);
    paused_runtime().block_on(async {
        for sleep in sleeps.drain(..) {
            sleep.await;
        }
    });
    assert_at_rest(&wheel);
}

/// The driver wakes a timer of one shard and is kept from the other. Meanwhile its runtime shuts down, and
/// another one begins a part of its own.
#[test]
fn a_runtime_that_goes_while_its_driver_is_at_work_disturbs_no_other() {
    let wheel = Wheel::builder().shards(2).build().unwrap();
    let runtime = threaded_runtime(2);
    let (at_work, working) = mpsc::channel();
    let (go_on, going_on) = mpsc::channel::<()>();
    let (went_on, gone_on) = mpsc::channel();
    let going_on = Mutex::new(going_on);
    let waker = waker_of(move || {
        at_work.send(()).unwrap();
        going_on.lock().unwrap().recv().unwrap();
        went_on.send(()).unwrap();
    });
    runtime.block_on(async { wheel.sleep(ms(1)).await });
    runtime.block_on(runtime.spawn(async {})).unwrap();
    let entered = runtime.enter();
    let sleep = waiting(&waker, || wheel.sleep(ms(20)));
    drop(entered);
    working.recv().unwrap();
    runtime.shutdown_background();
    let other = paused_runtime();
    other.block_on(async {
        let start = Instant::now();
        let mut pending = wheel.sleep(HOUR);
        register(&mut pending);
        go_on.send(()).unwrap();
        gone_on.recv().unwrap();
        // What that driver does beside is over by then, or nearly.
        thread::sleep(ms(20));
        pending.await;
        let took = start.elapsed();
        assert!(HOUR <= took && took <= HOUR + TICK, "an hour took {took:?}");
    });
    drop(sleep);
    drop(other);
    assert_at_rest(&wheel);
}

/// As with `panic = "abort"`: no panic is survived, be it caught or not. `.ci/alternative-timer` plays this on
/// Tokio's alternative timer, which ends before the tasks that use it.
#[test]
fn a_runtime_that_is_dropped_while_its_tasks_sleep_panics_nowhere() {
    if !in_own_process(a_runtime_that_is_dropped_while_its_tasks_sleep_panics_nowhere, "") {
        return;
    }
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
    for round in 0..100 {
        let (runtime, wheel) = (threaded_runtime(2), Wheel::new());
        for task in 0..8 {
            let (wheel, mut random) = (wheel.clone(), fastrand::Rng::with_seed(8 * round + task));
            runtime.spawn(async move {
                loop {
                    wheel.sleep(Duration::from_micros(random.u64(500..2_600))).await;
                }
            });
        }
        thread::sleep(Duration::from_micros(100 * (round % 40)));
        drop(runtime);
        assert_eq!(wheel.pending(), 0);
        assert_adds_up(&wheel);
    }
}

/// Tokio's own are over then: the usual ones panic, and the alternative ones have elapsed.
#[test]
fn a_sleep_that_is_pending_when_its_runtime_ends_hangs_no_thread_that_has_entered_it() {
    let runtime = threaded_runtime(2);
    let handle = runtime.handle().clone();
    let wheel = Wheel::new();
    let (tokios, ours) = runtime.block_on(async {
        let mut sleeps = (Box::pin(tokio::time::sleep(HOUR)), Box::pin(wheel.sleep(HOUR)));
        register(&mut sleeps.0);
        register(&mut sleeps.1);
        sleeps
    });
    drop(runtime);
    let _entered = handle.enter();
    let outcome = |poll: Result<Poll<()>, _>| poll.map_err(drop);
    let polled = |mut sleep: Pin<Box<dyn Future<Output = ()>>>| {
        let mut cx = Context::from_waker(Waker::noop());
        outcome(catch_unwind(AssertUnwindSafe(|| sleep.as_mut().poll(&mut cx))))
    };
    assert_eq!(polled(ours), polled(tokios));
}

/// The destructor of what a task owns, as the runtime drops that task.
struct PollsAsItGoes(Arc<Mutex<Sleep>>);

impl Drop for PollsAsItGoes {
    fn drop(&mut self) {
        register(&mut *self.0.lock().unwrap());
    }
}

/// With Tokio's alternative timer too, which has ended by the time at which tasks are dropped, in any order.
#[test]
fn a_sleep_that_is_first_polled_as_its_runtime_ends_goes_on_in_another() {
    within(Duration::from_secs(60), || {
        let (wheel, runtime) = (Wheel::new(), threaded_runtime(2));
        let mut sleeps = Vec::new();
        let mut spawn_some = || {
            for _ in 0..8 {
                let sleep = Arc::new(Mutex::new(wheel.sleep(ms(300))));
                let polled = PollsAsItGoes(sleep.clone());
                sleeps.push(sleep);
                runtime.spawn(async move {
                    let _polled = polled;
                    pending::<()>().await;
                });
            }
        };
        spawn_some();
        runtime.block_on(wheel.sleep(ms(20)));
        // The task of the engine is among theirs.
        spawn_some();
        drop(runtime);
        for sleep in sleeps {
            threaded_runtime(1).block_on(poll_fn(|cx| Pin::new(&mut *sleep.lock().unwrap()).poll(cx)));
        }
    });
}
