//! Queues, the jobs that workers yield, and what Redis has of them.

use std::{fmt::Display, time::Duration};

use futures::{StreamExt, future::join_all};
use redis::{FromRedisValue, RedisResult, aio::ConnectionManager};
use tickwheel::Wheel;
use tickwheel_redis::{Connection, DelayedJobs, Error, Job, Notifications, Run, Worker};
use tokio::{sync::oneshot, task::JoinHandle};

use super::{HOUR, server::Server, soon, until};

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

impl Server {
    /// A server, and the queue "q" on it.
    pub async fn with_queue() -> (Server, Jobs) {
        let server = Server::start();
        let jobs = server.queue().await;
        (server, jobs)
    }

    /// The same with so many partitions.
    pub async fn with_partitions(partitions: usize) -> (Server, Jobs) {
        let (server, jobs) = Server::with_queue().await;
        (server, jobs.partitions(partitions))
    }

    /// The same on a wheel that the test has too.
    pub async fn with_wheel() -> (Server, Wheel, Jobs) {
        let (server, wheel) = (Server::start(), Wheel::new());
        let jobs = server.queue_on(&wheel).await;
        (server, wheel, jobs)
    }

    /// The queue "q" on a wheel of its own, whose workers are notified.
    pub async fn queue(&self) -> Jobs {
        self.queue_on(&Wheel::new()).await
    }

    /// The same on this wheel.
    pub async fn queue_on(&self, wheel: &Wheel) -> Jobs {
        let jobs = DelayedJobs::new(wheel, self.connect().await, "q");
        jobs.notifications(&Notifications::of(self.client()))
    }
}

/// The queue "q" whose workers hear of jobs from their own handle alone, on any connection.
pub fn unnotified<C: Connection>(connection: C) -> DelayedJobs<C> {
    DelayedJobs::new(&Wheel::new(), connection, "q")
}

/// Schedules jobs without a payload, one after the other. None is there yet.
pub async fn put<C: Connection>(
    jobs: &DelayedJobs<C>,
    ids: impl IntoIterator<Item: Display>,
    delay: Duration,
) {
    for id in ids {
        assert!(jobs.schedule(&id.to_string(), delay, b"").await.unwrap(), "{id}");
    }
}

/// Schedules jobs without a payload together, so that they go in batches.
pub async fn put_together<C: Connection>(
    jobs: &DelayedJobs<C>,
    ids: impl IntoIterator<Item: Display>,
    delay: Duration,
) {
    join_all(ids.into_iter().map(|id| put(jobs, [id], delay))).await;
}

/// A worker with a lease that no test waits for.
pub fn worker<C: Connection>(jobs: &DelayedJobs<C>) -> Worker {
    jobs.worker().lease(HOUR).start()
}

/// The next job, of a worker that has no reason to yield an error.
pub async fn next(worker: &mut Worker) -> Job {
    soon(worker.next())
        .await
        .expect("a stream without an end")
        .unwrap()
}

