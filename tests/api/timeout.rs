//! `Timeout`: a ready future costs nothing, a pending one elapses in time, whatever the inner future does.

use crate::support;

use std::{
    fmt::Debug,
    future::{Future, Ready, pending, ready},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tickwheel::{Timeout, TimeoutError, Wheel, time::error::Elapsed};
use tokio::{sync::oneshot, time::Instant};
use tokio_test::{assert_pending, assert_ready_eq, task};

use support::{DAY, SECOND, TICK, advance, assert_at_rest, ms};

const fn send_sync_unpin<T: Send + Sync + Unpin + Debug>() {}
const _: () = send_sync_unpin::<Timeout<Ready<()>>>();
const _: () = send_sync_unpin::<TimeoutError>();

/// Whether the future of a timeout was too slow.
fn is_elapsed<T>(polled: Poll<Result<T, Elapsed>>) -> bool {
    matches!(polled, Poll::Ready(Err(_)))
}

// Ready at once.

#[test]
fn a_ready_future_succeeds_whatever_the_duration_and_needs_no_runtime() {
    let wheel = Wheel::new();
    for duration in [Duration::ZERO, ms(1), SECOND, Duration::MAX] {
        let mut timeout = task::spawn(wheel.timeout(duration, ready(7)));
        assert_ready_eq!(timeout.poll(), Ok(7));
    }
    for deadline in [Instant::now() - ms(1), Instant::now(), Instant::now() + DAY] {
        let mut timeout = task::spawn(wheel.timeout_at(deadline, ready(7)));
        assert_ready_eq!(timeout.poll(), Ok(7));
    }
    assert_eq!(wheel.metrics().registered, 0, "nothing went into the wheel");
}

#[tokio::test(start_paused = true)]
async fn a_future_ready_past_the_deadline_succeeds() {
    let wheel = Wheel::new();
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(wheel.timeout(ms(100), receiver));
    assert_pending!(timeout.poll());
    advance(SECOND).await;
    assert!(timeout.is_woken());
    sender.send("late").unwrap();
    assert_ready_eq!(timeout.poll(), Ok(Ok("late")));
    drop(timeout);
    assert_at_rest(&wheel);
}

// Precision.

#[tokio::test(start_paused = true)]
async fn the_duration_counts_from_the_first_pending_poll() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(wheel.timeout(ms(100), pending::<()>()));
    tokio::time::advance(SECOND).await;
    assert_pending!(timeout.poll());
    tokio::time::advance(ms(99)).await;
    assert_pending!(timeout.poll());
    tokio::time::advance(ms(11)).await;
    assert!(is_elapsed(timeout.poll()));
}

// Nothing to wait for, and far too much.

#[tokio::test(start_paused = true)]
async fn a_duration_of_a_century_elapses_after_thirty_years_and_not_before() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let elapsed = wheel.timeout(DAY * 365 * 100, pending::<()>()).await;
    assert!(elapsed.is_err());
    assert!(start.elapsed() >= DAY * 365 * 30);
    // And what is started in that far future is as punctual as ever.
    let start = Instant::now();
    assert!(wheel.timeout(ms(50), pending::<()>()).await.is_err());
    assert!(start.elapsed() >= ms(50), "{:?}", start.elapsed());
    assert!(start.elapsed() < ms(50) + TICK);
}

// In time.

// Dropping.

