//! Jobs that come again at the points of a grid.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::{Duration, Instant, SystemTime},
};

use futures::{StreamExt, future::join_all};
use support::{
    connect,
    jobs::{Jobs, counts, entries, key, next, next_after_errors, queue},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Error, Repeated, Worker};
use tokio::time::{sleep, timeout};

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const EVERY: Duration = Duration::from_millis(300);

fn worker(jobs: &Jobs) -> Worker {
    jobs.worker().lease(HOUR).start()
}

/// How many points after the first one.
fn place(first: SystemTime, due: SystemTime, every: Duration) -> u32 {
    let micros = due.duration_since(first).unwrap().as_micros();
    assert_eq!(micros % every.as_micros(), 0, "not on the grid");
    (micros / every.as_micros()) as u32
}

#[tokio::test]
async fn a_job_comes_at_each_point_of_its_grid_until_it_is_cancelled() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let before = server.time();
    assert_eq!(
        jobs.repeat("a", 200 * MS, EVERY, b"payload").await.unwrap(),
        Repeated::New
    );
    let after = server.time();
    assert_eq!(
        jobs.repeat("a", HOUR, EVERY, b"payload").await.unwrap(),
        Repeated::Same
    );
    assert!(!jobs.schedule("a", HOUR, b"other").await.unwrap());
    let mut worker = worker(&jobs);
    let mut first = None;
    for n in 0..6 {
        let job = next(&mut worker).await;
        assert!(server.time() >= job.due(), "early");
        assert_eq!(
            (job.id(), job.payload(), job.attempt()),
            ("a", &b"payload"[..], 1)
        );
        let first = *first.get_or_insert(job.due());
        assert!((before + 200 * MS..=after + 200 * MS).contains(&first));
        // On a loaded machine one may be late by more than a period.
        assert!(place(first, job.due(), EVERY) >= n);
        assert!(job.done().await.unwrap());
        assert_eq!(counts(&jobs).await, [1, 0, 0]);
    }
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Waiting);
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Absent);
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    assert!(timeout(2 * EVERY, worker.next()).await.is_err());
    for what in ["repeats", "payload", "state"] {
        let key = key(what);
        assert_eq!(server.command::<u64>(&["EXISTS", &key]), 0, "{what}");
    }
    // Its id is free, also for one that comes once.
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    assert!(next(&mut worker).await.done().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn points_without_a_worker_are_made_up_by_one() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let every = 2 * SECOND;
    // As if no worker had been there for an hour and a second.
    assert_eq!(
        jobs.repeat("a", Duration::ZERO, every, b"").await.unwrap(),
        Repeated::New
    );
    let past = server.time() - HOUR - SECOND;
    let micros = past
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_micros()
        .to_string();
    let _: i64 = server.command(&["ZADD", &key("due"), &micros, "a"]);
    let grid = format!("{micros} {}", every.as_micros());
    let _: i64 = server.command(&["HSET", &key("repeats"), "a", &grid]);
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let first = job.due();
    assert!(job.done().await.unwrap());
    let done = server.time();
    let job = next(&mut worker).await;
    assert!(place(first, job.due(), every) >= 1801);
    assert!(job.due() > done, "one made up for all");
    assert!(job.done().await.unwrap());
}

#[tokio::test]
async fn points_that_pass_while_it_runs_are_made_up_by_one() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let every = SECOND;
    assert_eq!(
        jobs.repeat("a", Duration::ZERO, every, b"").await.unwrap(),
        Repeated::New
    );
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let first = job.due();
    // "Never two at once": nothing comes while it runs.
    assert!(timeout(2 * every + 300 * MS, worker.next()).await.is_err());
    let before = server.time();
    assert!(job.done().await.unwrap());
    let job = next(&mut worker).await;
    let made_up = place(first, job.due(), every);
    assert!(made_up >= 2 && job.due() <= before, "{made_up}");
    assert!(job.done().await.unwrap());
    let done = server.time();
    let job = next(&mut worker).await;
    assert!(place(first, job.due(), every) > made_up);
    assert!(job.due() + every > done);
    assert!(job.done().await.unwrap());
}

