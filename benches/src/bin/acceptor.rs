//! An acceptor that creates the timers of the tasks it spawns, while other workers poll them: `acceptor [--tasks N] [--rounds N]`.
//!
//! With `--cfg tokio_unstable`, Tokio's alternative timer is one of the peers.
//!
//! Each task has a timeout around its work, which is pending three times, and a sleep beside it. A thousand tasks run at once.

use std::{pin::pin, sync::Arc, time::Duration};

use tickwheel::Wheel;
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    process, stage,
    timers::{Nothing, Timers, Tokio},
};
use tokio::{runtime::Runtime, sync::Semaphore, task::yield_now, time::Instant};

const TIMEOUT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(60);
const AT_ONCE: u32 = 1_000;

fn main() {
    let arguments = Arguments::read();
    let Some(peer) = arguments.rest.first() else {
        return in_turn(&arguments, stage::programs());
    };
    let tasks = arguments.number("tasks", 1_000_000);
    let workers = arguments.number("workers", process::cores() as u64);
    let mut builder = stage::program(peer, workers);
    let runtime = builder.enable_time().build().expect("the runtime starts");
    let (took, cpu) = match peer.as_str() {
        "none" => accept(&runtime, Nothing, tasks),
        "tickwheel" => accept(&runtime, Wheel::new(), tasks),
        "tokio" | "tokio-alt" => accept(&runtime, Tokio, tasks),
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

fn accept<T: Timers>(runtime: &Runtime, timers: T, tasks: u64) -> (Duration, Duration) {
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
