//! Does one kind of work a given number of times and nothing else, for `.ci/instructions` to count: `count
//! PEER WORK TIMES`.
//!
//! Most kinds run in one poll of a task. The driver could run only between two polls, so the count is that of
//! the operations alone. A server, new tasks and timers that fire are whole programs, whose count includes
//! the scheduler and whatever drives the timers; the peer `none` counts the first two without timers.
//!
//! The timers are those of `tickwheel::time`. A kind of work that begins with `handle-` has a wheel of its
//! own, and one that ends with `-threads` a multi-thread runtime with one worker in place of a current-thread
//! one. One that ends with `-worker` runs on the second worker of two, which knows its runtime, whereas a
//! first worker has to ask for it.

use std::{
    env,
    future::{Future, poll_fn, ready},
    hint::black_box,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Barrier, Mutex},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use count::{
    fired::{Fires, With, fire, fire_series},
    nested,
    polled::{Large, Once, SLACK, fresh, once, poll_ready, poll_sleep, repeat},
    queue, runtimes,
    server::Server,
    tasks,
    timers::{self, Timers},
};
use tickwheel::{Wheel, time::Label};
use tokio::{
    runtime::{self, Runtime},
    task::{self, JoinError},
    time::{self, Instant},
};

/// Of most timers: as long as a server's timeouts.
const DURATION: Duration = Duration::from_secs(30);

/// Longer than a timer whose entry becomes a spare as it is.
const LONG: Duration = Duration::from_secs(600);

/// Tasks that run at the same time.
const TASKS: u64 = 50;

const CONNECTIONS: usize = 50;

/// Those of HttpArena's `async` profile.
const MANY_CONNECTIONS: u64 = 32_000;

const USAGE: &str = "usage: count none|tickwheel|tokio|alternative WORK TIMES, where WORK is a line of .ci/instructions.limits";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Ok([peer, name, times]) = <[String; 3]>::try_from(arguments) else {
        panic!("{USAGE}");
    };
    let times = times.parse().expect("TIMES is a number");
    match (peer.as_str(), name.as_str()) {
        ("tickwheel", "runtimes") => return runtimes::begin_and_end(&timers::Global, DURATION, times),
        ("tokio", "runtimes") => return runtimes::begin_and_end(&timers::Tokio, DURATION, times),
        _ => {}
    }
    let runtime = runtime(&peer, &name);
    let is_second = name.ends_with("-worker");
    // A task, as a server's requests are, and not the future of `block_on`, whose waker no clone of it will
    // match.
    let work = async move {
        let work = name.trim_end_matches("-threads").trim_end_matches("-worker");
        let with_handle = work.strip_prefix("handle-");
        if let Some(work) = work.strip_prefix("task-") {
            return match peer.as_str() {
                "tickwheel" => tasks::tickwheel(&Wheel::new(), work, DURATION, times).await,
                "tokio" => tasks::tokio(work, DURATION, times).await,
                peer => panic!("there is no {peer}: {USAGE}"),
            };
        }
        let by_kernel_timer = work
            .strip_prefix("fired-")
            .and_then(|work| work.strip_suffix("-kernel"));
        if let ("tickwheel", Some(tasks)) = (peer.as_str(), by_kernel_timer) {
            return fire_by_kernel_timer(tasks, times).await;
        }
        let periodic = work
            .strip_prefix("fired-")
            .and_then(|work| work.strip_suffix("-periodic"));
        if let ("tickwheel", Some(series)) = (peer.as_str(), periodic) {
            let series = series.parse().expect("a number of series");
            return fire_series(&Wheel::global(), series, times).await;
        }
        if nested::WORK.contains(&work) {
            return match peer.as_str() {
                "tickwheel" => nested::tickwheel(work, times).await,
                "tokio" => nested::tokio(work, times).await,
                peer => panic!("there is no {peer}: {USAGE}"),
            };
        }
        match (peer.as_str(), work.strip_prefix("delay-queue-")) {
            ("tickwheel", Some(work)) => queue::tickwheel(work, times).await,
            ("tokio", Some(work)) => queue::tokio(work, times).await,
            ("none", None) if work == "tasks" => new_tasks(&timers::Nothing, times).await,
            ("none", None) => serve(&timers::Nothing, work, times).await,
            // On a runtime with Tokio's alternative timer.
            ("tokio" | "alternative", None) => play(&timers::Tokio, with_handle.unwrap_or(work), times).await,
            ("tickwheel", None) => match (work, with_handle) {
                ("label", _) => label(times).await,
                (_, Some("label")) => handle_label(&Wheel::new(), times).await,
                (_, Some(work)) => play(&Wheel::new(), work, times).await,
                (work, None) => play(&timers::Global, work, times).await,
            },
            (peer, _) => panic!("there is no {peer}: {USAGE}"),
        }
    };
    let done = if is_second {
        runtime.block_on(on_second_worker(work))
    } else {
        runtime.block_on(runtime.spawn(work))
    };
    done.expect("the work does not panic");
}

