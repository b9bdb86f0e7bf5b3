//! `DelayedJobs`, `Worker` and `Job`, on one server.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures::{FutureExt, StreamExt, future::join_all};
use support::{
    connect,
    jobs::{Jobs, counts, counts_become, key, next, queue},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Error, Notifications, Worker};
use tokio::time::sleep;

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Long enough not to run out on a loaded machine.
const LEASE: Duration = Duration::from_secs(60);
/// Short enough to be waited for.
const SHORT: Duration = Duration::from_secs(2);

fn worker(jobs: &Jobs) -> Worker {
    jobs.worker().lease(LEASE).start()
}

#[tokio::test]
async fn a_job_is_delivered_when_it_is_due_and_is_gone_when_it_is_done() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let before = server.time();
    assert!(jobs.schedule("a", 300 * MS, b"payload").await.unwrap());
    let after = server.time();
    assert_eq!(counts(&jobs).await, [1, 0, 0]);

    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert!(server.time() >= job.due(), "early");
    assert!((before + 300 * MS..=after + 300 * MS).contains(&job.due()));
    assert_eq!(
        (job.id(), job.payload(), job.attempt()),
        ("a", &b"payload"[..], 1)
    );
    assert_eq!(counts(&jobs).await, [0, 1, 0]);
    assert!(job.lost().now_or_never().is_none());

    let lost = job.lost();
    assert!(job.done().await.unwrap());
    soon(lost).await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    assert!(
        jobs.schedule("a", HOUR, b"").await.unwrap(),
        "an id is free again after done"
    );
}

#[tokio::test]
async fn an_id_is_scheduled_once_while_it_waits_runs_or_is_dead() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert!(jobs.schedule("a", Duration::ZERO, b"first").await.unwrap());
    assert!(!jobs.schedule("a", HOUR, b"second").await.unwrap());

    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!(job.payload(), b"first");
    assert!(!jobs.schedule("a", HOUR, b"third").await.unwrap());
    assert!(job.bury().await.unwrap());
    assert!(!jobs.schedule("a", HOUR, b"fourth").await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
    assert!(jobs.purge("a").await.unwrap());
    assert!(jobs.schedule("a", HOUR, b"fifth").await.unwrap());
}

#[tokio::test]
async fn jobs_of_a_partition_come_in_the_order_in_which_they_are_due() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let start = server.time() - HOUR;
    for n in [7, 3, 9, 1, 5, 8, 2, 6, 4, 0] {
        let at = start + n * MS;
        assert!(jobs.schedule_at(&format!("{n}"), at, b"").await.unwrap());
    }
    let mut worker = worker(&jobs);
    for n in 0..10 {
        let job = next(&mut worker).await;
        assert_eq!(job.id(), format!("{n}"));
        assert_eq!(job.due(), start + n * MS);
        job.done().await.unwrap();
    }
}

#[tokio::test]
async fn due_times_in_the_past_now_and_in_ten_years() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let ten_years = Duration::from_secs(10 * 365 * 24 * 3600);
    assert!(
        jobs.schedule_at("before 1970", UNIX_EPOCH - HOUR, b"")
            .await
            .unwrap()
    );
    assert!(
        jobs.schedule_at("long ago", UNIX_EPOCH + HOUR, b"")
            .await
            .unwrap()
    );
    assert!(jobs.schedule("now", Duration::ZERO, b"").await.unwrap());
    assert!(jobs.schedule("late", ten_years, b"").await.unwrap());
    assert!(
        jobs.schedule_at("later", SystemTime::now() + ten_years, b"")
            .await
            .unwrap()
    );
    assert!(jobs.schedule("never", Duration::MAX, b"").await.unwrap());

    let mut worker = jobs.worker().lease(LEASE).look_ahead(SECOND).start();
    for id in ["before 1970", "long ago", "now"] {
        let job = next(&mut worker).await;
        assert_eq!(job.id(), id);
        job.done().await.unwrap();
    }
    assert!(tokio::time::timeout(100 * MS, worker.next()).await.is_err());
    assert_eq!(counts(&jobs).await, [3, 0, 0]);
    // None of them is beyond what a score holds exactly.
    for id in ["late", "later", "never"] {
        assert!(jobs.reschedule(id, Duration::ZERO).await.unwrap());
        assert_eq!(next(&mut worker).await.id(), id);
    }
}

