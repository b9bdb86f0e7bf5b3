//! Several workers on one queue: who gets a due job, how late, and at what cost.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime},
};

use futures::{StreamExt, future::join_all, stream};
use support::{
    connect,
    jobs::{Jobs, entries, key, queue},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, WorkerBuilder};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    task::JoinSet,
    time::sleep,
};

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// How late jobs of 300 ms are on four workers that are busy for three quarters of the time: the median and
/// the most.
async fn lateness(
    jobs_in_all: u32,
    places: usize,
    set: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> (Duration, Duration) {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let late = Arc::new(Mutex::new(Vec::new()));
    // Also the server's clock, without a round trip to ask for it.
    let began = SystemTime::now();
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let worker = set(queue(&server, "q").await.worker().lease(HOUR).concurrency(places)).start();
        let late = late.clone();
        workers.spawn(worker.for_each_concurrent(places, move |job| {
            let now = SystemTime::now();
            let late = late.clone();
            async move {
                let job = job.unwrap();
                late.lock()
                    .unwrap()
                    .push(now.duration_since(job.due()).unwrap_or_default());
                sleep(300 * MS).await;
                assert!(job.done().await.unwrap());
            }
        }));
    }
    // No multiple of a tick, so that the due times have all distances to the next one.
    let gap = Duration::from_micros(100_370) / places as u32;
    stream::iter(0..jobs_in_all)
        .for_each_concurrent(64, |n| {
            let jobs = &jobs;
            async move {
                let due = began + 2 * SECOND + n * gap;
                assert!(jobs.schedule_at(&format!("{n}"), due, b"").await.unwrap());
            }
        })
        .await;
    until(|| async { late.lock().unwrap().len() == jobs_in_all as usize }).await;
    let mut late = late.lock().unwrap().clone();
    late.sort();
    (late[late.len() / 2], late[late.len() - 1])
}

#[tokio::test]
async fn due_jobs_wait_in_redis_for_a_worker_that_is_free() {
    let default = |worker: WorkerBuilder| worker;
    let one = |worker: WorkerBuilder| worker.prefetch(1);
    let (few, many, ahead_few, ahead_many) = futures::join!(
        lateness(100, 1, one),
        lateness(100, 1, default),
        lateness(100, 1, |worker| one(worker).look_ahead(SECOND)),
        lateness(100, 1, |worker| worker.look_ahead(SECOND)),
    );
    println!("late by (median, most): prefetch 1 {few:?}, default {many:?}");
    println!("with a look-ahead of 1 s: prefetch 1 {ahead_few:?}, default {ahead_many:?}");
    // What was hoarded was late by seconds; the rest is for a loaded machine.
    let limit = |few: Duration| few * 3 / 2 + 100 * MS;
    assert!(
        many.0 <= limit(few.0) && many.1 <= limit(few.1.max(300 * MS)),
        "{few:?}, {many:?}"
    );
    assert!(
        ahead_many.0 <= limit(ahead_few.0) && ahead_many.1 <= limit(ahead_few.1.max(300 * MS)),
        "{ahead_few:?}, {ahead_many:?}"
    );
}

/// The server's CPU time in microseconds.
fn cpu(server: &Server) -> f64 {
    let info: String = server.command(&["INFO", "cpu"]);
    let seconds = ["used_cpu_user:", "used_cpu_sys:"].map(|name| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.expect("a field of INFO").parse::<f64>().unwrap()
    });
    (seconds[0] + seconds[1]) * 1e6
}

/// Jobs per second out of a backlog, and commands and CPU time of the server for each.
async fn backlog(jobs_in_all: usize, workers: usize, places: usize) -> (f64, f64, f64) {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    stream::iter(0..jobs_in_all)
        .for_each_concurrent(256, |n| {
            let jobs = &jobs;
            async move {
                assert!(
                    jobs.schedule(&format!("{n}"), Duration::ZERO, b"payload")
                        .await
                        .unwrap()
                )
            }
        })
        .await;
    let before = (server.scripts_run(), cpu(&server));
    let began = Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let worker = queue(&server, "q").await.worker().concurrency(places).start();
        running.spawn(worker.for_each_concurrent(places, |job| async {
            assert!(job.unwrap().done().await.unwrap());
        }));
    }
    until(|| async {
        sleep(20 * MS).await;
        let counts = jobs.counts().await.unwrap();
        counts.waiting + counts.running == 0
    })
    .await;
    let rate = jobs_in_all as f64 / began.elapsed().as_secs_f64();
    let of_each = |sum: f64| sum / jobs_in_all as f64;
    let commands = (server.scripts_run() - before.0) as f64;
    (rate, of_each(commands), of_each(cpu(&server) - before.1))
}

