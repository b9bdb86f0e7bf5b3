//! The driver: started on demand, replaced when its runtime ends, correct on every clock, and unaffected by wakers.

// Futures that outlive their runtime are what many of these tests are about.
#![allow(clippy::async_yields_async)]

use crate::support;

use std::{
    future::{Future, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::Waker,
    thread,
    time::Duration,
};

use futures::FutureExt;
use tickwheel::{Sleep, SleepError, Wheel};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, pause, resume},
};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};

use support::{
    DAY, SECOND, TICK, advance, alive_tasks, assert_adds_up, assert_at_rest, assert_due, counting_waker,
    make_tick, ms, on_a_clock_ahead_by, paused_runtime, real_runtime, register, register_for, settle,
    threaded_runtime, waiting, waiting_task, waker_of, within,
};

const HOUR: Duration = Duration::from_secs(3_600);

/// Blocks the thread until the real clock says so.
fn block_until(deadline: Instant) {
    while std::time::Instant::now() < deadline.into_std() {
        thread::yield_now();
    }
}

// Lazy, and quiet when there is nothing to do.

#[tokio::test(start_paused = true)]
async fn the_first_registration_starts_it_and_nothing_before_does() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(SECOND);
    sleep.reset(Instant::now() + SECOND);
    let mut interval = wheel.interval(SECOND);
    interval.tick().await; // at once
    wheel.timeout(SECOND, async {}).await.unwrap(); // ready
    wheel.sleep(Duration::ZERO).await;
    settle().await;
    assert_eq!(alive_tasks(), 0);

    register(&mut sleep);
    assert_eq!(alive_tasks(), 1);
    let mut other = wheel.sleep(SECOND);
    register(&mut other);
    assert_eq!(alive_tasks(), 1, "one task for each wheel");
}

#[tokio::test(start_paused = true)]
async fn auto_advance_jumps_from_deadline_to_deadline() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let tasks: Vec<_> = (1..=20_u32)
        .map(|n| {
            let wheel = wheel.clone();
            tokio::spawn(async move {
                wheel
                    .timeout(SECOND * 600 * n, pending::<()>())
                    .await
                    .unwrap_err();
                start.elapsed()
            })
        })
        .collect();
    for (n, task) in (1..).zip(tasks) {
        assert_eq!(task.await.unwrap(), SECOND * 600 * n);
    }
    let visits = wheel.metrics().wakeups;
    assert!(
        visits <= 20 * 4,
        "{visits} visits for 20 deadlines in 200 minutes"
    );
}

#[tokio::test(start_paused = true)]
async fn an_idle_wheel_costs_no_wake_up() {
    let wheel = Wheel::new();
    wheel.sleep(SECOND).await;
    settle().await;
    let before = wheel.metrics();
    for _ in 0..1_000 {
        advance(SECOND).await;
    }
    assert_eq!(wheel.metrics(), before);
}

#[tokio::test(start_paused = true)]
async fn timers_far_away_cost_no_wake_up_until_they_are_near() {
    let wheel = Wheel::new();
    let mut sleeps: Vec<_> = (0..1_000).map(|n| wheel.sleep(DAY + ms(n))).collect();
    sleeps.iter_mut().for_each(register);
    settle().await;
    let before = wheel.metrics().wakeups;
    for _ in 0..600 {
        advance(SECOND).await;
    }
    assert!(wheel.metrics().wakeups - before <= 1, "ten minutes of nothing");
}

#[tokio::test]
async fn a_wheel_that_ticks_under_load_dozes_again_afterwards() {
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let mut busy: Vec<_> = (0..2_000)
        .map(|_| wheel.timeout(SECOND * 3600, pending::<()>()))
        .collect();
    busy.iter_mut().for_each(register);
    let started = std::time::Instant::now();
    while wheel.metrics().dozes == 0 {
        assert!(
            started.elapsed() < SECOND * 60,
            "it never dozed: {:?}",
            wheel.metrics()
        );
        // It ticks and dozes by the real clock alone.
        tokio::time::sleep(ms(1)).await;
    }
}

#[test]
fn a_driver_that_ends_tells_the_next_how_far_it_came() {
    let first = paused_runtime();
    let sleep = first.block_on(async {
        let wheel = Wheel::new();
        let mut other = wheel.sleep(SECOND * 10);
        register(&mut other);
        let sleep = wheel.sleep(SECOND * 20);
        drop(wheel);
        other.await;
        settle().await;
        assert_eq!(alive_tasks(), 0, "nobody needs a driver");
        sleep
    });
    drop(first);
    assert_left(&paused_runtime(), sleep, SECOND * 10);
}

