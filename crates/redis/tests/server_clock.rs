//! Leases and delayed jobs on a Redis whose clock is changed.

mod support;

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use support::{
    jobs::{entries, next, queue},
    leases::leases,
    server::Server,
    soon, until,
};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: i64 = 3600;

/// The machine's clock and the server's, apart by no more than a loaded machine makes them.
fn assert_off_by(server: &Server, seconds: i64) {
    let off = server
        .time()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
        - std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!(
        (off - seconds as f64).abs() < 60.0,
        "off by {off} s, not {seconds}"
    );
}

/// Redis lets go of what it was to keep for so long: nobody can help that. The holder hears at its next
/// renewal.
#[tokio::test]
async fn a_step_forward_ends_leases_and_their_holders_hear() {
    let server = Server::start_with_own_clock();
    let (first, second) = (leases(&server.url()).await, leases(&server.url()).await);
    let ttl = 20 * SECOND;
    let held = first.acquire("x", ttl).await.unwrap();
    server.set_clock(HOUR);
    assert_off_by(&server, HOUR);
    let next = second
        .try_acquire("x", ttl)
        .await
        .unwrap()
        .expect("nobody holds it");
    assert!(next.token() > held.token());
    let end = held.valid_until();
    soon(held.lost()).await;
    assert!(Instant::now() < end, "it was not told by its renewal");
    assert!(!held.release().await.unwrap());
    assert!(next.lost().now_or_never().is_none());
    assert!(next.release().await.unwrap());
}

#[tokio::test]
async fn a_step_back_keeps_leases_and_tokens_grow_all_the_same() {
    let server = Server::start_with_own_clock();
    let (first, second) = (leases(&server.url()).await, leases(&server.url()).await);
    let held = first.acquire("x", 3 * SECOND).await.unwrap();
    server.set_clock(-HOUR);
    assert_off_by(&server, -HOUR);
    let end = held.valid_until();
    until(|| async { held.valid_until() > end }).await;
    assert!(second.try_acquire("x", MINUTE).await.unwrap().is_none());
    let token = held.token();
    assert!(held.release().await.unwrap());
    let next = second.acquire("x", MINUTE).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

#[tokio::test]
async fn a_step_forward_brings_jobs_at_once_and_loses_none() {
    let server = Server::start_with_own_clock();
    let jobs = queue(&server, "q").await;
    for id in ["a", "b"] {
        jobs.schedule(id, Duration::ZERO, b"").await.unwrap();
    }
    jobs.schedule("in an hour", MINUTE * 60, b"").await.unwrap();
    let mut first = jobs.worker().lease(MINUTE).prefetch(2).start();
    // One is worked on, and one claimed.
    let job = next(&mut first).await;
    assert_eq!(job.id(), "a");
    server.set_clock(2 * HOUR);
    assert_off_by(&server, 2 * HOUR);

    let other = queue(&server, "q").await;
    let mut second = other.worker().lease(MINUTE).start();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let job = next(&mut second).await;
        seen.push((job.id().to_owned(), job.attempt()));
        assert!(job.done().await.unwrap());
    }
    seen.sort();
    // The lease of what was worked on has run out: it is delivered again, with another attempt.
    let expected = [("a", 2), ("b", 1), ("in an hour", 1)].map(|(id, attempt)| (id.to_owned(), attempt));
    assert_eq!(seen, expected);
    assert!(!job.done().await.unwrap());
    assert_eq!(other.counts().await.unwrap().waiting, 0);
}

#[tokio::test]
async fn a_step_back_delays_jobs_and_loses_none() {
    let server = Server::start_with_own_clock();
    let jobs = queue(&server, "q").await;
    jobs.schedule("before", 6 * SECOND, b"").await.unwrap();
    jobs.schedule("running", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(6 * SECOND).start();
    let running = next(&mut worker).await;
    assert_eq!(running.id(), "running");
    server.set_clock(-HOUR);
    assert_off_by(&server, -HOUR);

    jobs.schedule("after", Duration::ZERO, b"").await.unwrap();
    let after = next(&mut worker).await;
    assert_eq!(after.id(), "after");
    assert!(after.done().await.unwrap());
    // It is renewed by the clock that is there, by which the first one is not due yet.
    tokio::select! {
        job = worker.next() => panic!("{job:?}"),
        () = running.lost() => panic!("lost"),
        () = sleep(8 * SECOND) => {}
    }
    assert!(running.done().await.unwrap());
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running), (1, 0));
    assert!(jobs.reschedule("before", Duration::ZERO).await.unwrap());
    assert_eq!(next(&mut worker).await.id(), "before");
}

#[tokio::test]
async fn a_job_that_was_claimed_ahead_is_not_early_after_a_step_back() {
    let server = Server::start_with_own_clock();
    let jobs = queue(&server, "q").await;
    for id in ["a", "b"] {
        jobs.schedule(id, 3 * SECOND, b"").await.unwrap();
    }
    let mut worker = jobs.worker().lease(MINUTE).look_ahead(MINUTE).start();
    assert!(worker.next().now_or_never().is_none());
    until(|| async { entries(&server, "claimed") == 2 }).await;
    server.set_clock(-1000);
    assert_off_by(&server, -1000);
    tokio::select! {
        job = worker.next() => {
            let job = job.unwrap().unwrap();
            panic!("early by {:?}", job.due().duration_since(server.time()));
        }
        () = sleep(6 * SECOND) => {}
    }
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running), (2, 0));
    // A small step is not noticed later than the job is due.
    server.set_clock(0);
    for _ in 0..2 {
        let job = next(&mut worker).await;
        assert_eq!(job.attempt(), 1, "a start that came too early is no attempt");
        assert!(server.time() >= job.due());
        assert!(job.done().await.unwrap());
    }
}

#[tokio::test]
async fn a_small_step_back_delays_a_claimed_job_by_no_more_than_itself() {
    let server = Server::start_with_own_clock();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", 3 * SECOND, b"").await.unwrap();
    let mut worker = jobs.worker().lease(MINUTE).look_ahead(MINUTE).start();
    assert!(worker.next().now_or_never().is_none());
    until(|| async { entries(&server, "claimed") == 1 }).await;
    let began = Instant::now();
    server.set_clock(-2);
    let job = next(&mut worker).await;
    assert!(server.time() >= job.due(), "early");
    // Not by a sweep more, which comes every five seconds.
    assert!(began.elapsed() < 8 * SECOND, "{:?}", began.elapsed());
    assert!(job.done().await.unwrap());
}

/// The answers that Redis keeps of processes that have ended are few.
#[tokio::test]
async fn senders_that_are_gone_are_forgotten_by_those_that_come() {
    let server = Server::start_with_own_clock();
    let schedule = async |id: String| {
        let jobs = queue(&server, "q").await;
        assert!(jobs.schedule(&id, MINUTE, b"").await.unwrap());
    };
    let senders = || server.command::<u64>(&["HLEN", "tickwheel:jobs:{q:0}:last:calls"]);
    for n in 0..20 {
        schedule(format!("before-{n}")).await;
    }
    assert_eq!(senders(), 20, "a repeated call is to get the answer of the first");
    server.set_clock(HOUR + 60);
    for n in 0..12 {
        schedule(format!("after-{n}")).await;
    }
    assert!(senders() < 20, "{}", senders());
}
