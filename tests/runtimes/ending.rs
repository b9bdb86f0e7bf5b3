//! A runtime ends while its timers are in use.

use std::{
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant as Std},
};

use futures::{StreamExt, stream::FuturesUnordered};
use tickwheel::{ScheduleError, Wheel};
use tokio::{runtime::Runtime, task, time::Instant};

use crate::{
    play::{
        PATIENCE, SECOND, assert_no_engine_is_left, assert_not_early, current, end, found, is_ready, ms,
        multi, poll_for_nobody, shared_wheels, wait_until,
    },
    support::{assert_at_rest, paused_runtime, register, register_for, waiting, waker_of, within},
};

/// Runs `work` as long as it does not panic. Panics are counted.
async fn count_panics(panics: Arc<AtomicU64>, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    poll_fn(|cx| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx)));
        panics.fetch_add(u64::from(polled.is_err()), Relaxed);
        polled.unwrap_or(Poll::Ready(()))
    })
    .await;
}

#[test]
fn a_busy_runtime_that_ends_panics_in_no_task_that_starts_timeouts() {
    let (wheel, panics) = (Wheel::new(), Arc::new(AtomicU64::new(0)));
    for round in 0..60 {
        let runtime = multi(2);
        for _ in 0..20 {
            let wheel = wheel.clone();
            runtime.spawn(count_panics(panics.clone(), async move {
                loop {
                    let start = Std::now();
                    while start.elapsed() < ms(1) / 20 {}
                    let _ = wheel.timeout(SECOND, task::yield_now()).await;
                }
            }));
        }
        thread::sleep(ms(3));
        end(runtime, round % 2 == 1);
    }
    assert_no_engine_is_left(&wheel);
    assert_eq!(panics.load(Relaxed), 0);
}

#[test]
fn a_busy_runtime_that_ends_panics_in_no_task_that_sleeps() {
    let panics = Arc::new(AtomicU64::new(0));
    for round in 0..60 {
        let runtime = multi(4);
        for _ in 0..50 {
            runtime.spawn(count_panics(panics.clone(), async {
                loop {
                    tickwheel::time::sleep(Duration::from_micros(100)).await;
                    let _ = tickwheel::time::timeout(ms(5), task::yield_now()).await;
                }
            }));
        }
        thread::sleep(ms(2));
        end(runtime, round % 2 == 1);
    }
    thread::sleep(ms(100));
    assert_eq!(panics.load(Relaxed), 0);
}

/// Starts a timer, as something that says goodbye to a peer does.
struct PollsInDrop(Wheel, Arc<AtomicU64>);

impl Drop for PollsInDrop {
    fn drop(&mut self) {
        let mut timeout = pin!(self.0.timeout(ms(1), pending::<()>()));
        let polled = timeout.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.1.fetch_add(u64::from(polled.is_pending()), Relaxed);
    }
}

#[test]
fn destructors_of_tasks_start_timers() {
    for has_engine in [false, true] {
        for round in 0..40 {
            let (wheel, polled) = (Wheel::new(), Arc::new(AtomicU64::new(0)));
            let runtime = if round % 2 == 0 { multi(1) } else { current() };
            let guard = PollsInDrop(wheel.clone(), polled.clone());
            runtime.block_on(async {
                if has_engine {
                    wheel.sleep(ms(1)).await;
                }
                tokio::spawn(async move {
                    let _guard = guard;
                    pending::<()>().await
                });
                tokio::time::sleep(ms(1)).await;
            });
            drop(runtime);
            assert_eq!(polled.load(Relaxed), 1);
            assert_no_engine_is_left(&wheel);
        }
    }
}

#[test]
fn an_idle_engine_ends_with_its_runtime() {
    let wheel = Wheel::new();
    for round in 0..100 {
        let runtime = if round % 2 == 0 { multi(2) } else { current() };
        runtime.block_on(async {
            if round % 4 < 2 {
                let _ = wheel.timeout(SECOND, task::yield_now()).await;
            } else {
                // One that is due by its first poll is not registered.
                waiting(Waker::noop(), || wheel.sleep(ms(1))).await;
            }
        });
        assert_eq!(wheel.metrics().engines, 1);
        drop(runtime);
        assert_no_engine_is_left(&wheel);
    }
    let metrics = wheel.metrics();
    assert_eq!(
        (metrics.registered, metrics.expired, metrics.cancelled),
        (100, 50, 50)
    );
}