#[tokio::test(start_paused = true)]
async fn a_future_left_without_handles_counts_the_time_without_a_driver() {
    let wheel = Wheel::new();
    let mut first = task::spawn(wheel.sleep(SECOND));
    assert_pending!(first.poll());
    let mut second = wheel.sleep(SECOND * 3);
    let (mut later, mut earlier) = (wheel.sleep(SECOND * 3), wheel.sleep(SECOND * 3));
    drop((wheel, first));
    settle().await;
    assert_eq!(alive_tasks(), 0, "the driver has gone");
    let start = Instant::now();
    advance(SECOND).await;
    later.reset(start + SECOND * 4);
    earlier.reset(start + SECOND * 2);
    (&mut second).await;
    assert_eq!(start.elapsed(), SECOND * 3);
    earlier.await;
    assert_eq!(start.elapsed(), SECOND * 3);
    later.await;
    assert_eq!(start.elapsed(), SECOND * 4);
    drop(second);
    settle().await;
    assert_eq!(alive_tasks(), 0);
}

// Runtimes.

#[test]
fn futures_await_on_a_foreign_executor_with_a_handle() {
    let runtime = threaded_runtime(2);
    let wheel = Wheel::builder().handle(runtime.handle().clone()).build().unwrap();
    let start = std::time::Instant::now();
    futures::executor::block_on(async {
        wheel.sleep(ms(15)).await;
        assert!(start.elapsed() >= ms(15));
        assert!(wheel.timeout(ms(15), pending::<()>()).await.is_err());
        assert!(start.elapsed() >= ms(30));
        let mut interval = wheel.interval(ms(5));
        for _ in 0..3 {
            interval.tick().await;
        }
        wheel.idle_timer(ms(5)).await;
    });
    assert!(start.elapsed() >= ms(45));
    assert_at_rest(&wheel);
}

#[test]
fn a_wheel_that_is_driven_already_serves_a_foreign_executor_without_a_handle() {
    let runtime = threaded_runtime(2);
    let wheel = Wheel::new();
    runtime.block_on(wheel.sleep(ms(1)));
    let start = std::time::Instant::now();
    futures::executor::block_on(wheel.sleep(ms(15)));
    assert!(start.elapsed() >= ms(15));
}

#[test]
fn a_handle_drives_the_wheel_though_another_runtime_polls_it() {
    let dedicated = threaded_runtime(2);
    let wheel = Wheel::builder()
        .handle(dedicated.handle().clone())
        .build()
        .unwrap();
    real_runtime().block_on(async {
        wheel.sleep(ms(5)).await;
        assert_eq!(alive_tasks(), 0, "the driver is not here");
    });
    assert_eq!(dedicated.metrics().num_alive_tasks(), 1, "but there");
}

#[test]
fn a_wheel_whose_handles_runtime_is_gone_is_driven_by_the_one_that_polls() {
    let dedicated = threaded_runtime(2);
    let wheel = Wheel::builder()
        .handle(dedicated.handle().clone())
        .build()
        .unwrap();
    let pending = waiting(Waker::noop(), || wheel.sleep(ms(30)));
    drop(dedicated);
    // Outside any runtime there is nobody left to drive it, and a future says so instead of hanging or panicking.
    let mut outside = task::spawn(wheel.try_sleep(ms(5)));
    assert_ready_eq!(outside.poll(), Err(SleepError::Shutdown));
    let start = std::time::Instant::now();
    real_runtime().block_on(async {
        wheel.sleep(ms(5)).await;
        assert!(start.elapsed() >= ms(5));
        pending.await;
    });
    assert_at_rest(&wheel);
}

