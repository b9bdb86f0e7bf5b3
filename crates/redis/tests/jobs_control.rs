//! What an operator does to a queue: cancel what runs, pause, look at a job, and clear up what is dead.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, StreamExt, future::pending};
use redis::Cmd;
use support::{
    connect,
    faulty::{Fault, Faulty, says},
    jobs::{Jobs, counts_become, entries, key, next, queue},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, JobError, JobState, Notifications, Worker};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn worker(jobs: &Jobs) -> Worker {
    jobs.worker().lease(HOUR).start()
}

#[tokio::test]
async fn cancel_says_where_a_job_was() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for id in ["dead", "running", "claimed", "waiting"] {
        let delay = if id == "waiting" { HOUR } else { Duration::ZERO };
        assert!(jobs.schedule(id, delay, b"").await.unwrap());
    }
    let mut worker = jobs.worker().lease(HOUR).prefetch(3).start();
    assert!(next(&mut worker).await.bury().await.unwrap());
    let running = next(&mut worker).await;
    for (id, expected) in [
        ("waiting", Cancelled::Waiting),
        ("claimed", Cancelled::Waiting),
        ("running", Cancelled::Running),
        ("running", Cancelled::Absent),
        ("dead", Cancelled::Absent),
        ("unknown", Cancelled::Absent),
    ] {
        assert_eq!(jobs.cancel(id).await.unwrap(), expected, "{id}");
    }
    assert_eq!(running.id(), "running");
    counts_become(&jobs, 0, 1, 1).await;
    soon(running.lost()).await;
    drop(running);
    counts_become(&jobs, 0, 0, 1).await;
    assert!(
        jobs.schedule("running", HOUR, b"").await.unwrap(),
        "its id is free"
    );
}

/// With and without a subscription, whose worker is of another process as far as Redis knows.
#[tokio::test]
async fn the_worker_of_a_job_that_is_cancelled_learns_it_within_a_second() {
    let server = Server::start();
    let listening = queue(&server, "q").await;
    let deaf = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "q");
    for jobs in [&listening, &deaf] {
        assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
        let mut worker = worker(jobs);
        let job = next(&mut worker).await;
        // It listens.
        sleep(SECOND).await;
        assert!(job.lost().now_or_never().is_none());
        let began = Instant::now();
        assert_eq!(deaf.cancel("a").await.unwrap(), Cancelled::Running);
        soon(job.lost()).await;
        println!("learnt after {:?}", began.elapsed());
        assert!(
            !listening.schedule("a", HOUR, b"").await.unwrap(),
            "its handler runs"
        );
        assert_eq!(
            listening.get("a").await.unwrap().unwrap().state,
            JobState::Running
        );
        assert!(!job.done().await.unwrap());
        counts_become(&listening, 0, 0, 0).await;
    }
}

