//! `Builder::handle`: a wheel that was given a runtime.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Waker},
    thread,
    time::Duration,
};

use tickwheel::{DelayQueue, ScheduleError, Sleep, Wheel};
use tokio::{runtime, task, time::Instant};

use crate::{
    play::{
        SECOND, assert_no_engine_is_left, assert_not_early, current, end, found, is_ready, ms, multi,
        poll_for_nobody, wait_until,
    },
    support::{counting_waker, register, register_for, wheel_on, within},
};

/// Once its runtime has ended, it goes by the runtime that polls.
#[test]
fn it_goes_by_the_runtime_that_polls_when_its_own_has_ended() {
    for is_used in [false, true] {
        for in_background in [false, true] {
            let timers = multi(1);
            let wheel = wheel_on(&timers);
            let mut waits = wheel.sleep(ms(100));
            let mut far = wheel.sleep(SECOND * 60);
            let deadline = waits.deadline();
            if is_used {
                register(&mut waits);
                register(&mut far);
            }
            end(timers, in_background);
            if !in_background {
                // Where there is no runtime, it panics in Tokio's words, as any wheel does, and the sleep is
                // as it was.
                assert!(poll_for_nobody(&mut waits).is_none());
            }
            let here = current();
            here.block_on(async {
                found("a sleep that its runtime has left", &mut waits).await;
                assert_not_early(deadline);
                assert!(!is_ready(&mut far).await);
                found("a new one", wheel.sleep(ms(2))).await;
                assert_eq!(found("a task", wheel.schedule(ms(2), async { 7 })).await, Ok(7));
            });
            assert_eq!(wheel.metrics().engines, 1);
            drop(here);
            assert_no_engine_is_left(&wheel);
            assert!(poll_for_nobody(&mut wheel.sleep(ms(1))).is_none());
        }
    }
}

/// A task is the first that uses it, after its runtime has ended.
#[test]
fn a_task_runs_where_it_is_scheduled_when_its_own_runtime_has_ended() {
    for is_used in [false, true] {
        let timers = multi(1);
        let wheel = wheel_on(&timers);
        if is_used {
            timers.block_on(async { wheel.sleep(ms(1)).await });
        }
        drop(timers);
        current().block_on(async {
            assert_eq!(found("a task", wheel.schedule(ms(2), async { 7 })).await, Ok(7));
        });
    }
}

/// Its runtime ends at any moment, while threads of no runtime and tasks of another use it.
#[test]
fn its_runtime_ends_while_it_is_used() {
    within(SECOND * 120, || {
        for round in 0..60 {
            let timers = if round % 2 == 0 { multi(1) } else { multi(2) };
            let wheel = wheel_on(&timers);
            let stop = Arc::new(AtomicBool::new(false));
            let users: Vec<_> = (0..3)
                .map(|number| {
                    let (wheel, stop) = (wheel.clone(), stop.clone());
                    thread::spawn(move || {
                        let runtime = current();
                        let use_it = async {
                            while !stop.load(Relaxed) {
                                let deadline =
                                    Instant::now() + Duration::from_micros(fastrand::u64(0..2_000));
                                let mut sleep = wheel.sleep(SECOND * 60);
                                assert!(!is_ready(&mut sleep).await);
                                sleep.reset_at(deadline);
                                found("a sleep", sleep).await;
                                assert_not_early(deadline);
                                let _ = wheel.timeout(SECOND * 60, task::yield_now()).await;
                                let task = wheel.schedule(ms(number), async {});
                                let ended = found("a task", task).await;
                                assert!(
                                    matches!(ended, Ok(()) | Err(ScheduleError::Cancelled)),
                                    "{ended:?}"
                                );
                            }
                        };
                        runtime.block_on(use_it);
                    })
                })
                .collect();
            thread::sleep(Duration::from_micros(fastrand::u64(0..5_000)));
            end(timers, round % 3 == 0);
            thread::sleep(ms(5));
            stop.store(true, Relaxed);
            users.into_iter().for_each(|user| user.join().unwrap());
            assert_no_engine_is_left(&wheel);
        }
    });
}

