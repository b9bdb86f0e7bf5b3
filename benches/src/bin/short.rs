//! How late short sleeps fire, one after another in one task: `short [--scene idle|busy|ticking] [--ms N] [--seconds N] [--rounds N]`.
//!
//! The runtime is idle, or its workers have tasks that are always ready, or other tasks start 50,000 timeouts a second on the same timers,
//! each of which completes. The last scene also measures `timeouts` that elapse.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn_at},
    timers::{Timers, Tokio},
};
use tokio::{runtime::Builder, sync::mpsc, task::yield_now, time::Instant};

#[path = "../../../tests/support/ready_tasks.rs"]
mod ready_tasks;

use ready_tasks::ReadyTasks;

const MILLIS: [u64; 6] = [1, 2, 5, 7, 20, 50];

/// The duration of a timeout that elapses.
const TIMEOUT: u64 = 20;

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        let (only, only_ms) = (arguments.text("scene"), arguments.text("ms"));
        for scene in ["idle", "busy", "ticking", "timeouts"] {
            let millis = match scene {
                "timeouts" => &[TIMEOUT][..],
                _ => &MILLIS,
            };
            for millis in millis {
                let work = format!("{scene}-{millis}");
                if only.is_none_or(|only| only == scene)
                    && only_ms.is_none_or(|only| only == millis.to_string())
                {
                    in_turn_at(&arguments, Some(("work", &work)), &["tickwheel", "tokio"]);
                }
            }
        }
        return;
    };
    let work = arguments.text("work").expect("--work");
    let (scene, millis) = work.split_once('-').expect("a scene and milliseconds");
    let duration = Duration::from_millis(millis.parse().expect("milliseconds"));
    let all = Duration::from_secs(arguments.number("seconds", 2));
    let (late, early) = match peer.as_str() {
        "tickwheel" => measure(Wheel::new(), scene, duration, all),
        "tokio" => measure(Tokio, scene, duration, all),
        peer => panic!("there is no {peer}"),
    };
    let ms = |quantile| late.value_at_quantile(quantile) as f64 / 1e6;
    let line = Line::new("short")
        .with("peer", peer)
        .with("scene", scene)
        .with("ms", millis)
        .with("timers", late.len());
    let line = line
        .with_number("p50_ms", ms(0.5))
        .with_number("p99_ms", ms(0.99))
        .with_number("max_ms", late.max() as f64 / 1e6);
    println!("{}", line.with("early", early));
}

/// How late they were, and how many were early.
fn measure<T: Timers>(timers: T, scene: &str, duration: Duration, all: Duration) -> (Histogram<u64>, u64) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("the runtime starts");
    let over = Arc::new(AtomicBool::new(false));
    let mut beside = Vec::new();
    {
        let _entered = runtime.enter();
        match scene {
            "idle" => {}
            "busy" => {
                let ready = ReadyTasks::new(100, Duration::from_micros(20), true);
                beside.extend(ready.spawn());
                let over = over.clone();
                beside.push(tokio::spawn(async move {
                    while !over.load(Ordering::Relaxed) {
                        yield_now().await;
                    }
                    ready.stop();
                }));
            }
            "ticking" | "timeouts" => beside.push(tokio::spawn(load(timers.clone(), over.clone()))),
            scene => panic!("there is no scene {scene}"),
        }
    }
    let elapses = scene == "timeouts";
    runtime.block_on(async {
        let measured = tokio::spawn(async move {
            let mut late =
                Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
            let mut early = 0;
            // The first are not counted: the driver starts, and the shard begins to tick.
            let warm = Instant::now() + Duration::from_millis(100);
            let end = warm + all;
            while Instant::now() < end {
                let due = Instant::now() + duration;
                match elapses {
                    true => drop(timers.timeout(duration, pending::<()>()).await),
                    false => drop(timers.sleep(duration).await),
                }
                let now = Instant::now();
                match now.checked_duration_since(due) {
                    _ if now < warm => {}
                    Some(by) => late.saturating_record((by.as_nanos() as u64).max(1)),
                    None => early += 1,
                }
            }
            (late, early)
        });
        let measured = measured.await.expect("it does not panic");
        over.store(true, Ordering::Relaxed);
        for task in beside {
            task.await.expect("it does not panic");
        }
        measured
    })
}

/// 50 timeouts each millisecond, at a thread's beat: no timer but those measured has a part in it.
async fn load<T: Timers>(timers: T, over: Arc<AtomicBool>) {
    let (beat, mut beats) = mpsc::unbounded_channel();
    let beating = thread::spawn(move || {
        let began = std::time::Instant::now();
        for millis in 0.. {
            thread::sleep(
                (began + Duration::from_millis(millis)).saturating_duration_since(std::time::Instant::now()),
            );
            if over.load(Ordering::Relaxed) || beat.send(()).is_err() {
                return;
            }
        }
    });
    while let Some(()) = beats.recv().await {
        for _ in 0..50 {
            // Pending once, as a request that waits for its answer is.
            drop(timers.timeout(Duration::from_secs(5), yield_now()).await);
        }
    }
    beating.join().expect("it does not panic");
}