/// So many jobs.
pub async fn next_jobs<const N: usize>(worker: &mut Worker) -> [Job; N] {
    let mut jobs = Vec::new();
    while jobs.len() < N {
        jobs.push(next(worker).await);
    }
    jobs.try_into().unwrap()
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

/// The error that a stream yields.
pub async fn next_error(worker: &mut Worker) -> Error {
    soon(worker.next())
        .await
        .expect("a stream without an end")
        .unwrap_err()
}

/// The partitions that a refused handle was given, and those that are stored with its queue.
pub fn partitions(refused: &Error) -> (u32, u32) {
    match refused {
        Error::Partitions { given, stored, .. } => (*given, *stored),
        other => panic!("{other}"),
    }
}

/// Finishes a job that is still its worker's.
pub async fn done(job: Job) {
    assert!(soon(job.done()).await.unwrap(), "it was lost");
}

/// Finishes the next job, and says which attempt of which job it was.
pub async fn do_next(worker: &mut Worker) -> (String, u32) {
    let job = next(worker).await;
    let delivered = delivery(&job);
    done(job).await;
    delivered
}

/// So many, in the order of their ids.
pub async fn do_next_jobs(worker: &mut Worker, count: usize) -> Vec<(String, u32)> {
    let mut delivered = Vec::new();
    while delivered.len() < count {
        delivered.push(do_next(worker).await);
    }
    delivered.sort();
    delivered
}

/// Which attempt of which job it is.
pub fn delivery(job: &Job) -> (String, u32) {
    (job.id().to_owned(), job.attempt())
}

/// Fails unless it is this attempt of this job, with this payload.
#[track_caller]
pub fn assert_job(job: &Job, id: &str, attempt: u32, payload: &[u8]) {
    assert_eq!((job.id(), job.attempt()), (id, attempt));
    assert!(job.payload() == payload, "{job:?} has another payload");
}

/// What [`do_next_jobs`] says of these.
pub fn deliveries<const N: usize>(expected: [(&str, u32); N]) -> Vec<(String, u32)> {
    expected.map(|(id, attempt)| (id.to_owned(), attempt)).into()
}

/// Polls a worker, which is to yield nothing, until something else has happened.
pub async fn idle_until<T>(worker: &mut Worker, happens: impl Future<Output = T>) -> T {
    tokio::select! {
        yielded = worker.next() => panic!("{yielded:?}"),
        output = happens => output,
    }
}

/// Waits for a while, in which this job is renewed.
pub async fn held_for(job: &Job, time: Duration) {
    tokio::select! {
        () = job.lost() => panic!("{job:?} was lost"),
        () = tokio::time::sleep(time) => {}
    }
}

/// A key or a channel of the first partition of the queue "q".
pub fn key(what: &str) -> String {
    key_of(0, what)
}

/// One of this partition.
pub fn key_of(partition: usize, what: &str) -> String {
    format!("tickwheel:jobs:{{q:{partition}}}:{what}")
}

/// Carries out a script that changes jobs, as the call that the first of these names names: see `prelude.lua`.
pub fn run_script<T: FromRedisValue>(
    server: &Server,
    script: &str,
    names: &str,
    arguments: &[&str],
) -> RedisResult<T> {
    let script = match script {
        "schedule" => include_str!("../../src/jobs/store/scripts/schedule.lua"),
        "take" => include_str!("../../src/jobs/store/scripts/take.lua"),
        "undo_take" => include_str!("../../src/jobs/store/scripts/undo_take.lua"),
        _ => include_str!("../../src/jobs/store/scripts/update.lua"),
    };
    let prelude = include_str!("../../src/jobs/store/scripts/prelude.lua");
    let script = [prelude, script, "end)()"].concat();
    let (number, keys) = (KEYS.len().to_string(), KEYS.map(key));
    let keys = keys.each_ref().map(|key| &**key);
    server.try_command(
        &[
            &["EVAL", &script, &number],
            &keys[..],
            &[names, "channel"],
            arguments,
        ]
        .concat(),
    )
}

/// How many entries a sorted set of the first partition has.
pub fn entries(server: &Server, set: &str) -> u64 {
    server.command(&["ZCARD", &key(set)])
}

/// How many jobs of it are due, claimed, running and dead.
pub fn sizes(server: &Server) -> [u64; 4] {
    ["due", "claimed", "running", "dead"].map(|set| entries(server, set))
}

/// Waits until so many are claimed.
#[track_caller]
pub fn claimed(server: &Server, count: u64) -> impl Future<Output = ()> {
    until(move || async move { entries(server, "claimed") == count })
}

/// Lets the lease of a running job end in Redis, as if the network had been away: its worker does not know.
pub fn end_lease(server: &Server, id: &str) {
    let _: i64 = server.command(&["ZADD", &key("running"), "1", id]);
}

/// How many jobs wait, run and are dead.
pub async fn counts<C: Connection>(jobs: &DelayedJobs<C>) -> [u64; 3] {
    let counts = jobs.counts().await.unwrap();
    [counts.waiting, counts.running, counts.dead]
}

/// Waits until as many wait, run and are dead.
#[track_caller]
pub fn counts_become<C: Connection>(jobs: &DelayedJobs<C>, expected: [u64; 3]) -> impl Future<Output = ()> {
    until(move || async move { counts(jobs).await == expected })
}

/// A run in a task, which ends when it is told to.
pub struct Running {
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub fn start(run: Run) -> Running {
        let (end, ended) = oneshot::channel();
        let run = run.until(async { ended.await.unwrap() });
        let task = tokio::spawn(run.into_future());
        Running { end, task }
    }

    /// Tells it to end, and returns what becomes of it.
    pub fn end(self) -> JoinHandle<Result<(), Error>> {
        // One that has ended before says why.
        let _ = self.end.send(());
        self.task
    }
}

/// Waits for the end of a run that ends well.
pub async fn ended(run: JoinHandle<Result<(), Error>>) {
    soon(run).await.unwrap().unwrap();
}