/// The clock of a paused runtime stands still, so it falls behind, unless a test moves it ahead.
#[test]
fn a_runtime_given_by_handle_that_has_ended_is_asked_for_nothing_more() {
    for ahead in [Duration::ZERO, HOUR] {
        within(60 * SECOND, move || {
            let dedicated = paused_runtime();
            let wheel = Wheel::builder()
                .handle(dedicated.handle().clone())
                .build()
                .unwrap();
            dedicated.block_on(async {
                wheel.sleep(ms(5)).await;
                advance(ahead).await;
            });
            block_until(Instant::now() + ms(50));
            drop(dedicated);
            real_runtime().block_on(async {
                let start = std::time::Instant::now();
                wheel.sleep(ms(40)).await;
                assert!(start.elapsed() >= ms(40), "it is early");
                assert_eq!(wheel.schedule(ms(1), async { 7 }).await, Ok(7));
                let (sender, mut runs) = tokio::sync::mpsc::unbounded_channel();
                let _periodic = wheel.periodic(ms(1)).spawn_at_fixed_rate(move || {
                    let _ = sender.send(());
                    async {}
                });
                assert_eq!(runs.recv().await, Some(()));
            });
        });
    }
}

#[test]
fn a_runtime_without_timers_panics_in_tokios_words_and_spoils_nothing() {
    let without_timers = Builder::new_current_thread().build().unwrap();
    let wheel = Wheel::new();
    let panic = catch_unwind(AssertUnwindSafe(|| without_timers.block_on(wheel.sleep(ms(5))))).unwrap_err();
    let message = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|message| (*message).to_owned()))
        .unwrap();
    assert!(message.contains("timers are disabled"), "{message}");
    real_runtime().block_on(wheel.sleep(ms(5)));
    assert_at_rest(&wheel);
}

#[test]
fn the_first_pending_poll_outside_a_runtime_panics_in_tokios_words_and_spoils_nothing() {
    let wheel = Wheel::new();
    let in_a_minute = Instant::now() + SECOND * 60;
    let mut interval = wheel.interval(SECOND);
    let two_ticks = async {
        interval.tick().await; // at once
        interval.tick().await;
    };
    let futures = [
        wheel.sleep(SECOND).boxed(),
        wheel.timeout(SECOND, pending::<()>()).map(drop).boxed(),
        wheel.timeout_at(in_a_minute, pending::<()>()).map(drop).boxed(),
        wheel.idle_timer(SECOND).boxed(),
        two_ticks.boxed(),
    ];
    for (number, future) in futures.into_iter().enumerate() {
        let outside = AssertUnwindSafe(|| futures::executor::block_on(future));
        let panic = catch_unwind(outside).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        let tokios = "there is no reactor running, must be called from the context of a Tokio 1.x runtime";
        assert!(message.contains(tokios), "future {number}: {message}");
        assert!(
            message.contains("handle"),
            "future {number} says what to do: {message}"
        );
    }
    real_runtime().block_on(wheel.sleep(ms(5)));
    assert_at_rest(&wheel);
}

#[test]
fn a_runtime_that_is_not_driven_stops_the_wheel_it_drives_and_goes_on_later() {
    let runtime = real_runtime();
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let mut sleep = runtime.block_on(async { waiting_task(|| wheel.sleep(ms(2))) });
    // The real clock goes on while its runtime does not; a paused one would stop with it.
    block_until(sleep.deadline() + ms(2));
    assert!(!sleep.is_woken(), "nobody turns the wheel");
    runtime.block_on(wheel.sleep(ms(2)));
    assert!(sleep.is_woken());
    assert_ready!(sleep.poll());
}

// A runtime dropped.

#[test]
fn a_runtime_dropped_at_every_stage_of_a_sleep_leaves_no_timer_behind() {
    for make_runtime in [real_runtime, paused_runtime, || threaded_runtime(2)] {
        for stage in 0..7 {
            let wheel = Wheel::new();
            let runtime = make_runtime();
            let kept = runtime.block_on(async {
                let mut sleep = match stage {
                    0 => task::spawn(wheel.sleep(ms(20))),
                    _ => waiting_task(|| wheel.sleep(ms(20))),
                };
                match stage {
                    2 => settle().await,
                    3 => sleep.reset(Instant::now() + ms(40)),
                    4 => sleep.reset(Instant::now() + ms(1)),
                    5 => wheel.sleep(ms(40)).await, // expired, not polled
                    6 => {
                        wheel.sleep(ms(40)).await;
                        assert_ready!(sleep.poll());
                    }
                    _ => {}
                }
                sleep
            });
            drop(runtime);
            if (1..=4).contains(&stage) {
                assert!(kept.is_woken(), "stage {stage}: it is to look for another driver");
            }
            assert_adds_up(&wheel);
            // Half of them go with their runtime, the others on the next one.
            let other = wheel.sleep(ms(5));
            if stage % 2 == 0 {
                drop(kept);
                assert_at_rest(&wheel);
            } else {
                make_runtime().block_on(kept);
            }
            make_runtime().block_on(other);
            assert_at_rest(&wheel);
        }
    }
}

