//! Leases beside rslock, on the same server, in one run.
//!
//!     cargo run --release -p tickwheel-redis-benches --bin leases [-- SECONDS]
//!
//! Acquisitions with their release per second: of one task, of 64 tasks with a name each, and of 8 tasks that all want the same name.
//! Requests for each pair, nobody else wanting it. rslock does not renew by itself and has no tokens.

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use redis::aio::ConnectionManager;
use rslock::LockManager;
use support::{connect, server::Server};
use tickwheel::Wheel;
use tickwheel_redis::{Leases, Notifications};

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

fn main() {
    let seconds = env::args()
        .nth(1)
        .map_or(5, |given| given.parse().expect("a number of seconds"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        println!(
            "{:<16}{:>14}{:>20}{:>20}{:>18}",
            "", "1 task", "64 tasks, 64 names", "8 tasks, 1 name", "requests/pair"
        );
        row::<Tickwheel>(seconds).await;
        row::<Rslock>(seconds).await;
    });
}

async fn row<S: System>(seconds: u64) {
    let mut rates = Vec::new();
    let mut requests = 0.0;
    for (tasks, names) in [(1, 1), (64, 64), (8, 1)] {
        let server = Server::start();
        let system = Arc::new(S::open(&server).await);
        system.acquire_and_release("warm").await;
        let before = sent::<S>(&server);
        let (pairs, elapsed) = run(system, tasks, names, Duration::from_secs(seconds)).await;
        if tasks == 1 {
            requests = (sent::<S>(&server) - before) as f64 / pairs as f64;
        }
        rates.push(pairs as f64 / elapsed.as_secs_f64());
    }
    println!(
        "{:<16}{:>12.0}/s{:>18.0}/s{:>18.0}/s{:>18.2}",
        S::NAME,
        rates[0],
        rates[1],
        rates[2],
        requests
    );
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
