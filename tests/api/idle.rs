//! `IdleTimer` and `IdleHandle`: idle detection that traffic pushes back.

use crate::support;

use std::{
    fmt::{self, Debug, Write},
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::Context,
    thread,
    time::Duration,
};

use tickwheel::{Busy, IdleHandle, IdleTimer, Wheel};
use tokio::{runtime::Builder, time::Instant};
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, advance, assert_at_rest, assert_due, ms, own_process::in_own_process, paused_runtime,
    real_runtime, register, waker_of, within,
};

const fn send_sync_unpin<T: Send + Sync + Unpin + Debug>() {}
const fn clone<T: Clone>() {}
const _: () = send_sync_unpin::<IdleTimer>();
const _: () = send_sync_unpin::<IdleHandle>();
const _: () = send_sync_unpin::<Busy>();
const _: () = clone::<IdleHandle>();

#[tokio::test(start_paused = true)]
async fn untouched_it_is_never_early_and_less_than_a_tick_late() {
    for tick in [1, 3, 10, 100] {
        let wheel = Wheel::builder().tick_duration(ms(tick)).build().unwrap();
        for millis in [1, 9, 10, 11, 100, 5_121] {
            let start = Instant::now();
            wheel.idle_timer(ms(millis)).await;
            let late = start.elapsed().checked_sub(ms(millis)).expect("it was early");
            assert!(
                late < ms(tick),
                "{millis} ms in ticks of {tick} ms: {late:?} late"
            );
        }
        assert_at_rest(&wheel);
    }
}

#[tokio::test(start_paused = true)]
async fn touched_it_completes_the_whole_duration_after_the_last_touch() {
    let wheel = Wheel::new();
    for touches in [1, 2, 10, 100] {
        let idle = wheel.idle_timer(ms(100));
        let traffic = idle.handle();
        let touching = tokio::spawn(async move {
            for _ in 0..touches {
                tokio::time::sleep(ms(73)).await;
                traffic.touch();
            }
            Instant::now()
        });
        idle.await;
        let last = touching.await.unwrap();
        let late = last.elapsed().checked_sub(ms(100)).expect("it was early");
        assert!(late < TICK, "{touches} touches: {late:?} late");
    }
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn it_counts_from_the_call_and_not_from_the_first_poll() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(ms(100)));
    tokio::time::advance(ms(60)).await;
    assert_pending!(idle.poll());
    tokio::time::advance(ms(39)).await;
    assert_pending!(idle.poll());
    tokio::time::advance(ms(11)).await;
    assert_ready!(idle.poll());
}

#[tokio::test(start_paused = true)]
async fn a_touch_before_the_first_poll_counts() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(ms(100)));
    tokio::time::advance(ms(90)).await;
    idle.handle().touch();
    tokio::time::advance(ms(50)).await;
    assert_pending!(idle.poll());
    tokio::time::advance(ms(49)).await;
    assert_pending!(idle.poll());
    tokio::time::advance(ms(11)).await;
    assert_ready!(idle.poll());
}

#[tokio::test(start_paused = true)]
async fn neither_a_touch_nor_the_old_deadline_wakes_the_task() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(ms(100)));
    assert_pending!(idle.poll());
    advance(ms(60)).await;
    idle.handle().touch();
    assert!(!idle.is_woken());
    advance(ms(40)).await;
    assert!(!idle.is_woken(), "the old deadline only starts the timer anew");
    assert_eq!(wheel.metrics().registered, 2);
    advance(ms(59)).await;
    assert_pending!(idle.poll());
    advance(ms(1)).await;
    assert!(idle.is_woken());
    assert_ready!(idle.poll());
}

#[tokio::test(start_paused = true)]
async fn a_million_touches_cost_no_wheel_operation() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(SECOND));
    assert_pending!(idle.poll());
    tokio::time::advance(ms(500)).await;
    let before = wheel.metrics();
    let traffic = idle.handle();
    for _ in 0..1_000_000 {
        traffic.touch();
    }
    assert_eq!(wheel.metrics(), before);
    // One registration for each old deadline, however many touches.
    advance(ms(500)).await;
    assert_pending!(idle.poll());
    assert_eq!(wheel.metrics().registered, before.registered + 1);
}