/// Tokio's alternative timer fires all its timers when the runtime shuts down, and only then are tasks dropped.
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

#[test]
fn a_runtime_dropped_in_the_middle_of_a_visit_loses_no_timer() {
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

// Replaced by one with another clock.

/// What is left of `sleep`, by the clock of `runtime`, to the tick and never early.
#[track_caller]
fn assert_left(runtime: &Runtime, sleep: impl Future<Output = ()>, left: Duration) {
    let taken = runtime.block_on(async {
        let start = Instant::now();
        sleep.await;
        start.elapsed()
    });
    assert!(taken >= left, "{:?} early", left - taken);
    assert!(taken - left < TICK + ms(2), "{:?} late", taken - left);
}

/// A sleep that was registered, and whose driver has gone.
fn left_by_a_driver(wheel: &Wheel, ahead: Duration, duration: Duration) -> Sleep {
    on_a_clock_ahead_by(ahead, async || {
        let mut sleep = wheel.sleep(duration);
        register(&mut sleep);
        sleep
    })
}

#[test]
fn what_was_left_of_each_duration_is_kept_by_the_next_driver() {
    let wheel = Wheel::new();
    let mut sleeps = on_a_clock_ahead_by(Duration::ZERO, async || {
        let mut sleeps: Vec<_> = (0..5).map(|n| wheel.sleep(SECOND * (10 + n))).collect();
        sleeps.iter_mut().for_each(register);
        advance(SECOND * 4).await;
        sleeps
    });
    let second = paused_runtime();
    assert_left(&second, sleeps.remove(0), SECOND * 6);
    assert_left(&second, sleeps.remove(0), SECOND);
    drop(second);
    let third = paused_runtime();
    assert_left(&third, sleeps.remove(0), SECOND);
    drop(third);
    assert_left(&paused_runtime(), sleeps.remove(0), SECOND);
}

/// Their runtime goes before a visit has given them a deadline.
#[test]
fn timeouts_that_have_just_come_in_keep_their_time_under_the_next_driver() {
    let wheel = Wheel::builder().tick_duration(SECOND).shards(1).build().unwrap();
    let mut timeouts = real_runtime().block_on(async {
        let busy = make_tick(&wheel);
        let mut timeouts: Vec<_> = (0..3)
            .map(|_| wheel.timeout(SECOND * 105, pending::<()>()))
            .collect();
        timeouts.iter_mut().for_each(register);
        // Of a timeout that is incoming, only the delay is known.
        assert!(
            format!("{:?}", timeouts[0]).contains("delay"),
            "the shard does not tick"
        );
        drop(busy);
        timeouts
    });
    paused_runtime().block_on(async {
        let start = Instant::now();
        for timeout in &mut timeouts {
            assert!(timeout.await.is_err());
        }
        let elapsed = start.elapsed();
        assert!(elapsed > SECOND * 103 && elapsed < SECOND * 108, "{elapsed:?}");
    });
    assert_at_rest(&wheel);
}

#[test]
fn a_driver_whose_clock_is_a_day_ahead_makes_no_timer_early() {
    let wheel = Wheel::new();
    let sleep = left_by_a_driver(&wheel, Duration::ZERO, SECOND * 10);
    let ahead = paused_runtime();
    ahead.block_on(tokio::time::advance(DAY));
    assert_left(&ahead, sleep, SECOND * 10);
}

/// The first one's clock has jumped a day, and that of the next is a day behind.
#[test]
fn every_kind_of_timer_keeps_what_was_left_across_clocks() {
    let wheel = Wheel::new();
    let (sleep, unpolled, timeout, timeout_at, mut interval, idle) = on_a_clock_ahead_by(DAY, async || {
        let mut sleep = wheel.sleep(DAY + SECOND * 10);
        register(&mut sleep);
        let mut timeout_at = wheel.timeout_at(Instant::now() + DAY + SECOND * 20, pending::<()>());
        register(&mut timeout_at);
        let mut interval = wheel.interval_at(Instant::now() + DAY + SECOND * 30, SECOND);
        register(&mut Box::pin(interval.tick()));
        advance(DAY).await;
        let unpolled = wheel.sleep(SECOND * 40);
        let mut timeout = wheel.timeout(SECOND * 50, pending::<()>());
        register(&mut timeout);
        let mut idle = wheel.idle_timer(SECOND * 58);
        register(&mut idle);
        advance(SECOND * 2).await;
        idle.handle().touch();
        advance(SECOND * 2).await;
        (sleep, unpolled, timeout, timeout_at, interval, idle)
    });
    let second = paused_runtime();
    assert_left(&second, sleep, SECOND * 6);
    assert_left(&second, async { drop(timeout_at.await) }, SECOND * 10);
    assert_left(&second, async { _ = interval.tick().await }, SECOND * 10);
    assert_left(&second, unpolled, SECOND * 10);
    assert_left(&second, async { drop(timeout.await) }, SECOND * 10);
    assert_left(&second, idle, SECOND * 10);
}

#[test]
fn a_reset_deferred_across_the_replacement_counts_by_the_clock_it_was_made_on() {
    for ahead in [Duration::ZERO, DAY] {
        let wheel = Wheel::new();
        let sleep = on_a_clock_ahead_by(ahead, async || {
            let mut sleep = wheel.sleep(SECOND * 10);
            register(&mut sleep);
            sleep.reset(Instant::now() + SECOND * 30); // stored in the future, not yet in the wheel
            advance(SECOND * 4).await;
            sleep
        });
        assert_left(&paused_runtime(), sleep, SECOND * 26);
    }
}

#[test]
fn a_reset_by_the_clock_of_the_next_driver_counts_by_that_one() {
    let wheel = Wheel::new();
    let mut sleep = left_by_a_driver(&wheel, DAY, SECOND * 10);
    let other = wheel.sleep(ms(10));
    paused_runtime().block_on(async {
        other.await; // the second driver is there
        let start = Instant::now();
        sleep.reset(start + SECOND * 5);
        sleep.await;
        assert_due(start, SECOND * 5);
    });
}

/// By the second clock, which is a day ahead, the new deadline is a later instant. In wheel time it is an earlier one.
#[test]
fn a_reset_by_a_clock_that_is_ahead_moves_the_entry_to_an_earlier_deadline() {
    let wheel = Wheel::new();
    let mut sleep = left_by_a_driver(&wheel, Duration::ZERO, SECOND * 10);
    let other = wheel.sleep(ms(10));
    on_a_clock_ahead_by(DAY, async || {
        other.await; // the second driver is there
        let (waker, woken) = counting_waker();
        register_for(&waker, &mut sleep);
        sleep.reset(Instant::now() + SECOND * 5);
        advance(SECOND * 5).await;
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        sleep.await;
    });
}

#[test]
fn a_reset_made_while_there_is_no_driver_counts_by_the_clock_of_the_next() {
    for (before, after) in [(DAY, Duration::ZERO), (Duration::ZERO, DAY)] {
        for left in [SECOND, SECOND * 10, DAY * 2] {
            let wheel = Wheel::new();
            let mut sleep = left_by_a_driver(&wheel, before, SECOND * 5);
            let second = paused_runtime();
            second.block_on(async {
                tokio::time::advance(after).await;
                sleep.reset(Instant::now() + left);
            });
            assert_left(&second, sleep, left);
        }
    }
}

#[test]
fn an_idle_timer_touched_under_two_clocks_is_neither_early_nor_lost() {
    for (before, after) in [(DAY, Duration::ZERO), (Duration::ZERO, DAY)] {
        let wheel = Wheel::new();
        let mut idle = on_a_clock_ahead_by(before, async || {
            let mut idle = wheel.idle_timer(SECOND * 10);
            register(&mut idle);
            advance(SECOND * 4).await;
            idle.handle().touch();
            idle
        });
        on_a_clock_ahead_by(after, async || {
            register(&mut idle);
            tokio::time::advance(SECOND * 9).await;
            let touched = Instant::now();
            idle.handle().touch();
            register(&mut idle);
            tokio::time::advance(SECOND * 5).await;
            assert!(
                futures::poll!(&mut idle).is_pending(),
                "by the first clock it would be due"
            );
            idle.await;
            assert!(touched.elapsed() >= SECOND * 10, "{:?}", touched.elapsed());
            // A touch by another clock than the timer was made on counts from the poll that finds it.
            assert!(touched.elapsed() <= SECOND * 20, "{:?}", touched.elapsed());
        });
    }
}

#[test]
fn from_a_paused_driver_to_a_real_one_no_timer_is_early() {
    let wheel = Wheel::new();
    let sleep = on_a_clock_ahead_by(Duration::ZERO, async || {
        let mut sleep = wheel.sleep(DAY + ms(40));
        register(&mut sleep);
        advance(DAY).await;
        sleep
    });
    let start = std::time::Instant::now();
    real_runtime().block_on(sleep);
    assert!(start.elapsed() >= ms(40));
}

#[test]
fn from_a_real_driver_to_a_paused_one_what_was_left_is_kept() {
    let wheel = Wheel::new();
    let first = threaded_runtime(2);
    let mut sleep = wheel.sleep(SECOND * 10);
    first.block_on(async { register(&mut sleep) });
    drop(first);
    paused_runtime().block_on(async {
        let start = Instant::now();
        sleep.await;
        // At least that much: what the real clock did meanwhile is not known to the test.
        assert!(start.elapsed() > SECOND * 5);
        assert!(start.elapsed() <= SECOND * 10 + TICK);
    });
}

// Two clocks at the same time.

#[test]
fn a_paused_runtime_awaits_timers_of_a_real_driver_by_the_drivers_clock() {
    let driving = threaded_runtime(2);
    let wheel = Wheel::builder().handle(driving.handle().clone()).build().unwrap();
    let awaiting = paused_runtime();
    awaiting.block_on(async {
        tokio::time::advance(DAY).await;
        let start = std::time::Instant::now();
        wheel.sleep(ms(20)).await;
        assert!(start.elapsed() >= ms(20));
        assert!(wheel.timeout(ms(20), pending::<()>()).await.is_err());
        assert!(start.elapsed() >= ms(40));
        let mut interval = wheel.interval(ms(10));
        for _ in 0..3 {
            interval.tick().await;
        }
        assert!(start.elapsed() >= ms(60));
    });
    assert_at_rest(&wheel);
}

#[test]
fn a_paused_runtime_awaits_timers_of_a_driver_that_could_be_paused_by_the_drivers_clock() {
    let driving = real_runtime();
    let wheel = Wheel::builder().handle(driving.handle().clone()).build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driving = thread::spawn(move || driving.block_on(stopped));
    paused_runtime().block_on(async {
        wheel.sleep(ms(1)).await;
        tokio::time::advance(DAY).await;
        let start = std::time::Instant::now();
        let (mut day, mut sleep) = (wheel.sleep(SECOND * 5), wheel.sleep(ms(20)));
        tokio::select! {
            biased;
            _ = &mut day => panic!("a sleep was put a day off"),
            slept = &mut sleep => slept,
        }
        assert!(start.elapsed() >= ms(20));
        assert!(
            sleep.deadline() < Instant::now() - DAY / 2,
            "it is of the driver's clock"
        );
    });
    drop(stop);
    driving.join().unwrap().unwrap_err();
    assert_at_rest(&wheel);
}

#[test]
fn a_touch_in_a_paused_runtime_counts_by_the_clock_of_a_driver_that_cannot_be_paused() {
    let driving = threaded_runtime(2);
    let wheel = Wheel::builder().handle(driving.handle().clone()).build().unwrap();
    paused_runtime().block_on(async {
        wheel.sleep(ms(1)).await;
        tokio::time::advance(DAY).await;
        let idle = wheel.idle_timer(ms(20));
        let start = std::time::Instant::now();
        idle.handle().touch();
        tokio::select! {
            silence = idle => silence,
            _ = wheel.sleep(SECOND * 5) => panic!("the touch put the deadline a day off"),
        }
        assert!(start.elapsed() >= ms(20));
    });
    assert_at_rest(&wheel);
}

#[test]
fn a_real_runtime_awaits_timers_of_a_paused_driver_by_the_drivers_clock() {
    let wheel = Wheel::new();
    let (driven, is_driven) = mpsc::channel();
    let (finish, finished) = tokio::sync::oneshot::channel::<()>();
    let driving = thread::spawn({
        let wheel = wheel.clone();
        move || {
            paused_runtime().block_on(async {
                let mut sleep = wheel.sleep(DAY * 365);
                register(&mut sleep);
                driven.send(()).unwrap();
                finished.await.unwrap();
            });
        }
    });
    is_driven.recv().unwrap();
    // Idle, the driver's runtime advances its clock by itself: an hour passes at once.
    real_runtime().block_on(async {
        wheel.sleep(SECOND * 3600).await;
        assert!(wheel.timeout(SECOND * 3600, pending::<()>()).await.is_err());
    });
    finish.send(()).unwrap();
    driving.join().unwrap();
    assert_at_rest(&wheel);
}

#[test]
fn runtimes_of_three_clocks_share_a_wheel_while_drivers_come_and_go() {
    let wheel = Wheel::new();
    thread::scope(|scope| {
        for make_runtime in [real_runtime, paused_runtime, || threaded_runtime(2)] {
            let wheel = &wheel;
            scope.spawn(move || {
                for n in 0..30 {
                    make_runtime().block_on(async {
                        wheel.sleep(ms(n % 7)).await;
                        assert!(wheel.timeout(ms(n % 5), pending::<()>()).await.is_err());
                        let mut moved = wheel.sleep(SECOND * 3600);
                        assert!(futures::poll!(&mut moved).is_pending());
                        moved.reset(Instant::now() - DAY);
                        moved.await;
                    });
                }
            });
        }
    });
    assert_at_rest(&wheel);
}

// A clock paused, resumed and advanced under way.

#[tokio::test]
async fn a_clock_paused_while_the_shards_tick_becomes_exact() {
    let wheel = Wheel::new();
    let mut busy: Vec<_> = (0..500)
        .map(|_| wheel.timeout(SECOND * 7200, pending::<()>()))
        .collect();
    busy.iter_mut().for_each(register);
    let mut hour = task::spawn(wheel.timeout(SECOND * 3600, pending::<()>()));
    assert_pending!(hour.poll());
    // Until the driver has been there: what it has not yet seen counts from its next visit.
    wheel.sleep(ms(25)).await;
    pause();
    advance(SECOND * 3600 + TICK * 2).await;
    assert!(hour.is_woken());
    assert!(assert_ready!(hour.poll()).is_err());

    let start = Instant::now();
    let mut late = Vec::new();
    for millis in [1, 15, 200, 3_000] {
        let start = Instant::now();
        wheel.sleep(ms(millis)).await;
        late.push(start.elapsed().checked_sub(ms(millis)).expect("it was early"));
    }
    // To a tick, and the millisecond to which Tokio rounds.
    assert!(late.iter().all(|late| *late < TICK + ms(2)), "{late:?}");
    let auto_advanced = start.elapsed();
    assert!(
        auto_advanced < ms(3_216) + 4 * (TICK + ms(2)),
        "{auto_advanced:?}"
    );
}

#[tokio::test]
async fn a_clock_resumed_after_a_jump_goes_on_from_there() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut sleep = wheel.sleep(DAY + ms(30));
    register(&mut sleep);
    pause();
    advance(DAY).await;
    resume();
    sleep.await;
    assert!(start.elapsed() >= DAY + ms(30), "the jump ended it");
    // And paused once more.
    pause();
    let start = Instant::now();
    wheel.sleep(SECOND * 3600).await;
    assert!(start.elapsed() >= SECOND * 3600);
    resume();
    let start = std::time::Instant::now();
    wheel.sleep(ms(15)).await;
    assert!(start.elapsed() >= ms(15));
    assert_at_rest(&wheel);
}

