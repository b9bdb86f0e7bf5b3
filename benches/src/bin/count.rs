//! Does one kind of work so many times and nothing else, for `.ci/instructions` to count: `count PEER WORK TIMES`.
//!
//! It runs on a current-thread runtime, without a pause between operations. So once a shard ticks it goes on ticking, and
//! the driver, which could come only between two polls, never does: the count is that of the operations alone.

use std::{
    future::{Future, poll_fn, ready},
    hint::black_box,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tickwheel::Wheel;
use tickwheel_benches::{
    children::Arguments,
    work::{Once, poll_once, poll_ready, poll_sleep},
};
use tokio::time::{self, Instant, Sleep};

const DURATION: Duration = Duration::from_secs(600);

fn main() {
    let arguments = Arguments::read();
    let Ok([peer, work, times]) = <[String; 3]>::try_from(arguments.rest) else {
        panic!("usage: count tickwheel|tokio ready|timeout|sleep|reset TIMES");
    };
    let times = times.parse().expect("TIMES is a number");
    let runtime = time_only();
    // A task, as a server's requests are, and not the future of `block_on`, whose waker no clone of it will match.
    let work = async move {
        match peer.as_str() {
            "tickwheel" => tickwheel(&work, times).await,
            "tokio" => tokio(&work, times).await,
            peer => panic!("there is no {peer}"),
        }
    };
    runtime
        .block_on(runtime.spawn(work))
        .expect("the work does not panic");
}

fn time_only() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().expect("the runtime starts")
}

async fn repeat(times: u64, mut operation: impl FnMut(&mut Context<'_>)) {
    poll_fn(|cx| {
        for _ in 0..times {
            operation(cx);
        }
        Poll::Ready(())
    })
    .await;
}

async fn tickwheel(work: &str, times: u64) {
    let wheel = Wheel::new();
    // The driver starts, and waits for a timer that comes before all others.
    let mut first = Box::pin(wheel.sleep(DURATION));
    poll_pending(&mut first).await;
    for _ in 0..10 {
        time::sleep(Duration::from_millis(1)).await;
    }
    let deadline = Instant::now() + 2 * DURATION;
    match work {
        "ready" => {
            repeat(times, |cx| {
                poll_ready(cx, wheel.timeout(black_box(DURATION), ready(())))
            })
            .await
        }
        "timeout" => {
            // From here on the shard ticks.
            repeat(1_000, |cx| {
                poll_once(cx, wheel.timeout(DURATION, Once::default()))
            })
            .await;
            let registered = wheel.metrics().registered;
            repeat(times, |cx| {
                poll_once(cx, wheel.timeout(black_box(DURATION), Once::default()))
            })
            .await;
            assert_eq!(wheel.metrics().registered, registered + times);
        }
        "sleep" => repeat(times, |cx| poll_sleep(cx, wheel.sleep_until(black_box(deadline)))).await,
        "reset" => {
            let mut deadline = deadline;
            repeat(times, |_| {
                deadline += Duration::from_micros(1);
                black_box(&mut first).as_mut().reset(deadline);
            })
            .await;
        }
        work => panic!("there is no {work}"),
    }
}

async fn tokio(work: &str, times: u64) {
    let mut first = Box::pin(time::sleep(DURATION));
    poll_pending(&mut first).await;
    for _ in 0..10 {
        time::sleep(Duration::from_millis(1)).await;
    }
    let deadline = Instant::now() + 2 * DURATION;
    match work {
        "ready" => {
            repeat(times, |cx| {
                poll_ready(cx, time::timeout(black_box(DURATION), ready(())))
            })
            .await
        }
        "timeout" => {
            repeat(times, |cx| {
                poll_once(cx, time::timeout(black_box(DURATION), Once::default()))
            })
            .await
        }
        "sleep" => repeat(times, |cx| poll_sleep(cx, time::sleep_until(black_box(deadline)))).await,
        "reset" => {
            let mut deadline = deadline;
            repeat(times, |_| {
                deadline += Duration::from_micros(1);
                let first: &mut Pin<Box<Sleep>> = black_box(&mut first);
                first.as_mut().reset(deadline);
            })
            .await;
        }
        work => panic!("there is no {work}"),
    }
}

async fn poll_pending<F: Future>(future: &mut Pin<Box<F>>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}