/// Does the work in a task on the second worker, and blocks the first meanwhile.
async fn on_second_worker(work: impl Future<Output = ()> + Send + 'static) -> Result<(), JoinError> {
    let both = Arc::new(Barrier::new(2));
    let work = Arc::new(Mutex::new(Some(Box::pin(work))));
    let part = || {
        let (both, work) = (both.clone(), work.clone());
        async move {
            both.wait();
            if runtime::worker_index() == Some(1) {
                let work = work.lock().unwrap().take();
                work.expect("there is one second worker").await;
            }
            both.wait();
        }
    };
    let other = tokio::spawn(part());
    tokio::spawn(part()).await.and(other.await)
}

/// A current-thread runtime, or a multi-thread one with one worker or two. Where Tokio's driver has something
/// to do for a timer, it waits for sockets too, as a server's does.
fn runtime(peer: &str, work: &str) -> Runtime {
    let workers = if work.ends_with("-worker") { 2 } else { 1 };
    let mut builder = if work.ends_with("-threads") || workers == 2 {
        runtime::Builder::new_multi_thread()
    } else {
        runtime::Builder::new_current_thread()
    };
    if work.starts_with("fired-") || nested::WORK.contains(&work) {
        builder.enable_io();
    }
    #[cfg(tokio_unstable)]
    if peer == "alternative" {
        builder.enable_alt_timer();
    }
    #[cfg(not(tokio_unstable))]
    assert_ne!(peer, "alternative", "built without --cfg tokio_unstable");
    let builder = builder.worker_threads(workers).enable_time();
    builder.build().expect("the runtime starts")
}

async fn serve<T: Timers>(timers: &T, work: &str, times: u64) {
    let mut server = match work {
        "server" => Server::start(CONNECTIONS, timers),
        "two-sleeps" => Server::with_two_sleeps(CONNECTIONS, timers),
        work => panic!("there is no {work}: {USAGE}"),
    };
    server.ask(1_000).await;
    // For the same reason as in `once`.
    thread::sleep(SLACK);
    server.ask(times).await;
}

/// Timers that fire on a wheel that waits on the kernel's timer.
async fn fire_by_kernel_timer(tasks: &str, times: u64) {
    #[cfg(not(feature = "precise"))]
    panic!(
        "built without the feature `precise`, {times} timers of {tasks} tasks cannot fire by the kernel's timer"
    );
    #[cfg(feature = "precise")]
    {
        let wheel = Wheel::builder().kernel_timer(true).build().expect("a wheel");
        let tasks = tasks.parse().expect("a number of tasks");
        fire(&wheel, With::Sleeps, tasks, times).await;
        assert!(wheel.snapshot().engines[0].kernel_timer);
    }
}

