//! Queues, the jobs that workers yield, and what Redis has of them.

use futures::StreamExt;
use redis::aio::ConnectionManager;
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Job, Notifications, Worker};

use super::{connect, server::Server, soon, until};

pub type Jobs = DelayedJobs<ConnectionManager>;

/// The keys of a partition, without its prefix, in the order in which its scripts are given them.
pub const KEYS: [&str; 11] = [
    "due",
    "claimed",
    "running",
    "dead",
    "state",
    "payload",
    "watching",
    "idle",
    "repeats",
    "settings",
    "last:calls",
];

/// A queue of that name on a wheel of its own, whose workers are notified.
pub async fn queue(server: &Server, name: &str) -> Jobs {
    queue_on(&Wheel::new(), server, name).await
}

/// One on this wheel.
pub async fn queue_on(wheel: &Wheel, server: &Server, name: &str) -> Jobs {
    DelayedJobs::new(wheel, connect(&server.url()).await, name)
        .notifications(&Notifications::of(server.client()))
}

/// The next job, of a worker that has no reason to yield an error.
pub async fn next(worker: &mut Worker) -> Job {
    soon(worker.next())
        .await
        .expect("a stream without an end")
        .unwrap()
}

/// The next job, while Redis may be away for a moment.
pub async fn next_after_errors(worker: &mut Worker) -> Job {
    soon(async {
        loop {
            match worker.next().await.expect("a stream without an end") {
                Ok(job) => return job,
                Err(error) => eprintln!("yielded: {error}"),
            }
        }
    })
    .await
}

/// A key or a channel of the first partition of the queue "q".
pub fn key(what: &str) -> String {
    format!("tickwheel:jobs:{{q:0}}:{what}")
}

/// How many entries a sorted set of it has.
pub fn entries(server: &Server, set: &str) -> u64 {
    server.command(&["ZCARD", &key(set)])
}

/// How many jobs wait, run and are dead.
pub async fn counts(jobs: &Jobs) -> [u64; 3] {
    let counts = jobs.counts().await.unwrap();
    [counts.waiting, counts.running, counts.dead]
}

/// Waits until as many wait, run and are dead.
pub async fn counts_become(jobs: &Jobs, waiting: u64, running: u64, dead: u64) {
    until(|| async { counts(jobs).await == [waiting, running, dead] }).await;
}