#[tokio::test]
async fn payloads_from_nothing_to_a_megabyte() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let binary: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let payloads = [
        vec![],
        vec![0],
        b"\r\n\0\xff\xfe".to_vec(),
        binary,
        vec![7; 1 << 20],
    ];
    // Together they are more than one reply, or one batch, has room for.
    let scheduled = join_all((0..15).map(|n| {
        let (jobs, payload) = (jobs.clone(), payloads[n % 5].clone());
        async move { jobs.schedule(&format!("{n:02}"), Duration::ZERO, &payload).await }
    }));
    assert!(scheduled.await.into_iter().all(Result::unwrap));
    let mut worker = worker(&jobs);
    let mut seen = BTreeSet::new();
    for _ in 0..15 {
        let job = next(&mut worker).await;
        let n: usize = job.id().parse().unwrap();
        assert!(job.payload() == payloads[n % 5], "payload of {n}");
        seen.insert(n);
        assert!(job.done().await.unwrap());
    }
    assert_eq!(seen.len(), 15);
}

#[tokio::test]
async fn ids_are_any_text_but_none() {
    let server = Server::start();
    let jobs = queue(&server, "a {queue} of 100%").await.partitions(4);
    let long = "x".repeat(1024);
    let ids = ["with space", "{braces}", "100%", "ключ", "-", "a\nb", "0", &long];
    for id in ids {
        assert!(
            jobs.schedule(id, Duration::ZERO, id.as_bytes()).await.unwrap(),
            "{id}"
        );
    }
    let mut worker = worker(&jobs);
    let mut seen = BTreeSet::new();
    for _ in ids {
        let job = next(&mut worker).await;
        assert_eq!(job.id().as_bytes(), job.payload());
        seen.insert(job.id().to_owned());
        assert!(job.done().await.unwrap());
    }
    assert_eq!(seen, ids.into_iter().map(str::to_owned).collect());

    let error = jobs.schedule("", SECOND, b"").await.unwrap_err();
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    let error = queue(&server, "").await.counts().await.unwrap_err();
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
}

#[tokio::test]
async fn cancel_and_reschedule_of_what_waits_runs_is_dead_or_unknown() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Absent);
    assert!(!jobs.reschedule("a", SECOND).await.unwrap());
    assert!(!jobs.revive("a").await.unwrap());
    assert!(!jobs.purge("a").await.unwrap());

    jobs.schedule("a", HOUR, b"kept").await.unwrap();
    assert!(jobs.reschedule("a", Duration::ZERO).await.unwrap());
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!((job.id(), job.payload()), ("a", &b"kept"[..]));
    assert!(!jobs.reschedule("a", SECOND).await.unwrap());
    assert!(!jobs.revive("a").await.unwrap());
    assert!(!jobs.purge("a").await.unwrap());

    assert!(job.bury().await.unwrap());
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Absent);
    assert!(!jobs.reschedule("a", SECOND).await.unwrap());

    jobs.schedule("b", HOUR, b"").await.unwrap();
    assert_eq!(jobs.cancel("b").await.unwrap(), Cancelled::Waiting);
    assert_eq!(jobs.cancel("b").await.unwrap(), Cancelled::Absent);
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
}

#[tokio::test]
async fn a_claim_is_not_a_delivery() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..10 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut prefetching = jobs.worker().lease(LEASE).prefetch(10).start();
    let first = next(&mut prefetching).await;
    assert_eq!(first.id(), "0");
    assert_eq!(counts(&jobs).await, [9, 1, 0]);
    assert_eq!(jobs.cancel("1").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.reschedule("2", HOUR).await.unwrap());
    assert_eq!(next(&mut prefetching).await.id(), "3");
    assert_eq!(counts(&jobs).await, [7, 2, 0]);

    // Dropped, it gives the others back at once, with no attempt counted, and keeps what was delivered.
    drop(prefetching);
    let mut other = worker(&jobs);
    for n in 4..10 {
        let job = next(&mut other).await;
        assert_eq!((job.id(), job.attempt()), (&*format!("{n}"), 1));
        job.done().await.unwrap();
    }
    // The third was dropped, and runs until its lease ends.
    assert_eq!(counts(&jobs).await, [1, 2, 0]);
    assert!(first.done().await.unwrap());
}

