//! What the counters say of a timer that another one of its task takes over.

mod support;
use std::{
    future::pending,
    task::{Poll, Waker},
};
use support::*;
use tickwheel::Wheel;

async fn task_waker() -> Waker {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let _ = sender.send(waker);
        pending::<()>().await;
    });
    receiver.await.unwrap()
}

/// In a shard that ticks, a sleep that was given up is followed by a timeout: two timers, not three.
#[test]
fn a_timeout_after_a_sleep_of_the_same_task_is_counted_once() {
    real_runtime().block_on(async {
        let wheel = Wheel::builder().tick_duration(SECOND).shards(1).build().unwrap();
        let _busy = make_tick(&wheel);
        tokio::task::yield_now().await;
        let waker = task_waker().await;
        let before = wheel.metrics();
        for n in 1..=50 {
            let mut sleep = wheel.sleep(SECOND * 60);
            register_for(&waker, &mut sleep);
            drop(sleep);
            let mut timeout = wheel.timeout(SECOND * 60, pending::<()>());
            register_for(&waker, &mut timeout);
            drop(timeout);
            let metrics = wheel.metrics();
            assert_eq!(metrics.registered - before.registered, 2 * n);
            assert_eq!(metrics.cancelled - before.cancelled, 2 * n);
        }
    });
}