#[test]
fn threads_may_touch_it_at_once_and_the_latest_touch_counts() {
    let runtime = paused_runtime();
    let wheel = Wheel::new();
    runtime.block_on(async {
        let mut idle = task::spawn(wheel.idle_timer(ms(100)));
        assert_pending!(idle.poll());
        tokio::time::advance(ms(80)).await;
        let here = tokio::runtime::Handle::current();
        thread::scope(|scope| {
            for _ in 0..4 {
                let (traffic, here) = (idle.handle(), here.clone());
                scope.spawn(move || {
                    // Elsewhere they would read the machine's clock.
                    let _entered = here.enter();
                    (0..10_000).for_each(|_| traffic.touch());
                });
            }
        });
        tokio::time::advance(ms(99)).await;
        assert_pending!(idle.poll());
        tokio::time::advance(ms(1)).await;
        assert_ready!(idle.poll());
    });
}

#[tokio::test]
async fn on_the_real_clock_it_is_never_early() {
    let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
    let idle = wheel.idle_timer(ms(15));
    let traffic = idle.handle();
    let touching = thread::spawn(move || {
        let mut last = std::time::Instant::now();
        // Past the timer's duration, so that it has to re-arm: by the real clock, which is what this is
        // about.
        for _ in 0..20 {
            thread::sleep(ms(1));
            last = std::time::Instant::now();
            traffic.touch();
        }
        last
    });
    idle.await;
    let completed = std::time::Instant::now();
    let last = touching.join().unwrap();
    // A thread that was held up for 15 ms between two touches has let the timer complete before the last.
    assert!(completed < last || completed - last >= ms(15));
}

/// The task is polled once before it waits, and once when the timer completes. If the machine stalls for the
/// whole duration between two touches, the timer wakes the task, and a touch may come before the task is
/// polled.
#[test]
fn on_the_real_clock_traffic_wakes_no_task() {
    let threads = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build();
    for runtime in [real_runtime(), threads.unwrap()] {
        for (millis, slack) in [(40, 0), (220, 100)] {
            let wheel = Wheel::builder().slack(ms(slack)).build().unwrap();
            let mut idle = wheel.idle_timer(ms(millis));
            let traffic = idle.handle();
            let waiting = async move {
                let mut polls = 0;
                poll_fn(|cx| {
                    polls += 1;
                    Pin::new(&mut idle).poll(cx)
                })
                .await;
                polls
            };
            let (polls, has_stalled) = runtime.block_on(async {
                let waiting = tokio::spawn(waiting);
                let (mut touched, mut has_stalled) = (Instant::now(), false);
                for _ in 0..30 {
                    tokio::time::sleep(ms(millis / 20)).await;
                    traffic.touch();
                    has_stalled |= touched.elapsed() >= ms(millis);
                    touched = Instant::now();
                }
                (waiting.await.unwrap(), has_stalled)
            });
            assert!(
                polls == 2 || has_stalled,
                "{polls} polls, {millis} ms on {runtime:?}"
            );
            assert_at_rest(&wheel);
        }
    }
}

/// An executor may own its tasks by their wakers alone.
#[test]
fn once_it_has_completed_or_was_dropped_it_keeps_no_task_alive() {
    for (runtime, completes) in [
        (real_runtime(), true),
        (paused_runtime(), true),
        (paused_runtime(), false),
    ] {
        runtime.block_on(async {
            let mut idle = Wheel::new().idle_timer(ms(20));
            // It holds on to the timer, and not to its task.
            let _handle = idle.handle();
            let task = Arc::new(());
            let waker = waker_of({
                let task = task.clone();
                move || _ = &task
            });
            let mut poll = || Pin::new(&mut idle).poll(&mut Context::from_waker(&waker));
            assert!(poll().is_pending());
            assert!(Arc::strong_count(&task) > 1);
            if completes {
                tokio::time::sleep(ms(60)).await;
                assert!(poll().is_ready());
            } else {
                drop(idle);
            }
            drop(waker);
            assert_eq!(Arc::strong_count(&task), 1);
        });
    }
}

