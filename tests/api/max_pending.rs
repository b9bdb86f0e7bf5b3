//! `max_pending`: an exact limit, whose places are free again as soon as a timer ends.

use crate::support;

use std::{
    future::{Future, pending, poll_fn},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::Arc,
    task::{Poll, Wake, Waker},
};

use futures::poll;
use tickwheel::{ScheduleError, SleepError, TimeoutError, Wheel};
use tokio::{
    sync::oneshot,
    task::coop,
    time::{Duration, Instant},
};
use tokio_test::{assert_pending, assert_ready_eq, task};

use support::{
    DAY, SECOND, TICK, advance, assert_adds_up, assert_at_rest, full_wheel, ms, paused_runtime, register,
    register_for, settle, threaded_runtime, within,
};

fn wheel_of(limit: usize) -> Wheel {
    Wheel::builder().max_pending(limit).build().unwrap()
}

/// Moves the clock without letting anybody run, the driver included.
async fn advance_alone(duration: Duration) {
    let mut advance = pin!(tokio::time::advance(duration));
    assert!(
        poll!(&mut advance).is_pending(),
        "the clock moves at the first poll, before any other task runs"
    );
}

/// How many more timers the wheel admits: exactly the room that is left, which is given back.
#[track_caller]
fn room(wheel: &Wheel) -> usize {
    let limit = wheel.max_pending().unwrap();
    let mut sleeps = Vec::new();
    loop {
        let mut sleep = task::spawn(wheel.try_sleep(SECOND * 3600));
        if sleep.poll().is_ready() {
            return sleeps.len();
        }
        sleeps.push(sleep);
        assert!(
            sleeps.len() <= limit,
            "more than the limit of {limit} were admitted"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn as_many_as_the_limit_are_admitted_and_not_one_more() {
    let wheel = wheel_of(3);
    let mut sleeps: Vec<_> = (0..3).map(|_| task::spawn(wheel.try_sleep(SECOND))).collect();
    for sleep in &mut sleeps {
        assert_pending!(sleep.poll());
    }
    assert_eq!(wheel.pending(), 3);
    assert_ready_eq!(
        task::spawn(wheel.try_sleep(SECOND)).poll(),
        Err(SleepError::AtCapacity { limit: 3 })
    );
    assert_eq!(wheel.pending(), 3);
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_timer_that_can_fail_is_refused_and_counted() {
    let (wheel, _holds) = full_wheel();
    let limit = 1;
    let refused = Err(SleepError::AtCapacity { limit });
    assert_ready_eq!(task::spawn(wheel.try_sleep(SECOND)).poll(), refused);
    assert_ready_eq!(
        task::spawn(wheel.try_timeout(SECOND, pending::<()>())).poll(),
        Err(TimeoutError::AtCapacity { limit })
    );
    assert_eq!(
        wheel.schedule(SECOND, async {}).await,
        Err(ScheduleError::AtCapacity { limit })
    );
    let rate = wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {});
    assert_eq!(rate.await, Err(ScheduleError::AtCapacity { limit }));
    let delay = wheel.periodic(SECOND).spawn_with_fixed_delay(|| async {});
    assert_eq!(delay.await, Err(ScheduleError::AtCapacity { limit }));
    let metrics = wheel.metrics();
    assert_eq!((metrics.rejected, metrics.registered, metrics.pending), (5, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_never_waits_is_never_refused() {
    let (wheel, _holds) = full_wheel();
    assert_eq!(wheel.try_sleep(Duration::ZERO).await, Ok(()));
    assert_eq!(wheel.try_timeout(SECOND, std::future::ready(7)).await, Ok(7));
    assert_eq!(
        wheel.try_timeout(Duration::ZERO, pending::<()>()).await,
        Err(TimeoutError::Elapsed)
    );
    wheel.interval(SECOND).tick().await;
    assert_eq!(wheel.metrics().rejected, 0);
}

/// The deadline has passed, but the tick of the deadline has not begun.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_long_tick_is_refused_and_counted() {
    let builder = Wheel::builder().max_pending(1).tick_duration(SECOND);
    let wheel = builder.build().unwrap();
    let mut occupant = task::spawn(wheel.try_sleep(DAY));
    assert_pending!(occupant.poll());
    // No two of these are the beginning of a tick.
    let mut refused = 0;
    for _ in 0..3 {
        tokio::time::advance(ms(250)).await;
        let slept = task::spawn(wheel.try_sleep(Duration::ZERO)).poll();
        let timed = task::spawn(wheel.try_timeout(Duration::ZERO, pending::<()>())).poll();
        assert!(slept.is_ready() && timed.is_ready(), "it waits without a place");
        refused += u64::from(slept == Poll::Ready(Err(SleepError::AtCapacity { limit: 1 })));
        refused += u64::from(timed == Poll::Ready(Err(TimeoutError::AtCapacity { limit: 1 })));
    }
    assert!(refused >= 4, "{refused}");
    let metrics = wheel.metrics();
    assert_eq!((metrics.rejected, metrics.registered), (refused, 1));
}

#[test]
fn a_first_poll_outside_a_runtime_takes_no_place() {
    let wheel = wheel_of(1);
    let mut sleep = wheel.try_sleep(SECOND);
    let polled = catch_unwind(AssertUnwindSafe(|| register(&mut sleep)));
    assert!(polled.is_err(), "Tokio panics there");
    paused_runtime().block_on(async {
        assert_eq!(room(&wheel), 1);
        register(&mut sleep);
        assert_eq!(room(&wheel), 0);
    });
}

#[tokio::test(start_paused = true)]
async fn a_refused_task_is_dropped_at_once_and_never_runs() {
    let (wheel, occupant) = full_wheel();
    let (sender, mut receiver) = oneshot::channel::<()>();
    let refused = wheel.schedule(TICK, async { sender.send(()) });
    assert_eq!(receiver.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(
        (
            refused.is_cancelled(),
            refused.is_finished(),
            refused.is_started()
        ),
        (true, true, false)
    );
    assert!(!refused.cancel(), "there is nothing left to cancel");
    drop(occupant);
    assert!(wheel.shutdown().tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_refused_sleep_can_be_tried_again() {
    let (wheel, occupant) = full_wheel();
    let mut refused = task::spawn(wheel.try_sleep(SECOND * 2));
    assert_ready_eq!(refused.poll(), Err(SleepError::AtCapacity { limit: 1 }));
    drop(occupant);
    assert_pending!(refused.poll());
    advance(SECOND * 2).await;
    assert_ready_eq!(refused.poll(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn cancelling_frees_room_at_once() {
    let wheel = wheel_of(2);
    let mut sleep = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(sleep.poll());
    let task = wheel.schedule(SECOND, async {});
    assert_eq!(room(&wheel), 0);
    drop(sleep);
    assert_eq!(room(&wheel), 1);
    assert!(task.cancel());
    assert_eq!(room(&wheel), 2);
    let (sender, receiver) = oneshot::channel();
    let mut timeout = task::spawn(wheel.try_timeout(SECOND, receiver));
    assert_pending!(timeout.poll());
    assert_eq!(room(&wheel), 1);
    sender.send(7).unwrap();
    assert_ready_eq!(timeout.poll(), Ok(Ok(7)));
    assert_eq!(
        room(&wheel),
        2,
        "a timeout whose future is ready has left, dropped or not"
    );
}

#[tokio::test(start_paused = true)]
async fn one_that_is_due_keeps_its_place_until_it_is_polled() {
    let wheel = wheel_of(2);
    let mut sleep = task::spawn(wheel.try_sleep(TICK));
    let mut timeout = task::spawn(wheel.try_timeout(TICK, pending::<()>()));
    assert_pending!(sleep.poll());
    assert_pending!(timeout.poll());
    assert_eq!(room(&wheel), 0);
    advance(TICK).await;
    assert_eq!(wheel.pending(), 0);
    assert_eq!(room(&wheel), 0);
    assert_ready_eq!(sleep.poll(), Ok(()));
    assert_eq!(room(&wheel), 1);
    assert_ready_eq!(timeout.poll(), Err(TimeoutError::Elapsed));
    assert_eq!(room(&wheel), 2);
    drop((sleep, timeout));
    assert_eq!(room(&wheel), 2, "and only once");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_has_started_takes_no_room() {
    let wheel = wheel_of(1);
    let (_release, held) = oneshot::channel::<()>();
    let task = wheel.schedule(TICK, held);
    assert_eq!(room(&wheel), 0);
    advance(TICK).await;
    assert!(task.is_started() && !task.is_finished());
    assert_eq!(room(&wheel), 1);
}

/// Netty's counter was decremented twice, or never, for a timeout cancelled in the very tick it was due.
mod cancelled_in_the_very_tick_it_was_due {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_sleep_that_the_driver_has_not_come_to_yet_gives_up_one_place() {
        for reached in [false, true] {
            let wheel = wheel_of(2);
            let mut other = task::spawn(wheel.try_sleep(SECOND));
            let mut sleep = task::spawn(wheel.try_sleep(TICK));
            assert_pending!(other.poll());
            assert_pending!(sleep.poll());
            settle().await;
            advance_alone(TICK).await;
            if reached {
                settle().await;
                assert!(sleep.is_woken());
            }
            drop(sleep);
            assert_eq!(room(&wheel), 1, "driver come: {reached}");
            settle().await;
            assert_eq!(room(&wheel), 1, "driver come: {reached}");
            assert_adds_up(&wheel);
            assert_eq!(wheel.pending(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_gives_up_one_place_and_cancel_tells_the_truth() {
        for reached in [false, true] {
            let wheel = wheel_of(2);
            let mut other = task::spawn(wheel.try_sleep(SECOND));
            assert_pending!(other.poll());
            let (sender, mut receiver) = oneshot::channel();
            let task = wheel.schedule(TICK, async { sender.send(()) });
            settle().await;
            advance_alone(TICK).await;
            if reached {
                settle().await;
            }
            assert_eq!(task.cancel(), !reached);
            settle().await;
            assert_eq!(receiver.try_recv().is_ok(), reached);
            assert_eq!(room(&wheel), 1, "driver come: {reached}");
            assert_adds_up(&wheel);
            assert_eq!(wheel.pending(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_reset_to_later_keeps_its_place() {
    let wheel = wheel_of(1);
    let mut kept = task::spawn(wheel.try_sleep(TICK));
    assert_pending!(kept.poll());
    let deadline = Instant::now() + SECOND;
    kept.reset_at(deadline);
    advance(TICK).await;
    // Expired at its old deadline, it keeps its place until it elapses.
    assert!(kept.is_woken());
    assert_eq!(room(&wheel), 0);
    assert_pending!(kept.poll());
    assert_eq!((wheel.pending(), room(&wheel)), (1, 0));
    advance(SECOND - TICK).await;
    assert_ready_eq!(kept.poll(), Ok(()));
    assert_eq!(room(&wheel), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_reset_after_it_elapsed_is_not_refused() {
    let wheel = wheel_of(1);
    let mut kept = task::spawn(wheel.try_sleep(TICK));
    assert_pending!(kept.poll());
    advance(TICK).await;
    assert_ready_eq!(kept.poll(), Ok(()));
    let mut other = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(other.poll());
    kept.reset_at(Instant::now() + SECOND);
    assert_pending!(kept.poll());
    assert_eq!(wheel.pending(), 2);
    drop(other);
    assert_eq!(room(&wheel), 0, "it holds a permit again");
    drop(kept);
    assert_eq!(room(&wheel), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_may_be_refused_has_the_methods_of_one_that_may_not() {
    let start = Instant::now();
    let mut sleep = task::spawn(wheel_of(1).try_sleep(TICK));
    Pin::new(&mut *sleep).reset(start + SECOND);
    assert_eq!(sleep.deadline(), start + SECOND);
    let debug = format!("{:?}", *sleep);
    assert!(
        debug.contains("TrySleep") && debug.contains("deadline"),
        "{debug}"
    );
    assert_pending!(sleep.poll());
    advance(SECOND - TICK).await;
    assert_pending!(sleep.poll());
    assert!(!sleep.is_elapsed());
    advance(TICK).await;
    assert_ready_eq!(sleep.poll(), Ok(()));
    assert!(sleep.is_elapsed());
}

/// The wakers of those who hold a permit are kept for a shutdown, under a lock.
#[test]
fn a_waker_may_use_the_wheel_as_it_is_dropped() {
    struct UsesTheWheel(Wheel);
    impl Wake for UsesTheWheel {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for UsesTheWheel {
        fn drop(&mut self) {
            register(&mut self.0.try_sleep(DAY));
        }
    }
    within(SECOND * 60, || {
        paused_runtime().block_on(async {
            let wheel = wheel_of(10_000);
            for scene in ["polled by another task", "dropped", "dropped after a burst"] {
                let waker = Waker::from(Arc::new(UsesTheWheel(wheel.clone())));
                let mut sleep = wheel.try_sleep(DAY);
                register_for(&waker, &mut sleep);
                drop(waker);
                if scene == "polled by another task" {
                    register(&mut sleep);
                }
                if scene == "dropped after a burst" {
                    let mut burst: Vec<_> = (0..5_000).map(|_| wheel.try_sleep(DAY)).collect();
                    burst.iter_mut().for_each(register);
                }
                drop(sleep);
                assert_at_rest(&wheel);
            }
        });
    });
}

/// A limit is of the wheel, whatever the runtime.
#[test]
fn runtimes_share_the_limit() {
    let wheel = wheel_of(4);
    let [first, second] = [paused_runtime(), threaded_runtime(1)];
    let entered = first.enter();
    let mut sleeps: Vec<_> = (0..3).map(|_| task::spawn(wheel.try_sleep(DAY))).collect();
    sleeps.iter_mut().for_each(|sleep| assert_pending!(sleep.poll()));
    drop(entered);
    let _entered = second.enter();
    assert_eq!(room(&wheel), 1);
    drop(first);
    // They go on where they are polled, in their places.
    assert_eq!((wheel.pending(), room(&wheel)), (0, 1));
    for sleep in &mut sleeps {
        assert!(sleep.is_woken());
        assert_pending!(sleep.poll());
    }
    assert_eq!((wheel.pending(), room(&wheel)), (3, 1));
    drop(sleeps);
    assert_eq!((wheel.pending(), room(&wheel)), (0, 4));
    assert_adds_up(&wheel);
}

#[tokio::test(start_paused = true)]
async fn a_series_keeps_its_place_from_run_to_run() {
    for rate in [true, false] {
        let wheel = wheel_of(1);
        let builder = wheel.periodic(TICK * 2);
        let series = if rate {
            builder.spawn_at_fixed_rate(|| async {})
        } else {
            builder.spawn_with_fixed_delay(|| async {})
        };
        settle().await;
        assert_eq!(room(&wheel), 0);
        advance_alone(TICK * 2).await;
        let full = wheel.clone();
        let fills = tokio::spawn(async move {
            while full.try_sleep(SECOND).await == (Err(SleepError::AtCapacity { limit: 1 })) {
                tokio::task::yield_now().await;
            }
        });
        for _ in 0..10 {
            advance(TICK * 2).await;
        }
        assert!(
            series.runs() >= 10,
            "{} runs at a fixed rate: {rate}",
            series.runs()
        );
        assert!(!series.is_finished());
        fills.abort();
        series.stop();
        settle().await;
        assert_eq!(room(&wheel), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_counted_once_also_when_the_budget_is_used_up() {
    let (wheel, _held) = full_wheel();

    let mut refused = wheel.try_sleep(SECOND);
    let mut use_up = true;
    let outcome = tokio::spawn(poll_fn(move |cx| {
        if mem::take(&mut use_up) {
            while let Poll::Ready(budget) = coop::poll_proceed(cx) {
                budget.made_progress();
            }
        }
        pin!(&mut refused).poll(cx)
    }));
    assert_eq!(outcome.await.unwrap(), Err(SleepError::AtCapacity { limit: 1 }));
    assert_eq!(wheel.metrics().rejected, 1);
}
