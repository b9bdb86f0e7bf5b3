//! Small things that are as in Tokio.

use std::{
    cell::RefCell,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use tickwheel::{Wheel, time};
use tokio::{
    runtime::{Builder, Runtime},
    task,
    time::Instant,
};

const MS: Duration = ms(1);
const S: Duration = (1 * SECOND);

fn multi(workers: usize) -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .unwrap()
}

fn current() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn is_ready<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_ready())).await
}

#[test]
fn after_an_engine_s_end_a_sleep_has_not_elapsed() {
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(100 * S);
    let runtime = current();
    assert!(!runtime.block_on(is_ready(&mut sleep)));
    drop(runtime);
    assert!(!sleep.is_elapsed());
    assert!(!current().block_on(is_ready(&mut sleep)));
    assert!(!sleep.is_elapsed());
}

#[test]
fn a_poll_outside_a_runtime_leaves_the_future_as_it_was() {
    let wheel = Wheel::with(Settings {
        tick: 10 * MS,
        ..Settings::default()
    });
    let mut timeout = Box::pin(wheel.timeout(50 * MS, pending::<()>()));
    let mut poll = || {
        let mut context = Context::from_waker(Waker::noop());
        catch_unwind(AssertUnwindSafe(|| timeout.as_mut().poll(&mut context)))
    };
    assert!(poll().is_err());
    thread::sleep(100 * MS);
    assert!(poll().is_err());
    let runtime = current();
    let start = Instant::now();
    runtime.block_on(async {
        // Counts from here, and is this wheel's.
        assert!(!is_ready(&mut timeout).await);
        assert_eq!(wheel.pending(), 1);
        assert!(timeout.await.is_err());
    });
    assert!(start.elapsed() >= 50 * MS);
    let mut sleep = wheel.sleep(50 * MS);
    assert!(!runtime.block_on(is_ready(&mut sleep)));
    drop(runtime);
    let mut context = Context::from_waker(Waker::noop());
    assert!(catch_unwind(AssertUnwindSafe(|| Pin::new(&mut sleep).poll(&mut context))).is_err());
    current()
        .block_on(async { tokio::time::timeout(S, sleep).await })
        .unwrap();
}

#[test]
fn a_timeout_may_be_polled_after_it_is_ready() {
    current().block_on(async {
        let mut polls = 0;
        let every_second = poll_fn(|_| {
            polls += 1;
            if polls % 2 == 0 {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let wheel = Wheel::new();
        let mut timeout = Box::pin(wheel.timeout(S, every_second));
        let mut ready = 0;
        for _ in 0..6 {
            ready += u32::from(is_ready(&mut timeout).await);
        }
        assert_eq!(ready, 3);
        assert_eq!(wheel.pending(), 1);
        drop(timeout);
        assert_eq!(wheel.pending(), 0);
    });
}

#[test]
fn an_engine_ends_as_its_last_timer_is_moved_to_the_past() {
    let runtime = multi(1);
    for _ in 0..20 {
        let wheel = Wheel::new();
        runtime.block_on(async {
            let mut sleep = wheel.sleep(600 * S);
            assert!(!is_ready(&mut sleep).await);
            drop(wheel);
            tokio::time::sleep(2 * MS).await;
            sleep.reset(Instant::now() - MS);
            sleep.await;
        });
    }
    thread::sleep(100 * MS);
    assert_eq!(runtime.metrics().num_alive_tasks(), 0);
}

/// Uses timers in its destructor, when what threads remember has been destroyed.
struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        current().block_on(async {
            assert!(time::timeout(2 * MS, pending::<()>()).await.is_err());
            _ = time::timeout(20 * S, task::yield_now()).await;
            time::sleep(MS).await;
        });
        FLUSHED.fetch_add(1, Relaxed);
    }
}

static FLUSHED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static FLUSH: RefCell<Option<Flush>> = const { RefCell::new(None) };
}

#[test]
fn timers_work_in_destructors_of_thread_locals() {
    let thread = thread::spawn(|| {
        let runtime = current();
        runtime.block_on(async { tokio::time::sleep(MS).await });
        FLUSH.with(|flush| *flush.borrow_mut() = Some(Flush));
        runtime.block_on(async { time::sleep(MS).await });
    });
    thread.join().unwrap();
    assert_eq!(FLUSHED.load(Relaxed), 1);
}

/// A task that starts timers whenever it is polled, and waits for none, is not woken by what it has left for ever.
#[test]
fn a_task_does_not_wake_itself() {
    let runtime = multi(1);
    // Tokio's tasks are known from now on.
    runtime.block_on(async { tokio::spawn(time::sleep(5 * MS)).await.unwrap() });
    for durations in [&[2][..], &[2, 5], &[5, 2], &[2, 3, 50]] {
        for each_poll in [1, durations.len()] {
            let polls = Arc::new(AtomicU64::new(0));
            let counted = polls.clone();
            let mut durations = durations.iter().cycle();
            let task = runtime.spawn(poll_fn(move |cx| {
                counted.fetch_add(1, Relaxed);
                for duration in durations.by_ref().take(each_poll) {
                    let mut sleep = pin!(time::sleep(*duration * MS));
                    _ = sleep.as_mut().poll(cx);
                }
                Poll::<()>::Pending
            }));
            thread::sleep(500 * MS);
            task.abort();
            let polls = polls.load(Relaxed);
            assert!(
                (2..=5).contains(&polls),
                "{polls} polls with {each_poll} timers each"
            );
        }
    }
}

/// All counts are exact as soon as nothing happens, with spares kept, taken over and expired on several threads.
#[test]
fn counts_are_exact_at_quiet_points() {
    let wheel = Wheel::new();
    let (mut registered, mut expired, mut cancelled) = (0, 0, 0);
    for round in 0..6 {
        let runtime = if round % 3 == 2 { current() } else { multi(3) };
        let mut held = runtime.block_on(async {
            let tasks: Vec<_> = (0..30)
                .map(|n| {
                    let wheel = wheel.clone();
                    tokio::spawn(async move {
                        for k in 0..100 {
                            let duration = if n % 2 == 0 { 20 * S } else { (5 + k % 7) * MS };
                            // Moves on, but is done long before that.
                            assert!(wheel.timeout(duration * 1_000, task::yield_now()).await.is_ok());
                        }
                        for _ in 0..3 {
                            wheel.sleep(MS).await;
                        }
                        let mut later = wheel.sleep(2 * MS);
                        assert!(!is_ready(&mut later).await);
                        later.reset(Instant::now() + 6 * MS);
                        later.await;
                        _ = wheel
                            .timeout(if n % 5 == 0 { 30 * MS } else { 5 * S }, task::yield_now())
                            .await;
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let mut held: Vec<_> = (0..7).map(|_| wheel.sleep(50 * S)).collect();
            for sleep in &mut held {
                assert!(!is_ready(sleep).await);
            }
            // So that spares of 30 ms expire.
            tokio::time::sleep(60 * MS).await;
            held
        });
        (registered, expired, cancelled) =
            (registered + 30 * 105 + 7, expired + 30 * 4, cancelled + 30 * 101);
        let check = |pending: u64, cancelled: u64| {
            let counts = wheel.metrics();
            assert_eq!(counts.pending, pending, "{counts:?}");
            assert_eq!(counts.registered, registered, "{counts:?}");
            assert_eq!(counts.expired, expired, "{counts:?}");
            assert_eq!(counts.cancelled, cancelled, "{counts:?}");
        };
        check(7, cancelled);
        held.truncate(3);
        check(3, cancelled + 4);
        drop(runtime);
        check(0, cancelled + 7);
        cancelled += 7;
    }
}
