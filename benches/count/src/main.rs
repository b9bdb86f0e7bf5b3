//! Does one kind of work a given number of times and nothing else, for `.ci/instructions` to count: `count PEER WORK TIMES`.
//!
//! All kinds except the server run in one poll of a current-thread runtime. The driver could run only between two polls, so a shard that
//! has started to tick goes on ticking and is never visited, and the count is that of the operations alone. The server is a whole
//! program, so its count includes the scheduler and whatever drives its timers; the peer `none` counts it without timers.

use std::{
    env,
    future::{Future, poll_fn, ready},
    hint::black_box,
    mem,
    pin::{Pin, pin},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use count::{
    polled::{Once, poll_once, poll_ready, poll_sleep, repeat},
    queue,
    server::{Server, Traffic},
    timers::{self, Timers},
};
use tickwheel::Wheel;
use tokio::{
    runtime::{Builder, Runtime},
    time::{self, Instant},
};

const DURATION: Duration = Duration::from_secs(600);

/// Timeouts after which a quiet one pauses, for a tick: fewer than make a shard tick.
const QUIET: u64 = 50;

const USAGE: &str = "usage: count none|tickwheel|tokio \
    ready|timeout|unequal|quiet|labelled|labelled-ready|labelled-quiet|sleep|select|reset|reset-back|repoll|current-ready|current-timeout|current-sleep|current-select|server-busy|server-quiet|server-busy-threads|server-quiet-threads|delay-queue-idle|delay-queue-insert|delay-queue-reset TIMES";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Ok([peer, work, times]) = <[String; 3]>::try_from(arguments) else {
        panic!("{USAGE}");
    };
    let times = times.parse().expect("TIMES is a number");
    let runtime = runtime(work.ends_with("-threads"));
    let serving = work.starts_with("server");
    // A task, as a server's requests are, and not the future of `block_on`, whose waker no clone of it will match.
    let work = async move {
        if let Some(work) = work.strip_prefix("delay-queue-") {
            return match peer.as_str() {
                "tickwheel" => queue::tickwheel(work, times).await,
                _ => queue::tokio(work, times).await,
            };
        }
        match (peer.as_str(), serving) {
            ("none", true) => serve(timers::Nothing, &work, times).await,
            ("tokio", true) => serve(timers::Tokio, &work, times).await,
            ("tickwheel", true) => serve(wheel(&work), &work, times).await,
            ("tokio", false) => {
                let work = work
                    .trim_start_matches("current-")
                    .trim_start_matches("labelled-");
                tokio(if work == "labelled" { "timeout" } else { work }, times).await
            }
            ("tickwheel", false) => match work.strip_prefix("current-") {
                Some(work) => current(work, times).await,
                None => tickwheel(&work, times).await,
            },
            (peer, _) => panic!("there is no {peer}: {USAGE}"),
        }
    };
    runtime
        .block_on(runtime.spawn(work))
        .expect("the work does not panic");
}

/// A current-thread runtime, or a multi-thread one with one worker.
fn runtime(threads: bool) -> Runtime {
    let mut builder = match threads {
        true => Builder::new_multi_thread(),
        false => Builder::new_current_thread(),
    };
    let builder = builder.worker_threads(1).enable_time();
    builder.build().expect("the runtime starts")
}

/// Under callgrind everything takes so much longer that what is busy would not be in ticks of 10 ms. These are so long that on a
/// machine with much else to do no more of them come in a request's time.
fn wheel(work: &str) -> Wheel {
    let millis = if work.contains("busy") { 2_000 } else { 10 };
    let builder = Wheel::builder().tick_duration(Duration::from_millis(millis));
    builder.build().expect("such a tick is allowed")
}

async fn serve<T: Timers>(timers: T, work: &str, times: u64) {
    let traffic = match work.trim_end_matches("-threads") {
        "server-busy" => Traffic::Busy,
        "server-quiet" => Traffic::Quiet,
        work => panic!("there is no {work}: {USAGE}"),
    };
    let mut server = Server::start(50, &timers);
    server.ask(1_000, traffic).await;
    server.ask(times, traffic).await;
}

/// Timeouts that wait once, fewer in a tick than make a shard tick.
async fn quiet<F: Future>(times: u64, timeout: impl Fn() -> F) {
    for _ in 0..times / QUIET {
        repeat(QUIET, |cx| poll_once(cx, timeout())).await;
        thread::sleep(Duration::from_millis(10));
    }
}

/// A round of a loop around `select!`: a sleep beside something else, that looks at the sleep twice and gives it up.
fn poll_select(cx: &mut Context<'_>, sleep: impl Future) {
    let mut round = pin!(async {
        tokio::select! {
            biased;
            _ = sleep => false,
            () = Once::default() => true,
        }
    });
    assert!(black_box(round.as_mut().poll(cx)).is_pending());
    assert_eq!(black_box(round.as_mut().poll(cx)), Poll::Ready(true));
}

/// The work that is the same in the words of either peer; false where it is another.
async fn in_common<T: Timers>(
    timers: &T,
    first: &mut Pin<Box<T::Sleep>>,
    reset: impl Fn(&mut Pin<Box<T::Sleep>>, Instant),
    work: &str,
    times: u64,
) -> bool {
    match work {
        "select" => repeat(times, |cx| poll_select(cx, timers.sleep(black_box(2 * DURATION)))).await,
        "repoll" => {
            repeat(times, |cx| {
                assert!(black_box(&mut *first).as_mut().poll(cx).is_pending())
            })
            .await
        }
        "reset" => {
            let mut deadline = Instant::now() + 2 * DURATION;
            repeat(times, |_| {
                deadline += Duration::from_micros(1);
                reset(black_box(&mut *first), deadline);
            })
            .await;
        }
        "reset-back" => {
            let deadline = Instant::now();
            repeat(times, |_| {
                reset(black_box(&mut *first), deadline + 3 * DURATION);
                reset(black_box(&mut *first), deadline + 2 * DURATION);
            })
            .await;
        }
        _ => return false,
    }
    true
}

