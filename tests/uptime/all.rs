//! A runtime that becomes 2^30 ms old, which takes twelve days, with a timer that is 2^36 ms away.
//!
//! Up to version 1.53, Tokio loses its other timers then (tokio #8334). A timer of the wheel's must not be the
//! cause, and one of Tokio's must not stop a wheel for longer than until its next timer starts. A package of
//! its own, so that `.ci/uptime` can choose the version of Tokio.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tickwheel::{DelayQueue, Wheel};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, yield_now},
    time::{self, Instant},
};

const AGE: Duration = Duration::from_millis(1 << 30);
const FAR: Duration = Duration::from_millis((1 << 36) + 1_000);
const HOUR: Duration = Duration::from_secs(3_600);

/// Moves the clock, and lets all tasks run.
async fn step(span: Duration) {
    time::advance(span).await;
    for _ in 0..20 {
        yield_now().await;
    }
}

/// Moves the clock until the runtime, which began at `start`, is that old. It has events all the time, as a
/// server has.
async fn grow_to(age: Duration, start: Instant) {
    while start.elapsed() < age {
        step(HOUR.min(age - start.elapsed())).await;
    }
}

/// Lets a second pass.
async fn pass_a_second() {
    for _ in 0..100 {
        step(Duration::from_millis(10)).await;
    }
}

async fn spawn(future: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let task = tokio::spawn(future);
    step(Duration::ZERO).await;
    task
}

/// Lets the runtime grow old with a timer of Tokio's that is far away, and a wheel with a timer that comes due
/// just after. Returns that one's task.
async fn lose_a_turn(wheel: &Wheel) -> JoinHandle<()> {
    let start = Instant::now();
    step(Duration::from_millis(5)).await;
    spawn(time::sleep(FAR)).await;
    grow_to(AGE - Duration::from_millis(100), start).await;
    let in_flight = spawn(wheel.sleep(Duration::from_millis(150))).await;
    pass_a_second().await;
    in_flight
}

#[tokio::test(start_paused = true)]
async fn a_wheel_goes_on_when_tokio_has_lost_its_turn() {
    let wheel = Wheel::new();
    let in_flight = lose_a_turn(&wheel).await;
    let next = spawn(wheel.sleep(Duration::from_millis(50))).await;
    pass_a_second().await;
    assert!(in_flight.is_finished() && next.is_finished());
    assert_eq!(wheel.pending(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_starts_in_another_shard_makes_it_go_on() {
    // More than there are threads, so that no two of them have the same.
    let wheel = Wheel::builder().shards(64).build().unwrap();
    let in_flight = lose_a_turn(&wheel).await;
    let (runtime, clone) = (Handle::current(), wheel.clone());
    let starter = thread::spawn(move || {
        let _entered = runtime.enter();
        let mut next = Box::pin(clone.sleep(HOUR));
        assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        next
    });
    let next = starter.join().unwrap();
    step(Duration::from_millis(2)).await;
    assert!(in_flight.is_finished());
    drop(next);
    assert_eq!(wheel.pending(), 0);
}

/// Fails if Tokio's timers stop when the runtime grows old beside a future.
async fn assert_harmless(far: impl Future<Output = ()> + Send + 'static) {
    let start = Instant::now();
    step(Duration::from_millis(5)).await;
    spawn(far).await;
    grow_to(AGE - Duration::from_millis(100), start).await;
    let in_flight = spawn(time::sleep(Duration::from_millis(150))).await;
    pass_a_second().await;
    assert!(in_flight.is_finished(), "Tokio has lost a timer of its own");
}

#[tokio::test(start_paused = true)]
async fn a_far_sleep_does_no_harm() {
    assert_harmless(Wheel::new().sleep(FAR)).await;
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_is_reset_does_no_harm() {
    let mut sleep = Box::pin(Wheel::new().sleep(HOUR));
    assert_harmless(async move {
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            sleep.as_mut().reset(Instant::now() + FAR);
            // It may be asked at any time.
            assert!(!sleep.is_elapsed());
            let polled = sleep.as_mut().poll(cx);
            cx.waker().wake_by_ref();
            if polls < 10 { polled } else { Poll::Ready(()) }
        })
        .await;
        sleep.await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_far_timeout_of_tickwheel_time_does_no_harm() {
    assert_harmless(async {
        _ = tickwheel::time::timeout(FAR, std::future::pending::<()>()).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_far_future_does_no_harm() {
    // After 609 days, 30 years are a multiple of 2^36 ms.
    let start = Instant::now();
    step(Duration::from_millis(5)).await;
    let far = spawn(Wheel::new().sleep(Duration::MAX)).await;
    for edge in 1..52 {
        grow_to(AGE * edge - Duration::from_millis(100), start).await;
        let in_flight = spawn(time::sleep(Duration::from_millis(150))).await;
        pass_a_second().await;
        assert!(in_flight.is_finished(), "after {:?}", start.elapsed());
    }
    assert!(!far.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_delay_queue_does_no_harm() {
    assert_harmless(async {
        let mut queue = DelayQueue::new();
        queue.insert((), FAR);
        poll_fn(|cx| queue.poll_expired(cx).map(drop)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_delay_queue_gives_out_what_is_far_away_at_its_time() {
    let start = Instant::now();
    let mut queue = DelayQueue::new();
    queue.insert((), FAR);
    poll_fn(|cx| queue.poll_expired(cx).map(drop)).await;
    assert_eq!(start.elapsed(), FAR);
}

#[tokio::test(start_paused = true)]
async fn a_far_sleep_ends_at_its_time() {
    let start = Instant::now();
    let mut sleep = pin!(Wheel::new().sleep(FAR));
    sleep.as_mut().await;
    assert_eq!(start.elapsed(), FAR);
}