// A driver held up.

#[test]
fn a_starved_driver_catches_up_in_one_visit_in_order_of_deadline() {
    let runtime = real_runtime();
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let mut sleeps: Vec<Sleep> = Vec::new();
        // Far enough away for all to be registered before the first is due.
        let first = Instant::now() + ms(200);
        for n in (1..=5_u32).rev() {
            let order = order.clone();
            let waker = waker_of(move || order.lock().unwrap().push(n));
            let mut sleep = wheel.sleep_until(first + ms(1) * (n - 1));
            register_for(&waker, &mut sleep);
            sleeps.push(sleep);
        }
        settle().await;
        let before = wheel.metrics();
        // A task that blocks, past the last deadline. On the real clock: what a paused one does in a jump is another test.
        block_until(first + ms(10));
        while order.lock().unwrap().len() < 5 {
            tokio::task::yield_now().await;
        }
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 4, 5]);
        let after = wheel.metrics();
        assert_eq!(after.wakeups - before.wakeups, 1, "all in one visit");
        assert!(after.max_lag >= ms(9), "the lag is reported: {:?}", after.max_lag);
        for sleep in sleeps {
            sleep.await;
        }
    });
    assert_at_rest(&wheel);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waker_that_blocks_holds_no_lock_of_the_wheel() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let (entered, is_entered) = mpsc::channel();
    let release = Arc::new(AtomicBool::new(false));
    let waker = {
        let release = release.clone();
        waker_of(move || {
            entered.send(()).unwrap();
            while !release.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        })
    };
    let blocked = waiting(&waker, || wheel.sleep(ms(5)));
    tokio::task::block_in_place(|| is_entered.recv().unwrap());
    // The waker still blocks, on the driver's task.
    let mut other = wheel.sleep(SECOND);
    register(&mut other);
    other.reset(Instant::now() + SECOND / 2);
    drop(other);
    assert_eq!(wheel.pending(), 0);
    assert_eq!(wheel.timeout(SECOND, async { 7 }).await, Ok(7));
    release.store(true, Ordering::SeqCst);
    blocked.await;
}

