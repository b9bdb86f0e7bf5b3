//! The entry of a task's last timer is kept for its next one. That must be observable in no count, no poll
//! and no memory.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    task::{Poll, Wake, Waker},
    thread,
    time::{Duration, Instant as Std},
};

use tickwheel::{Metrics, Wheel, time};
use tokio::{runtime::Runtime, sync::oneshot, task, time::Instant};

use crate::{
    play::{
        SECOND, assert_not_early, current, found, is_ready, ms, multi, poll_for_nobody, shared_wheels,
        wait_until,
    },
    support::{assert_at_rest, own_process::in_own_process, register_for, waiting, waker_of},
};

/// All counts are exact as soon as nothing happens, with spares kept, taken over and expired on several
/// threads.
#[test]
fn counts_are_exact_at_quiet_points() {
    let wheel = Wheel::new();
    let (mut registered, mut expired, mut cancelled) = (0, 0, 0);
    for round in 0..6 {
        let runtime = if round % 3 == 2 { current() } else { multi(3) };
        let mut held = runtime.block_on(async {
            let tasks: Vec<_> = (0..30)
                .map(|number| tokio::spawn(a_hundred_and_five_timers(wheel.clone(), number)))
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let mut held: Vec<_> = (0..7).map(|_| wheel.sleep(SECOND * 50)).collect();
            for sleep in &mut held {
                assert!(!is_ready(sleep).await);
            }
            // So that spares of 30 ms expire.
            tokio::time::sleep(ms(60)).await;
            held
        });
        registered += 30 * 105 + 7;
        expired += 30 * 3;
        cancelled += 30 * 102;
        let check = |pending: usize, cancelled: u64| {
            let metrics = wheel.metrics();
            let Metrics {
                pending: p,
                registered: r,
                expired: e,
                cancelled: c,
                ..
            } = metrics;
            assert_eq!(
                (p, r, e, c),
                (pending, registered, expired, cancelled),
                "{metrics:?}"
            );
        };
        check(7, cancelled);
        held.truncate(3);
        check(3, cancelled + 4);
        drop(runtime);
        check(0, cancelled + 7);
        cancelled += 7;
    }
}