/// Polled in a runtime that ends, awaited in another one.
#[test]
fn nothing_that_waits_elsewhere_is_lost() {
    let wheel = Wheel::new();
    for _ in 0..100 {
        let runtime = multi(2);
        let elsewhere: Vec<_> = (1..4)
            .map(|n| {
                let (handle, wheel) = (runtime.handle().clone(), wheel.clone());
                thread::spawn(move || {
                    for _ in 0..20 {
                        let mut sleep = wheel.sleep(n * ms(1) / 3);
                        let entered = handle.enter();
                        let polled = poll_for_nobody(&mut sleep);
                        drop(entered);
                        if polled.is_some_and(|polled| polled.is_pending()) {
                            current().block_on(found("a sleep that moved", sleep));
                        }
                    }
                })
            })
            .collect();
        thread::sleep(Duration::from_micros(fastrand::u64(0..5_000)));
        drop(runtime);
        elsewhere.into_iter().for_each(|thread| thread.join().unwrap());
    }
    assert_no_engine_is_left(&wheel);
}

/// While a runtime ends, a future that waits on it in another thread is woken, and goes on there.
#[test]
fn futures_are_woken_when_their_runtime_ends() {
    for round in 0..100 {
        let wheel = &shared_wheels()[round % 2];
        let first = multi(2);
        let mut sleeps: Vec<_> = (0..20).map(|n| wheel.sleep(ms(5 + n))).collect();
        first.block_on(async {
            for sleep in &mut sleeps {
                is_ready(sleep).await;
            }
        });
        let second = thread::spawn(move || {
            current().block_on(async {
                let mut all: FuturesUnordered<_> = sleeps.into_iter().collect();
                while found("a sleep whose runtime ended", all.next()).await.is_some() {}
            });
        });
        thread::sleep(Duration::from_micros(fastrand::u64(0..3_000)));
        drop(first);
        second.join().unwrap();
    }
}

/// A future of one runtime goes on in others, each of which ends while it waits, for the same instant.
#[test]
fn a_sleep_outlives_its_runtimes() {
    for round in 0..200 {
        let start = Instant::now();
        let mut sleep = shared_wheels()[round % 2].sleep(ms(30));
        let mut is_done = false;
        for _ in 0..5 {
            let runtime = if fastrand::bool() { current() } else { multi(1) };
            is_done |= runtime.block_on(async { tokio::time::timeout(ms(3), &mut sleep).await.is_ok() });
            end(runtime, fastrand::bool());
        }
        assert!(!is_done || start.elapsed() >= ms(30));
        if !is_done {
            current().block_on(found("a sleep that outlives", &mut sleep));
        }
        assert!(start.elapsed() >= ms(30));
    }
}

#[test]
fn after_the_end_a_poll_panics_in_tokios_words() {
    let (wheel, runtime) = (Wheel::new(), multi(1));
    let handle = runtime.handle().clone();
    drop(runtime);
    let _entered = handle.enter();
    let mut sleep = wheel.sleep(SECOND);
    let mut context = Context::from_waker(Waker::noop());
    let polled = catch_unwind(AssertUnwindSafe(|| {
        let _ = pin!(&mut sleep).poll(&mut context);
    }));
    let panic = polled.unwrap_err();
    let words = panic.downcast_ref::<&str>().map(|words| words.to_string());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap();
    assert!(words.contains("is being shutdown"), "{words}");
    assert_no_engine_is_left(&wheel);
}

