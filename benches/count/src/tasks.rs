//! Scheduled tasks and idle timers, which are not run: Netty's `newTimeout` and `cancel`.

use std::{future::Future, hint::black_box, pin::pin, time::Duration};

use tickwheel::Wheel;

use crate::polled::{poll_sleep, repeat};

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
        "cancel" | "await" => {
            for _ in 0..times {
                let task = task::spawn(sleep(black_box(duration)));
                task::yield_now().await;
                task.abort();
                assert!(task.await.is_err());
            }
        }
        "detach" => repeat(times, |_| drop(task::spawn(sleep(black_box(duration))))).await,
        "idle" => repeat(times, |cx| poll_sleep(cx, sleep(black_box(duration)))).await,
        "touch" => {
            let mut idle = pin!(sleep(duration));
            let instant = tokio::time::Instant::now;
            repeat(times, |_| idle.as_mut().reset(instant() + black_box(duration))).await;
        }
        work => panic!("there is no work {work} on tasks"),
    }
}
