//! `timeout` and `sleep`, in a runtime and outside. The original's own tests run on it in
//! `.ci/run foreign`.

use std::{
    fmt::Debug,
    future::{pending, poll_fn},
    task::Poll,
    time::{Duration, Instant},
};

use futures::{FutureExt, executor::block_on};
use pingora_timeout::{Timeout, fast_timeout, sleep, timeout, timer::TimerManager};
use tokio_test::{assert_pending, assert_ready, task};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn like_the_originals<T: Send + Sync + Unpin + Debug>() {}
const _: () = like_the_originals::<Timeout<(), fast_timeout::FastOrTokioTimeout>>();

#[tokio::test(start_paused = true)]
async fn time_counts_from_the_first_poll_that_finds_the_future_pending() {
    let limited = timeout(ms(100), pending::<()>());
    tokio::time::advance(ms(500)).await;
    let start = tokio::time::Instant::now();
    assert!(limited.await.is_err());
    assert_eq!(start.elapsed(), ms(100));
    sleep(ms(70)).await;
    assert_eq!(start.elapsed(), ms(170));
}

#[tokio::test(start_paused = true)]
async fn a_future_that_uses_up_the_budget_elapses_too() {
    let greedy = poll_fn(|cx| {
        while tokio::task::coop::poll_proceed(cx)
            .map(|spent| spent.made_progress())
            .is_ready()
        {}
        Poll::<()>::Pending
    });
    let mut limited = task::spawn(timeout(ms(100), greedy));
    assert_pending!(limited.poll());
    tokio::time::advance(ms(100)).await;
    assert!(assert_ready!(limited.poll()).is_err());
}

#[test]
fn outside_of_a_runtime_it_is_driven_all_the_same() {
    let start = Instant::now();
    assert!(block_on(timeout(ms(20), pending::<()>())).is_err());
    block_on(sleep(ms(20)));
    assert!(start.elapsed() >= ms(40), "never early");
}

#[test]
fn a_timeout_whose_runtime_has_ended_is_not_early_outside_of_one() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let start = Instant::now();
    let (mut limited, mut slept) = (timeout(ms(300), pending::<()>()), Box::pin(sleep(ms(300))));
    runtime.block_on(async {
        assert!((&mut limited).now_or_never().is_none());
        assert!((&mut slept).now_or_never().is_none());
    });
    drop(runtime);
    block_on(async {
        assert!(limited.await.is_err());
        assert!(start.elapsed() >= ms(300), "{:?}", start.elapsed());
        slept.await;
        assert!(start.elapsed() >= ms(300), "{:?}", start.elapsed());
    });
}

/// A timer that is registered between a pause and a fork has expired at once, and takes no lock.
#[tokio::test(start_paused = true)]
async fn a_pause_holds_timers_back_from_the_wheel() {
    let timers = TimerManager::new();
    let before = timers.register_timer(ms(100));
    timers.pause_for_fork();
    let start = tokio::time::Instant::now();
    timers.register_timer(ms(1_000)).poll().await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    timers.unpause();
    timers.register_timer(ms(200)).poll().await;
    assert_eq!(start.elapsed(), ms(200));
    before.poll().await;
    assert_eq!(start.elapsed(), ms(200), "it expired meanwhile");
}