#[tokio::test]
async fn a_worker_that_is_not_polled_leaves_the_jobs_to_others() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..10 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut busy = jobs.worker().lease(LEASE).prefetch(10).start();
    let _job = next(&mut busy).await;
    let mut idle = worker(&jobs);
    for _ in 1..10 {
        let job = next(&mut idle).await;
        assert_eq!(job.attempt(), 1);
        job.done().await.unwrap();
    }
}

#[tokio::test]
async fn a_job_that_is_dropped_comes_again_after_its_lease_until_it_is_dead() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"x").await.unwrap();
    let mut worker = jobs.worker().lease(SHORT).attempts(2).start();
    let job = next(&mut worker).await;
    let due = job.due();
    let lost = job.lost();
    let dropped = Instant::now();
    drop(job);
    soon(lost).await;
    let job = next(&mut worker).await;
    assert!(dropped.elapsed() > SHORT / 2, "the lease was given up");
    assert_eq!((job.id(), job.attempt(), job.due()), ("a", 2, due));
    drop(job);
    // The stream has to be polled: a worker that nobody asks does not sweep.
    tokio::select! {
        job = worker.next() => panic!("{job:?}"),
        () = counts_become(&jobs, 0, 0, 1) => {}
    }
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(
        (dead[0].id(), dead[0].payload(), dead[0].attempts()),
        ("a", &b"x"[..], 2)
    );

    assert!(jobs.revive("a").await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!((job.id(), job.payload(), job.attempt()), ("a", &b"x"[..], 1));
    assert!(job.done().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn retries_count_attempts_and_the_last_one_buries() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(LEASE).attempts(3).start();
    let mut due = UNIX_EPOCH;
    for attempt in 1..=3 {
        let job = next(&mut worker).await;
        assert_eq!(job.attempt(), attempt);
        assert!(job.due() > due);
        due = job.due() + 100 * MS;
        assert!(job.retry_after(100 * MS).await.unwrap());
    }
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
    assert_eq!(jobs.dead(1).await.unwrap()[0].attempts(), 3);
}

#[tokio::test]
async fn a_retried_job_can_be_cancelled_and_scheduled_anew() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = worker(&jobs);
    assert!(next(&mut worker).await.retry_after(HOUR).await.unwrap());
    assert!(!jobs.schedule("a", HOUR, b"").await.unwrap());
    assert!(jobs.reschedule("a", 2 * HOUR).await.unwrap());
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.schedule("a", Duration::ZERO, b"new").await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!((job.attempt(), job.payload()), (1, &b"new"[..]));
}

