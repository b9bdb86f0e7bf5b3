//! `Wheel::sleep`: on the wheel while it accepts timers, on Tokio's timer when it refuses.

use crate::support;

use std::{
    future::{Future, pending},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures::FutureExt;
use support::*;
use tickwheel::{Sleep, SleepError, Wheel};
use tokio::time::Instant;
use tokio_test::{assert_pending, assert_ready};

#[tokio::test(start_paused = true)]
async fn refused_it_waits_on_tokios_timer() {
    let (wheel, _first) = full_wheel();
    let start = Instant::now();
    let mut sleep = wheel.sleep(SECOND);
    assert!(!sleep.is_elapsed());
    (&mut sleep).await;
    assert_due(start, SECOND);
    assert!(sleep.is_elapsed());
    assert_eq!(sleep.deadline(), start + SECOND);
    assert_eq!(wheel.metrics().rejected, 1);
    // Ready, until it is reset; then the wheel is asked again.
    (&mut sleep).await;
    sleep.reset(start + SECOND * 2);
    assert!(!sleep.is_elapsed());
    sleep.await;
    assert_due(start, SECOND * 2);
    assert_eq!(wheel.metrics().rejected, 2);
}

#[tokio::test(start_paused = true)]
async fn a_reset_moves_the_stand_in() {
    let (wheel, _first) = full_wheel();
    let start = Instant::now();
    for to in [ms(200), ms(5_000)] {
        let mut sleep = wheel.sleep(SECOND);
        register(&mut sleep);
        let deadline = Instant::now() + to;
        sleep.reset(deadline);
        assert_eq!(sleep.deadline(), deadline);
        let before = Instant::now();
        sleep.await;
        assert_due(before, to);
    }
    assert!(start.elapsed() >= ms(5_200));
}

#[test]
fn refused_by_a_wheel_that_another_runtime_drives_a_past_instant_has_passed() {
    let (_timers, wheel, _first) = full_wheel_driven_elsewhere();
    for runtime in [real_runtime(), paused_runtime()] {
        runtime.block_on(async {
            let mut sleep = tokio_test::task::spawn(wheel.sleep(DAY));
            assert_pending!(sleep.poll());
            sleep.enter(|_, mut sleep| sleep.reset(Instant::now() - SECOND));
            assert!(sleep.is_woken());
            assert_ready!(sleep.poll());
        });
    }
}

/// Polls outside Tokio: it completes at the second poll, of which its task is woken.
fn completes_at_the_second_poll(mut sleep: Sleep) {
    let (waker, woken) = counting_waker();
    let mut cx = Context::from_waker(&waker);
    let before = woken.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(Pin::new(&mut sleep).poll(&mut cx), Poll::Pending);
    assert!(woken.load(std::sync::atomic::Ordering::SeqCst) > before);
    assert!(!sleep.is_elapsed());
    assert_eq!(Pin::new(&mut sleep).poll(&mut cx), Poll::Ready(()));
    assert!(sleep.is_elapsed());
}

#[test]
fn with_no_timer_of_tokios_it_completes() {
    let driving = threaded_runtime(1);
    let wheel = || Wheel::builder().handle(driving.handle().clone()).build().unwrap();
    // On another executor.
    let shut_down = wheel();
    shut_down.shutdown();
    completes_at_the_second_poll(shut_down.sleep(DAY));
    futures::executor::block_on(shut_down.sleep(DAY));
    // On a Tokio runtime without timers.
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    bare.block_on(async {
        completes_at_the_second_poll(shut_down.sleep(DAY));
        shut_down.sleep(DAY).await;
        // Pending as the wheel is shut down.
        let wheel = wheel();
        let mut sleep = pin!(wheel.sleep(DAY));
        let mut cx = Context::from_waker(Waker::noop());
        assert_pending!(sleep.as_mut().poll(&mut cx));
        wheel.shutdown();
        assert_pending!(sleep.as_mut().poll(&mut cx));
        assert_ready!(sleep.as_mut().poll(&mut cx));
    });
}

/// What needs no timer is not refused one. The thread sleeps for `off` first, so that the clock stands anywhere in its
/// millisecond.
fn a_zero_duration_completes_at_the_first_poll(off: Duration) {
    let wheel = Wheel::new();
    wheel.shutdown();
    std::thread::sleep(off);
    assert_eq!(wheel.sleep(Duration::ZERO).now_or_never(), Some(()));
    let elapsed = wheel.timeout(Duration::ZERO, pending::<()>()).now_or_never();
    assert!(elapsed.is_some_and(|outcome| outcome.is_err()));
    assert!(wheel.interval(SECOND).tick().now_or_never().is_some());
    assert_eq!(wheel.idle_timer(Duration::ZERO).now_or_never(), Some(()));
    assert_eq!(
        wheel.try_sleep(Duration::ZERO).now_or_never(),
        Some(Err(SleepError::Shutdown))
    );
}

#[test]
fn after_a_shutdown_a_zero_duration_completes_at_the_first_poll() {
    for runtime in [real_runtime(), threaded_runtime(1)] {
        for micros in 0..20 {
            let off = Duration::from_micros(micros * 53);
            runtime.block_on(async { a_zero_duration_completes_at_the_first_poll(off) });
        }
    }
    // No timer of Tokio's is needed either.
    a_zero_duration_completes_at_the_first_poll(Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_a_zero_duration_waits_for_a_tests_next_millisecond_as_tokios_does() {
    let wheel = Wheel::new();
    wheel.sleep(ms(1)).await;
    wheel.shutdown();
    for step in 0..8 {
        let mut ours = tokio_test::task::spawn(wheel.sleep(Duration::ZERO));
        let mut tokios = tokio_test::task::spawn(tokio::time::sleep(Duration::ZERO));
        assert_eq!(ours.poll(), tokios.poll(), "at quarter {step}");
        tokio::time::advance(Duration::from_micros(250)).await;
    }
}

/// Each reset to another instant counts from the end of the clock, which has stopped.
#[test]
fn after_a_shutdown_a_reset_to_the_same_instant_changes_nothing() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(ms(100));
    paused_runtime().block_on(async { register(&mut sleep) });
    wheel.shutdown();
    paused_runtime().block_on(async {
        let start = Instant::now();
        let deadline = sleep.deadline();
        for _ in 0..10 {
            sleep.reset(deadline);
            register(&mut sleep);
            tokio::time::advance(ms(10)).await;
        }
        sleep.reset(deadline);
        sleep.await;
        assert_due(start, ms(100));
    });
}