/// The renewal in flight was carried out before the job was cancelled, so that its answer does not say so.
#[tokio::test]
async fn a_job_that_is_cancelled_behind_a_renewal_in_flight_is_lost() {
    let server = Server::start();
    let is_slow = Arc::new(AtomicBool::new(false));
    let next_fault = {
        let is_slow = is_slow.clone();
        move || {
            if is_slow.load(SeqCst) {
                Fault::Slow(5 * SECOND)
            } else {
                Fault::None
            }
        }
    };
    let connection = Faulty::new(connect(&server.url()).await, next_fault);
    let jobs =
        DelayedJobs::new(&Wheel::new(), connection, "q").notifications(&Notifications::of(server.client()));
    let operator = queue(&server, "q").await;
    for id in ["first", "second"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    let mut worker = jobs.worker().lease(HOUR).start();
    let (first, second) = (next(&mut worker).await, next(&mut worker).await);
    // It listens.
    sleep(SECOND).await;
    let lease_ends = || -> String { server.command(&["ZSCORE", &key("running"), "second"]) };
    let before = lease_ends();
    is_slow.store(true, SeqCst);
    assert_eq!(operator.cancel("first").await.unwrap(), Cancelled::Running);
    until(|| async { lease_ends() != before }).await;
    assert_eq!(operator.cancel("second").await.unwrap(), Cancelled::Running);
    is_slow.store(false, SeqCst);
    soon(first.lost()).await;
    soon(second.lost()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_of_a_job_that_is_cancelled_is_dropped() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let (started, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (started, dropped) = (started.clone(), dropped.clone());
        move |_| {
            started.fetch_add(1, SeqCst);
            let count = Count(dropped.clone());
            async move {
                let _count = count;
                pending::<Result<(), JobError>>().await
            }
        }
    };
    let run = tokio::spawn(jobs.worker().lease(HOUR).start().run(1, handler));
    until(|| async { started.load(SeqCst) == 1 }).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    until(|| async { dropped.load(SeqCst) == 1 }).await;
    counts_become(&jobs, 0, 0, 0).await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    until(|| async { started.load(SeqCst) == 2 }).await;
    run.abort();
}

#[tokio::test]
async fn a_job_that_is_dropped_before_its_worker_learns_that_it_was_cancelled_frees_its_id() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    // It has not been polled since.
    drop(job);
    until(|| async { jobs.get("a").await.unwrap().is_none() }).await;
    assert!(jobs.schedule("a", HOUR, b"").await.unwrap());
}

/// Its worker learns of it after the start was answered and before the consumer has fetched it.
#[tokio::test]
async fn a_job_that_is_cancelled_between_its_start_and_its_delivery_is_gone() {
    let server = Server::start();
    let (release, renewed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let next_fault = {
        let (release, renewed) = (release.clone(), renewed.clone());
        move |request: &Cmd| {
            if says(request, "renew") {
                renewed.notify_one();
            }
            if says(request, "start") {
                Fault::HoldAnswer(release.clone())
            } else {
                Fault::None
            }
        }
    };
    let connection = Faulty::by_request(connect(&server.url()).await, next_fault);
    let jobs =
        DelayedJobs::new(&Wheel::new(), connection, "q").notifications(&Notifications::of(server.client()));
    let operator = queue(&server, "q").await;
    // The server knows the script from now on.
    assert_eq!(jobs.cancel("none").await.unwrap(), Cancelled::Absent);
    let mut worker = jobs.worker().lease(HOUR).start();
    assert!(worker.next().now_or_never().is_none());
    until(|| async {
        let listeners: (String, u64) = server.command(&["PUBSUB", "NUMSUB", &key("sooner:renew")]);
        listeners.1 == 1
    })
    .await;
    assert!(operator.schedule("a", Duration::ZERO, b"").await.unwrap());
    until(|| async { entries(&server, "running") == 1 }).await;
    assert_eq!(operator.cancel("a").await.unwrap(), Cancelled::Running);
    // Its renewal is sent behind the answer to its start.
    sleep(300 * MS).await;
    release.notify_one();
    soon(renewed.notified()).await;
    // What is asked for after the renewal is answered after it.
    assert_eq!(jobs.cancel("none").await.unwrap(), Cancelled::Absent);
    assert!(worker.next().now_or_never().is_none());
    until(|| async { entries(&server, "running") == 0 }).await;
    assert!(operator.schedule("a", HOUR, b"").await.unwrap(), "its id is free");
}

/// Nobody confirms it: it is gone with its lease, and not delivered again.
#[tokio::test]
async fn a_job_that_is_cancelled_and_whose_worker_has_died_is_gone() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let url = server.url();
    let held = runtime.spawn(async move {
        let jobs = DelayedJobs::new(&Wheel::new(), connect(&url).await, "q");
        let mut worker = jobs.worker().lease(SECOND).start();
        (next(&mut worker).await, worker)
    });
    let held = held.await.unwrap();
    runtime.shutdown_background();
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    let mut worker = worker(&jobs);
    let delivered = worker.next();
    tokio::select! {
        job = delivered => panic!("{job:?}"),
        () = counts_become(&jobs, 0, 0, 0) => {}
    }
    drop(held);
}

#[tokio::test]
async fn a_queue_that_is_paused_starts_nothing_until_it_is_resumed() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(2);
    let other = queue(&server, "q").await.partitions(2);
    assert!(jobs.schedule("runs", Duration::ZERO, b"").await.unwrap());
    for n in 0..10 {
        assert!(jobs.schedule(&format!("{n}"), 2 * SECOND, b"").await.unwrap());
    }
    let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
    let running = next(&mut worker).await;
    assert!(timeout(200 * MS, worker.next()).await.is_err());
    let claimed = || {
        (0..2).map(|n| -> u64 { server.command(&["ZCARD", &format!("tickwheel:jobs:{{q:{n}}}:claimed")]) })
    };
    until(|| async { claimed().sum::<u64>() > 0 }).await;
    assert!(other.pause().await.unwrap());
    assert!(!other.pause().await.unwrap());
    assert!(jobs.counts().await.unwrap().paused);
    assert!(jobs.sample().await.unwrap().counts.paused);
    // What was claimed goes back, and nothing starts when it is due.
    until(|| async { claimed().sum::<u64>() == 0 }).await;
    assert!(timeout(3 * SECOND, worker.next()).await.is_err());
    // All else works.
    assert!(running.done().await.unwrap());
    assert!(jobs.schedule("more", Duration::ZERO, b"").await.unwrap());
    assert_eq!(jobs.cancel("more").await.unwrap(), Cancelled::Waiting);
    counts_become(&jobs, 10, 0, 0).await;
    assert!(other.resume().await.unwrap());
    assert!(!other.resume().await.unwrap());
    for _ in 0..10 {
        assert!(next(&mut worker).await.done().await.unwrap());
    }
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.paused), (0, false));
}