#[tokio::test]
async fn dead_jobs_are_listed_by_pages_revived_and_purged() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(3);
    let ids: BTreeSet<String> = (0..250).map(|n| format!("{n}")).collect();
    join_all(ids.iter().map(|id| jobs.schedule(id, Duration::ZERO, b"p"))).await;
    let worker = worker(&jobs);
    let buried = worker
        .take(250)
        .for_each_concurrent(50, |job| async { assert!(job.unwrap().bury().await.unwrap()) });
    soon(buried).await;
    assert_eq!(counts(&jobs).await, [0, 0, 250]);
    let dead = jobs.dead(usize::MAX).await.unwrap();
    assert_eq!(
        dead.iter()
            .map(|job| job.id().to_owned())
            .collect::<BTreeSet<_>>(),
        ids
    );
    assert_eq!(jobs.dead(0).await.unwrap(), []);
    assert_eq!(jobs.dead(7).await.unwrap(), dead[..7]);

    assert!(jobs.revive("17").await.unwrap());
    assert!(!jobs.revive("17").await.unwrap());
    assert!(jobs.purge("18").await.unwrap());
    assert!(!jobs.purge("18").await.unwrap());
    assert_eq!(counts(&jobs).await, [1, 0, 248]);
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_the_job_lives() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(SHORT).start();
    let job = next(&mut worker).await;
    let mut other = jobs.worker().lease(SHORT).start();
    // Also when its worker has gone.
    drop(worker);
    tokio::select! {
        again = other.next() => panic!("{again:?}"),
        () = job.lost() => panic!("lost"),
        () = sleep(SHORT * 3) => {}
    }
    assert!(job.done().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn finishing_a_lost_job_is_false_and_changes_nothing() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for id in ["a", "b", "c"] {
        jobs.schedule(id, Duration::ZERO, b"").await.unwrap();
    }
    let mut first = jobs.worker().lease(LEASE).start();
    let lost = [
        next(&mut first).await,
        next(&mut first).await,
        next(&mut first).await,
    ];
    // As if the lease had run out while the network was away: the client does not know.
    for id in ["a", "b", "c"] {
        let _: i64 = server.command(&["ZADD", &key("running"), "1", id]);
    }
    let mut second = worker(&jobs);
    let held = [
        next(&mut second).await,
        next(&mut second).await,
        next(&mut second).await,
    ];
    assert!(held.iter().all(|job| job.attempt() == 2));
    let [a, b, c] = lost;
    assert!(!a.done().await.unwrap());
    assert!(!b.retry_after(Duration::ZERO).await.unwrap());
    assert!(!c.bury().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 3, 0]);
    for job in held {
        assert!(job.done().await.unwrap());
    }
}

#[tokio::test]
async fn a_renewal_that_is_refused_says_that_the_job_is_lost() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(10 * SECOND).start();
    let job = next(&mut worker).await;
    let _: i64 = server.command(&["ZADD", &key("running"), "1", "a"]);
    let began = Instant::now();
    soon(job.lost()).await;
    // Long before the lease would have run out by itself.
    assert!(began.elapsed() < 8 * SECOND);
    assert!(!job.done().await.unwrap());
}

#[tokio::test]
async fn cancel_and_reschedule_race_with_delivery() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(2);
    const JOBS: usize = 600;
    let scheduled = join_all((0..JOBS).map(|n| {
        let jobs = jobs.clone();
        async move { jobs.schedule(&format!("{n}"), (n / 3) as u32 * MS, b"").await }
    }));
    assert!(scheduled.await.into_iter().all(Result::unwrap));

    let begun = AtomicUsize::new(0);
    let delivered = std::sync::Mutex::new(Vec::new());
    let work = join_all((0..2).map(|_| {
        let worker = jobs.worker().lease(LEASE).look_ahead(50 * MS).start();
        worker.for_each_concurrent(8, |job| async {
            begun.fetch_add(1, Relaxed);
            let id = job.as_ref().unwrap().id().to_owned();
            let done = job.unwrap().done().await.unwrap();
            delivered.lock().unwrap().push((id, done));
        })
    }));
    let meddle = join_all((0..JOBS).map(|n| {
        let jobs = jobs.clone();
        async move {
            sleep((n / 3) as u32 * MS).await;
            match n % 3 {
                0 => Some(jobs.cancel(&format!("{n}")).await.unwrap()),
                1 => {
                    jobs.reschedule(&format!("{n}"), 50 * MS).await.unwrap();
                    None
                }
                _ => None,
            }
        }
    }));
    let finish = async {
        let meddled = meddle.await;
        counts_become(&jobs, 0, 0, 0).await;
        // The answer to the end of the last job may still be on its way.
        until(|| async { delivered.lock().unwrap().len() == begun.load(Relaxed) }).await;
        meddled
    };
    let meddled = tokio::select! {
        _ = work => unreachable!(),
        meddled = finish => meddled,
    };
    let delivered = delivered.into_inner().unwrap();
    let done: BTreeMap<String, bool> = delivered.iter().cloned().collect();
    assert_eq!(done.len(), delivered.len(), "some job was delivered twice");
    for (n, cancelled) in meddled.into_iter().enumerate() {
        let done = done.get(&format!("{n}"));
        let is_as_said = match cancelled {
            Some(Cancelled::Waiting) => done.is_none(),
            // It may have been started and not yet yielded.
            Some(Cancelled::Running) => done != Some(&true),
            _ => done == Some(&true),
        };
        assert!(is_as_said, "job {n}, {cancelled:?}, done: {done:?}");
    }
}

