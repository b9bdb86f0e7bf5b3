//! Deadlines are instants: what outlives its runtime goes on for the same instant by the clock of the next
//! one, whether that is ahead or behind.

use crate::support;

use std::{future::pending, sync::atomic::Ordering, thread};

use futures::FutureExt;
use tickwheel::{Sleep, Wheel};
use tokio::{
    sync::oneshot,
    task::yield_now,
    time::{Instant, pause, resume},
};

use support::{
    DAY, SECOND, TICK, advance, assert_at_rest, counting_waker, ms, on_a_clock_ahead_by, paused_runtime,
    real_runtime, register, register_for, settle, threaded_runtime,
};

/// A sleep that waited on a runtime which has ended.
fn left_by_a_runtime(wheel: &Wheel, ahead: std::time::Duration, duration: std::time::Duration) -> Sleep {
    on_a_clock_ahead_by(ahead, async || {
        let mut sleep = wheel.sleep(duration);
        register(&mut sleep);
        sleep
    })
}

/// The clock stands at `deadline`, or less than two ticks later, because milliseconds begin elsewhere in each
/// runtime.
#[track_caller]
fn assert_now(deadline: Instant) {
    let now = Instant::now();
    assert!(now >= deadline, "{:?} early", deadline - now);
    assert!(now - deadline < TICK * 2, "{:?} late", now - deadline);
}

#[test]
fn every_kind_of_timer_keeps_its_instant_from_runtime_to_runtime() {
    for (before, after) in [(ms(0), ms(0)), (DAY, ms(0)), (ms(0), DAY)] {
        let wheel = Wheel::new();
        let (start, sleep, unpolled, timeout, timeout_at, mut interval, idle) =
            on_a_clock_ahead_by(before, async || {
                let start = Instant::now();
                let mut sleep = wheel.sleep(DAY * 2);
                register(&mut sleep);
                let mut timeout = wheel.timeout(DAY * 3, pending::<()>());
                register(&mut timeout);
                let mut timeout_at = wheel.timeout_at(start + DAY * 4, pending::<()>());
                register(&mut timeout_at);
                let mut interval = wheel.interval_at(start + DAY * 5, SECOND);
                register(&mut Box::pin(interval.tick()));
                let mut idle = wheel.idle_timer(DAY * 7);
                register(&mut idle);
                let unpolled = wheel.sleep(DAY * 8);
                advance(SECOND).await;
                idle.handle().touch();
                (start, sleep, unpolled, timeout, timeout_at, interval, idle)
            });
        // A runtime on which they are polled, and which ends too.
        let [mut sleep, mut unpolled] = [sleep, unpolled];
        on_a_clock_ahead_by(after / 2, async || {
            register(&mut sleep);
            register(&mut unpolled);
        });
        on_a_clock_ahead_by(after, async || {
            sleep.await;
            assert_now(start + DAY * 2);
            assert!(timeout.await.is_err());
            assert_now(start + DAY * 3);
            assert!(timeout_at.await.is_err());
            assert_now(start + DAY * 4);
            assert_eq!(interval.tick().await, start + DAY * 5);
            assert_now(start + DAY * 5);
            assert_eq!(interval.tick().await, start + DAY * 5 + SECOND);
            idle.await;
            assert_now(start + DAY * 7 + SECOND);
            unpolled.await;
            assert_now(start + DAY * 8);
        });
        drop(interval);
        assert_at_rest(&wheel);
    }
}

#[test]
fn what_the_next_clock_has_passed_is_ready_at_the_first_poll() {
    let wheel = Wheel::new();
    let mut sleep = left_by_a_runtime(&wheel, ms(0), SECOND * 10);
    let timeout = wheel.timeout_at(Instant::now() + SECOND * 10, pending::<()>());
    on_a_clock_ahead_by(DAY, async || {
        assert!(futures::poll!(&mut sleep).is_ready());
        assert!(futures::poll!(Box::pin(timeout)).is_ready());
    });
    assert_at_rest(&wheel);
}

/// A sleep knows a moment that has passed where it was created, which is to come where it is started.
#[test]
fn a_sleep_from_a_clock_ahead_leaves_the_others_alone() {
    let wheel = Wheel::new();
    let mut far = on_a_clock_ahead_by(DAY, async || wheel.sleep(DAY));
    on_a_clock_ahead_by(ms(0), async || {
        wheel.sleep(ms(1)).await;
        register(&mut far);
        let start = Instant::now();
        let mut later = wheel.sleep(SECOND);
        register(&mut later);
        wheel.sleep(ms(10)).await;
        assert_now(start + ms(10));
        later.await;
        assert_now(start + SECOND);
        let deadline = far.deadline();
        far.await;
        assert_now(deadline);
    });
    assert_at_rest(&wheel);
}

#[test]
fn a_reset_between_two_runtimes_counts() {
    for (before, after) in [(ms(0), ms(0)), (DAY, ms(0)), (ms(0), DAY)] {
        for left in [SECOND, SECOND * 10, DAY * 2] {
            let wheel = Wheel::new();
            // Stored in the future alone, ..
            let mut later = on_a_clock_ahead_by(before, async || {
                let mut sleep = wheel.sleep(SECOND * 5);
                register(&mut sleep);
                sleep.reset_at(Instant::now() + DAY * 3);
                sleep
            });
            let deadline = later.deadline();
            // .. and made where it waits no more.
            let mut sleep = left_by_a_runtime(&wheel, before, SECOND * 5);
            on_a_clock_ahead_by(after, async || {
                let start = Instant::now();
                sleep.reset_at(start + left);
                sleep.await;
                assert_now(start + left);
                (&mut later).await;
                assert_now(deadline.max(start + left));
            });
            assert_at_rest(&wheel);
        }
    }
}

