//! Delayed jobs beside apalis-redis and rsmq_async, on the same server, in one run.
//!
//!     cargo run --release -p tickwheel-redis-benches [-- --jobs 7000 --rounds 3 --idle 10] [--only tickwheel] [--scale 10000000]
//!
//! Jobs per second from schedule to done with 1, 8 and 64 in flight; CPU time per job; lateness of jobs due
//! at random within ten seconds; commands per job and while idle, as shown by Redis' MONITOR, without those
//! inside scripts. With `--scale`, the cost of schedule, take and done with that many jobs waiting.
//!
//! Ask for no more than 7,999 jobs: a worker of apalis-redis ends when more are due at once.

use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use measure::{Used, rate, runtime, spread};
use monitor::Monitor;
use support::server::Server;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use systems::{Apalis, Rsmq, System, Tickwheel};

mod measure;
mod monitor;
mod scale;
#[path = "../../tests/support/mod.rs"]
mod support;
mod systems;

const IN_FLIGHT: [usize; 3] = [1, 8, 64];

struct Options {
    jobs: u64,
    rounds: usize,
    idle: u64,
    only: Option<String>,
    scale: Option<u64>,
}

const USAGE: &str = "usage: tickwheel-redis-benches [--jobs 7000] [--rounds 3] [--idle 10] [--only tickwheel] [--scale 10000000]";

fn options() -> Option<Options> {
    let mut options = Options {
        jobs: 7000,
        rounds: 3,
        idle: 10,
        only: None,
        scale: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        // Cargo's, where this is run as a benchmark.
        if option == "--bench" {
            continue;
        }
        let value = arguments.next()?;
        match &*option {
            "--jobs" => options.jobs = value.parse().ok()?,
            "--rounds" => options.rounds = value.parse().ok()?,
            "--idle" => options.idle = value.parse().ok()?,
            "--only" => options.only = Some(value),
            "--scale" => options.scale = Some(value.parse().ok()?),
            _ => return None,
        }
    }
    Some(options)
}

fn main() {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        std::process::exit(2);
    };
    runtime().block_on(async {
        if let Some(waiting) = options.scale {
            return scale::run(waiting).await;
        }
        let (mut tickwheel, mut apalis, mut rsmq) = <(Row, Row, Row)>::default();
        // In turns, so that what else the machine does weighs on all of them.
        for round in 1..=options.rounds {
            tickwheel.measure::<Tickwheel>(&options).await;
            apalis.measure::<Apalis>(&options).await;
            rsmq.measure::<Rsmq>(&options).await;
            eprintln!("round {round} of {}", options.rounds);
        }
        tickwheel.count::<Tickwheel>(&options).await;
        apalis.count::<Apalis>(&options).await;
        rsmq.count::<Rsmq>(&options).await;
        let rows = [
            (Tickwheel::NAME, tickwheel),
            (Apalis::NAME, apalis),
            (Rsmq::NAME, rsmq),
        ];
        print_tables(&rows.map(|(name, row)| (name, row.is_measured().then_some(row))));
    });
}

fn print_tables(rows: &[(&str, Option<Row>)]) {
    let rows = || rows.iter().filter_map(|(name, row)| Some((name, row.as_ref()?)));
    let head = || {
        let [one, eight, many] = IN_FLIGHT.map(|in_flight| format!("{in_flight} in flight"));
        println!("{:<14}{one:>26}{eight:>26}{many:>26}", "");
    };
    println!("jobs per second, from schedule to done: median (least to most)\n");
    head();
    for (name, row) in rows() {
        print!("{name:<14}");
        for runs in &row.runs {
            print!("{}", rate(runs.iter().map(|run| run.rate)));
        }
        println!();
    }
    println!("\nmicroseconds of processor time for a job: this process, redis-server\n");
    head();
    for (name, row) in rows() {
        print!("{name:<14}");
        for runs in &row.runs {
            let (own, ..) = spread(runs.iter().map(|run| run.own));
            let (server, ..) = spread(runs.iter().map(|run| run.server));
            print!("{:>26}", format!("{own:.0}, {server:.0}"));
        }
        println!();
    }
    println!("\nlateness of jobs due at random within ten seconds: median (least to most), and commands\n");
    println!(
        "{:<14}{:>28}{:>28}{:>16}{:>16}",
        "", "p50, ms", "p99, ms", "commands/job", "idle cmd/s"
    );
    for (name, row) in rows() {
        let of = |part: fn(&Lateness) -> f64| {
            let (median, least, most) = spread(row.lateness.iter().map(part));
            format!("{median:.1} ({least:.1} to {most:.1})")
        };
        println!(
            "{name:<14}{:>28}{:>28}{:>16.2}{:>16.2}",
            of(|late| late.p50),
            of(|late| late.p99),
            row.commands,
            row.idle
        );
    }
}