// Wakers that misbehave.

#[tokio::test(start_paused = true)]
async fn after_a_thousand_wakes_the_runtime_gets_its_turn() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let (waker, woken) = counting_waker();
    let mut sleeps: Vec<_> = (0..10_000).map(|_| wheel.sleep(TICK)).collect();
    for sleep in &mut sleeps {
        register_for(&waker, sleep);
    }
    tokio::time::advance(TICK).await;
    let mut turns = 0;
    while woken.load(Ordering::SeqCst) < 10_000 {
        turns += 1;
        assert!(turns < 1_000, "{} were woken", woken.load(Ordering::SeqCst));
        tokio::task::yield_now().await;
    }
    assert!(turns >= 5, "10,000 wakes in {turns} turns");
    drop(sleeps);
    assert_at_rest(&wheel);
}

/// The driver has done with the shard by then, and is about to wait for the next deadline that it found there.
#[tokio::test(start_paused = true)]
async fn a_timer_that_a_waker_starts_is_not_left_for_a_later_one() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let mut later = wheel.sleep(HOUR);
    register(&mut later);
    let (waker, woken) = counting_waker();
    let started = Arc::new(Mutex::new(None));
    let starts = {
        let (wheel, started) = (wheel.clone(), started.clone());
        waker_of(move || {
            let mut sleep = wheel.sleep(ms(50));
            register_for(&waker, &mut sleep);
            *started.lock().unwrap() = Some(sleep);
        })
    };
    let mut first = wheel.sleep(ms(20));
    register_for(&starts, &mut first);
    advance(ms(20)).await;
    assert!(started.lock().unwrap().is_some());
    advance(ms(50)).await;
    assert_eq!(woken.load(Ordering::SeqCst), 1);
}