#[tokio::test]
async fn what_is_known_of_a_job() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let get = async |id| jobs.get(id).await.unwrap();
    assert!(get("a").await.is_none());
    let before = server.time();
    assert!(jobs.schedule("a", HOUR, b"payload").await.unwrap());
    let info = get("a").await.unwrap();
    assert_eq!(
        (info.state, info.attempt, info.error),
        (JobState::Waiting, 1, None)
    );
    assert!(info.due >= before + HOUR);
    assert!(jobs.reschedule("a", Duration::ZERO).await.unwrap());
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let info = get("a").await.unwrap();
    assert_eq!(
        (info.state, info.attempt, info.due),
        (JobState::Running, 1, job.due())
    );
    assert!(job.retry_after(Duration::ZERO).await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!(get("a").await.unwrap().attempt, 2);
    let due = job.due();
    assert!(job.bury().await.unwrap());
    let info = get("a").await.unwrap();
    assert_eq!((info.state, info.attempt, info.due), (JobState::Dead, 2, due));
    assert!(jobs.revive("a").await.unwrap());
    assert_eq!(next(&mut worker).await.attempt(), 1);
    assert!(jobs.get("").await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_keeps_the_error_of_its_last_attempt() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for id in ["boxed", "text", "io", "buried", "panics", "long"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    let handler =
        async |job: Arc<tickwheel_redis::Job>| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
            match job.id() {
                "boxed" => Err("in a box")?,
                "text" => Err(format!("attempt {}", job.attempt()))?,
                "io" => Err(std::io::Error::other("of the disk"))?,
                "buried" => Err(JobError::bury("of no use"))?,
                "panics" => panic!("as it does"),
                _ => Err("ж".repeat(4000))?,
            }
            Ok(())
        };
    let before = server.time();
    let worker = jobs.worker().attempts(2).start();
    let run = tokio::spawn(worker.run(4, handler).backoff(500 * MS, SECOND));
    until(|| async {
        let info = jobs.get("text").await.unwrap().unwrap();
        info.state == JobState::Waiting && info.error.as_deref() == Some("attempt 1")
    })
    .await;
    counts_become(&jobs, 0, 0, 6).await;
    run.abort();
    let dead = jobs.dead(10).await.unwrap();
    let after = server.time();
    for job in &dead {
        assert!((before..=after).contains(&job.died_at()), "{job:?}");
        let error = job.error().unwrap();
        let expected = match job.id() {
            "boxed" => "in a box",
            "text" => "attempt 2",
            "io" => "of the disk",
            "buried" => "of no use",
            "panics" => "the handler panicked: as it does",
            _ => &"ж".repeat(512),
        };
        assert_eq!(error, expected, "{}", job.id());
        assert_eq!(job.attempts(), if job.id() == "buried" { 1 } else { 2 });
        let info = jobs.get(job.id()).await.unwrap().unwrap();
        assert_eq!((info.state, info.error.as_deref()), (JobState::Dead, Some(error)));
    }
}

#[tokio::test]
async fn a_worker_that_has_gone_is_an_error_and_a_burial_by_hand_is_none() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    let mut worker = jobs.worker().lease(SECOND).attempts(2).start();
    drop(next(&mut worker).await);
    let job = next(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    let ran_out = jobs.get("a").await.unwrap().unwrap().error.unwrap();
    assert!(ran_out.contains("lease"), "{ran_out}");
    drop(job);
    let watched = worker.next();
    tokio::select! {
        job = watched => panic!("{job:?}"),
        () = counts_become(&jobs, 0, 0, 1) => {}
    }
    assert_eq!(jobs.dead(1).await.unwrap()[0].error(), Some(&*ran_out));
    assert!(jobs.revive("a").await.unwrap());
    assert!(next(&mut worker).await.bury().await.unwrap());
    assert_eq!(jobs.dead(1).await.unwrap()[0].error(), None);
}

#[tokio::test]
async fn dead_jobs_are_kept_as_the_queue_was_told() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(2);
    let mut worker = worker(&jobs);
    for n in 0..40 {
        assert!(
            jobs.schedule(&format!("{n}"), Duration::ZERO, b"x")
                .await
                .unwrap()
        );
        assert!(next(&mut worker).await.bury().await.unwrap());
    }
    counts_become(&jobs, 0, 0, 40).await;
    // A handle that says something trims at once, and others keep to it.
    let told = queue(&server, "q").await.partitions(2).keep_dead(9, HOUR);
    assert!(told.counts().await.unwrap().dead <= 10);
    let dead = jobs.dead(100).await.unwrap();
    assert!(dead.iter().any(|job| job.id() == "39"), "the oldest go: {dead:?}");
    for n in 40..60 {
        assert!(
            jobs.schedule(&format!("{n}"), Duration::ZERO, b"x")
                .await
                .unwrap()
        );
        assert!(next(&mut worker).await.bury().await.unwrap());
        assert!(jobs.counts().await.unwrap().dead <= 10);
    }
    // A handle that says nothing changes nothing.
    queue(&server, "q").await.partitions(2).counts().await.unwrap();
    // What is trimmed leaves nothing behind, and its id is free.
    let left: u64 = (0..2)
        .map(|n| server.command::<u64>(&["HLEN", &format!("tickwheel:jobs:{{q:{n}}}:payload")]))
        .sum();
    assert_eq!(left, jobs.counts().await.unwrap().dead);
    assert!(jobs.schedule("0", HOUR, b"").await.unwrap());
    // What is too old goes as workers look.
    let told = queue(&server, "q").await.partitions(2).keep_dead(1000, SECOND);
    told.counts().await.unwrap();
    let watched = worker.next();
    tokio::select! {
        job = watched => panic!("{job:?}"),
        () = counts_become(&jobs, 1, 0, 0) => {}
    }
}