#[tokio::test(start_paused = true)]
async fn dropping_cancels_at_every_stage_and_drops_the_future() {
    struct Guarded(Arc<AtomicBool>);
    impl Drop for Guarded {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let wheel = Wheel::new();
    for stage in ["before the first poll", "pending", "expired", "elapsed"] {
        let dropped = Arc::new(AtomicBool::new(false));
        let guarded = Guarded(dropped.clone());
        let mut timeout = task::spawn(wheel.timeout(ms(100), async move {
            pending::<()>().await;
            drop(guarded);
        }));
        if stage != "before the first poll" {
            assert_pending!(timeout.poll());
        }
        if stage == "expired" || stage == "elapsed" {
            advance(ms(100)).await;
        }
        if stage == "elapsed" {
            assert!(is_elapsed(timeout.poll()));
        }
        assert!(!dropped.load(Ordering::SeqCst), "{stage}");
        drop(timeout);
        assert!(dropped.load(Ordering::SeqCst), "{stage}");
        assert_at_rest(&wheel);
    }
    assert_eq!(wheel.metrics().cancelled, 1);
    assert_eq!(wheel.metrics().expired, 2);
}

// The future inside.

#[tokio::test(start_paused = true)]
async fn the_future_inside_can_be_reached_and_taken_out() {
    let wheel = Wheel::new();
    let mut timeout = wheel.timeout(SECOND, ready(7));
    let _: &Ready<i32> = timeout.get_ref();
    *timeout.get_mut() = ready(8);
    assert_eq!(timeout.into_inner().await, 8);

    let mut timeout = Box::pin(wheel.timeout(SECOND, pending::<()>()));
    assert!(futures::poll!(&mut timeout).is_pending());
    assert_eq!(wheel.pending(), 1);
    let _inner = Pin::into_inner(timeout).into_inner();
    assert_eq!(wheel.pending(), 0, "without the timeout there is no timer");
}

#[tokio::test(start_paused = true)]
async fn an_error_says_what_happened_and_becomes_an_io_error() {
    let wheel = Wheel::new();
    let elapsed = wheel.timeout(ms(10), pending::<()>()).await.unwrap_err();
    assert_eq!(elapsed.to_string(), "deadline has elapsed", "as Tokio says it");
    assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);

    let elapsed = wheel.try_timeout(ms(10), pending::<()>()).await.unwrap_err();
    assert!(elapsed.is_elapsed());
    assert_eq!(elapsed.to_string(), "deadline has elapsed");
    assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);

    drop(wheel.shutdown());
    let refused = wheel.try_timeout(ms(10), pending::<()>()).await.unwrap_err();
    assert_eq!(refused, TimeoutError::Shutdown);
    assert!(!refused.is_elapsed());
    assert_ne!(io::Error::from(refused).kind(), io::ErrorKind::TimedOut);
}

// The cooperative budget.

/// As with Tokio's from 1.54 on, no timer is made for it.
#[test]
fn a_duration_that_overflows_the_clock_needs_no_runtime_and_never_elapses() {
    let wheel = Wheel::new();
    let mut cx = Context::from_waker(Waker::noop());
    let (sender, receiver) = oneshot::channel();
    let mut own = pin!(wheel.timeout(Duration::MAX, receiver));
    let mut global = pin!(tickwheel::time::timeout(Duration::MAX, pending::<()>()));
    assert!(own.as_mut().poll(&mut cx).is_pending());
    assert!(global.as_mut().poll(&mut cx).is_pending());
    sender.send(7).unwrap();
    assert_eq!(own.as_mut().poll(&mut cx), Poll::Ready(Ok(Ok(7))));
    let metrics = wheel.metrics();
    assert_eq!((metrics.registered, metrics.engines), (0, 0));
}

// Its deadline, and another one.

