//! Does one kind of work a given number of times and nothing else, for `.ci/instructions` to count: `count PEER WORK TIMES`.
//!
//! Most kinds run in one poll of a task. The driver could run only between two polls, so a shard that has started to tick goes on ticking
//! and is never visited, and the count is that of the operations alone. A server and timers that fire are whole programs, whose count
//! includes the scheduler and whatever drives the timers; the peer `none` counts a server without timers.
//!
//! The words of a kind of work say where it runs: `current` is the global wheel, `labelled` a timeout counted under a label, `label` one
//! counted under a static label on the global wheel, and `threads` a multi-thread runtime with one worker in place of a current-thread one.

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
    fired::{Fires, With, fire},
    polled::{Large, Once, poll_once, poll_ready, poll_sleep, repeat},
    queue,
    server::{Server, Traffic},
    timers::{self, Timers},
};
use tickwheel::{Wheel, time::Label};
use tokio::{
    runtime::{self, Runtime},
    task,
    time::{self, Instant},
};

const DURATION: Duration = Duration::from_secs(600);

/// Timeouts after which a quiet one pauses, for a tick: fewer than make a shard tick.
const QUIET: u64 = 50;

/// Tasks that run at the same time.
const TASKS: u64 = 50;

const USAGE: &str =
    "usage: count none|tickwheel|tokio WORK TIMES, where WORK is a line of .ci/instructions.limits";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Ok([peer, name, times]) = <[String; 3]>::try_from(arguments) else {
        panic!("{USAGE}");
    };
    let times = times.parse().expect("TIMES is a number");
    let runtime = runtime(&name);
    // A task, as a server's requests are, and not the future of `block_on`, whose waker no clone of it will match.
    let work = async move {
        if let Some(work) = name.strip_prefix("delay-queue-") {
            return match peer.as_str() {
                "tickwheel" => queue::tickwheel(work, times).await,
                _ => queue::tokio(work, times).await,
            };
        }
        let name = name.trim_end_matches("-threads");
        let current = name.contains("current-");
        let (label, work) = match name.strip_prefix("labelled") {
            Some("") => (true, "timeout"),
            Some(work) => (true, &work[1..]),
            None => (false, &*name.replace("current-", "")),
        };
        let (is_static, work) = match work {
            "label" => (true, "timeout"),
            "label-quiet" => (true, "quiet"),
            work => (false, work),
        };
        match peer.as_str() {
            "none" if work == "tasks" => tasks(&timers::Nothing, times).await,
            "none" => serve(&timers::Nothing, work, times).await,
            "tokio" => play(&timers::Tokio, work, times).await,
            "tickwheel" if is_static => static_label(work, times).await,
            "tickwheel" if current => {
                wheel(work).build_global().expect("it is the first");
                play(&timers::Current, work, times).await;
                assert_eq!(Wheel::global().metrics().rejected, 0);
            }
            "tickwheel" => {
                let wheel = wheel(work).build().expect("such a tick is allowed");
                match label {
                    true => labelled(&wheel, work, times).await,
                    false => play(&wheel, work, times).await,
                }
                assert_eq!(wheel.metrics().rejected, 0);
            }
            peer => panic!("there is no {peer}: {USAGE}"),
        }
    };
    runtime
        .block_on(runtime.spawn(work))
        .expect("the work does not panic");
}

/// A current-thread runtime, or a multi-thread one with one worker. One that waits for timers to fire waits for sockets too, as a
/// server does.
fn runtime(work: &str) -> Runtime {
    let mut builder = match work.ends_with("-threads") {
        true => runtime::Builder::new_multi_thread(),
        false => runtime::Builder::new_current_thread(),
    };
    if work.starts_with("fired-") {
        builder.enable_io();
    }
    let builder = builder.worker_threads(1).enable_time();
    builder.build().expect("the runtime starts")
}

/// Under callgrind everything takes so much longer that a busy server would not be busy in ticks of 10 ms. Its ticks are so long that
/// even on a machine with much else to do no more of them pass per request.
fn wheel(work: &str) -> tickwheel::Builder {
    let tick = match work {
        "server-busy" | "two-sleeps" | "tasks" => 2_000,
        "server-quiet" => 10,
        _ => 1,
    };
    Wheel::builder().tick_duration(Duration::from_millis(tick))
}

async fn serve<T: Timers>(timers: &T, work: &str, times: u64) {
    let (traffic, mut server) = match work {
        "server-busy" => (Traffic::Busy, Server::start(50, timers)),
        "server-quiet" => (Traffic::Quiet, Server::start(50, timers)),
        "two-sleeps" => (Traffic::Busy, Server::with_two_sleeps(50, timers)),
        work => panic!("there is no {work}: {USAGE}"),
    };
    server.ask(1_000, traffic).await;
    server.ask(times, traffic).await;
}

