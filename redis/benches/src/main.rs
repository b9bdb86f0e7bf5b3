//! Delayed jobs beside apalis-redis and rsmq_async, on the same server, in one run.
//!
//!     cargo run --release -p tickwheel-redis-benches [-- --jobs 20000 --idle 10] [--scale 10000000]
//!
//! Jobs per second from schedule to done with 1, 8 and 64 in flight; lateness of jobs due at random within ten seconds; commands per
//! job and while idle, as Redis' MONITOR shows them, those inside of scripts left out. With `--scale`, what schedule, take and done
//! cost with so many jobs waiting.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use support::server::Server;

use systems::{Apalis, Rsmq, System, Tickwheel};

mod scale;
#[path = "../../tests/support/mod.rs"]
mod support;
mod systems;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut jobs, mut idle, mut scale) = (20_000, 10, None);
    while let Some(option) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        match (&*option, value) {
            ("--jobs", Some(value)) => jobs = value,
            ("--idle", Some(value)) => idle = value,
            ("--scale", Some(value)) => scale = Some(value),
            // Cargo's, where this is run as a benchmark.
            ("--bench", _) => {}
            _ => {
                eprintln!("usage: tickwheel-redis-benches [--jobs 20000] [--idle 10] [--scale 10000000]");
                std::process::exit(2);
            }
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        if let Some(waiting) = scale {
            return scale::run(waiting).await;
        }
        println!(
            "{:<14}{:>14}{:>14}{:>14}{:>12}{:>12}{:>14}{:>14}",
            "",
            "1 in flight",
            "8 in flight",
            "64 in flight",
            "late p50",
            "late p99",
            "commands/job",
            "idle cmd/s"
        );
        row::<Tickwheel>(jobs, idle).await;
        row::<Apalis>(jobs, idle).await;
        row::<Rsmq>(jobs, idle).await;
    });
}

async fn row<S: System>(jobs: u64, idle: u64) {
    let mut cells = vec![format!("{:<14}", S::NAME)];
    for in_flight in [1, 8, 64] {
        // One at a time takes a while.
        let jobs = if in_flight == 1 { jobs / 5 } else { jobs };
        let server = Server::start();
        let rate = throughput::<S>(&server, jobs, in_flight).await;
        cells.push(format!("{:>12.0}/s", rate));
    }
    let server = Server::start();
    let lateness = lateness::<S>(&server, 5000, Duration::from_secs(10)).await;
    for part in [0.5, 0.99] {
        let late = lateness[((lateness.len() - 1) as f64 * part) as usize];
        cells.push(format!("{:>9.1} ms", late as f64 / 1e3));
    }
    let server = Server::start();
    let commands = {
        // Scripts are loaded, and workers registered, before it is counted.
        throughput::<S>(&server, 64, 8).await;
        let monitor = Monitor::start(&server);
        throughput::<S>(&server, 2000, 8).await;
        monitor.commands() as f64 / 2000.0
    };
    cells.push(format!("{commands:>14.2}"));
    let server = Server::start();
    let (done, _) = tokio::sync::mpsc::unbounded_channel();
    let system = S::start(&server, 8, done).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let monitor = Monitor::start(&server);
    tokio::time::sleep(Duration::from_secs(idle)).await;
    cells.push(format!("{:>14.2}", monitor.commands() as f64 / idle as f64));
    drop(system);
    println!("{}", cells.concat());
}

/// Jobs per second from the first schedule to the last done, with as many schedulers as workers.
async fn throughput<S: System>(server: &Server, jobs: u64, in_flight: usize) -> f64 {
    let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
    let system = S::start(server, in_flight, sender).await;
    let began = Instant::now();
    stream::iter(0..jobs)
        .for_each_concurrent(in_flight, async |job| system.schedule(job, Duration::ZERO).await)
        .await;
    for _ in 0..jobs {
        done.recv().await.expect("a worker that lives");
    }
    jobs as f64 / began.elapsed().as_secs_f64()
}

/// In microseconds, sorted, of jobs that are due at random within `spread`.
async fn lateness<S: System>(server: &Server, jobs: u64, spread: Duration) -> Vec<u64> {
    let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
    let system = S::start(server, 64, sender).await;
    let micros = spread.as_micros() as u64;
    let due: Vec<Instant> = stream::iter(0..jobs)
        .map(async |job| {
            let delay = Duration::from_micros(job.wrapping_mul(0x9e37_79b9_7f4a_7c15) % micros);
            let due = Instant::now() + delay;
            system.schedule(job, delay).await;
            due
        })
        .buffered(64)
        .collect()
        .await;
    let mut late = Vec::new();
    while late.len() < jobs as usize {
        let (job, at): (u64, Instant) = done.recv().await.expect("a worker that lives");
        late.push(at.saturating_duration_since(due[job as usize]).as_micros() as u64);
    }
    late.sort();
    late
}

/// What Redis is sent, from here on.
struct Monitor {
    child: Child,
    count: Arc<AtomicU64>,
}

impl Monitor {
    fn start(server: &Server) -> Monitor {
        let mut child = Command::new("redis-cli")
            .args(["-p", &server.port().to_string(), "MONITOR"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli: install Debian's redis-tools");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        lines.next();
        let count = Arc::new(AtomicU64::new(0));
        let counter = count.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if !line.contains(" lua] ") {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Monitor { child, count }
    }

    fn commands(self) -> u64 {
        std::thread::sleep(Duration::from_millis(200));
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