/// The timeout of a request and that of a call in it each leave a spare, and each takes one over.
#[test]
fn counts_are_exact_with_timeouts_in_timeouts() {
    let (wheel, runtime) = (Wheel::new(), multi(2));
    let rounds = 200;
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let wheel = wheel.clone();
            runtime.spawn(async move {
                // The spares of every second task expire.
                let [call, request, longer] = if number % 2 == 0 {
                    [40, 50, 60]
                } else {
                    [20_000, 30_000, 40_000]
                }
                .map(ms);
                for _ in 0..rounds {
                    let call = wheel.timeout(call, task::yield_now());
                    let request = wheel.timeout(request, call);
                    wheel.timeout(longer, request).await.unwrap().unwrap().unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    thread::sleep(ms(100));
    let metrics = wheel.metrics();
    // On a busy machine, an entry of 40 ms may expire before its future is ready.
    let ended = metrics.expired + metrics.cancelled;
    assert_eq!((metrics.pending, ended), (0, 8 * 3 * rounds), "{metrics:?}");
    assert_eq!(metrics.registered, ended);
    assert_eq!(wheel.snapshot().pending, 0);
}

/// Tasks take over spares, let some expire and end with others, and runtimes end, while the counters are read.
#[test]
fn no_counter_ever_goes_back() {
    let wheel = Wheel::new();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3 {
                multi(3).block_on(async {
                    let tasks: Vec<_> = (0..9)
                        .map(|number| tokio::spawn(short_and_long_timers(wheel.clone(), number)))
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            }
            is_done.store(true, SeqCst);
        });
        let mut last = wheel.metrics();
        while !is_done.load(SeqCst) {
            let next = wheel.metrics();
            let counters = |metrics: &Metrics| [metrics.registered, metrics.expired, metrics.cancelled];
            let both = counters(&last).into_iter().zip(counters(&next));
            assert!(
                both.into_iter().all(|(last, next)| last <= next),
                "{last:?}, then {next:?}"
            );
            last = next;
        }
    });
    let Metrics {
        registered,
        expired,
        cancelled,
        pending,
        ..
    } = wheel.metrics();
    assert_eq!((pending, registered), (0, expired + cancelled));
    // A timer of a task that is held up may elapse before it is registered.
    assert!(registered <= 3 * 9 * 2_000);
}

/// The durations are such that some entries expire as their timers are dropped or just after.
async fn short_and_long_timers(wheel: Wheel, number: u64) {
    for n in 0..2_000 {
        let duration = if (n + number) % 4 == 0 {
            ms(1)
        } else {
            ms(2 + n % 50)
        };
        wheel.timeout(duration, task::yield_now()).await.ok();
    }
}

/// What is due then counts as expired, though the turn has not come to it, and a spare among it as a timer
/// that was cancelled.
#[test]
fn counts_are_exact_when_a_runtime_ends_in_the_middle_of_a_turn() {
    let (wheel, runtime) = (Wheel::new(), multi(1));
    let handle = runtime.handle().clone();
    // Tokio's tasks are known from now on.
    handle.block_on(async { tokio::spawn(time::sleep(ms(5))).await.unwrap() });

    // Longer than it takes to start them.
    let at = Instant::now() + SECOND;
    let runtime = Mutex::new(Some(runtime));
    let ends_runtime = waker_of(move || {
        let runtime = runtime.lock().unwrap().take();
        runtime.into_iter().for_each(Runtime::shutdown_background);
    });
    let entered = handle.enter();
    let mut due = vec![waiting(&ends_runtime, || wheel.sleep_until(at))];
    due.extend((1..5_000).map(|_| waiting(Waker::noop(), || wheel.sleep_until(at))));
    drop(entered);
    let mut given_up = wheel.sleep_until(at);
    let leaves_a_spare = handle.spawn(async move { assert!(!is_ready(&mut given_up).await) });
    handle.block_on(leaves_a_spare).unwrap();

    wait_until("without engines", || wheel.metrics().engines == 0);
    let metrics = wheel.metrics();
    let counts = (
        metrics.pending,
        metrics.registered,
        metrics.expired,
        metrics.cancelled,
    );
    assert_eq!(counts, (0, 5_001, 5_000, 1), "{metrics:?}");
}

/// Three of them expire.
async fn a_hundred_and_five_timers(wheel: Wheel, number: u64) {
    for n in 0..100 {
        let duration = if number % 2 == 0 {
            SECOND * 20
        } else {
            SECOND * (5 + n % 7)
        };
        // It is done long before that.
        wheel.timeout(duration, task::yield_now()).await.unwrap();
    }
    for _ in 0..3 {
        // Long enough that it waits, also where a thread is held up.
        wheel.timeout(ms(50), pending::<()>()).await.unwrap_err();
    }
    let mut given_up = wheel.sleep(SECOND * 20);
    assert!(!is_ready(&mut given_up).await);
    drop(given_up);
    let last = if number % 5 == 0 { ms(30) } else { SECOND * 5 };
    let _ = wheel.timeout(last, task::yield_now()).await;
}

/// Nothing expires in the first batch of a late turn, because a crowd of the coarsest ring has to be moved.
#[test]
fn counts_are_exact_when_a_spare_expires_in_the_second_batch_of_a_turn() {
    let runtime = multi(1);
    let builder = Wheel::builder().shards(1).slack(Duration::ZERO);
    let wheel = builder.ticks_per_wheel(4).levels(2).build().unwrap();
    let shared = wheel.clone();
    let playing = runtime.spawn(async move {
        let mut crowd: Vec<_> = (0..1_000).map(|_| shared.sleep(ms(60))).collect();
        crowd
            .iter_mut()
            .for_each(|sleep| register_for(Waker::noop(), sleep));
        for _ in 0..4 {
            let mut timeout = shared.timeout(ms(100), pending::<()>());
            assert!(!is_ready(&mut timeout).await);
        }
        // No turn is made meanwhile.
        thread::sleep(ms(150));
        crowd
    });
    let crowd = runtime.block_on(playing).unwrap();
    wait_until("all have expired", || {
        wheel.metrics().expired >= 1_000 && wheel.pending() == 0
    });
    drop(crowd);
    assert_at_rest(&wheel);
}

/// A task that starts timers whenever it is polled, and waits for none, is not woken by what it has left for
/// ever.
#[test]
fn a_task_does_not_wake_itself_for_ever() {
    let runtime = multi(1);
    // Tokio's tasks are known from now on.
    runtime.block_on(async { tokio::spawn(time::sleep(ms(5))).await.unwrap() });
    for durations in [&[2][..], &[2, 5], &[5, 2], &[2, 3, 50]] {
        for each_poll in [1, durations.len(), 200] {
            let polls = Arc::new(AtomicU64::new(0));
            let counted = polls.clone();
            let mut durations = durations.iter().cycle();
            let task = runtime.spawn(poll_fn(move |cx| {
                counted.fetch_add(1, Relaxed);
                for duration in durations.by_ref().take(each_poll) {
                    let mut sleep = pin!(time::sleep(ms(*duration)));
                    let _ = sleep.as_mut().poll(cx);
                }
                Poll::<()>::Pending
            }));
            thread::sleep(ms(500));
            task.abort();
            let polls = polls.load(Relaxed);
            assert!(polls <= 5, "{polls} polls with {each_poll} timers each");
        }
    }
}

/// Nor is one whose poll takes so long that another worker makes a turn meanwhile.
#[test]
fn a_task_with_long_polls_does_not_wake_itself_for_ever() {
    let runtime = multi(2);
    // Tokio's tasks are known from now on.
    runtime.block_on(async { tokio::spawn(time::sleep(ms(5))).await.unwrap() });
    let sleeps: [fn() -> time::Sleep; 2] = [
        || time::sleep(ms(2)),
        || time::sleep_until(Instant::now() + ms(2)),
    ];
    for sleep in sleeps {
        let polls = Arc::new(AtomicU64::new(0));
        let counted = polls.clone();
        let task = runtime.spawn(poll_fn(move |cx| {
            counted.fetch_add(1, Relaxed);
            for _ in 0..200 {
                let _ = pin!(sleep()).poll(cx);
                let begin = Std::now();
                while begin.elapsed() < Duration::from_micros(100) {}
            }
            Poll::<()>::Pending
        }));
        wait_until("is left in peace", || {
            let before = polls.load(Relaxed);
            thread::sleep(ms(200));
            before > 0 && polls.load(Relaxed) == before
        });
        task.abort();
    }
}

/// Loops with timeouts around a future that waits once. Returns the number of loops, and of polls beyond two
/// each.
async fn busy(durations: Vec<u64>) -> (u64, u64) {
    let (mut loops, mut polls) = (0, 0_u64);
    let begin = Std::now();
    while begin.elapsed() < ms(700) {
        let duration = ms(durations[loops as usize % durations.len()]);
        let (sender, mut receiver) = oneshot::channel::<()>();
        tokio::spawn(async move {
            task::yield_now().await;
            let _ = sender.send(());
        });
        let answer = poll_fn(|cx| {
            polls += 1;
            pin!(&mut receiver).poll(cx).map(drop)
        });
        let _ = time::timeout(duration, answer).await;
        loops += 1;
    }
    (loops, polls.saturating_sub(2 * loops))
}

#[test]
fn a_busy_task_is_hardly_woken_for_nothing() {
    let runtime = multi(1);
    for durations in [&[20][..], &[5], &[100], &[20, 40], &[3, 5_000], &[200_000]] {
        let task = runtime.spawn(busy(durations.to_vec()));
        let (loops, for_nothing) = runtime.block_on(task).unwrap();
        assert!(
            for_nothing * 20 <= loops + 200,
            "timeouts of {durations:?} ms: {loops} loops, {for_nothing} polls for nothing"
        );
    }
}

/// A task that several threads poll in turn, and that starts timers at each poll.
#[test]
fn a_spare_does_not_follow_its_task() {
    multi(4).block_on(async {
        let tasks: Vec<_> = (0..20)
            .map(|_| {
                tokio::spawn(async {
                    for round in 0..300 {
                        let duration = ms(fastrand::u64(1..40));
                        let mut timeout = Box::pin(time::timeout(duration, task::yield_now()));
                        // A third of them is polled once and kept for a while.
                        let _ = futures::poll!(&mut timeout);
                        if round % 3 == 0 {
                            task::yield_now().await;
                        }
                        drop(timeout);
                        if round % 50 == 0 {
                            let deadline = Instant::now() + ms(2);
                            found("a sleep after timeouts", time::sleep_until(deadline)).await;
                            assert_not_early(deadline);
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

struct Owner(#[allow(dead_code)] Arc<()>);

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

/// Another executor's waker may own its future.
#[test]
fn only_wakers_of_tokios_tasks_are_kept() {
    let task = async {
        for _ in 0..20 {
            for wheel in shared_wheels() {
                // What a task leaves behind is of no use for another waker.
                let _ = wheel.timeout(SECOND * 30, task::yield_now()).await;
                let owned = Arc::new(());
                let waker = Waker::from(Arc::new(Owner(owned.clone())));
                let mut sleep = wheel.sleep(SECOND * 30);
                register_for(&waker, &mut sleep);
                drop((sleep, waker));
                assert_eq!(Arc::strong_count(&owned), 1);
            }
        }
    };
    let runtime = multi(1);
    let task = runtime.spawn(task);
    runtime.block_on(task).unwrap();
}

#[test]
fn the_entry_of_a_thread_that_ends_is_freed() {
    let (runtime, wheel) = (multi(1), Wheel::new());
    for _ in 0..10 {
        thread::scope(|scope| {
            scope.spawn(|| {
                let (handle, wheel) = (runtime.handle().clone(), wheel.clone());
                let current = current();
                let task = current.spawn(async move {
                    for _ in 0..3 {
                        let _entered = handle.enter();
                        let mut sleep = wheel.sleep(SECOND * 30);
                        assert!(poll_for_nobody(&mut sleep).is_some());
                        let mut timeout = Box::pin(wheel.timeout(SECOND * 30, pending::<()>()));
                        assert!(poll_for_nobody(&mut timeout).is_some());
                    }
                });
                current.block_on(task).unwrap();
            });
        });
        assert_eq!(wheel.pending(), 0);
    }
}

/// Schedules futures of as many types as there are numbers.
macro_rules! schedule_each {
    ($wheel:expr, $($number:literal)*) => { [$($wheel.schedule(SECOND * 60, async { $number }).cancel()),*] };
}

/// How often a task is polled that has left a spare of 50 ms and sleeps for 60: once more if it takes the
/// spare over.
async fn polls_of_a_sleep_after_a_timeout(wheel: &Wheel) -> u32 {
    let _ = wheel.timeout(ms(50), task::yield_now()).await;
    let (mut polls, mut sleep) = (0, wheel.sleep(ms(60)));
    poll_fn(|cx| {
        polls += 1;
        pin!(&mut sleep).poll(cx)
    })
    .await;
    polls
}

/// In a process of its own, where the scheduled futures come before any task is known.
#[test]
fn scheduled_futures_of_many_types_cost_no_task_its_spares() {
    if !in_own_process(scheduled_futures_of_many_types_cost_no_task_its_spares, "") {
        return;
    }
    let (wheel, runtime) = (Wheel::new(), multi(1));
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    runtime.spawn(async move { receiver.recv() });
    runtime.block_on(async {
        let cancelled = schedule_each!(wheel, 0 1 2 3 4 5 6 7 8 9 10 11);
        assert_eq!(cancelled, [true; 12]);
    });
    drop(sender);
    let task = runtime.spawn(async move {
        let mut polls = Vec::new();
        for _ in 0..5 {
            polls.push(polls_of_a_sleep_after_a_timeout(&wheel).await);
        }
        polls
    });
    let polls = runtime.block_on(task).unwrap();
    assert!(polls.contains(&3), "it takes no spare over: {polls:?}");
}

/// A timer that a task has left, of a kind that another timer with less time must not wait for.
#[test]
fn a_timer_after_a_longer_one_of_its_task_is_on_time() {
    let runtime = multi(1);
    let task = runtime.spawn(async {
        for wheel in shared_wheels() {
            for long in [SECOND * 86_400, SECOND * 30, ms(40)] {
                for short in [ms(20), ms(5), Duration::ZERO] {
                    let _ = wheel.timeout(long, task::yield_now()).await;
                    let begin = Instant::now();
                    found("a short sleep", wheel.sleep(short)).await;
                    assert_not_early(begin + short);
                }
            }
        }
    });
    runtime.block_on(task).unwrap();
}

/// Such a timer is not pending, so the engine of a wheel without a handle does not wait for its deadline.
#[test]
fn a_spare_keeps_no_engine_of_a_wheel_without_a_handle() {
    let runtime = multi(1);
    for is_kept_later in [false, true] {
        let wheel = Wheel::new();
        let task = runtime.spawn(async move {
            // Tokio's tasks are known by then.
            wheel.sleep(ms(1)).await;
            let _ = wheel.timeout(SECOND * 30, task::yield_now()).await;
            let last = wheel.timeout(SECOND * 30, task::yield_now());
            if is_kept_later {
                drop(wheel);
                let _ = last.await;
            }
        });
        runtime.block_on(task).unwrap();
        wait_until("without an engine", || runtime.metrics().num_alive_tasks() == 0);
    }
}

/// A task uses two wheels by turns.
#[test]
fn the_counts_of_two_wheels_that_a_task_uses_are_their_own() {
    let runtime = multi(1);
    let wheels = [Wheel::new(), Wheel::new()];
    let of_task = wheels.clone();
    let task = runtime.spawn(async move {
        for stay in (0..30).chain([1; 20]) {
            for wheel in &of_task {
                for _ in 0..stay {
                    let _ = wheel.timeout(SECOND * 30, task::yield_now()).await;
                }
            }
            let [one, other] = of_task.each_ref().map(|wheel| wheel.metrics().cancelled);
            assert_eq!(one, other);
            of_task.iter().for_each(assert_at_rest);
        }
    });
    runtime.block_on(task).unwrap();
    wheels.iter().for_each(assert_at_rest);
}

/// One of them is kept as a spare, until it expires.
#[test]
fn the_memory_of_a_burst_goes_back_though_one_of_it_is_kept() {
    let runtime = multi(1);
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let of_task = wheel.clone();
    let task = runtime.spawn(async move {
        let mut burst: Vec<_> = (0..100_000).map(|_| of_task.sleep(SECOND * 4)).collect();
        for sleep in &mut burst {
            assert!(!is_ready(sleep).await);
        }
        assert!(of_task.metrics().arena_bytes > 1 << 20);
    });
    runtime.block_on(task).unwrap();
    assert_at_rest(&wheel);
    wait_until("given back", || wheel.metrics().arena_bytes < 1 << 17);
}

#[test]
fn under_a_limit_the_room_of_a_cancelled_timer_is_free_at_once() {
    let runtime = multi(1);
    let task = runtime.spawn(async {
        let wheel = Wheel::builder().max_pending(1).build().unwrap();
        for _ in 0..100 {
            wheel.try_timeout(SECOND * 30, task::yield_now()).await.unwrap();
            let mut last = wheel.try_sleep(SECOND * 30);
            assert!(!is_ready(&mut last).await);
            wheel.try_sleep(SECOND).await.unwrap_err();
        }
        assert_eq!(wheel.metrics().rejected, 100);
    });
    runtime.block_on(task).unwrap();
}

/// A paused clock would jump to the moment at which the spare is due. The task has cancelled a timer of a wheel
/// before that waits on another runtime, whose clock no test pauses.
#[test]
fn no_spare_is_kept_on_the_clock_of_a_test() {
    let timers = multi(1);
    let elsewhere = Wheel::builder().handle(timers.handle().clone()).build().unwrap();
    current().block_on(async {
        tokio::time::pause();
        let task = tokio::spawn(async move {
            let wheel = Wheel::new();
            for _ in 0..3 {
                for wheel in [&elsewhere, &wheel] {
                    let mut sleep = wheel.sleep(SECOND * 30);
                    assert!(!is_ready(&mut sleep).await);
                }
            }
            let mut polls = 0;
            let mut sleep = pin!(tokio::time::sleep(SECOND * 100));
            poll_fn(|cx| {
                polls += 1;
                sleep.as_mut().poll(cx)
            })
            .await;
            polls
        });
        assert_eq!(task.await.unwrap(), 2);
    });
}