async fn tickwheel(work: &str, times: u64) {
    let wheel = Wheel::new();
    // The driver starts, and waits for a timer that comes before all others.
    let mut first = Box::pin(wheel.sleep(DURATION));
    poll_pending(&mut first).await;
    for _ in 0..10 {
        time::sleep(Duration::from_millis(1)).await;
    }
    if in_common(&wheel, &mut first, |first, to| first.reset(to), work, times).await {
        return;
    }
    let deadline = Instant::now() + 2 * DURATION;
    match work {
        "ready" => {
            repeat(times, |cx| {
                poll_ready(cx, wheel.timeout(black_box(DURATION), ready(())))
            })
            .await
        }
        "timeout" => ticking(&wheel, times, || DURATION).await,
        "unequal" => ticking(&wheel, times, in_turn()).await,
        "quiet" => quiet(times, || wheel.timeout(black_box(DURATION), Once::default())).await,
        "labelled-ready" => {
            let labelled = wheel.labelled("count");
            repeat(times, |cx| {
                poll_ready(cx, labelled.timeout(black_box(DURATION), ready(())))
            })
            .await
        }
        "labelled" => {
            let labelled = wheel.labelled("count");
            // From here on the shard ticks.
            repeat(1_000, |cx| {
                poll_once(cx, labelled.timeout(DURATION, Once::default()))
            })
            .await;
            repeat(times, |cx| {
                poll_once(cx, labelled.timeout(black_box(DURATION), Once::default()))
            })
            .await;
            assert_eq!(wheel.snapshot().labels[0].completed, 1_000 + times);
        }
        "labelled-quiet" => {
            let labelled = wheel.labelled("count");
            quiet(times, || labelled.timeout(black_box(DURATION), Once::default())).await
        }
        "sleep" => repeat(times, |cx| poll_sleep(cx, wheel.sleep_until(black_box(deadline)))).await,
        work => panic!("there is no {work}: {USAGE}"),
    }
}

/// Timeouts that wait once, in a shard that ticks.
async fn ticking(wheel: &Wheel, times: u64, mut duration: impl FnMut() -> Duration) {
    repeat(1_000, |cx| {
        poll_once(cx, wheel.timeout(DURATION, Once::default()))
    })
    .await;
    let registered = wheel.metrics().registered;
    repeat(times, |cx| {
        poll_once(cx, wheel.timeout(black_box(duration()), Once::default()))
    })
    .await;
    assert_eq!(wheel.metrics().registered, registered + times);
}

/// Two durations, one after the other.
fn in_turn() -> impl FnMut() -> Duration {
    let (mut next, mut other) = (DURATION, 2 * DURATION);
    move || {
        mem::swap(&mut next, &mut other);
        next
    }
}

async fn tokio(work: &str, times: u64) {
    let mut first = Box::pin(time::sleep(DURATION));
    poll_pending(&mut first).await;
    for _ in 0..10 {
        time::sleep(Duration::from_millis(1)).await;
    }
    if in_common(
        &timers::Tokio,
        &mut first,
        |first, to| first.as_mut().reset(to),
        work,
        times,
    )
    .await
    {
        return;
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
        "unequal" => {
            let mut duration = in_turn();
            repeat(times, |cx| {
                poll_once(cx, time::timeout(black_box(duration()), Once::default()))
            })
            .await
        }
        "quiet" => quiet(times, || time::timeout(black_box(DURATION), Once::default())).await,
        "sleep" => repeat(times, |cx| poll_sleep(cx, time::sleep_until(black_box(deadline)))).await,
        work => panic!("there is no {work}: {USAGE}"),
    }
}

/// The same on the current wheel, in Tokio's words.
async fn current(work: &str, times: u64) {
    let mut first = Box::pin(tickwheel::time::sleep(DURATION));
    poll_pending(&mut first).await;
    for _ in 0..10 {
        time::sleep(Duration::from_millis(1)).await;
    }
    let once = || tickwheel::time::timeout(black_box(DURATION), Once::default());
    let deadline = Instant::now() + 2 * DURATION;
    match work {
        "ready" => {
            repeat(times, |cx| {
                poll_ready(cx, tickwheel::time::timeout(black_box(DURATION), ready(())))
            })
            .await
        }
        "timeout" => {
            // From here on the shard ticks.
            repeat(1_000, |cx| poll_once(cx, once())).await;
            repeat(times, |cx| poll_once(cx, once())).await;
        }
        "sleep" => {
            repeat(times, |cx| {
                poll_sleep(cx, tickwheel::time::sleep_until(black_box(deadline)))
            })
            .await
        }
        "select" => {
            repeat(times, |cx| {
                poll_select(cx, tickwheel::time::sleep(black_box(2 * DURATION)))
            })
            .await
        }
        work => panic!("there is no {work}: {USAGE}"),
    }
}

async fn poll_pending<F: Future>(future: &mut Pin<Box<F>>) {
    poll_fn(|cx| {
        assert!(future.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
}