/// Two tasks of a runtime hold a handle of a wheel, a sleep waits for them in another runtime, and an
/// exporter looks at the wheel all the time.
#[test]
fn futures_of_an_ended_runtime_never_hang_on_one_another() {
    within(SECOND * 60, || {
        for round in 0..60 {
            let wheel = Wheel::builder().max_pending(100).build().unwrap();
            let weak = wheel.downgrade();
            let exporter = thread::spawn(move || {
                while let Some(wheel) = weak.upgrade() {
                    let _ = (wheel.metrics(), wheel.snapshot());
                }
            });
            let first = if round % 2 == 0 { multi(2) } else { current() };
            let (mut sleep, mut refusable) = (wheel.sleep(ms(20)), wheel.try_sleep(ms(20)));
            first.block_on(async {
                assert!(!is_ready(&mut sleep).await && !is_ready(&mut refusable).await);
                for _ in 0..2 {
                    let wheel = wheel.clone();
                    tokio::spawn(async move { wheel.sleep(SECOND * 3_600).await });
                }
                task::yield_now().await;
            });
            // From here on only the tasks hold handles, and they go with their runtime.
            drop(wheel);
            let deadline = sleep.deadline();
            let waiting = thread::spawn(move || {
                current().block_on(async {
                    found("the sleep", sleep).await;
                    assert_not_early(deadline);
                    assert_eq!(found("the sleep that may be refused", refusable).await, Ok(()));
                });
            });
            thread::sleep(Duration::from_micros(fastrand::u64(0..3_000)));
            end(first, round % 4 == 3);
            waiting.join().unwrap();
            exporter.join().unwrap();
        }
    });
}

#[test]
fn the_stream_of_an_interval_goes_on_when_its_runtime_has_ended() {
    for wheel in shared_wheels() {
        let start = Instant::now();
        let mut interval = wheel.interval(ms(5));
        for count in 0..6_u32 {
            let runtime = if count % 2 == 0 { multi(1) } else { current() };
            runtime.block_on(async {
                let tick = found("a tick", interval.next()).await;
                assert!(tick.is_some(), "a stream of ticks never ends");
                assert!(start.elapsed() >= ms(5) * count);
                // It waits for the next tick as the runtime ends.
                let _ = futures::poll!(interval.next());
            });
        }
    }
}

#[test]
fn a_scheduled_task_ends_with_its_runtime_and_tells_its_handle_at_once() {
    within(SECOND * 60, || {
        for round in 0..20 {
            for wheel in shared_wheels() {
                let runtime = if round % 2 == 0 { multi(1) } else { current() };
                let owned = Arc::new(());
                let seen = Arc::downgrade(&owned);
                let entered = runtime.enter();
                let task = wheel.schedule(SECOND * 3_600, async move { drop(owned) });
                drop(entered);
                runtime.block_on(task::yield_now());
                end(runtime, round % 4 > 1);
                let outcome = futures::executor::block_on(task);
                assert_eq!(outcome, Err(ScheduleError::Cancelled));
                wait_until("dropped", || seen.strong_count() == 0);
            }
        }
    });
}

/// A future that has waited on a runtime which has ended is polled where there is none.
#[test]
fn a_future_of_an_ended_runtime_is_not_early_where_there_is_none() {
    for wheel in shared_wheels() {
        let mut sleep = wheel.sleep(ms(200));
        let mut timeout = Box::pin(wheel.timeout(ms(200), pending::<()>()));
        let runtime = current();
        let deadline = runtime.block_on(async {
            assert!(!is_ready(&mut sleep).await && !is_ready(&mut timeout).await);
            sleep.deadline()
        });
        drop(runtime);
        // It panics, as any first poll would.
        for _ in 0..3 {
            assert!(poll_for_nobody(&mut sleep).is_none());
            assert!(poll_for_nobody(&mut timeout).is_none());
        }
        assert!(Instant::now() < deadline || !sleep.is_elapsed());
        current().block_on(async {
            found("the sleep", sleep).await;
            assert_not_early(deadline);
            found("the timeout", timeout).await.unwrap_err();
            assert_not_early(deadline);
        });
    }
}

/// One of Tokio's timers is fired by the end of its runtime before the wheel's own, and resets and polls a
/// sleep of the wheel in its waker.
#[test]
fn a_timer_that_is_reset_as_the_timers_of_its_runtime_end_is_not_early() {
    for runtime in [current(), multi(1), paused_runtime()] {
        let mut woken = Vec::new();
        for wheel in shared_wheels() {
            let sleep = Arc::new(Mutex::new(wheel.sleep(SECOND * 3_600)));
            let resets = sleep.clone();
            let (sender, receiver) = mpsc::channel();
            let waker = waker_of(move || {
                let mut sleep = resets.lock().unwrap();
                sleep.reset_at(Instant::now() + SECOND * 1_800);
                let is_early = poll_for_nobody(&mut *sleep).is_some_and(|polled| polled.is_ready());
                sender.send(is_early || sleep.is_elapsed()).unwrap();
            });
            let entered = runtime.enter();
            register(&mut *sleep.lock().unwrap());
            let mut of_tokio = Box::pin(tokio::time::sleep(SECOND * 60));
            register_for(&waker, &mut of_tokio);
            drop(entered);
            runtime.block_on(task::yield_now());
            woken.push((of_tokio, receiver));
        }
        drop(runtime);
        for (_, is_early) in woken {
            assert!(!is_early.recv().unwrap(), "a sleep of half an hour is over");
        }
    }
}

