//! `Timeout`: a ready future costs nothing, a pending one elapses in time, whatever the inner future does.

use crate::support;

use std::{
    cell::Cell,
    fmt::Debug,
    future::{Future, IntoFuture, Ready, pending, poll_fn, ready},
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tickwheel::{Timeout, TimeoutError, Wheel, time::error::Elapsed};
use tokio::{sync::oneshot, time::Instant};
use tokio_test::{assert_pending, assert_ready_eq, task};

use support::{
    DAY, SECOND, TICK, advance, assert_at_rest, assert_none_of_many_is_early, counting_waker, make_tick, ms,
    register_for,
};

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
async fn it_is_never_early_and_less_than_two_ticks_late() {
    for tick in [1, 3, 10, 100] {
        let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
        for millis in [1, 2, 9, 10, 11, 99, 100, 101, 511, 512, 513, 5_121, 262_144] {
            let start = Instant::now();
            let elapsed = wheel.timeout(ms(millis), pending::<()>()).await;
            assert!(elapsed.is_err());
            let late = start.elapsed().checked_sub(ms(millis)).expect("it was early");
            assert!(
                late < 2 * ms(tick),
                "{millis} ms in ticks of {tick} ms: {late:?} late"
            );
        }
        assert_at_rest(&wheel);
    }
}

#[tokio::test(start_paused = true)]
async fn timeout_at_is_never_early_and_less_than_a_tick_late() {
    for tick in [1, 3, 10, 100] {
        let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
        for millis in [1, 2, 9, 10, 11, 99, 100, 101, 511, 512, 513, 5_121, 262_144] {
            let deadline = Instant::now() + ms(millis);
            let elapsed = wheel.timeout_at(deadline, pending::<()>()).await;
            assert!(elapsed.is_err());
            let late = Instant::now()
                .checked_duration_since(deadline)
                .expect("it was early");
            assert!(
                late < ms(tick),
                "{millis} ms in ticks of {tick} ms: {late:?} late"
            );
        }
        assert_at_rest(&wheel);
    }
}

#[tokio::test(start_paused = true)]
async fn under_a_paused_clock_it_is_exact_to_a_tick() {
    let wheel = Wheel::builder().tick_duration(ms(10)).build().unwrap();
    let mut timeout = task::spawn(wheel.timeout(ms(45), pending::<()>()));
    assert_pending!(timeout.poll());
    tokio::time::advance(ms(49)).await;
    assert_pending!(timeout.poll());
    tokio::time::advance(ms(1)).await;
    assert!(
        is_elapsed(timeout.poll()),
        "with no other yield than advance's own"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_the_real_clock_it_is_never_early_while_the_shards_tick() {
    let wheel = Wheel::new();
    assert_none_of_many_is_early(|duration| {
        let wheel = wheel.clone();
        async move { assert!(wheel.timeout(duration, pending::<()>()).await.is_err()) }
    })
    .await;
    assert_at_rest(&wheel);
}

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

#[tokio::test(start_paused = true)]
async fn timeout_at_counts_from_nothing() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(wheel.timeout_at(Instant::now() + ms(100), pending::<()>()));
    tokio::time::advance(SECOND).await;
    assert!(is_elapsed(timeout.poll()));
}

// Nothing to wait for, and far too much.

#[tokio::test(start_paused = true)]
async fn a_zero_duration_elapses_at_the_first_pending_poll() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(wheel.timeout(Duration::ZERO, pending::<()>()));
    assert!(is_elapsed(timeout.poll()));
    assert_eq!(wheel.metrics().registered, 0);
}

#[tokio::test(start_paused = true)]
async fn a_past_deadline_elapses_at_the_first_poll_or_the_next_tick() {
    let wheel = Wheel::new();
    let mut other = task::spawn(wheel.sleep(DAY));
    assert_pending!(other.poll());
    tokio::time::advance(ms(1_005)).await;
    let start = Instant::now();
    for deadline in [start, start - ms(1), start - SECOND] {
        let elapsed = wheel.timeout_at(deadline, pending::<()>()).await;
        assert!(elapsed.is_err());
    }
    assert!(start.elapsed() < TICK);
}

#[tokio::test(start_paused = true)]
async fn the_longest_duration_elapses_after_thirty_years_and_not_before() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let elapsed = wheel.timeout(Duration::MAX, pending::<()>()).await;
    assert!(elapsed.is_err());
    assert!(start.elapsed() >= DAY * 365 * 30);
    // And what is started in that far future is as punctual as ever.
    let start = Instant::now();
    assert!(wheel.timeout(ms(50), pending::<()>()).await.is_err());
    assert!(start.elapsed() >= ms(50), "{:?}", start.elapsed());
    assert!(start.elapsed() < ms(50) + TICK);
}