#[test]
fn a_reset_to_an_earlier_instant_moves_an_entry_that_was_bound_anew() {
    let wheel = Wheel::new();
    let mut sleep = left_by_a_runtime(&wheel, ms(0), DAY * 2);
    on_a_clock_ahead_by(DAY, async || {
        let (waker, woken) = counting_waker();
        register_for(&waker, &mut sleep);
        sleep.reset_at(Instant::now() + SECOND * 5);
        advance(SECOND * 5 + ms(1)).await;
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        sleep.await;
    });
}

#[test]
fn an_idle_timer_touched_under_two_clocks_is_neither_early_nor_lost() {
    for (before, after) in [(DAY, ms(0)), (ms(0), DAY)] {
        let wheel = Wheel::new();
        let mut idle = on_a_clock_ahead_by(before, async || {
            let mut idle = wheel.idle_timer(SECOND * 10);
            register(&mut idle);
            advance(SECOND * 4).await;
            idle.handle().touch();
            idle
        });
        on_a_clock_ahead_by(after, async || {
            tokio::time::advance(SECOND * 9).await;
            let touched = Instant::now();
            idle.handle().touch();
            register(&mut idle);
            tokio::time::advance(SECOND * 5).await;
            register(&mut idle);
            idle.await;
            assert!(touched.elapsed() >= SECOND * 10, "{:?}", touched.elapsed());
        });
    }
}

#[test]
fn from_a_real_clock_to_a_paused_one_a_timer_keeps_its_instant() {
    let wheel = Wheel::new();
    let first = threaded_runtime(2);
    let mut sleep = wheel.sleep(SECOND * 10);
    first.block_on(async { register(&mut sleep) });
    drop(first);
    paused_runtime().block_on(async {
        let deadline = sleep.deadline();
        sleep.await;
        assert_now(deadline);
    });
}

#[test]
fn from_a_paused_clock_to_a_real_one_a_timer_keeps_its_instant() {
    let wheel = Wheel::new();
    let mut sleep = left_by_a_runtime(&wheel, ms(0), ms(40));
    let deadline = sleep.deadline().into_std();
    real_runtime().block_on(&mut sleep);
    assert!(std::time::Instant::now() >= deadline);
}

#[test]
fn runtimes_of_three_clocks_share_a_wheel_while_they_come_and_go() {
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
                        moved.reset_at(Instant::now() - DAY);
                        moved.await;
                    });
                }
            });
        }
    });
    assert_at_rest(&wheel);
}

/// The engine's task is ready when the test moves the clock, because it has not run yet or a timer was cancelled. Tokio
/// has not come to its own timers then.
#[tokio::test(start_paused = true)]
async fn what_tokio_has_for_the_same_instant_comes_first_whatever_the_engine_has_to_do() {
    for is_new in [false, true] {
        let wheel = Wheel::new();
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(ms(10)).await;
            sender.send(7)
        });
        let timeout = tokio::spawn(wheel.timeout(ms(10), receiver));
        if is_new {
            yield_now().await;
        } else {
            let mut earlier = wheel.sleep(ms(5));
            register(&mut earlier);
            settle().await;
        }
        tokio::time::advance(ms(10)).await;
        assert_eq!(timeout.await.unwrap(), Ok(Ok(7)), "a new wheel: {is_new}");
        assert_at_rest(&wheel);
    }
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

/// As in the middle of a test that pauses by hand. The wheel has a longer tick, so no timer of Tokio's has to
/// be waited for.
#[tokio::test]
async fn zero_durations_on_a_wheel_with_a_long_tick_end_at_its_next_tick() {
    let wheel = Wheel::builder().tick_duration(SECOND).build().unwrap();
    wheel.sleep(ms(1)).await;
    for micros in [1, 250, 500, 777, 999] {
        let begin = std::time::Instant::now();
        while begin.elapsed().as_micros() < micros {
            std::hint::spin_loop();
        }
        pause();
        for _ in 0..4 {
            let now = Instant::now();
            let mut reset = wheel.sleep(DAY);
            register(&mut reset);
            reset.reset_after(ms(0));
            let mut interval = wheel.interval(SECOND);
            let ends = tokio::join!(
                wheel.sleep(ms(0)).map(|()| Instant::now()),
                wheel.try_sleep(ms(0)).map(|_| Instant::now()),
                wheel.idle_timer(ms(0)).map(|()| Instant::now()),
                interval.tick().map(|_| Instant::now()),
                wheel.timeout(ms(0), pending::<()>()).map(|_| Instant::now()),
                wheel.try_timeout(ms(0), pending::<()>()).map(|_| Instant::now()),
                reset.map(|()| Instant::now()),
            );
            let (end, ..) = ends;
            assert_eq!(ends, (end, end, end, end, end, end, end));
            assert!(end > now && end - now <= SECOND, "{:?}", end - now);
            tokio::time::advance(std::time::Duration::from_micros(333)).await;
        }
        resume();
    }
    assert_at_rest(&wheel);
}