/// Closes something asynchronously when it is dropped, as many destructors do: on a thread with a small
/// runtime.
struct ClosesInDrop(Wheel, bool);

impl Drop for ClosesInDrop {
    fn drop(&mut self) {
        let (wheel, sleeps) = (self.0.clone(), self.1);
        let closing = thread::spawn(move || {
            current().block_on(async {
                // At most so long for the peer's goodbye.
                if sleeps {
                    wheel.sleep(ms(5)).await;
                } else {
                    wheel.timeout(ms(5), pending::<()>()).await.unwrap_err();
                }
            })
        });
        closing.join().unwrap();
    }
}

/// A value that is dropped with its runtime joins a thread which waits on the same wheel, whether that
/// runtime has used it or not.
fn drop_one_that_joins(runtime: Runtime, wheel: Wheel, sleeps: bool, is_used: bool, way: u32) {
    let client = ClosesInDrop(wheel.clone(), sleeps);
    runtime.spawn(async move {
        let _client = client;
        pending::<()>().await
    });
    runtime.block_on(async {
        if is_used {
            wheel.sleep(ms(1)).await;
        } else {
            tokio::time::sleep(ms(1)).await;
        }
    });
    match way {
        0 => drop(runtime),
        1 => runtime.shutdown_timeout(ms(200)),
        _ => runtime.shutdown_background(),
    }
}

#[test]
fn a_value_dropped_with_its_runtime_may_wait_for_the_same_wheel() {
    for is_multi in [false, true] {
        for sleeps in [false, true] {
            for is_used in [false, true] {
                for way in 0..3 {
                    for kind in 0..3 {
                        within(SECOND * 20, move || {
                            let timers = multi(1);
                            let wheel = match kind {
                                0 => Wheel::new(),
                                1 => Wheel::global(),
                                _ => Wheel::builder().handle(timers.handle().clone()).build().unwrap(),
                            };
                            let runtime = if is_multi { multi(2) } else { current() };
                            drop_one_that_joins(runtime, wheel, sleeps, is_used, way);
                        });
                    }
                }
            }
        }
    }
}

/// A runtime whose tasks sleep and time out, and tell of it.
fn under_load(wheel: &Wheel, number: usize, sender: &mpsc::Sender<usize>) -> Runtime {
    let runtime = multi(1);
    for n in 0..10 {
        let (wheel, sender) = (wheel.clone(), sender.clone());
        runtime.spawn(async move {
            loop {
                let deadline = Instant::now() + ms(1 + n % 5);
                wheel.sleep_until(deadline).await;
                assert_not_early(deadline);
                let _ = wheel.timeout(SECOND, task::yield_now()).await;
                let _ = sender.send(number);
            }
        });
    }
    runtime
}

/// One of ten runtimes that share a wheel ends and another begins, again and again.
#[test]
fn runtimes_that_share_a_wheel_end_one_after_the_other_under_load() {
    let wheel = Wheel::new();
    let (sender, receiver) = mpsc::channel();
    let mut runtimes: Vec<_> = (0..10)
        .map(|number| under_load(&wheel, number, &sender))
        .collect();
    for number in 10..70 {
        let begun = under_load(&wheel, number, &sender);
        end(
            std::mem::replace(&mut runtimes[number % 10], begun),
            number % 3 == 0,
        );
        // All others go on, the one that has just begun among them.
        let mut waited_for: Vec<_> = (number - 9..=number).collect();
        while !waited_for.is_empty() {
            let heard = receiver.recv_timeout(PATIENCE).expect("timers are lost");
            waited_for.retain(|number| *number != heard);
        }
    }
    drop(runtimes);
    assert_no_engine_is_left(&wheel);
    assert_at_rest(&wheel);
    assert_eq!(wheel.metrics().panics, 0);
}