#[tokio::test]
async fn handles_with_other_settings_are_of_the_same_queue() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(4);
    jobs.schedule("a", HOUR, b"").await.unwrap();
    let error = queue(&server, "q")
        .await
        .partitions(5)
        .counts()
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Partitions {
                given: 5,
                stored: 4,
                ..
            }
        ),
        "{error}"
    );
    let error = queue(&server, "q").await.worker().start().next().now_or_never();
    assert!(error.is_none());
    let mut worker = worker(&queue(&server, "q").await);
    let error = soon(worker.next()).await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Partitions {
                given: 1,
                stored: 4,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(counts(&queue(&server, "q").await.partitions(4)).await, [1, 0, 0]);
    for wrong in [0, 1025] {
        let error = queue(&server, "other")
            .await
            .partitions(wrong)
            .counts()
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains(&format!("partitions of {wrong}")),
            "{error}"
        );
    }
    assert_eq!(counts(&queue(&server, "other").await).await, [0, 0, 0]);
}

#[tokio::test]
async fn settings_that_are_not_allowed_are_what_the_stream_yields() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let yielded = async |worker: tickwheel_redis::WorkerBuilder| {
        let mut worker = worker.start();
        let error = soon(worker.next()).await.unwrap().unwrap_err();
        // Paced, and without an end.
        let began = Instant::now();
        let again = soon(worker.next()).await.unwrap().unwrap_err();
        assert!(began.elapsed() > 500 * MS);
        assert_eq!(error.to_string(), again.to_string());
        error.to_string()
    };
    let builder = || jobs.worker();
    let errors = futures::join!(
        yielded(builder().lease(199 * MS)),
        yielded(builder().lease(24 * HOUR + MS)),
        yielded(builder().attempts(0)),
        yielded(builder().prefetch(0)),
        yielded(builder().look_ahead(2 * HOUR)),
        yielded(builder().time_limit(Duration::ZERO)),
    );
    assert!(errors.0.contains("199ms"), "{}", errors.0);
    assert!(errors.1.contains("86400.001s"), "{}", errors.1);
    assert!(errors.2.contains("attempts of 0"), "{}", errors.2);
    assert!(errors.3.contains("prefetch of 0"), "{}", errors.3);
    assert!(errors.4.contains("look_ahead of 7200s"), "{}", errors.4);
    assert!(errors.5.contains("time_limit of 0ns"), "{}", errors.5);
}

#[tokio::test]
async fn many_partitions_and_few_places() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(16);
    let ids: BTreeSet<String> = (0..200).map(|n| format!("{n}")).collect();
    join_all(ids.iter().map(|id| jobs.schedule(id, 50 * MS, b""))).await;
    let mut worker = jobs.worker().lease(LEASE).prefetch(1).start();
    let mut seen = BTreeSet::new();
    while seen.len() < ids.len() {
        let job = next(&mut worker).await;
        assert!(seen.insert(job.id().to_owned()));
        job.done().await.unwrap();
    }
    assert_eq!(seen, ids);
}

#[tokio::test]
async fn the_end_of_the_wheel_is_the_end_of_the_stream() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "q")
        .notifications(&Notifications::of(server.client()));
    for n in 0..4 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    jobs.schedule("later", 10 * SECOND, b"").await.unwrap();
    let mut worker = jobs.worker().lease(LEASE).look_ahead(60 * SECOND).start();
    let job = next(&mut worker).await;
    let lost = job.lost();
    wheel.shutdown();
    soon(lost).await;
    assert!(soon(worker.next()).await.is_none());
    // What was claimed is given back, and what was delivered can still be finished.
    assert!(job.done().await.unwrap());
    let other = queue(&server, "q").await;
    let mut worker = self::worker(&other);
    for n in 1..4 {
        let job = next(&mut worker).await;
        assert_eq!((job.id(), job.attempt()), (&*format!("{n}"), 1));
        job.done().await.unwrap();
    }
    assert_eq!(other.cancel("later").await.unwrap(), Cancelled::Waiting);
}

