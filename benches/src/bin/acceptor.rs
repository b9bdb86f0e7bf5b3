//! An acceptor that makes the timers of what it spawns, which other workers poll: `acceptor [--tasks N] [--rounds N]`.
//!
//! With `--cfg tokio_unstable`, Tokio's alternative timer is one of the peers.
//!
//! Each task has a timeout around its work, which waits three times, and a sleep beside it. A thousand run at once.

use std::{pin::pin, sync::Arc, time::Duration};

use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process,
    timers::{Nothing, Timers, Tokio},
};
use tokio::{runtime::Builder, sync::Semaphore, task::yield_now, time::Instant};

const TIMEOUT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(60);
const AT_ONCE: u32 = 1_000;

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        let alt: &[_] = if cfg!(tokio_unstable) { &["tokio-alt"] } else { &[] };
        return in_turn(&arguments, &[&["none", "tickwheel", "tokio"], alt].concat());
    };
    let tasks = arguments.number("tasks", 1_000_000);
    let workers = arguments.number("workers", process::cores() as u64) as usize;
    let (took, cpu) = match peer.as_str() {
        "none" => accept(Nothing, tasks, workers, false),
        "tickwheel" => accept(Wheel::new(), tasks, workers, false),
        "tokio" => accept(Tokio, tasks, workers, false),
        "tokio-alt" => accept(Tokio, tasks, workers, true),
        peer => panic!("there is no {peer}"),
    };
    let line = Line::new("program")
        .with("peer", peer)
        .with("program", "acceptor");
    let line = line.with_number("requests_per_s", tasks as f64 / took.as_secs_f64());
    println!(
        "{}",
        line.with_number("cpu_us", cpu.as_secs_f64() * 1e6 / tasks as f64)
    );
}

fn accept<T: Timers>(timers: T, tasks: u64, workers: usize, alt: bool) -> (Duration, Duration) {
    let mut builder = Builder::new_multi_thread();
    #[cfg(tokio_unstable)]
    if alt {
        builder.enable_alt_timer();
    }
    assert!(cfg!(tokio_unstable) || !alt, "it needs --cfg tokio_unstable");
    let builder = builder.worker_threads(workers.max(2)).enable_time();
    let runtime = builder.build().expect("the runtime starts");
    let accepting = async move {
        let room = Arc::new(Semaphore::new(AT_ONCE as usize));
        let (began, cpu) = (Instant::now(), process::cpu_time());
        for _ in 0..tasks {
            let place = room.clone().acquire_owned().await.expect("it stays open");
            let idle = timers.sleep(IDLE);
            let worked = timers.timeout(TIMEOUT, work());
            tokio::spawn(async move {
                let mut idle = pin!(idle);
                tokio::select! {
                    worked = worked => assert!(worked.is_ok(), "it was in time"),
                    _ = &mut idle => panic!("it was not idle"),
                }
                drop(place);
            });
        }
        let _all = room.acquire_many(AT_ONCE).await.expect("it stays open");
        (began.elapsed(), process::cpu_time() - cpu)
    };
    let outcome = runtime.block_on(runtime.spawn(accepting));
    outcome.expect("nobody panics")
}

async fn work() {
    for _ in 0..3 {
        yield_now().await;
    }
}
