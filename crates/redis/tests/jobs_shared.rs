//! Several workers on one queue: who gets a due job, how late, and at what cost.

mod support;

use futures::stream;
use support::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// How late jobs of 300 ms are on four workers that are busy for three quarters of the time: the median and
/// the most.
async fn lateness(
    jobs_in_all: u32,
    places: usize,
    set: impl Fn(WorkerBuilder) -> WorkerBuilder,
) -> (Duration, Duration) {
    let server = Server::start();
    let jobs = &server.queue().await;
    let late = Arc::new(Mutex::new(Vec::new()));
    // Also the server's clock, without a round trip to ask for it.
    let began = SystemTime::now();
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let worker = set(server.queue().await.worker().lease(HOUR).concurrency(places)).start();
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
                done(job).await;
            }
        }));
    }
    // No multiple of a tick, so that the due times have all distances to the next one.
    let gap = Duration::from_micros(100_370) / places as u32;
    let schedule = |n: u32| async move {
        let due = began + 2 * SECOND + n * gap;
        assert!(jobs.schedule_at(&n.to_string(), due, b"").await.unwrap());
    };
    stream::iter(0..jobs_in_all)
        .for_each_concurrent(64, schedule)
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
    // What was hoarded was late by seconds; the rest is for a loaded machine.
    let limit = |few: Duration| few * 3 / 2 + 100 * MS;
    for (ahead, few, many) in [
        ("no look-ahead", few, many),
        ("one of 1 s", ahead_few, ahead_many),
    ] {
        println!("{ahead}: late by (median, most): prefetch 1 {few:?}, default {many:?}");
        assert!(many.0 <= limit(few.0) && many.1 <= limit(few.1.max(300 * MS)));
    }
}

