//! What is as with Tokio's timers, where runtimes and clocks matter.

use std::{
    cell::RefCell,
    future::{pending, poll_fn},
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    task::{Poll, Wake, Waker},
    thread,
    time::Duration,
};

use tickwheel::{Wheel, time};
use tokio::{task, time::Instant};

use crate::{
    play::{SECOND, assert_not_early, current, found, is_ready, ms, multi, poll_for_nobody, shared_wheels},
    support::{alive_tasks, counting_waker, full_wheel, register_for},
};

#[test]
fn a_sleep_whose_engine_has_ended_has_not_elapsed() {
    for wheel in shared_wheels() {
        let mut sleep = wheel.sleep(SECOND * 100);
        let runtime = current();
        assert!(!runtime.block_on(is_ready(&mut sleep)));
        drop(runtime);
        assert!(!sleep.is_elapsed());
        assert!(!current().block_on(is_ready(&mut sleep)));
        assert!(!sleep.is_elapsed());
    }
}

#[test]
fn a_poll_outside_a_runtime_leaves_the_future_as_it_was() {
    let wheel = Wheel::builder().tick_duration(ms(10)).build().unwrap();
    let mut timeout = Box::pin(wheel.timeout(ms(50), pending::<()>()));
    assert!(poll_for_nobody(&mut timeout).is_none());
    thread::sleep(ms(100));
    assert!(poll_for_nobody(&mut timeout).is_none());
    let runtime = current();
    let start = Instant::now();
    runtime.block_on(async {
        // It counts from here, and is this wheel's.
        assert!(!is_ready(&mut timeout).await);
        assert_eq!(wheel.pending(), 1);
        found("the timeout", timeout).await.unwrap_err();
    });
    assert!(start.elapsed() >= ms(50));
    let mut sleep = wheel.sleep(ms(50));
    assert!(!runtime.block_on(is_ready(&mut sleep)));
    drop(runtime);
    assert!(poll_for_nobody(&mut sleep).is_none());
    current().block_on(found("the sleep", sleep));
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
        let mut timeout = Box::pin(wheel.timeout(SECOND * 60, every_second));
        let mut ready = 0;
        for _ in 0..6 {
            ready += u32::from(is_ready(&mut timeout).await);
        }
        assert_eq!((ready, wheel.pending()), (3, 0));
        assert!(!is_ready(&mut timeout).await);
        assert_eq!(wheel.pending(), 1, "it goes on on its wheel");
    });
}

async fn assert_no_task_is_left() {
    let ended = async {
        while alive_tasks() > 0 {
            tokio::time::sleep(ms(1)).await;
        }
    };
    found("the end of engines without handles", ended).await;
}

#[test]
fn an_engine_ends_as_its_last_timer_is_moved_to_the_past() {
    for runtime in [multi(1), current()] {
        for _ in 0..20 {
            let wheel = Wheel::new();
            runtime.block_on(async {
                let mut sleep = wheel.sleep(SECOND * 600);
                assert!(!is_ready(&mut sleep).await);
                drop(wheel);
                tokio::time::sleep(ms(2)).await;
                sleep.reset_at(Instant::now() - ms(1));
                sleep.await;
            });
        }
        runtime.block_on(assert_no_task_is_left());
    }
}

#[test]
fn an_engine_ends_whose_only_timer_was_refused() {
    let other = multi(1);
    for runtime in [multi(1), current()] {
        let (wheel, _occupant) = other.block_on(async { full_wheel() });
        let mut sleep = wheel.try_sleep(SECOND * 600);
        drop(wheel);
        runtime.block_on(async {
            assert!(is_ready(&mut sleep).await, "it is refused");
            assert_no_task_is_left().await;
        });
    }
}

/// Timers in its destructor, when what threads remember has been destroyed.
struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        current().block_on(async {
            for wheel in shared_wheels() {
                wheel.timeout(ms(2), pending::<()>()).await.unwrap_err();
                let _ = wheel.timeout(SECOND * 20, task::yield_now()).await;
                wheel.sleep(ms(1)).await;
            }
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
        runtime.block_on(async { tokio::time::sleep(ms(1)).await });
        // Dropped last, because it is made first.
        FLUSH.with_borrow_mut(|flush| *flush = Some(Flush));
        runtime.block_on(async { time::sleep(ms(1)).await });
    });
    thread.join().unwrap();
    assert_eq!(FLUSHED.load(Relaxed), 1);
}