/// It completes in one shard, and for an instant that has passed in another one, where less time has gone by.
/// Then it waits there.
#[test]
fn a_sleep_that_has_completed_waits_in_another_shard() {
    let timers = multi(1);
    let wheel = Wheel::builder().handle(timers.handle().clone()).shards(64);
    let wheel = wheel.build().unwrap();
    let (waker, woken) = counting_waker();
    let mut sleep = wheel.sleep(ms(5));
    register_for(&waker, &mut sleep);
    wait_until("woken", || woken.load(Relaxed) == 1);
    let poll = |sleep: &mut Sleep| {
        let mut context = Context::from_waker(&waker);
        Pin::new(sleep).poll(&mut context).is_ready()
    };
    assert!(poll(&mut sleep));
    // A thread has a shard of its own.
    thread::scope(|scope| {
        scope.spawn(|| {
            sleep.reset_at(Instant::now() - ms(1));
            assert!(poll(&mut sleep));
            sleep.reset_at(Instant::now() + ms(50));
            assert!(!poll(&mut sleep));
        });
    });
    wait_until("woken again", || woken.load(Relaxed) == 2);
}

/// A waker that is dropped with the runtime given to the builder, under all of its timers.
#[test]
fn whoever_waits_is_woken_when_its_runtime_ends() {
    for _ in 0..30 {
        let timers = multi(1);
        let wheel = wheel_on(&timers);
        let (waker, woken) = counting_waker();
        let mut sleeps: Vec<_> = (0..10).map(|_| wheel.sleep(SECOND * 60)).collect();
        sleeps.iter_mut().for_each(|sleep| register_for(&waker, sleep));
        let mut nobody = wheel.sleep(SECOND * 60);
        register_for(Waker::noop(), &mut nobody);
        drop(timers);
        wait_until("woken", || woken.load(Relaxed) == 10);
        assert_eq!(wheel.pending(), 0);
    }
}

/// The queue needs nothing of the runtime that polls it, neither timers nor a clock.
#[test]
fn a_queue_on_it_needs_neither_timers_nor_a_clock_where_it_is_polled() {
    let timers = multi(1);
    let wheel = wheel_on(&timers);
    let without_timers = runtime::Builder::new_current_thread().build().unwrap();
    let paused = runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    for here in [without_timers, paused] {
        here.block_on(async {
            // It goes by the clock of the runtime that was given, however far the clock here is moved.
            let mut queue = DelayQueue::on(&wheel);
            let start = std::time::Instant::now();
            let deadline = wheel.now() + ms(20);
            queue.insert("a value", ms(20));
            let key = queue.insert("moved", SECOND * 60);
            queue.reset(&key, ms(20));
            let mut expired = Vec::new();
            assert_eq!(queue.expired(&mut expired, 2), 0);
            for value in ["a value", "moved"] {
                let entry = poll_fn(|cx| queue.poll_expired(cx)).await.unwrap();
                assert_eq!(*entry.get_ref(), value);
                assert!(entry.deadline() >= deadline);
            }
            assert!(start.elapsed() >= ms(20), "early");
        });
    }
}

/// Timers are started, reset and dropped from a thread of no runtime, on a wheel that was given one, while
/// wakers do the same.
#[test]
fn threads_of_no_runtime_use_it_while_its_wakers_do() {
    let until = std::time::Instant::now() + SECOND;
    let timers = multi(1);
    let wheel = wheel_on(&timers);
    let at_random = |random: &mut fastrand::Rng| Duration::from_micros(random.u64(0..30_000));
    let rage = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        while std::time::Instant::now() < until {
            futures::executor::block_on(async {
                let deadline = Instant::now() + at_random(&mut random);
                let mut sleep = wheel.sleep_until(deadline);
                let mut another = wheel.sleep(at_random(&mut random));
                let own = wheel.clone();
                let waker = crate::support::waker_of(move || {
                    let mut sleep = own.sleep(ms(1));
                    let _ = poll_for_nobody(&mut sleep).expect("it needs no runtime");
                    sleep.reset_at(Instant::now());
                });
                let _ = std::pin::pin!(&mut another).poll(&mut Context::from_waker(&waker));
                (&mut sleep).await;
                assert_not_early(deadline);
                another.reset_at(Instant::now() + at_random(&mut random));
                (&mut another).await;
                assert_not_early(another.deadline());
            });
        }
    };
    thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(move || rage(seed)))));
}