#[tokio::test(start_paused = true)]
async fn the_deadline_is_known_and_before_the_first_pending_poll_counts_from_now() {
    let wheel = Wheel::new();
    let label = wheel.labelled("l");
    let at = Instant::now() + DAY;
    assert_eq!(wheel.timeout_at(at, pending::<()>()).deadline(), at);
    assert_eq!(label.timeout_at(at, pending::<()>()).deadline(), at);
    let mut timeout = task::spawn(wheel.timeout(SECOND, pending::<()>()));
    let mut trying = task::spawn(wheel.try_timeout(SECOND, pending::<()>()));
    let mut labelled = task::spawn(label.timeout(SECOND, pending::<()>()));
    for _ in 0..2 {
        let expected = Instant::now() + SECOND;
        let deadlines = [timeout.deadline(), trying.deadline(), labelled.deadline()];
        assert_eq!(deadlines, [expected; 3]);
        advance(ms(700)).await;
    }
    let expected = Instant::now() + SECOND;
    assert_pending!(timeout.poll());
    assert_pending!(trying.poll());
    assert_pending!(labelled.poll());
    advance(ms(700)).await;
    let deadlines = [timeout.deadline(), trying.deadline(), labelled.deadline()];
    assert_eq!(deadlines, [expected; 3], "it counts from the first pending poll");
    advance(SECOND).await;
    assert!(timeout.poll().is_ready());
    assert_eq!(timeout.deadline(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_running_timeout_is_moved_in_both_directions() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut timeout = task::spawn(wheel.timeout(SECOND, pending::<()>()));
    assert_pending!(timeout.poll());
    let registered = wheel.metrics().registered;
    timeout.enter(|_, timeout| timeout.reset_at(start + 3 * SECOND));
    assert_eq!(
        wheel.metrics().registered,
        registered,
        "a later deadline is one store"
    );
    assert_eq!(timeout.deadline(), start + 3 * SECOND);
    advance(SECOND + TICK).await;
    assert_pending!(timeout.poll());
    timeout.enter(|_, timeout| timeout.reset_after(ms(500)));
    let moved = timeout.deadline();
    assert_eq!(moved, Instant::now() + ms(500));
    advance(ms(499)).await;
    assert!(!timeout.is_woken());
    advance(TICK).await;
    assert!(timeout.is_woken());
    assert!(is_elapsed(timeout.poll()));

    // One that has elapsed waits again.
    timeout.enter(|_, timeout| timeout.reset_after(SECOND));
    assert_pending!(timeout.poll());
    advance(SECOND).await;
    assert!(timeout.is_woken());
    assert!(is_elapsed(timeout.poll()));
    drop(timeout);
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_moved_into_the_past_elapses_at_once_unless_its_future_is_ready() {
    let wheel = Wheel::new();
    let (sender, receiver) = oneshot::channel();
    let mut answered = task::spawn(wheel.timeout(SECOND, receiver));
    let mut silent = task::spawn(wheel.timeout(SECOND, pending::<()>()));
    assert_pending!(answered.poll());
    assert_pending!(silent.poll());
    advance(ms(500)).await;
    let past = Instant::now() - ms(100);
    answered.enter(|_, timeout| timeout.reset_at(past));
    silent.enter(|_, timeout| timeout.reset_at(past));
    assert!(answered.is_woken() && silent.is_woken());
    sender.send("answer").unwrap();
    assert_ready_eq!(answered.poll(), Ok(Ok("answer")));
    assert!(is_elapsed(silent.poll()));
    drop((answered, silent));
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_moved_before_its_first_poll_has_that_deadline() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let mut at = task::spawn(wheel.timeout(DAY, pending::<()>()));
    let mut after = task::spawn(wheel.timeout_at(start + DAY, pending::<()>()));
    at.enter(|_, timeout| timeout.reset_at(start + 2 * SECOND));
    after.enter(|_, timeout| timeout.reset_after(2 * SECOND));
    advance(SECOND).await;
    // It has no timer yet.
    let mut never = task::spawn(wheel.timeout(Duration::MAX, pending::<()>()));
    assert_pending!(never.poll());
    never.enter(|_, timeout| timeout.reset_at(start + 2 * SECOND));
    for timeout in [&mut at, &mut after, &mut never] {
        assert_eq!(timeout.deadline(), start + 2 * SECOND);
        assert_pending!(timeout.poll());
    }
    advance(SECOND).await;
    for timeout in [&mut at, &mut after, &mut never] {
        assert!(timeout.is_woken());
        assert!(is_elapsed(timeout.poll()));
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_may_be_refused_keeps_its_place_when_it_is_moved_and_ends_with_the_wheel() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let mut timeout = task::spawn(wheel.try_timeout(SECOND, pending::<()>()));
    assert_pending!(timeout.poll());
    timeout.enter(|_, timeout| timeout.reset_after(3 * SECOND));
    advance(2 * SECOND).await;
    assert_pending!(timeout.poll());
    let full = wheel.try_timeout(SECOND, pending::<()>()).await;
    assert_eq!(full, Err(TimeoutError::AtCapacity { limit: 1 }));
    drop(wheel.shutdown());
    assert!(timeout.is_woken());
    timeout.enter(|_, timeout| timeout.reset_after(DAY));
    assert_ready_eq!(timeout.poll(), Err(TimeoutError::Shutdown));
}