/// `cargo test --release -p tickwheel-redis --test jobs_shared -- --ignored --nocapture`
///
/// Both settings run at the same time, on a server each, so that whatever else the machine does delays the
/// jobs of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn measure_lateness() {
    let rounds = std::env::var("TICKWHEEL_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap());
    for (places, ahead) in [(1, NOW), (1, SECOND), (4, NOW), (4, SECOND)] {
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

/// Starts so many workers that do one job after another, each for so long, and waits until all of them have nothing to
/// do. Receives when jobs are started and when they have been finished.
async fn idle_workers(
    jobs: &Jobs,
    workers: usize,
    takes: Duration,
) -> (
    JoinSet<()>,
    UnboundedReceiver<Instant>,
    UnboundedReceiver<Instant>,
) {
    let ((started, starts), (ended, ends)) = (unbounded_channel(), unbounded_channel());
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (started, ended) = (started.clone(), ended.clone());
        running.spawn(worker(jobs).for_each(move |job| {
            started.send(Instant::now()).unwrap();
            let ended = ended.clone();
            async move {
                sleep(takes).await;
                done(job.unwrap()).await;
                ended.send(Instant::now()).unwrap();
            }
        }));
    }
    sleep(SECOND).await;
    (running, starts, ends)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_job_wakes_a_handful_of_many_idle_workers() {
    let (server, jobs) = Server::with_queue().await;
    jobs.counts().await.unwrap();
    let (_running, _starts, mut ends) = idle_workers(&jobs, 200, NOW).await;
    // All have looked, heard of their subscription and looked again, and have done their first jobs.
    sleep(2 * SECOND).await;
    let mut sent = Vec::new();
    for n in 0..20 {
        let before = server.scripts_run();
        put(&jobs, [n], NOW).await;
        soon(ends.recv()).await.unwrap();
        sleep(50 * MS).await;
        sent.push(server.scripts_run() - before);
    }
    sent.sort();
    println!("commands a job, those of the sweeps included: {sent:?}");
    // Two hundred sweep 40 times a second.
    assert!(sent[10] < 20, "{sent:?}");
}

/// It has no place left whenever it has looked, and nobody could be told in its stead.
#[tokio::test]
async fn a_single_worker_with_one_place_is_told_of_every_job() {
    let (_server, jobs) = Server::with_queue().await;
    let mut worker = worker(&jobs);
    put(&jobs, ["first"], NOW).await;
    do_next(&mut worker).await;
    // It listens.
    idle_until(&mut worker, sleep(SECOND)).await;
    for n in 0..5 {
        let began = Instant::now();
        put(&jobs, [n], NOW).await;
        do_next(&mut worker).await;
        // A sweep would bring it after 4 seconds or more.
        assert!(began.elapsed() < 2 * SECOND, "{:?} of job {n}", began.elapsed());
        // A worker that was told may take as long to look, and then counts as gone.
        idle_until(&mut worker, sleep(500 * MS)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_idle_workers_wake_as_there_are_due_jobs() {
    let (_server, jobs) = Server::with_partitions(3).await;
    jobs.counts().await.unwrap();
    let (_running, mut starts, _ends) = idle_workers(&jobs, 40, 300 * MS).await;
    for round in 0..4 {
        let began = Instant::now();
        // Some rounds begin while the workers of the one before still have their jobs, or just end them.
        put_together(&jobs, (0..20).map(|n| format!("{round}-{n}")), NOW).await;
        let mut last = NOW;
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
    let (server, jobs) = Server::with_queue().await;
    jobs.counts().await.unwrap();
    let until = "8000000000000000";
    let _: i64 = server.command(&["ZADD", &key("watching"), until, "a", until, "b"]);
    let (_running, mut starts, _ends) = idle_workers(&jobs, 3, 300 * MS).await;
    assert_eq!(entries(&server, "watching"), 2, "all others only listen");
    for n in 0..5 {
        let began = Instant::now();
        put(&jobs, [n], NOW).await;
        let late = soon(starts.recv()).await.unwrap() - began;
        assert!(late < SECOND, "{late:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_leaves_no_gap() {
    let (server, jobs) = Server::with_queue().await;
    jobs.counts().await.unwrap();
    let (mut first, ..) = idle_workers(&jobs, 2, 300 * MS).await;
    let (_running, mut starts, _ends) = idle_workers(&jobs, 2, 300 * MS).await;
    assert_eq!(entries(&server, "idle"), 2);
    first.shutdown().await;
    until(|| async { entries(&server, "idle") == 0 }).await;
    put(&jobs, ["a"], 500 * MS).await;
    let began = Instant::now();
    let late = soon(starts.recv()).await.unwrap() - began;
    assert!(late < SECOND, "{late:?}");
}

#[tokio::test]
async fn short_delays_of_a_process_are_kept_by_its_workers_without_notifications() {
    let server = Server::start();
    let jobs = unnotified(server.connect().await).partitions(2);
    let ahead = jobs.worker().lease(HOUR).look_ahead(MS).start();
    let mut workers = stream::select(worker(&jobs), ahead);
    let mut late = Vec::new();
    for n in 0..8 {
        // The first look, and every other, is over.
        let yielded = timeout(100 * MS, workers.next()).await;
        assert!(yielded.is_err(), "{yielded:?}");
        put(&jobs, [n], 50 * MS).await;
        for attempt in 1..=3 {
            let job = soon(workers.next()).await.unwrap().unwrap();
            assert_eq!(job.attempt(), attempt);
            let past_due = server.time().duration_since(job.due());
            late.push(past_due.expect("a job that is not early"));
            if attempt < 3 {
                assert!(job.retry_after(50 * MS).await.unwrap());
            } else {
                done(job).await;
            }
        }
    }
    late.sort();
    println!("late by {late:?}");
    // A sweep would bring them after 4.9 to 5 seconds.
    assert!(late[late.len() - 1] < 2 * SECOND, "{late:?}");
}

/// Nobody else tells it of them.
#[tokio::test]
async fn a_worker_whose_subscription_is_down_learns_of_the_jobs_of_its_handle() {
    let server = Server::start();
    let network = Proxy::start(server.port()).await;
    let notifications = Notifications::of(Client::open(network.url()).unwrap());
    let jobs = unnotified(server.connect().await).notifications(&notifications);
    let mut worker = worker(&jobs);
    let listeners = || server.listeners(&key("sooner:renew"));
    idle_until(&mut worker, until(|| async { listeners() == 1 })).await;
    put(&jobs, ["first"], NOW).await;
    do_next(&mut worker).await;
    network.set(Network::Down);
    idle_until(&mut worker, until(|| async { listeners() == 0 })).await;
    idle_until(&mut worker, sleep(SECOND)).await;
    for n in 0..3 {
        let began = Instant::now();
        put(&jobs, [n], 100 * MS).await;
        do_next(&mut worker).await;
        // A sweep would bring it after up to five seconds.
        assert!(began.elapsed() < 2 * SECOND, "{:?}", began.elapsed());
    }
}

fn names_in(server: &Server, set: &str) -> Vec<String> {
    server.command(&["ZRANGE", &key(set), "0", "-1"])
}

/// Workers that were killed do not count as watching once another one has looked, so it knows when to look next.
#[test]
fn workers_that_were_killed_watch_no_longer() {
    let server = Server::start();
    let (killed, alive) = (background(), background());
    killed.block_on(async {
        let (mut workers, ..) = idle_workers(&server.queue().await, 2, 300 * MS).await;
        until(|| async { entries(&server, "watching") == 2 }).await;
        workers.detach_all();
    });
    let before = names_in(&server, "watching");
    killed.shutdown_background();
    alive.block_on(async {
        // Their connections are closed with their runtime.
        for worker in &before {
            until(|| async { server.listeners(&key(&format!("sooner:{worker}"))) == 0 }).await;
        }
        let mut worker = server.queue().await.worker().start();
        let known = || [names_in(&server, "watching"), names_in(&server, "idle")].concat();
        let is_known = until(|| async { known().iter().any(|name| !before.contains(name)) });
        idle_until(&mut worker, is_known).await;
        // It watches from its first look on, and nobody else does.
        let now = names_in(&server, "watching");
        println!("{now:?}, where {before:?} were killed");
        assert!(now.len() == 1 && !before.contains(&now[0]));
    });
}

/// Both that watch are suspended: they have their connections, and do not look.
#[tokio::test(flavor = "multi_thread")]
async fn workers_that_are_suspended_are_not_waited_for() {
    let server = Server::start();
    let mut suspended = server.client().get_async_pubsub().await.unwrap();
    let until_later = (server.time() + 20 * SECOND).duration_since(UNIX_EPOCH).unwrap();
    let score = until_later.as_micros().to_string();
    let jobs = server.queue().await;
    jobs.counts().await.unwrap();
    for name in ["a", "b"] {
        suspended.subscribe(key(&format!("sooner:{name}"))).await.unwrap();
        let _: u64 = server.command(&["ZADD", &key("watching"), &score, name]);
    }
    let (_workers, mut starts, _ends) = idle_workers(&server.queue().await, 3, 300 * MS).await;
    until(|| async { entries(&server, "idle") == 3 }).await;
    // Of another handle, so that nobody knows of the job but by a message.
    let mut late = Vec::new();
    for n in 0..5 {
        let scheduled = Instant::now();
        put(&jobs, [n], NOW).await;
        let started = soon(starts.recv()).await.unwrap();
        late.push(started.duration_since(scheduled));
    }
    println!("late by {late:?}");
    let watching = names_in(&server, "watching");
    assert!(!watching.iter().any(|name| name == "a" || name == "b"));
}