#[tokio::test]
async fn its_death_is_a_job_of_its_own_and_the_grid_goes_on() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert_eq!(
        jobs.repeat("a", Duration::ZERO, EVERY, b"payload").await.unwrap(),
        Repeated::New
    );
    let mut worker = jobs.worker().lease(HOUR).attempts(2).start();
    let job = next(&mut worker).await;
    let first = job.due();
    assert!(job.retry_after(50 * MS).await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    assert!(job.retry_after(HOUR).await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!(
        (job.id(), job.attempt(), job.payload()),
        ("a", 1, &b"payload"[..])
    );
    assert!(place(first, job.due(), EVERY) >= 1);
    assert!(job.bury().await.unwrap());
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead.len(), 2);
    for (dead, attempts) in dead.iter().zip([2, 1]) {
        assert!(dead.id().starts_with("a@"), "{}", dead.id());
        assert_eq!((dead.payload(), dead.attempts()), (&b"payload"[..], attempts));
    }
    assert!(jobs.purge(dead[0].id()).await.unwrap());
    assert!(jobs.revive(dead[1].id()).await.unwrap());
    let mut seen = [next(&mut worker).await, next(&mut worker).await];
    seen.sort_by_key(|job| job.id() != "a");
    let [repeated, revived] = seen;
    assert_eq!((revived.id(), revived.payload()), (dead[1].id(), &b"payload"[..]));
    assert!(revived.done().await.unwrap());
    assert!(repeated.done().await.unwrap());
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn cancelled_while_it_runs_it_runs_for_the_last_time() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert_eq!(
        jobs.repeat("a", Duration::ZERO, EVERY, b"").await.unwrap(),
        Repeated::New
    );
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Absent);
    soon(job.lost()).await;
    assert!(!job.done().await.unwrap());
    until(|| async { jobs.counts().await.unwrap().running == 0 }).await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    assert!(timeout(2 * EVERY, worker.next()).await.is_err());
}

/// When the job is due, in microseconds after another instant.
async fn due_after(jobs: &Jobs, instant: SystemTime) -> u128 {
    let waiting = jobs.waiting(0, 1).await.unwrap();
    waiting[0].due.duration_since(instant).unwrap().as_micros()
}

#[tokio::test]
async fn a_job_that_waits_is_changed_and_its_next_point_stays() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let repeat = |first, every, payload: &'static [u8]| jobs.repeat("a", first, every, payload);
    assert_eq!(repeat(HOUR, HOUR, b"old").await.unwrap(), Repeated::New);
    let due = jobs.waiting(0, 1).await.unwrap()[0].due;
    assert_eq!(repeat(SECOND, HOUR, b"old").await.unwrap(), Repeated::Same);
    assert_eq!(repeat(SECOND, 2 * HOUR, b"old").await.unwrap(), Repeated::Changed);
    assert_eq!(repeat(SECOND, 2 * HOUR, b"new").await.unwrap(), Repeated::Changed);
    assert_eq!(repeat(SECOND, 2 * HOUR, b"new").await.unwrap(), Repeated::Same);
    assert_eq!(due_after(&jobs, due).await, 0);
    // Whatever moves one delivery leaves the grid.
    assert!(jobs.reschedule("a", Duration::ZERO).await.unwrap());
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!(job.payload(), b"new");
    assert!(job.done().await.unwrap());
    assert_eq!(due_after(&jobs, due).await, 0);
    assert!(jobs.schedule("once", HOUR, b"").await.unwrap());
    let taken = jobs.repeat("once", SECOND, SECOND, b"").await.unwrap();
    assert_eq!(taken, Repeated::Taken);
    let _ = repeat(SECOND, EVERY, b"new").await.unwrap();
    assert_eq!(counts(&jobs).await, [2, 0, 0]);
}

