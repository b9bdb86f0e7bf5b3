//! `Delay`, in a runtime and outside. The original's own tests run on it in `.ci/run foreign`.

use std::{
    fmt::Debug,
    future::Future,
    pin::Pin,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use futures::executor::block_on;
use futures_timer::Delay;
use tokio_test::{assert_pending, assert_ready, task};

const fn like_the_originals<T: Send + Sync + Unpin + Debug + Future<Output = ()>>() {}
const _: () = like_the_originals::<Delay>();

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn in_a_runtime_it_is_on_the_runtimes_clock() {
    let start = tokio::time::Instant::now();
    let mut delay = task::spawn(Delay::new(ms(100)));
    assert_pending!(delay.poll());
    (&mut delay).await;
    assert_eq!(start.elapsed(), ms(100));
    assert_ready!(delay.poll(), "and it stays so");
}

#[tokio::test(start_paused = true)]
async fn time_counts_from_its_creation() {
    let delay = Delay::new(ms(100));
    tokio::time::advance(ms(60)).await;
    let start = tokio::time::Instant::now();
    delay.await;
    assert_eq!(start.elapsed(), ms(40));
}

#[tokio::test(start_paused = true)]
async fn a_reset_wakes_the_waiting_task_for_the_new_deadline() {
    let mut delay = task::spawn(Delay::new(ms(1_000)));
    assert_pending!(delay.poll());
    delay.reset(ms(50));
    tokio::time::sleep(ms(49)).await;
    assert!(!delay.is_woken());
    tokio::time::sleep(ms(2)).await;
    assert!(delay.is_woken());
    assert_ready!(delay.poll());

    delay.reset(ms(50));
    assert_pending!(delay.poll());
    delay.reset(ms(500));
    let start = tokio::time::Instant::now();
    delay.await;
    assert_eq!(start.elapsed(), ms(500));
}

#[test]
fn outside_of_a_runtime_it_is_driven_all_the_same() {
    let start = Instant::now();
    let mut delay = Delay::new(ms(20));
    block_on(&mut delay);
    assert!(start.elapsed() >= ms(20), "never early");
    let start = Instant::now();
    delay.reset(ms(20));
    block_on(delay);
    assert!(start.elapsed() >= ms(20), "nor after a reset");
}

#[test]
fn outside_of_a_runtime_many_threads_share_one_wheel() {
    let threads: Vec<_> = (0..8)
        .map(|n| {
            thread::spawn(move || {
                for _ in 0..5 {
                    let start = Instant::now();
                    block_on(Delay::new(ms(n)));
                    assert!(start.elapsed() >= ms(n));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// It is the poll that counts, for the runtime in which a delay was made may not be running.
#[test]
fn made_in_a_runtime_that_is_not_driven_and_polled_outside_it_completes() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let delay = {
        let _entered = runtime.enter();
        Delay::new(ms(10))
    };
    block_on(delay);
}

#[test]
fn a_delay_of_its_runtime_completes_on_another() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let mut delay = Delay::new(ms(20));
    let first = runtime();
    first.block_on(async {
        let polled = Pin::new(&mut delay).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    });
    drop(first);
    runtime().block_on(delay);
}

#[test]
fn a_delay_whose_runtime_has_ended_is_not_early_outside_of_one() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let start = Instant::now();
    let mut delay = Delay::new(ms(300));
    runtime.block_on(async {
        let polled = Pin::new(&mut delay).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    });
    drop(runtime);
    block_on(delay);
    assert!(start.elapsed() >= ms(300), "{:?}", start.elapsed());
}

#[test]
fn what_overflows_the_clock_is_far_away() {
    let mut delay = task::spawn(Delay::new(Duration::MAX));
    assert_pending!(delay.poll());
    delay.reset(Duration::MAX);
    assert_pending!(delay.poll());
}