/// The reset moves the alarm to an instant that has passed already, and nobody polls the sleep.
#[tokio::test(start_paused = true)]
async fn a_driver_whose_alarm_is_set_too_late_comes_at_once() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(DAY);
    let (waker, woken) = counting_waker();
    register_for(&waker, &mut sleep);
    settle().await;
    advance(TICK * 2 + ms(5)).await;
    let start = Instant::now();
    sleep.reset(start - TICK);
    settle().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(woken.load(Ordering::SeqCst), 1);
}

/// The driver wakes a timer of one shard and is kept from the other. Meanwhile its runtime shuts down, and a driver with another clock
/// starts: it is that one's wheel now.
#[test]
fn a_runtime_that_goes_while_its_driver_is_at_work_leaves_the_wheel_to_the_next() {
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
    // The driver's task has been polled by then, so the turn is made without it.
    runtime.block_on(async { wheel.sleep(ms(1)).await });
    runtime.block_on(runtime.spawn(async {})).unwrap();
    let entered = runtime.enter();
    let sleep = waiting(&waker, || wheel.sleep(ms(20)));
    drop(entered);
    working.recv().unwrap();
    runtime.shutdown_background();
    let other = paused_runtime();
    other.block_on(async {
        // The other worker drops the driver's task.
        let _driven = loop {
            let start = Instant::now();
            let mut sleep = wheel.sleep(ms(50));
            register(&mut sleep);
            settle().await;
            if alive_tasks() > 0 {
                break (start, sleep);
            }
            thread::sleep(ms(1));
        };
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