async fn play<T: Fires>(timers: &T, work: &str, times: u64) {
    if let Some(fired) = work.strip_prefix("fired-") {
        let (tasks, with) = match fired.split_once('-') {
            None => (fired, With::Sleeps),
            Some((tasks, "timeout")) => (tasks, With::Timeouts),
            Some((tasks, "interval")) => (tasks, With::Intervals),
            _ => panic!("there is no {work}: {USAGE}"),
        };
        let tasks = tasks.parse().expect("a number of tasks");
        return fire(timers, with, tasks, times).await;
    }
    if work.starts_with("server-") || work == "two-sleeps" {
        return serve(timers, work, times).await;
    }
    let mut first = first(timers).await;
    if work == "tasks" {
        return tasks(timers, times).await;
    }
    let deadline = Instant::now() + 2 * DURATION;
    match work {
        "timeout-1k" => {
            ticking(times, || {
                timers.timeout(black_box(DURATION), Large::<1_024>::default())
            })
            .await
        }
        "timeout-16k" => {
            ticking(times, || {
                timers.timeout(black_box(DURATION), Large::<16_384>::default())
            })
            .await
        }
        "unequal" => {
            let mut duration = in_turn();
            ticking(times, || timers.timeout(black_box(duration()), Once::default())).await
        }
        "sleep" => {
            repeat(times, |cx| {
                poll_sleep(cx, timers.sleep_until(black_box(deadline)))
            })
            .await
        }
        "select" => repeat(times, |cx| poll_select(cx, timers.sleep(black_box(2 * DURATION)))).await,
        "repoll" => {
            repeat(times, |cx| {
                assert!(black_box(&mut first).as_mut().poll(cx).is_pending())
            })
            .await
        }
        "reset" => {
            let mut later = deadline;
            repeat(times, |_| {
                later += Duration::from_micros(1);
                T::reset(black_box(&mut first).as_mut(), later);
            })
            .await
        }
        "reset-back" => {
            repeat(times, |_| {
                T::reset(black_box(&mut first).as_mut(), deadline + 2 * DURATION);
                T::reset(black_box(&mut first).as_mut(), deadline + DURATION);
            })
            .await
        }
        work => {
            timeouts(
                work,
                times,
                || timers.timeout(black_box(DURATION), ready(())),
                || timers.timeout(black_box(DURATION), Once::default()),
            )
            .await
        }
    }
}

/// Requests of which each is a new task, as those of HTTP/2 are, with a timeout around a future that waits once.
///
/// The futures are boxed, and the memory of tasks is never freed, because what the allocator does for a task differs by hundreds of
/// instructions with the sizes of tasks and the order in which they end.
async fn tasks<T: Timers>(timers: &T, times: u64) {
    let request = |timers: T| async move {
        let answer = timers.timeout(black_box(DURATION), task::yield_now());
        assert!(answer.await.is_ok());
    };
    let mut kept = Vec::with_capacity(times as usize);
    for _ in 0..times / TASKS {
        let first = kept.len();
        kept.extend((0..TASKS).map(|_| tokio::spawn(Box::pin(request(timers.clone())))));
        for task in &mut kept[first..] {
            task.await.expect("it does not panic");
        }
    }
    mem::forget(kept);
}

/// Timeouts that a label counts.
async fn labelled(wheel: &Wheel, work: &str, times: u64) {
    let _first = first(wheel).await;
    let label = wheel.labelled("count");
    timeouts(
        work,
        times,
        || label.timeout(black_box(DURATION), ready(())),
        || label.timeout(black_box(DURATION), Once::default()),
    )
    .await;
    assert!(wheel.snapshot().labels[0].completed >= times);
}

/// Timeouts that a static label counts on the global wheel.
async fn static_label(work: &str, times: u64) {
    static COUNT: Label = Label::new("count");
    let _first = first(&timers::Current).await;
    timeouts(
        work,
        times,
        || COUNT.timeout(black_box(DURATION), ready(())),
        || COUNT.timeout(black_box(DURATION), Once::default()),
    )
    .await;
    assert!(Wheel::global().snapshot().labels[0].completed >= times);
}

async fn timeouts<R: Future, F: Future>(
    work: &str,
    times: u64,
    around_ready: impl Fn() -> R,
    once: impl Fn() -> F,
) {
    match work {
        "ready" => repeat(times, |cx| poll_ready(cx, around_ready())).await,
        "timeout" => ticking(times, once).await,
        "quiet" => quiet(times, once).await,
        work => panic!("there is no {work}: {USAGE}"),
    }
}

/// Timeouts that wait once, in a shard that ticks.
#[inline(always)]
async fn ticking<F: Future>(times: u64, mut timeout: impl FnMut() -> F) {
    // From here on the shard ticks.
    repeat(1_000, |cx| poll_once(cx, timeout())).await;
    repeat(times, |cx| poll_once(cx, timeout())).await;
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

/// Two durations, one after the other.
fn in_turn() -> impl FnMut() -> Duration {
    let (mut next, mut other) = (DURATION, 2 * DURATION);
    move || {
        mem::swap(&mut next, &mut other);
        next
    }
}

/// A sleep that comes before all other timers, once the driver has started and waits for it.
async fn first<T: Timers>(timers: &T) -> Pin<Box<T::Sleep>> {
    let mut first = Box::pin(timers.sleep(DURATION));
    poll_fn(|cx| {
        assert!(first.as_mut().poll(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    for _ in 0..10 {
        time::sleep(Duration::from_millis(1)).await;
    }
    first
}