/// A writer that shuts the wheel down.
struct Writer(Wheel);

impl fmt::Write for Writer {
    fn write_str(&mut self, _: &str) -> fmt::Result {
        self.0.shutdown();
        Ok(())
    }
}

#[test]
fn a_writer_of_its_debug_output_may_shut_the_wheel_down() {
    within(60 * SECOND, || {
        real_runtime().block_on(async {
            let wheel = Wheel::new();
            let mut idle = task::spawn(wheel.idle_timer(ms(20)));
            assert_pending!(idle.poll());
            write!(Writer(wheel.clone()), "{:?}", *idle).unwrap();
            assert!(wheel.is_shutdown());
        });
    });
}

#[tokio::test(start_paused = true)]
async fn the_longest_duration_saturates_instead_of_panicking() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(Duration::MAX));
    assert_pending!(idle.poll());
    advance(DAY * 365 * 20).await;
    idle.handle().touch();
    advance(DAY * 365 * 20).await;
    assert_pending!(idle.poll());
    advance(DAY * 365 * 11).await;
    assert_ready!(idle.poll());
}

/// Two threads may touch it at once, and then the earlier reading may come later. Here it is that of a clock
/// paused before.
#[test]
fn a_touch_never_takes_back_a_later_one() {
    let paused = paused_runtime();
    real_runtime().block_on(async {
        let wheel = Wheel::new();
        let mut idle = wheel.idle_timer(DAY);
        register(&mut idle);
        let handle = idle.handle();
        let untouched = format!("{handle:?}");
        thread::sleep(ms(1));
        handle.touch();
        let touched = format!("{handle:?}");
        assert_ne!(touched, untouched);
        let _paused = paused.enter();
        handle.touch();
        assert_eq!(format!("{handle:?}"), touched);
    });
}

#[tokio::test(start_paused = true)]
async fn timers_of_one_handle_wait_for_the_same_activity_to_cease() {
    if !in_own_process(timers_of_one_handle_wait_for_the_same_activity_to_cease, "") {
        return;
    }
    let closes = tickwheel::time::idle_timer(ms(100));
    let traffic = closes.handle();
    advance(ms(30)).await;
    let warns = traffic.timer(ms(60));
    let start = Instant::now();
    let mut warned = task::spawn(warns);
    assert_pending!(warned.poll());
    advance(ms(20)).await;
    // Through the handle of the other timer.
    warned.handle().touch();
    warned.await;
    assert_due(start, ms(20 + 60));
    closes.await;
    assert_due(start, ms(20 + 100));
    let late = traffic.timer(ms(60));
    let start = Instant::now();
    late.await;
    assert_due(start, Duration::ZERO);
    assert_at_rest(&Wheel::global());
}

#[tokio::test(start_paused = true)]
async fn while_something_is_busy_it_waits_and_then_for_its_whole_duration() {
    let wheel = Wheel::new();
    for busy_for in [1, 99, 100, 101, 350, 5_000] {
        let mut idle = task::spawn(wheel.idle_timer(ms(100)));
        let handle = idle.handle();
        assert_pending!(idle.poll());
        let busy = handle.busy();
        advance(ms(busy_for)).await;
        assert!(!idle.is_woken(), "{busy_for} ms");
        assert_pending!(idle.poll(), "{busy_for} ms");
        drop(busy);
        let done = Instant::now();
        idle.await;
        assert_due(done, ms(100));
    }
    assert_at_rest(&wheel);
}

#[tokio::test(start_paused = true)]
async fn of_several_that_are_busy_the_last_counts() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(ms(100)));
    let handle = idle.handle();
    assert_pending!(idle.poll());
    let (first, second) = (handle.busy(), handle.clone().busy());
    advance(ms(500)).await;
    drop(second);
    advance(ms(500)).await;
    assert!(!idle.is_woken());
    assert_pending!(idle.poll());
    drop(first);
    let done = Instant::now();
    idle.await;
    assert_due(done, ms(100));
}