/// Keeps what a timer's poll panics with in the destructor of a thread-local, in which Tokio knows no runtime.
struct PollsLast(Arc<Mutex<Vec<String>>>);

impl Drop for PollsLast {
    fn drop(&mut self) {
        for wheel in shared_wheels() {
            let mut sleep = wheel.sleep(SECOND);
            let polled = panic::catch_unwind(AssertUnwindSafe(|| register_for(Waker::noop(), &mut sleep)));
            let message = polled.unwrap_err().downcast::<String>().unwrap();
            self.0.lock().unwrap().push(*message);
        }
    }
}

thread_local! {
    static POLLS_LAST: RefCell<Option<PollsLast>> = const { RefCell::new(None) };
}

/// Advice to poll the timer in a runtime would be of no use there.
#[test]
fn a_panic_in_the_destructor_of_a_thread_local_has_tokios_words_alone() {
    let messages = Arc::new(Mutex::new(Vec::new()));
    let seen = messages.clone();
    let thread = thread::spawn(move || {
        // Dropped last, because it is made first.
        POLLS_LAST.with_borrow_mut(|last| *last = Some(PollsLast(seen)));
        current().block_on(async { time::sleep(ms(1)).await });
    });
    thread.join().unwrap();
    let messages = messages.lock().unwrap();
    assert_eq!(messages.len(), shared_wheels().len());
    for message in &*messages {
        assert!(message.ends_with("has been destroyed."), "{message}");
    }
}

#[test]
fn the_waker_of_the_last_poll_is_woken() {
    multi(1).block_on(async {
        for _ in 0..20 {
            let [(one, one_woken), (other, other_woken)] = [(); 2].map(|()| counting_waker());
            let woken = |woken: &AtomicUsize| woken.load(Relaxed);
            let mut sleep = Wheel::global().sleep(ms(30));
            for waker in [&one, &other, &one, &other] {
                register_for(waker, &mut sleep);
            }
            tokio::time::sleep(ms(40)).await;
            assert_eq!((woken(&one_woken), woken(&other_woken)), (0, 1));
            assert!(is_ready(&mut sleep).await);
        }
    });
}

/// It does not wait for the driver, which the only worker does not let run meanwhile.
#[test]
fn a_moment_that_has_passed_is_ready_at_the_first_poll() {
    let runtime = multi(1);
    let task = runtime.spawn(async {
        time::sleep(ms(1)).await;
        thread::sleep(ms(30));
        let mut sleep = Wheel::global().sleep_until(Instant::now() - ms(5));
        assert!(is_ready(&mut sleep).await);
        // The ticks that an interval has missed come at once.
        let mut interval = time::interval(ms(10));
        interval.tick().await;
        thread::sleep(ms(200));
        for _ in 0..15 {
            assert!(is_ready(&mut Box::pin(interval.tick())).await);
        }
    });
    runtime.block_on(task).unwrap();
}

#[test]
fn an_idle_runtime_is_not_woken() {
    let runtime = multi(2);
    runtime.block_on(async {
        for _ in 0..100 {
            let _ = time::timeout(SECOND * 30, task::yield_now()).await;
        }
        let task = tokio::spawn(async {
            for _ in 0..100 {
                let _ = time::timeout(SECOND * 30, task::yield_now()).await;
            }
        });
        task.await.unwrap();
    });
    let parked = || {
        (0..2)
            .map(|worker| runtime.metrics().worker_park_count(worker))
            .sum::<u64>()
    };
    thread::sleep(ms(20));
    let before = parked();
    thread::sleep(ms(500));
    let woken = parked() - before;
    assert!(woken <= 2, "{woken} wake-ups");
}

/// A wheel on a plain thread, inside a runtime that was entered, with a timer that a task made and has not
/// polled.
#[test]
fn a_timer_made_in_a_task_is_first_polled_by_a_thread_inside_an_entered_runtime() {
    for wheel in shared_wheels() {
        let made_in = multi(1);
        let polled_in = multi(1);
        let task = made_in.spawn(async move {
            let _ = wheel.timeout(SECOND, task::yield_now()).await;
            (
                wheel.sleep(ms(3)),
                Box::pin(wheel.timeout(ms(3), pending::<()>())),
            )
        });
        let (mut sleep, mut timeout) = made_in.block_on(task).unwrap();
        drop(made_in);
        let handle = polled_in.handle().clone();
        let thread = thread::spawn(move || {
            let entered = handle.enter();
            assert!(poll_for_nobody(&mut timeout).is_some());
            let _ = poll_for_nobody(&mut sleep).expect("it is inside a runtime");
            drop(entered);
            futures::executor::block_on(async {
                sleep.await;
                timeout.await.unwrap_err();
            });
        });
        thread.join().unwrap();
    }
}