#[tokio::test]
async fn a_job_that_runs_is_changed_and_its_next_point_stays() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let repeat = |every| jobs.repeat("a", Duration::ZERO, every, b"");
    assert_eq!(repeat(HOUR).await.unwrap(), Repeated::New);
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let point = job.due();
    assert_eq!(repeat(SECOND).await.unwrap(), Repeated::Changed);
    assert_eq!(repeat(SECOND).await.unwrap(), Repeated::Same);
    assert!(job.done().await.unwrap());
    // The hour that had begun is not cut short.
    assert_eq!(due_after(&jobs, point).await, HOUR.as_micros());
    // One that is put off goes on with the grid, too.
    assert!(jobs.reschedule("a", Duration::ZERO).await.unwrap());
    assert!(next(&mut worker).await.retry_after(60 * SECOND).await.unwrap());
    assert_eq!(repeat(2 * HOUR).await.unwrap(), Repeated::Changed);
    assert!(jobs.reschedule("a", Duration::ZERO).await.unwrap());
    assert!(next(&mut worker).await.done().await.unwrap());
    assert_eq!(due_after(&jobs, point).await, HOUR.as_micros());
    // What was claimed with an old payload is not delivered with it.
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn a_claim_is_not_delivered_with_an_old_payload() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let first = 2 * SECOND;
    assert_eq!(
        jobs.repeat("a", first, HOUR, b"old").await.unwrap(),
        Repeated::New
    );
    let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
    assert!(timeout(100 * MS, worker.next()).await.is_err());
    until(|| async { entries(&server, "claimed") == 1 }).await;
    assert_eq!(
        jobs.repeat("a", first, HOUR, b"new").await.unwrap(),
        Repeated::Changed
    );
    let job = next(&mut worker).await;
    assert_eq!((job.payload(), job.attempt()), (&b"new"[..], 1));
    assert!(job.done().await.unwrap());
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn repeated_after_it_was_cancelled_while_it_runs_it_comes_after_that() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let repeat = |payload: &'static [u8]| jobs.repeat("a", Duration::ZERO, HOUR, payload);
    assert_eq!(repeat(b"old").await.unwrap(), Repeated::New);
    let mut worker = jobs.worker().lease(HOUR).start();
    let job = next(&mut worker).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    assert!(!jobs.schedule("a", HOUR, b"").await.unwrap(), "its id is taken");
    assert_eq!(repeat(b"new").await.unwrap(), Repeated::New);
    assert_eq!(repeat(b"new").await.unwrap(), Repeated::Same);
    soon(job.lost()).await;
    assert!(timeout(500 * MS, worker.next()).await.is_err(), "two at once");
    drop(job);
    let job = next(&mut worker).await;
    assert_eq!((job.payload(), job.attempt()), (&b"new"[..], 1));
    assert!(job.done().await.unwrap());
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn it_survives_the_death_of_its_worker_and_a_restart() {
    let mut server = Server::start_aof();
    let jobs = queue(&server, "q").await;
    assert_eq!(
        jobs.repeat("a", Duration::ZERO, EVERY, b"").await.unwrap(),
        Repeated::New
    );
    let mut dying = jobs.worker().lease(SECOND).start();
    let job = next(&mut dying).await;
    let first = job.due();
    drop((job, dying));
    server.restart();
    let jobs = queue(&server, "q").await;
    let mut worker = worker(&jobs);
    let job = next_after_errors(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    assert!(job.done().await.unwrap());
    for _ in 0..3 {
        let job = next_after_errors(&mut worker).await;
        assert_eq!(job.attempt(), 1);
        assert!(place(first, job.due(), EVERY) >= 1);
        assert!(job.done().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn never_two_at_once_and_on_time_without_notifications() {
    let server = Server::start();
    let connection = connect(&server.url()).await;
    let jobs = DelayedJobs::new(&Wheel::new(), connection, "q").partitions(2);
    let ids: Vec<String> = (0..4).map(|n| format!("{n}")).collect();
    for id in &ids {
        assert_eq!(
            jobs.repeat(id, 100 * MS, EVERY, b"").await.unwrap(),
            Repeated::New
        );
    }
    let running: Vec<AtomicUsize> = ids.iter().map(|_| AtomicUsize::new(0)).collect();
    let done = AtomicUsize::new(0);
    let work = join_all((0..3).map(|_| {
        let worker = jobs.worker().lease(HOUR).start();
        worker.for_each_concurrent(2, async |job| {
            let job = job.unwrap();
            let running = &running[job.id().parse::<usize>().unwrap()];
            assert_eq!(running.fetch_add(1, SeqCst), 0, "two at once");
            sleep(20 * MS).await;
            running.fetch_sub(1, SeqCst);
            assert!(job.done().await.unwrap());
            done.fetch_add(1, SeqCst);
        })
    }));
    let began = Instant::now();
    tokio::select! {
        _ = work => unreachable!(),
        () = until(|| async { done.load(SeqCst) >= 40 }) => {}
    }
    // Ten rounds of 300 ms; a sweep would bring each after up to five seconds.
    println!("40 deliveries in {:?}", began.elapsed());
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_not_allowed() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let error = jobs.repeat("a", SECOND, MS / 2, b"").await.unwrap_err();
    assert!(
        matches!(error, Error::InvalidSetting { setting: "every", .. }),
        "{error}"
    );
    let error = jobs
        .repeat(&"x".repeat(1001), SECOND, SECOND, b"")
        .await
        .unwrap_err();
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    let longest = "x".repeat(1000);
    assert_eq!(
        jobs.repeat(&longest, Duration::ZERO, HOUR, b"").await.unwrap(),
        Repeated::New
    );
    let mut worker = worker(&jobs);
    assert!(soon(next(&mut worker)).await.bury().await.unwrap());
    assert_eq!(jobs.dead(1).await.unwrap()[0].id().len(), 1017);
    assert_eq!(jobs.cancel(&longest).await.unwrap(), Cancelled::Waiting);
}