#[tokio::test(start_paused = true)]
async fn what_is_busy_costs_one_registration_for_each_duration() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(ms(100)));
    let _busy = idle.handle().busy();
    assert_pending!(idle.poll());
    for _ in 0..1_000 {
        advance(ms(1)).await;
    }
    assert!(!idle.is_woken());
    assert_eq!(wheel.metrics().registered, 1 + 10);
}

#[tokio::test(start_paused = true)]
async fn something_may_become_busy_when_it_has_elapsed() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(ms(100)));
    let handle = idle.handle();
    assert_pending!(idle.poll());
    // Its task has been woken, but has not yet polled it.
    advance(ms(100)).await;
    assert!(idle.is_woken());
    let busy = handle.busy();
    assert_pending!(idle.poll());
    drop(busy);
    advance(ms(100)).await;
    assert_ready!(idle.poll());
    // It has completed, and is to wait anew.
    let busy = handle.busy();
    assert_pending!(idle.poll());
    advance(ms(1_000)).await;
    assert_pending!(idle.poll());
    drop(busy);
    advance(ms(100)).await;
    assert_ready!(idle.poll());
}

#[tokio::test(start_paused = true)]
async fn not_even_a_zero_duration_elapses_while_something_is_busy() {
    let wheel = Wheel::new();
    let mut idle = task::spawn(wheel.idle_timer(Duration::ZERO));
    let busy = idle.handle().busy();
    for _ in 0..10 {
        assert_pending!(idle.poll());
        advance(ms(1)).await;
    }
    drop(busy);
    let done = Instant::now();
    idle.await;
    assert!(done.elapsed() <= 2 * TICK);
}

#[tokio::test(start_paused = true)]
async fn it_is_busy_for_all_timers_of_a_handle_and_may_outlive_them() {
    let wheel = Wheel::new();
    let closes = wheel.idle_timer(ms(100));
    let handle = closes.handle();
    let warns = handle.timer(ms(60));
    let busy = handle.busy();
    let (mut closed, mut warned) = (task::spawn(closes), task::spawn(warns));
    assert_pending!(closed.poll());
    assert_pending!(warned.poll());
    advance(ms(500)).await;
    assert_pending!(closed.poll());
    assert_pending!(warned.poll());
    drop(closed);
    drop(busy);
    let done = Instant::now();
    warned.await;
    assert_due(done, ms(60));
    let busy = handle.busy();
    drop(handle);
    drop(busy);
    assert_at_rest(&wheel);
}

/// If the guard ceased to be busy before it touched, a timer that is looked at between would be early.
#[test]
fn on_the_real_clock_it_is_never_early_after_something_was_busy() {
    real_runtime().block_on(async {
        let wheel = Wheel::new();
        let waiting = (0..40).map(|n| {
            let idle = wheel.idle_timer(ms(3));
            let busy = idle.handle().busy();
            let working = tokio::task::spawn_blocking(move || {
                thread::sleep(Duration::from_micros(9_000 + n * 50));
                let done = std::time::Instant::now();
                drop(busy);
                done
            });
            tokio::spawn(async move {
                idle.await;
                let completed = std::time::Instant::now();
                let waited = completed.checked_duration_since(working.await.unwrap());
                assert!(waited >= Some(ms(3)), "{waited:?}");
            })
        });
        for waiting in waiting.collect::<Vec<_>>() {
            waiting.await.unwrap();
        }
    });
}

/// The deadline of a timer that is busy is a millisecond away, and so may have come when the poll that has set
/// it goes on: there are more threads than cores, so each is held up again and again.
#[test]
fn it_does_not_elapse_where_its_thread_is_held_up() {
    const POLLS: u32 = 20_000;
    let threads = 4 * thread::available_parallelism().unwrap().get();
    real_runtime().block_on(async {
        let wheel = Wheel::new();
        let polling = (0..threads).map(|_| {
            let mut idle = task::spawn(wheel.idle_timer(Duration::ZERO));
            tokio::task::spawn_blocking(move || {
                let _busy = idle.handle().busy();
                for _ in 0..POLLS {
                    assert_pending!(idle.poll());
                }
            })
        });
        for polling in polling.collect::<Vec<_>>() {
            polling.await.unwrap();
        }
    });
}
