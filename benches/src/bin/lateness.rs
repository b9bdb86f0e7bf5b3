//! CPU time and lateness when 300,000 tasks sleep for two to five seconds, until their timers expire:
//! `lateness [--tasks N] [--spread-ms N] [--workers N] [--rounds N]`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use hdrhistogram::Histogram;
use tickwheel::{Builder, Sleep, Wheel};
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process,
};
use tokio::time::{Instant, sleep_until};

/// What a task notes that woke early.
const EARLY: u64 = u64::MAX;

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, &["tickwheel", "without-slack", "tokio"]);
    };
    let tasks = arguments.number("tasks", 300_000);
    let spread = Duration::from_millis(arguments.number("spread-ms", 3_000));
    let workers = arguments.number("workers", process::cores() as u64) as usize;
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(workers.max(2))
        .enable_all()
        .build()
        .expect("the runtime starts");
    let notes = match peer.as_str() {
        "tickwheel" => runtime.block_on(run(tasks, spread, sleep_on(Wheel::builder()))),
        "without-slack" => {
            let builder = Wheel::builder().slack(Duration::ZERO);
            runtime.block_on(run(tasks, spread, sleep_on(builder)))
        }
        "tokio" => runtime.block_on(run(tasks, spread, sleep_until)),
        peer => panic!("there is no {peer}"),
    };
    let mut late = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
    let mut early = 0;
    for note in notes.lateness.iter() {
        match note.load(Ordering::Relaxed) {
            EARLY => early += 1,
            nanos => late.saturating_record(nanos.max(1)),
        }
    }
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let line = Line::new("lateness")
        .with("peer", peer)
        .with("tasks", tasks)
        .with("workers", workers.max(2));
    let line = line
        .with("spread_ms", spread.as_millis())
        .with_number("cpu_s", notes.all.as_secs_f64())
        .with_number("cpu_expire_s", notes.expiring.as_secs_f64())
        .with_number("p50_ms", ms(late.value_at_quantile(0.5)))
        .with_number("p99_ms", ms(late.value_at_quantile(0.99)))
        .with_number("p999_ms", ms(late.value_at_quantile(0.999)))
        .with_number("max_ms", ms(late.max()))
        .with("early", early);
    println!("{line}");
}

fn sleep_on(builder: Builder) -> impl Fn(Instant) -> Sleep + Clone {
    let wheel = builder.build().expect("the settings are allowed");
    move |deadline| wheel.sleep_until(deadline)
}

struct Notes {
    /// Nanoseconds after its deadline at which each task went on.
    lateness: Arc<[AtomicU64]>,
    /// CPU time from the first task's start to the last one's end.
    all: Duration,
    /// The same, from when all of them slept.
    expiring: Duration,
}

async fn run<S>(tasks: u64, spread: Duration, sleep: impl Fn(Instant) -> S + Clone + Send + 'static) -> Notes
where
    S: Future<Output = ()> + Send + 'static,
{
    let lateness: Arc<[AtomicU64]> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
    let mut random = Rng::with_seed(7);
    let before = process::cpu_time();
    // Late enough for all of them to be asleep by then.
    let first = Instant::now() + Duration::from_millis(500) + Duration::from_micros(5) * tasks as u32;
    let sleeping: Vec<_> = (0..tasks as usize)
        .map(|task| {
            let deadline = first + Duration::from_nanos(random.u64(..=spread.as_nanos() as u64));
            let sleep = sleep.clone();
            let lateness = lateness.clone();
            tokio::spawn(async move {
                // Made here, and not before: the task's own worker is to serve it.
                sleep(deadline).await;
                let now = Instant::now();
                let late = now.checked_duration_since(deadline);
                let note = late.map_or(EARLY, |late| late.as_nanos() as u64);
                lateness[task].store(note, Ordering::Relaxed);
            })
        })
        .collect();
    // By a thread: no timer but the one measured has a part in it.
    let wait_until = |instant: Instant| {
        tokio::task::spawn_blocking(move || {
            std::thread::sleep(instant.saturating_duration_since(Instant::now()));
            process::cpu_time()
        })
    };
    let asleep = wait_until(first - Duration::from_millis(50))
        .await
        .expect("no panic");
    // Joined only afterwards: it would take one of the cores now and then.
    wait_until(first + spread + Duration::from_millis(200))
        .await
        .expect("no panic");
    for task in sleeping {
        task.await.expect("no panic");
    }
    let after = process::cpu_time();
    Notes {
        lateness,
        all: after - before,
        expiring: after - asleep,
    }
}