/// `cargo test --release -p tickwheel-redis --test jobs_shared -- --ignored --nocapture`
///
/// Both settings run at the same time, on a server each, so that whatever else the machine does delays the
/// jobs of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_lateness() {
    let rounds = std::env::var("TICKWHEEL_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    for places in [1, 4] {
        for ahead in [Duration::ZERO, SECOND] {
            println!(
                "{places} at once, look-ahead {ahead:?}: late by (median, most) with prefetch {places}, and by default"
            );
            let mut medians = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                let (few, many) = futures::join!(
                    lateness(200, places, |worker| worker.prefetch(places).look_ahead(ahead)),
                    lateness(200, places, |worker| worker.look_ahead(ahead)),
                );
                println!("    {few:.1?} and {many:.1?}");
                medians[0].push(few.0);
                medians[1].push(many.0);
            }
            let [few, many] = medians.map(|mut medians| {
                medians.sort();
                medians[medians.len() / 2]
            });
            let ratio = many.as_secs_f64() / few.as_secs_f64();
            println!("    medians of the medians: {few:.1?} and {many:.1?}, {ratio:.2} times");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_backlogs() {
    for (workers, places) in [(1, 1), (1, 8), (1, 64), (4, 1), (4, 8), (4, 64)] {
        let mut runs = Vec::new();
        for _ in 0..3 {
            runs.push(backlog(8000, workers, places).await);
        }
        runs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, commands, cpu) = runs[1];
        println!(
            "{workers} workers, {places} at once: {rate:.0} jobs a second (of {:.0} to {:.0}), {commands:.2} commands and {cpu:.0} us of Redis a job",
            runs[0].0, runs[2].0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_job_wakes_a_handful_of_many_idle_workers() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.counts().await.unwrap();
    let (done, mut finished) = unbounded_channel();
    let mut workers = JoinSet::new();
    for _ in 0..200 {
        let (worker, done) = (jobs.worker().lease(HOUR).start(), done.clone());
        workers.spawn(worker.for_each(move |job| {
            let done = done.clone();
            async move {
                assert!(job.unwrap().done().await.unwrap());
                done.send(()).unwrap();
            }
        }));
    }
    // All have looked, heard of their subscription and looked again, and have done their first jobs.
    sleep(3 * SECOND).await;
    let mut sent = Vec::new();
    for n in 0..20 {
        let before = server.scripts_run();
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
        soon(finished.recv()).await.unwrap();
        sleep(50 * MS).await;
        sent.push(server.scripts_run() - before);
    }
    sent.sort();
    println!("commands a job, those of the sweeps included: {sent:?}");
    // Two hundred sweep 40 times a second.
    assert!(sent[10] < 20, "{sent:?}");
}

/// Starts so many workers that do one job of 300 ms after another, and waits until all of them have nothing
/// to do.
async fn idle_workers(jobs: &Jobs, workers: usize) -> (JoinSet<()>, UnboundedReceiver<Instant>) {
    let (started, starts) = unbounded_channel();
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (worker, started) = (jobs.worker().lease(HOUR).start(), started.clone());
        running.spawn(worker.for_each(move |job| {
            started.send(Instant::now()).unwrap();
            async move {
                sleep(300 * MS).await;
                assert!(job.unwrap().done().await.unwrap());
            }
        }));
    }
    sleep(SECOND).await;
    (running, starts)
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_idle_workers_wake_as_there_are_due_jobs() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(3);
    jobs.counts().await.unwrap();
    let (_running, mut starts) = idle_workers(&jobs, 40).await;
    for round in 0..4 {
        let began = Instant::now();
        // Some rounds begin while the workers of the one before still have their jobs, or just end them.
        let scheduled = (0..20).map(|n| {
            let jobs = jobs.clone();
            async move { jobs.schedule(&format!("{round}-{n}"), Duration::ZERO, b"").await }
        });
        assert!(join_all(scheduled).await.into_iter().all(Result::unwrap));
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            last = last.max(soon(starts.recv()).await.unwrap() - began);
        }
        println!("all have begun after {last:?}");
        // A worker that nobody told would look after up to five seconds.
        assert!(last < 2 * SECOND, "{last:?}");
        sleep(round * 150 * MS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_have_died_are_not_relied_upon() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.counts().await.unwrap();
    let watching = key("watching");
    for dead in ["a", "b"] {
        let _: i64 = server.command(&["ZADD", &watching, "8000000000000000", dead]);
    }
    let (_running, mut starts) = idle_workers(&jobs, 3).await;
    assert_eq!(
        server.command::<i64>(&["ZCARD", &watching]),
        2,
        "all others only listen"
    );
    for n in 0..5 {
        let began = Instant::now();
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
        let late = soon(starts.recv()).await.unwrap() - began;
        assert!(late < SECOND, "{late:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_leaves_no_gap() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.counts().await.unwrap();
    let (mut first, _) = idle_workers(&jobs, 2).await;
    let (_running, mut starts) = idle_workers(&jobs, 2).await;
    assert_eq!(server.command::<i64>(&["ZCARD", &key("idle")]), 2);
    first.shutdown().await;
    until(|| async { server.command::<i64>(&["ZCARD", &key("idle")]) == 0 }).await;
    jobs.schedule("a", 500 * MS, b"").await.unwrap();
    let began = Instant::now();
    let late = soon(starts.recv()).await.unwrap() - began;
    assert!(late < SECOND, "{late:?}");
}

#[tokio::test]
async fn short_delays_of_a_process_are_kept_by_its_workers_without_notifications() {
    let server = Server::start();
    let jobs = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "q").partitions(2);
    let mut worker = jobs.worker().lease(HOUR).start();
    let mut ahead = jobs.worker().lease(HOUR).look_ahead(MS).start();
    let mut late = Vec::new();
    for n in 0..8 {
        // The first look, and every other, is over.
        tokio::select! {
            job = worker.next() => panic!("{job:?}"),
            job = ahead.next() => panic!("{job:?}"),
            () = sleep(100 * MS) => {}
        }
        jobs.schedule(&format!("{n}"), 50 * MS, b"").await.unwrap();
        for attempt in 1..=3 {
            let job = soon(async {
                tokio::select! {
                    job = worker.next() => job,
                    job = ahead.next() => job,
                }
            });
            let job = job.await.unwrap().unwrap();
            assert_eq!(job.attempt(), attempt);
            late.push(
                server
                    .time()
                    .duration_since(job.due())
                    .expect("a job that is not early"),
            );
            if attempt < 3 {
                assert!(job.retry_after(50 * MS).await.unwrap());
            } else {
                assert!(job.done().await.unwrap());
            }
        }
    }
    late.sort();
    println!("late by {late:?}");
    // A sweep would bring them after 4.9 to 5 seconds.
    assert!(late[late.len() - 1] < 2 * SECOND, "{late:?}");
}

fn watching(server: &Server) -> Vec<String> {
    server.command(&["ZRANGE", &key("watching"), "0", "-1"])
}

/// Workers that were killed do not count as watching once another one has looked, so it knows when to look next.
#[test]
fn workers_that_were_killed_watch_no_longer() {
    let server = Server::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    };
    let (killed, alive) = (runtime(), runtime());
    killed.block_on(async {
        let (mut workers, _) = idle_workers(&queue(&server, "q").await, 2).await;
        until(|| async { watching(&server).len() == 2 }).await;
        workers.detach_all();
    });
    let before = watching(&server);
    killed.shutdown_background();
    alive.block_on(async {
        // Their connections are closed with their runtime.
        for worker in &before {
            let channel = key(&format!("sooner:{worker}"));
            until(|| async {
                let (_, heard): (String, u64) = server.command(&["PUBSUB", "NUMSUB", &channel]);
                heard == 0
            })
            .await;
        }
        let jobs = queue(&server, "q").await;
        let mut worker = jobs.worker().start();
        let mut first = Box::pin(worker.next());
        let idle = || -> Vec<String> { server.command(&["ZRANGE", &key("idle"), "0", "-1"]) };
        let known = || [watching(&server), idle()].concat();
        tokio::select! {
            job = &mut first => panic!("{job:?}"),
            () = until(|| async { known().iter().any(|name| !before.contains(name)) }) => {}
        }
        // It watches from its first look on, and nobody else does.
        let now = watching(&server);
        assert!(
            now.len() == 1 && !before.contains(&now[0]),
            "{now:?}, where {before:?} were killed"
        );
    });
}

/// Both that watch are suspended: they have their connections, and do not look.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_are_suspended_are_not_waited_for() {
    let server = Server::start();
    let mut suspended = server.client().get_async_pubsub().await.unwrap();
    let until_later = server.time() + 20 * SECOND;
    let score = until_later
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_micros()
        .to_string();
    let jobs = queue(&server, "q").await;
    jobs.counts().await.unwrap();
    for name in ["a", "b"] {
        suspended.subscribe(key(&format!("sooner:{name}"))).await.unwrap();
        let _: u64 = server.command(&["ZADD", &key("watching"), &score, name]);
    }
    let (_workers, mut starts) = idle_workers(&queue(&server, "q").await, 3).await;
    until(|| async { entries(&server, "idle") == 3 }).await;
    // Of another handle, so that nobody knows of the job but by a message.
    let mut late = Vec::new();
    for n in 0..5 {
        let scheduled = Instant::now();
        assert!(jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap());
        let started = soon(starts.recv()).await.unwrap();
        late.push(started.duration_since(scheduled));
    }
    println!("late by {late:?}");
    assert!(!watching(&server).iter().any(|name| name == "a" || name == "b"));
}