async fn play<T: Fires>(timers: &T, work: &str, times: u64) {
    if let Some(fired) = work.strip_prefix("fired-") {
        let (tasks, with) = match fired.split_once('-') {
            // Tokio has one timer.
            None => (fired, With::Sleeps),
            Some((tasks, "kernel")) => (tasks, With::Sleeps),
            Some((tasks, "timeout")) => (tasks, With::Timeouts),
            // Tokio has no series.
            Some((tasks, "interval" | "periodic")) => (tasks, With::Intervals),
            _ => panic!("there is no {work}: {USAGE}"),
        };
        let tasks = tasks.parse().expect("a number of tasks");
        return fire(timers, with, tasks, times).await;
    }
    match work {
        "server" | "two-sleeps" => return serve(timers, work, times).await,
        "async" => {
            let mut server = Server::that_works(MANY_CONNECTIONS as usize, timers);
            return server.ask_all(times / MANY_CONNECTIONS).await;
        }
        "tasks" => {
            let _first = first(timers).await;
            return new_tasks(timers, times).await;
        }
        _ => {}
    }
    let mut first = first(timers).await;
    let deadline = Instant::now() + DURATION;
    match work {
        "sleep" | "select" => {
            // For the same reason as in `once`.
            repeat(1, |cx| poll_sleep(cx, timers.sleep(black_box(DURATION)))).await;
            thread::sleep(SLACK);
        }
        _ => {}
    }
    match work {
        "ready" => {
            repeat(times, |cx| {
                poll_ready(cx, timers.timeout(black_box(DURATION), ready(())))
            })
            .await
        }
        // Tokio has no labels.
        "timeout" | "label" => once(times, || timers.timeout(black_box(DURATION), Once::default())).await,
        "timeout-long" => once(times, || timers.timeout(black_box(LONG), Once::default())).await,
        "fresh" => fresh(times, || timers.timeout(black_box(DURATION), Once::default())),
        "timeout-1k" => {
            once(times, || {
                timers.timeout(black_box(DURATION), Large::<1_024>::default())
            })
            .await
        }
        "timeout-16k" => {
            once(times, || {
                timers.timeout(black_box(DURATION), Large::<16_384>::default())
            })
            .await
        }
        "unequal" => {
            let mut duration = in_turn();
            once(times, || timers.timeout(black_box(duration()), Once::default())).await
        }
        "sleep" => repeat(times, |cx| poll_sleep(cx, timers.sleep(black_box(DURATION)))).await,
        "select" => repeat(times, |cx| poll_select(cx, timers.sleep(black_box(DURATION)))).await,
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
        "reset-earlier" => {
            // Never the first, which the driver waits for.
            let mut sleep = Box::pin(timers.sleep(LONG));
            let mut earlier = Instant::now() + LONG;
            repeat(times, |cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                earlier -= Duration::from_millis(10);
                T::reset(black_box(&mut sleep).as_mut(), earlier);
            })
            .await
        }
        work => panic!("there is no {work}: {USAGE}"),
    }
}

/// Requests of which each is a new task, as those of HTTP/2 are, with a timeout around a future that waits
/// once.
///
/// The futures are boxed, and the memory of tasks is never freed, because what the allocator does for a task
/// differs by hundreds of instructions with the sizes of tasks and the order in which they end.
async fn new_tasks<T: Timers>(timers: &T, times: u64) {
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

/// Timeouts that a static label counts on the global wheel.
async fn label(times: u64) {
    static COUNT: Label = Label::new("count");
    let _first = first(&timers::Global).await;
    once(times, || COUNT.timeout(black_box(DURATION), Once::default())).await;
    assert!(Wheel::global().snapshot().labels[0].completed >= times);
}

/// Timeouts that a label counts.
async fn handle_label(wheel: &Wheel, times: u64) {
    let _first = first(wheel).await;
    let label = wheel.labelled("count");
    once(times, || label.timeout(black_box(DURATION), Once::default())).await;
    assert!(wheel.snapshot().labels[0].completed >= times);
}

/// A round of a loop around `select!`: a sleep beside something else, that looks at the sleep twice and gives
/// it up.
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
    let (mut next, mut other) = (DURATION, DURATION * 4 / 3);
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