#[tokio::test]
async fn a_full_wheel_delays_nobody() {
    let server = Server::start();
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let mut occupied = Box::pin(wheel.sleep(HOUR));
    assert!(occupied.as_mut().now_or_never().is_none());
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "q")
        .notifications(&Notifications::of(server.client()));
    jobs.schedule("a", 200 * MS, b"").await.unwrap();
    let mut worker = jobs.worker().lease(SHORT).look_ahead(SECOND).start();
    let job = next(&mut worker).await;
    assert!(server.time() >= job.due());
    tokio::select! {
        () = job.lost() => panic!("not renewed"),
        () = sleep(SHORT * 2) => {}
    }
    assert!(job.done().await.unwrap());
}

#[test]
fn jobs_outlive_the_runtime_that_scheduled_them() {
    let server = Server::start();
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (jobs, _worker) = first.block_on(async {
        let jobs = queue(&server, "q").await;
        jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
        jobs.schedule("b", Duration::ZERO, b"").await.unwrap();
        let mut worker = jobs.worker().lease(SHORT).start();
        let _running = next(&mut worker).await;
        tokio::spawn({
            let jobs = jobs.clone();
            async move {
                jobs.schedule("c", Duration::ZERO, b"").await.unwrap();
                pending::<()>().await;
            }
        });
        (jobs, worker)
    });
    drop(first);
    drop(jobs);
    runtime().block_on(async {
        let jobs = queue(&server, "q").await;
        let mut worker = worker(&jobs);
        let mut seen = BTreeSet::new();
        while !(seen.contains("a") && seen.contains("b")) {
            let job = next(&mut worker).await;
            seen.insert(job.id().to_owned());
            assert!(job.done().await.unwrap());
        }
    });
}

#[tokio::test]
async fn a_snoozed_job_comes_again_with_the_same_attempt() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"x").await.unwrap();
    let mut worker = jobs.worker().lease(LEASE).attempts(3).start();
    for _ in 0..5 {
        let job = next(&mut worker).await;
        assert_eq!((job.attempt(), job.payload()), (1, &b"x"[..]));
        assert!(server.time() >= job.due());
        assert!(job.snooze(20 * MS).await.unwrap());
    }
    let job = next(&mut worker).await;
    assert!(job.retry_after(Duration::ZERO).await.unwrap());
    for _ in 0..3 {
        let job = next(&mut worker).await;
        assert_eq!(job.attempt(), 2, "earlier attempts still count");
        assert!(job.snooze(20 * MS).await.unwrap());
    }
    // It waits, and can be cancelled and rescheduled.
    let job = next(&mut worker).await;
    assert!(job.snooze(HOUR).await.unwrap());
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
    assert!(jobs.reschedule("a", Duration::ZERO).await.unwrap());
    let job = next(&mut worker).await;
    let _: i64 = server.command(&["ZADD", &key("running"), "1", "a"]);
    assert!(!job.snooze(HOUR).await.unwrap(), "it was lost");
    // It comes again as one whose worker has died, for the last time.
    let mut other = jobs.worker().lease(LEASE).attempts(3).start();
    let job = next(&mut other).await;
    assert_eq!(job.attempt(), 3);
    assert!(job.bury().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
}

