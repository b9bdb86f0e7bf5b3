//! Current-thread runtimes on the machine's clock, as a program has them that does not ask for Tokio's
//! feature `test-util`.
//!
//! Everywhere else the tests ask for that feature, so each current-thread runtime there has a clock that may
//! be paused: it keeps no spares and looks at the clock at each poll. Run it by itself, because Cargo gives
//! all packages of one command the same features: `cargo test --package machine-clock`. Nothing here asserts
//! how late a timer is.

use std::{
    future::{Future, pending},
    pin::pin,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tickwheel::{Wheel, time};
use tokio::{
    runtime::{Builder, Runtime},
    task::yield_now,
};

const HOUR: Duration = Duration::from_secs(3600);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().unwrap()
}

/// Runs a task, because only tasks leave spares.
fn run<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = runtime();
    runtime.block_on(runtime.spawn(task)).unwrap()
}

#[test]
fn tokio_has_no_test_clock_here() {
    struct Lacking;
    trait Otherwise {
        fn start_paused(&mut self, _: bool) -> Lacking {
            Lacking
        }
    }
    impl Otherwise for Builder {}
    // With the feature, Tokio's own method comes first, and this does not compile.
    let Lacking = Builder::new_current_thread().start_paused(true);
}

#[test]
fn no_sleep_is_early() {
    run(async {
        let sleeps = (0..300).map(|_| async {
            let (start, duration) = (Instant::now(), Duration::from_micros(fastrand::u64(0..30_000)));
            time::sleep(duration).await;
            assert!(start.elapsed() >= duration);
        });
        join_all(sleeps).await;
    });
}

#[test]
fn a_task_s_timeouts_share_an_entry_and_each_is_counted() {
    let wheel = Wheel::new();
    let counted = wheel.clone();
    run(async move {
        for duration in [ms(50), Duration::from_secs(5), HOUR].repeat(100) {
            counted.timeout(duration, yield_now()).await.unwrap();
        }
        let metrics = counted.metrics();
        assert_eq!(
            (metrics.registered, metrics.cancelled, metrics.pending),
            (300, 300, 0)
        );
        let elapsed = counted.timeout(ms(5), pending::<()>()).await;
        elapsed.unwrap_err();
        let metrics = counted.metrics();
        assert_eq!(
            (metrics.registered, metrics.expired, metrics.pending),
            (301, 1, 0)
        );
    });
    assert_eq!(wheel.metrics().engines, 0);
}

#[test]
fn a_sleep_can_be_moved_both_ways() {
    run(async {
        let start = Instant::now();
        let mut sleep = pin!(time::sleep(ms(5)));
        assert!(
            sleep
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        sleep.as_mut().reset(time::Instant::now() + ms(25));
        sleep.as_mut().await;
        assert!(start.elapsed() >= ms(25));

        let mut sleep = pin!(time::sleep(HOUR));
        assert!(
            sleep
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        let moved = Instant::now();
        sleep.as_mut().reset(time::Instant::now() + ms(5));
        sleep.await;
        assert!(moved.elapsed() >= ms(5));
    });
}

#[test]
fn no_tick_is_early() {
    run(async {
        let start = Instant::now();
        let mut interval = time::interval(ms(3));
        for tick in 0..8 {
            interval.tick().await;
            assert!(start.elapsed() >= ms(3) * tick);
        }
    });
}

#[test]
fn what_waits_as_its_runtime_ends_goes_on_elsewhere() {
    let wheel = Wheel::new();
    let (first, second) = (runtime(), runtime());
    let start = Instant::now();
    let mut sleep = Box::pin(wheel.sleep(ms(20)));
    first.block_on(async {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(sleep.as_mut().poll(cx).is_pending());
        yield_now().await;
    });
    assert_eq!(wheel.metrics().engines, 1);
    drop(first);
    assert_eq!(wheel.metrics().engines, 0);
    second.block_on(sleep);
    assert!(start.elapsed() >= ms(20));
}

#[test]
fn a_blocked_runtime_keeps_none_of_the_timers_of_another() {
    let wheel = Wheel::new();
    let blocks = wheel.clone();
    let (tell, told) = std::sync::mpsc::channel();
    let blocked = thread::spawn(move || {
        run(async move {
            let mut later = pin!(blocks.sleep(HOUR));
            assert!(
                later
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()))
                    .is_pending()
            );
            // Blocks the runtime until the other one is done.
            told.recv().unwrap();
        });
    });
    let waits = wheel.clone();
    run(async move { join_all((0..20).map(|n| waits.sleep(ms(n)))).await });
    tell.send(()).unwrap();
    blocked.join().unwrap();
}

#[test]
fn a_shutdown_ends_what_may_fail_and_nothing_else() {
    let wheel = Wheel::new();
    run(async move {
        let refused = tokio::spawn(wheel.try_sleep(HOUR));
        let waits = tokio::spawn(wheel.sleep(ms(10)));
        let scheduled = wheel.schedule(HOUR, async {});
        yield_now().await;
        let unprocessed = wheel.shutdown();
        assert_eq!(unprocessed.tasks.len(), 1);
        refused.await.unwrap().unwrap_err();
        waits.await.unwrap();
        scheduled.await.unwrap_err();
    });
}
