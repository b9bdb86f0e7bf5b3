//! Leases beside rslock, on the same server, in one run.
//!
//!     cargo run --release -p tickwheel-redis-benches --bin leases [-- SECONDS [ROUNDS]]
//!
//! Pairs of acquire and release per second: by one task, by 64 tasks with a name each, and by 8 tasks that
//! compete for one name. Requests and CPU time per pair. rslock does not renew by itself and has no tokens.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use measure::{Used, rate, runtime, spread};
use redis::aio::ConnectionManager;
use rslock::LockManager;
use support::{connect, server::Server};
use tickwheel::Wheel;
use tickwheel_redis::{Leases, Notifications};

#[path = "../measure.rs"]
mod measure;
#[path = "../../../tests/support/mod.rs"]
mod support;

const TTL: Duration = Duration::from_secs(30);

trait System: Send + Sync + 'static {
    const NAME: &'static str;
    /// The commands that it sends; those within scripts are others.
    const COMMANDS: &'static [&'static str];
    fn open(server: &Server) -> impl Future<Output = Self>;
    fn acquire_and_release(&self, name: &str) -> impl Future<Output = ()> + Send;
}

struct Tickwheel(Leases<ConnectionManager>);

impl System for Tickwheel {
    const NAME: &'static str = "tickwheel-redis";
    const COMMANDS: &'static [&'static str] = &["eval", "evalsha"];

    async fn open(server: &Server) -> Tickwheel {
        let notifications = Notifications::of(server.client());
        let connection = connect(&server.url()).await;
        Tickwheel(Leases::new(&Wheel::new(), connection).notifications(&notifications))
    }

    async fn acquire_and_release(&self, name: &str) {
        let lease = self.0.acquire(name, TTL).await.unwrap();
        assert!(lease.release().await.unwrap());
    }
}

struct Rslock(LockManager);

impl System for Rslock {
    const NAME: &'static str = "rslock";
    const COMMANDS: &'static [&'static str] = &["set", "eval", "evalsha", "script|load"];

    async fn open(server: &Server) -> Rslock {
        Rslock(LockManager::new(vec![server.url()]))
    }

    async fn acquire_and_release(&self, name: &str) {
        let lock = self.0.acquire_no_guard(name.as_bytes(), TTL).await.unwrap();
        self.0.unlock(&lock).await;
    }
}

const WORKLOADS: [(&str, usize, usize); 3] = [
    ("1 task", 1, 1),
    ("64 tasks, 64 names", 64, 64),
    ("8 tasks, 1 name", 8, 1),
];

#[derive(Default)]
struct Row {
    runs: [Vec<Run>; WORKLOADS.len()],
}

struct Run {
    /// Pairs per second.
    rate: f64,
    /// Microseconds of processor time for a pair, of this process and of the server.
    own: f64,
    server: f64,
    /// Requests for a pair.
    requests: f64,
}

fn main() {
    let mut arguments = env::args().skip(1);
    let mut number = |otherwise| {
        arguments.next().map_or(otherwise, |given| {
            given.parse().expect("a number: [SECONDS [ROUNDS]]")
        })
    };
    let (seconds, rounds) = (number(3), number(5));
    runtime().block_on(async {
        let (mut tickwheel, mut rslock) = <(Row, Row)>::default();
        // In turns, so that what else the machine does weighs on both.
        for _ in 0..rounds {
            for workload in 0..WORKLOADS.len() {
                tickwheel.measure::<Tickwheel>(workload, seconds).await;
                rslock.measure::<Rslock>(workload, seconds).await;
            }
        }
        let rows = [(Tickwheel::NAME, tickwheel), (Rslock::NAME, rslock)];
        let head = || {
            let [first, second, third] = WORKLOADS.map(|(name, ..)| name);
            println!("{:<16}{first:>26}{second:>26}{third:>26}", "");
        };
        println!("acquisitions with their release per second: median (least to most)\n");
        head();
        for (name, row) in &rows {
            print!("{name:<16}");
            for runs in &row.runs {
                print!("{}", rate(runs.iter().map(|run| run.rate)));
            }
            println!();
        }
        println!("\nmicroseconds of processor time for a pair: this process, redis-server; requests\n");
        head();
        for (name, row) in &rows {
            print!("{name:<16}");
            for runs in &row.runs {
                let middle = |part: fn(&Run) -> f64| spread(runs.iter().map(part)).0;
                let (own, server, requests) = (
                    middle(|run| run.own),
                    middle(|run| run.server),
                    middle(|run| run.requests),
                );
                print!("{:>26}", format!("{own:.0}, {server:.0}; {requests:.2}"));
            }
            println!();
        }
    });
}

impl Row {
    async fn measure<S: System>(&mut self, workload: usize, seconds: u64) {
        let (_, tasks, names) = WORKLOADS[workload];
        let server = Server::start();
        let system = Arc::new(S::open(&server).await);
        system.acquire_and_release("warm").await;
        let (sent, used) = (sent::<S>(&server), Used::by(&server));
        let (pairs, elapsed) = run(system, tasks, names, Duration::from_secs(seconds)).await;
        let (own, used_by_server) = Used::by(&server).since(used, pairs);
        self.runs[workload].push(Run {
            rate: pairs as f64 / elapsed.as_secs_f64(),
            own,
            server: used_by_server,
            requests: (self::sent::<S>(&server) - sent) as f64 / pairs as f64,
        });
    }
}

async fn run<S: System>(system: Arc<S>, tasks: usize, names: usize, time: Duration) -> (u64, Duration) {
    let pairs = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (system, pairs, stop) = (system.clone(), pairs.clone(), stop.clone());
            tokio::spawn(async move {
                let name = format!("name-{}", task % names);
                while !stop.load(Ordering::Relaxed) {
                    system.acquire_and_release(&name).await;
                    pairs.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    let counted = (pairs.load(Ordering::Relaxed), start.elapsed());
    stop.store(true, Ordering::Relaxed);
    for task in join_all(running).await {
        task.unwrap();
    }
    counted
}

fn sent<S: System>(server: &Server) -> u64 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(name, _)| S::COMMANDS.contains(name))
        .filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok())
        .sum()
}