#[tokio::test]
async fn dead_jobs_are_revived_and_purged_in_batches() {
    const JOBS: usize = 230;
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(2);
    assert_eq!(jobs.revive_dead(10).await.unwrap(), 0);
    let schedule = |n: usize| {
        let jobs = jobs.clone();
        async move { jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap() }
    };
    futures::future::join_all((0..JOBS).map(schedule)).await;
    let bury = jobs.worker().lease(HOUR).start().take(JOBS);
    soon(bury.for_each_concurrent(32, async |job| assert!(job.unwrap().bury().await.unwrap()))).await;
    assert_eq!(jobs.purge_dead(0).await.unwrap(), 0);
    assert_eq!(jobs.purge_dead(25).await.unwrap(), 25);
    counts_become(&jobs, 0, 0, JOBS as u64 - 25).await;
    assert_eq!(jobs.revive_dead(15).await.unwrap(), 15);
    counts_become(&jobs, 15, 0, JOBS as u64 - 40).await;
    assert_eq!(jobs.revive_dead(usize::MAX).await.unwrap(), JOBS as u64 - 40);
    counts_become(&jobs, JOBS as u64 - 25, 0, 0).await;
    assert_eq!(entries(&server, "dead"), 0);
    let mut worker = worker(&jobs);
    assert_eq!(next(&mut worker).await.attempt(), 1);
}
