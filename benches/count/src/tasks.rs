//! Scheduled tasks and idle timers, which are not run: Netty's `newTimeout` and `cancel`.

use std::{future::Future, hint::black_box, pin::pin, thread, time::Duration};

use tickwheel::Wheel;
use tokio::{
    runtime::{Builder, Handle},
    time::Instant,
};

use crate::polled::{poll_sleep, repeat};

/// Tasks that are due at once.
const AT_ONCE: u64 = 10_000;

/// Does one kind of work on scheduled tasks or idle timers of the wheel.
///
/// # Panics
///
/// Panics if there is no such work.
pub async fn tickwheel(wheel: &Wheel, work: &str, duration: Duration, times: u64) {
    match work {
        "cancel" => {
            repeat(times, |_| {
                let task = wheel.schedule(black_box(duration), async {});
                assert!(task.cancel());
            })
            .await
        }
        "due" => {
            for _ in 0..times / AT_ONCE {
                let due = Instant::now() + Duration::from_secs(1);
                let scheduled: Vec<_> = (0..AT_ONCE).map(|_| wheel.schedule_at(due, async {})).collect();
                for task in scheduled {
                    task.await.expect("it runs");
                }
            }
        }
        // On a wheel that has this runtime, by a thread, or by a task of another runtime.
        "cancel-by-thread" | "cancel-elsewhere" => {
            let wheel = Wheel::builder().handle(Handle::current()).build();
            let wheel = wheel.expect("a wheel");
            let cancel = move || {
                let task = wheel.schedule(black_box(duration), async {});
                assert!(task.cancel());
            };
            let by_thread = work == "cancel-by-thread";
            let thread = thread::spawn(move || {
                if by_thread {
                    return (0..times).for_each(|_| cancel());
                }
                let runtime = Builder::new_current_thread().enable_time().build();
                let runtime = runtime.expect("the runtime starts");
                let all = runtime.spawn(async move { repeat(times, |_| cancel()).await });
                runtime.block_on(all).expect("it does not panic");
            });
            thread.join().expect("it does not panic");
        }
        // Detached, and left to the end of the runtime.
        "detach" => repeat(times, |_| drop(wheel.schedule(black_box(duration), async {}))).await,
        // Another task waits for the result.
        "await" => {
            repeat(times, |cx| {
                let mut task = pin!(wheel.schedule(black_box(duration), async {}));
                assert!(task.as_mut().poll(cx).is_pending());
                assert!(task.cancel());
            })
            .await
        }
        "idle" => repeat(times, |cx| poll_sleep(cx, wheel.idle_timer(black_box(duration)))).await,
        "touch" => {
            let idle = wheel.idle_timer(duration);
            let handle = idle.handle();
            let mut idle = pin!(idle);
            repeat(1, |cx| assert!(idle.as_mut().poll(cx).is_pending())).await;
            repeat(times, |_| black_box(&handle).touch()).await;
        }
        work => panic!("there is no work {work} on tasks"),
    }
}

/// The same with Tokio: a task that sleeps and is aborted, or detached.
///
/// # Panics
///
/// Panics if there is no such work.
pub async fn tokio(work: &str, duration: Duration, times: u64) {
    use tokio::{task, time::sleep};
    match work {
        "cancel" | "await" | "cancel-by-thread" | "cancel-elsewhere" => {
            for _ in 0..times {
                let task = task::spawn(sleep(black_box(duration)));
                task::yield_now().await;
                task.abort();
                assert!(task.await.is_err());
            }
        }
        "detach" => repeat(times, |_| drop(task::spawn(sleep(black_box(duration))))).await,
        "due" => {
            for _ in 0..times / AT_ONCE {
                let spawned: Vec<_> = (0..AT_ONCE).map(|_| task::spawn(async {})).collect();
                for task in spawned {
                    task.await.expect("it runs");
                }
            }
        }
        "idle" => repeat(times, |cx| poll_sleep(cx, sleep(black_box(duration)))).await,
        "touch" => {
            let mut idle = pin!(sleep(duration));
            let instant = tokio::time::Instant::now;
            repeat(times, |_| idle.as_mut().reset(instant() + black_box(duration))).await;
        }
        work => panic!("there is no work {work} on tasks"),
    }
}