#[tokio::test]
async fn a_job_that_takes_too_long_is_lost_and_has_failed() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for id in ["a", "b"] {
        jobs.schedule(id, Duration::ZERO, b"").await.unwrap();
    }
    let limit = 3 * SECOND;
    let mut worker = jobs.worker().lease(SHORT).attempts(2).time_limit(limit).start();
    let (hangs, began) = (next(&mut worker).await, Instant::now());
    let quick = next(&mut worker).await;
    assert_eq!((hangs.id(), quick.id()), ("a", "b"));
    // It is renewed until then, and no longer.
    tokio::select! {
        () = hangs.lost() => panic!("lost after {:?}", began.elapsed()),
        () = sleep(limit - SECOND / 2) => {}
    }
    assert!(quick.done().await.unwrap());
    soon(hangs.lost()).await;
    let lost = began.elapsed();
    assert!(lost >= limit - 50 * MS && lost < limit + SECOND, "{lost:?}");
    let again = next(&mut worker).await;
    assert_eq!((again.id(), again.attempt()), ("a", 2));
    assert!(began.elapsed() > limit, "nobody else had it before");
    assert!(!hangs.done().await.unwrap());
    // Also when the stream was dropped.
    drop(worker);
    soon(again.lost()).await;
    assert!(!again.done().await.unwrap());
    let mut other = jobs.worker().lease(SHORT).attempts(2).start();
    tokio::select! {
        job = other.next() => panic!("{job:?}"),
        () = counts_become(&jobs, 0, 0, 1) => {}
    }
    assert_eq!(jobs.dead(1).await.unwrap()[0].attempts(), 2);
}

#[tokio::test]
async fn waiting_jobs_are_listed_in_order_of_due_time() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(3);
    assert_eq!(jobs.waiting(0, 10).await.unwrap(), []);
    let start = server.time() + HOUR;
    let scheduled = (0..350).map(|n| {
        let jobs = jobs.clone();
        async move { jobs.schedule_at(&format!("{n:03}"), start + n * MS, b"").await }
    });
    assert!(join_all(scheduled).await.into_iter().all(Result::unwrap));
    let ids = async |offset, limit| -> Vec<u32> {
        let waiting = jobs.waiting(offset, limit).await.unwrap();
        waiting.iter().map(|job| job.id.parse().unwrap()).collect()
    };
    assert_eq!(ids(0, 0).await, []);
    assert_eq!(ids(0, usize::MAX).await, Vec::from_iter(0..350));
    assert_eq!(ids(120, 7).await, Vec::from_iter(120..127));
    assert_eq!(ids(345, 100).await, Vec::from_iter(345..350));
    assert_eq!(ids(350, 100).await, []);
    let first = &jobs.waiting(0, 1).await.unwrap()[0];
    assert_eq!((&*first.id, first.attempt), ("000", 1));
    let late = start
        .duration_since(first.due)
        .unwrap_or_else(|early| early.duration());
    assert!(late < MS, "{late:?}");

    // One that was tried, one that is claimed, and one that runs.
    let jobs = queue(&server, "r").await;
    for (n, id) in ["tried", "runs", "claimed", "later"].into_iter().enumerate() {
        let due = UNIX_EPOCH + HOUR * (n as u32 + 1);
        assert!(jobs.schedule_at(id, due, b"").await.unwrap());
    }
    let mut worker = worker(&jobs);
    let tried = next(&mut worker).await;
    let _runs = next(&mut worker).await;
    assert!(tried.retry_after(HOUR / 2).await.unwrap());
    // A job that the worker claims or gives back between two reads may be listed twice or not at all.
    until(|| async {
        let listed = jobs.waiting(0, 10).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|job| (&*job.id, job.attempt)).collect();
        listed == [("claimed", 1), ("later", 1), ("tried", 2)]
    })
    .await;
}

/// The limit of attempts is stored with a job at each start, so that a worker with another limit judges no delivery
/// but its own.
#[tokio::test]
async fn the_attempts_of_a_delivery_are_those_of_its_worker() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    let mut many = jobs.worker().lease(SHORT / 2).attempts(10).start();
    drop(next(&mut many).await);
    drop(many);
    // Whichever sweeps, the delivery was under ten attempts.
    let mut one = jobs.worker().lease(LEASE).attempts(1).start();
    let job = next(&mut one).await;
    assert_eq!(job.attempt(), 2);
    assert_eq!(counts(&jobs).await, [0, 1, 0]);
    // This one is under one attempt.
    assert!(job.retry_after(Duration::ZERO).await.unwrap());
    counts_become(&jobs, 0, 0, 1).await;
}