/// Zero durations under a clock that was paused in mid-millisecond: on a wheel with a long tick they end at its
/// next tick, with the default one when Tokio's would.
#[test]
fn zero_durations_under_a_clock_paused_in_mid_millisecond() {
    for after in [0, 300, 700, 999] {
        current().block_on(async {
            let begin = std::time::Instant::now();
            while begin.elapsed() < Duration::from_micros(after) {}
            tokio::time::pause();
            let long = Wheel::builder().tick_duration(ms(50)).build().unwrap();
            let start = Instant::now();
            let mut sleep = long.sleep(Duration::ZERO);
            let mut timeout = Box::pin(long.timeout(Duration::ZERO, pending::<()>()));
            assert!(!is_ready(&mut sleep).await && !is_ready(&mut timeout).await);
            assert_eq!(long.schedule(Duration::ZERO, async { 7 }).await, Ok(7));
            sleep.await;
            timeout.await.unwrap_err();
            assert!(start.elapsed() <= ms(51), "{:?}", start.elapsed());

            let of_tokio = is_ready(&mut Box::pin(tokio::time::sleep(Duration::ZERO))).await;
            for wheel in shared_wheels() {
                let start = Instant::now();
                assert_eq!(is_ready(&mut wheel.sleep(Duration::ZERO)).await, of_tokio);
                let ours = async {
                    wheel.sleep(Duration::ZERO).await;
                    start.elapsed()
                };
                let tokios = async {
                    tokio::time::sleep(Duration::ZERO).await;
                    start.elapsed()
                };
                let (ours, tokios) = tokio::join!(ours, tokios);
                assert_eq!(ours, tokios);
            }
        });
    }
}

/// A waker that is woken when its runtime ends, and polls its timer there and then.
#[test]
fn a_waker_may_poll_as_its_engine_ends() {
    struct Polls(Mutex<Option<tickwheel::Sleep>>, Arc<AtomicUsize>);
    impl Wake for Polls {
        fn wake(self: Arc<Self>) {
            if let Some(mut sleep) = self.0.lock().unwrap().take() {
                let polled = poll_for_nobody(&mut sleep);
                self.1.fetch_add(1 + usize::from(polled.is_some()), Relaxed);
            }
        }
    }
    for round in 0..40 {
        let wheel = &shared_wheels()[round % 2];
        let runtime = if round % 4 < 2 { current() } else { multi(1) };
        let woken = Arc::new(AtomicUsize::new(0));
        let polls = Arc::new(Polls(Mutex::new(None), woken.clone()));
        let mut sleep = wheel.sleep(SECOND * 60);
        runtime.block_on(async { register_for(&Waker::from(polls.clone()), &mut sleep) });
        *polls.0.lock().unwrap() = Some(sleep);
        drop(runtime);
        assert!(woken.load(Relaxed) > 0);
    }
}

#[test]
fn a_future_polled_on_another_runtime_stays_with_the_first_while_that_lives() {
    for wheel in shared_wheels() {
        let (first, second) = (multi(1), current());
        let mut sleep = wheel.sleep(ms(30));
        let deadline = sleep.deadline();
        first.block_on(async { assert!(!is_ready(&mut sleep).await) });
        second.block_on(async {
            found("a sleep of another runtime", sleep).await;
            assert_not_early(deadline);
        });
    }
}

/// A loop around it does not spin, and a task that waits for its worker runs meanwhile.
#[test]
fn a_zero_duration_lets_other_tasks_run() {
    multi(1).block_on(async {
        tokio::spawn(async {
            for wheel in shared_wheels() {
                let other = tokio::spawn(async {});
                for _ in 0..9 {
                    wheel.sleep(Duration::ZERO).await;
                    wheel.try_sleep(Duration::ZERO).await.unwrap();
                    wheel.timeout(Duration::ZERO, pending::<()>()).await.unwrap_err();
                }
                assert!(other.is_finished());
            }
        })
        .await
        .unwrap();
    });
}