#[derive(Default)]
struct Row {
    runs: [Vec<Run>; 3],
    lateness: Vec<Lateness>,
    commands: f64,
    idle: f64,
}

struct Run {
    /// Jobs per second.
    rate: f64,
    /// Microseconds of processor time for a job, of this process and of the server.
    own: f64,
    server: f64,
}

/// In milliseconds.
struct Lateness {
    p50: f64,
    p99: f64,
}

impl Row {
    fn is_measured(&self) -> bool {
        !self.lateness.is_empty()
    }

    async fn measure<S: System>(&mut self, options: &Options) {
        if options.only.as_ref().is_some_and(|only| only != S::NAME) {
            return;
        }
        for (runs, in_flight) in self.runs.iter_mut().zip(IN_FLIGHT) {
            // One at a time takes a while.
            let jobs = if in_flight == 1 {
                options.jobs / 2
            } else {
                options.jobs
            };
            let server = Server::start();
            let mut running = Running::<S>::start(&server, in_flight).await;
            let before = Used::by(&server);
            let rate = running.throughput(jobs).await;
            let (own, server) = Used::by(&server).since(before, jobs);
            runs.push(Run { rate, own, server });
        }
        let server = Server::start();
        let lateness = lateness::<S>(&server, 5000, Duration::from_secs(10)).await;
        let part = |part| lateness[((lateness.len() - 1) as f64 * part) as usize] as f64 / 1e3;
        self.lateness.push(Lateness {
            p50: part(0.5),
            p99: part(0.99),
        });
    }

    async fn count<S: System>(&mut self, options: &Options) {
        if !self.is_measured() {
            return;
        }
        let server = Server::start();
        let mut running = Running::<S>::start(&server, 8).await;
        // Scripts are loaded, and the worker registered, before anything is counted.
        running.throughput(64).await;
        let monitor = Monitor::start(&server);
        running.throughput(2000).await;
        self.commands = monitor.commands() as f64 / 2000.0;
        let server = Server::start();
        let (done, _) = unbounded_channel();
        let system = S::start(&server, 8, done).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let monitor = Monitor::start(&server);
        tokio::time::sleep(Duration::from_secs(options.idle)).await;
        self.idle = monitor.commands() as f64 / options.idle as f64;
        drop(system);
    }
}

/// A queue with its worker.
struct Running<S> {
    system: S,
    in_flight: usize,
    done: UnboundedReceiver<(u64, Instant)>,
    scheduled: u64,
}

impl<S: System> Running<S> {
    async fn start(server: &Server, in_flight: usize) -> Running<S> {
        let (sender, done) = unbounded_channel();
        Running {
            system: S::start(server, in_flight, sender).await,
            in_flight,
            done,
            scheduled: 0,
        }
    }

    /// Jobs per second from the first schedule to the last done, with as many schedulers as workers.
    async fn throughput(&mut self, jobs: u64) -> f64 {
        let ids = self.scheduled..self.scheduled + jobs;
        self.scheduled += jobs;
        let began = Instant::now();
        let system = &self.system;
        stream::iter(ids)
            .for_each_concurrent(self.in_flight, async |job| {
                system.schedule(job, Duration::ZERO).await
            })
            .await;
        for _ in 0..jobs {
            self.done.recv().await.expect("a worker that lives");
        }
        jobs as f64 / began.elapsed().as_secs_f64()
    }
}

/// In microseconds, sorted, of jobs that are due at random within `spread`.
///
/// One task schedules them, one after the other: a delay counts from when it was asked for, and where many
/// ask at once, what they wait for each other would be taken for lateness.
async fn lateness<S: System>(server: &Server, jobs: u64, spread: Duration) -> Vec<u64> {
    let (sender, mut done) = unbounded_channel();
    let system = S::start(server, 64, sender).await;
    let micros = spread.as_micros() as u64;
    let mut due = Vec::new();
    for job in 0..jobs {
        let delay = Duration::from_micros(job.wrapping_mul(0x9e37_79b9_7f4a_7c15) % micros);
        due.push(Instant::now() + delay);
        system.schedule(job, delay).await;
    }
    let mut late = Vec::new();
    while late.len() < jobs as usize {
        let (job, at): (u64, Instant) = done.recv().await.expect("a worker that lives");
        late.push(at.saturating_duration_since(due[job as usize]).as_micros() as u64);
    }
    late.sort();
    late
}