// In time.

#[tokio::test(start_paused = true)]
async fn a_future_that_completes_in_time_cancels_the_timer_at_once() {
    let wheel = Wheel::new();
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(wheel.timeout(SECOND, receiver));
    assert_pending!(timeout.poll());
    assert_eq!(wheel.pending(), 1);
    advance(ms(990)).await;
    assert_pending!(timeout.poll());
    sender.send("in time").unwrap();
    assert!(timeout.is_woken());
    assert_ready_eq!(timeout.poll(), Ok(Ok("in time")));
    assert_eq!(wheel.pending(), 0, "though the timeout is still held");
    let metrics = wheel.metrics();
    assert_eq!(
        (metrics.registered, metrics.expired, metrics.cancelled),
        (1, 0, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn it_is_woken_when_due_and_not_before() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(wheel.timeout(SECOND, pending::<()>()));
    assert_pending!(timeout.poll());
    advance(ms(999)).await;
    assert!(!timeout.is_woken());
    advance(ms(1)).await;
    assert!(timeout.is_woken());
    assert!(is_elapsed(timeout.poll()));
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn it_elapses_again_if_polled_again() {
    let wheel = Wheel::new();
    let mut timeout = task::spawn(wheel.timeout(TICK, pending::<()>()));
    assert_pending!(timeout.poll());
    advance(TICK).await;
    assert!(is_elapsed(timeout.poll()));
    assert!(is_elapsed(timeout.poll()));
    assert_eq!(wheel.metrics().registered, 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_nested_timeouts_the_shorter_one_elapses() {
    let wheel = Wheel::new();
    let start = Instant::now();
    let inner = wheel.timeout(ms(50), pending::<()>());
    assert!(wheel.timeout(SECOND, inner).await.unwrap().is_err());
    assert!(start.elapsed() < ms(50) + 2 * TICK);
    let inner = wheel.timeout(SECOND, pending::<()>());
    assert!(wheel.timeout(ms(50), inner).await.is_err());
    assert_at_rest(&wheel);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_moved_between_tasks_of_a_ticking_wheel_wakes_the_last() {
    let wheel = Wheel::new();
    let _busy = make_tick(&wheel);
    let (first, first_woken) = counting_waker();
    // Long enough for a machine that stands still between the two polls.
    let mut moved = wheel.timeout(SECOND, pending::<()>());
    register_for(&first, &mut moved);
    assert!(tokio::spawn(moved).await.unwrap().is_err());
    assert_eq!(first_woken.load(Ordering::SeqCst), 0);
}

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

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_takes_its_timer_along_and_nothing_else() {
    let wheel = Wheel::new();
    let mut other = task::spawn(wheel.timeout(SECOND, pending::<()>()));
    assert_pending!(other.poll());
    let task = tokio::spawn({
        let wheel = wheel.clone();
        async move {
            let mut polled = false;
            wheel
                .timeout(
                    SECOND,
                    poll_fn(move |cx| {
                        assert!(!polled, "the future inside panics");
                        polled = true;
                        cx.waker().wake_by_ref();
                        Poll::<()>::Pending
                    }),
                )
                .await
        }
    });
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(wheel.pending(), 1);
    advance(SECOND).await;
    assert!(is_elapsed(other.poll()));
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
async fn it_takes_whatever_turns_into_a_future() {
    struct Request;
    impl IntoFuture for Request {
        type Output = &'static str;
        type IntoFuture = Ready<&'static str>;
        fn into_future(self) -> Self::IntoFuture {
            ready("response")
        }
    }
    let wheel = Wheel::new();
    assert_eq!(wheel.timeout(SECOND, Request).await, Ok("response"));
    assert_eq!(
        wheel.timeout_at(Instant::now() + SECOND, Request).await,
        Ok("response")
    );
}

#[tokio::test(start_paused = true)]
async fn the_future_inside_may_be_neither_send_nor_unpin() {
    let wheel = Wheel::new();
    let cell = Cell::new(0);
    let counts = async {
        loop {
            cell.set(cell.get() + 1);
            wheel.sleep(ms(100)).await;
        }
    };
    assert!(wheel.timeout(ms(1_050), counts).await.is_err());
    assert!((9..=11).contains(&cell.get()), "{} rounds", cell.get());
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

    assert_eq!(wheel.shutdown().timers, 0);
    let refused = wheel.try_timeout(ms(10), pending::<()>()).await.unwrap_err();
    assert_eq!(refused, TimeoutError::Shutdown);
    assert!(!refused.is_elapsed());
    assert_ne!(io::Error::from(refused).kind(), io::ErrorKind::TimedOut);
}

// The cooperative budget.

#[tokio::test(start_paused = true)]
async fn a_future_that_always_uses_up_the_budget_does_not_keep_its_timeout_from_elapsing() {
    let wheel = Wheel::new();
    for at in [false, true] {
        let exhausting = async {
            loop {
                tokio::task::coop::consume_budget().await;
            }
        };
        let task = if at {
            tokio::spawn(wheel.timeout_at::<Pin<Box<dyn Future<Output = ()> + Send>>>(
                Instant::now() + ms(100),
                Box::pin(exhausting),
            ))
        } else {
            tokio::spawn(
                wheel.timeout::<Pin<Box<dyn Future<Output = ()> + Send>>>(ms(100), Box::pin(exhausting)),
            )
        };
        for _ in 0..20 {
            advance(ms(10)).await;
        }
        assert!(task.is_finished(), "twice its time has passed");
        assert!(task.await.unwrap().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_of_elapsed_timeouts_does_not_starve_its_runtime() {
    let wheel = Wheel::new();
    for kind in ["zero", "past"] {
        let other_ran = Arc::new(AtomicBool::new(false));
        let flag = other_ran.clone();
        tokio::spawn(async move { flag.store(true, Ordering::SeqCst) });
        for _ in 0..1_000 {
            let elapsed = match kind {
                "zero" => wheel.timeout(Duration::ZERO, pending::<()>()).await,
                _ => wheel.timeout_at(Instant::now() - SECOND, pending::<()>()).await,
            };
            assert!(elapsed.is_err());
        }
        assert!(
            other_ran.load(Ordering::SeqCst),
            "{kind} timeouts starved the runtime"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_polled_without_any_budget_left_is_not_lost() {
    let wheel = Wheel::new();
    let mut timeout = wheel.timeout(ms(10), pending::<()>());
    assert!(futures::poll!(&mut timeout).is_pending());
    tokio::time::advance(ms(10)).await;
    while tokio::task::coop::has_budget_remaining() {
        tokio::task::coop::consume_budget().await;
    }
    assert!(futures::poll!(&mut timeout).is_pending(), "the budget is used up");
    assert!(timeout.await.is_err());
}

// Runtimes.

#[test]
fn its_first_pending_poll_outside_a_runtime_panics_in_tokios_words() {
    let wheel = Wheel::new();
    let in_a_minute = Instant::now() + SECOND * 60;
    let timeouts = [
        wheel.timeout(SECOND, pending::<()>()),
        wheel.timeout_at(in_a_minute, pending::<()>()),
    ];
    for timeout in timeouts {
        let outside = AssertUnwindSafe(|| futures::executor::block_on(timeout));
        let panic = catch_unwind(outside).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        let tokios = "there is no reactor running, must be called from the context of a Tokio 1.x runtime";
        assert!(message.contains(tokios), "{message}");
    }
    assert_at_rest(&wheel);
}
