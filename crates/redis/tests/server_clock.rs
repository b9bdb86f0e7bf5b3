//! Leases and delayed jobs on a Redis whose clock is changed.

mod support;

use support::prelude::*;

const HOURS: i64 = 3600;

/// Sets the server's clock so many seconds off the machine's. It is off by no more than a loaded machine makes it.
fn set_clock(server: &Server, seconds: i64) {
    server.set_clock(seconds);
    let its = server.time().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let off = its - UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    println!("off by {off} s, to be {seconds}");
    assert!((off - seconds as f64).abs() < 60.0);
}

/// Redis lets go of what it was to keep for so long: nobody can help that. The holder hears at its next
/// renewal.
#[tokio::test]
async fn a_step_forward_ends_leases_and_their_holders_hear() {
    let server = Server::start_with_own_clock();
    let (first, second) = (server.leases().await, server.leases().await);
    let held = first.acquire("x", 20 * SECOND).await.unwrap();
    set_clock(&server, HOURS);
    let next = try_acquire(&second, "x").await.expect("nobody holds it");
    assert!(next.token() > held.token());
    let end = held.valid_until();
    soon(held.lost()).await;
    assert!(Instant::now() < end, "it was not told by its renewal");
    assert!(!held.release().await.unwrap());
    assert!(is_valid(&next));
    release(next).await;
}

#[tokio::test]
async fn a_step_back_keeps_leases_and_tokens_grow_all_the_same() {
    let server = Server::start_with_own_clock();
    let (first, second) = (server.leases().await, server.leases().await);
    let held = first.acquire("x", 3 * SECOND).await.unwrap();
    set_clock(&server, -HOURS);
    renewed(&held).await;
    assert!(try_acquire(&second, "x").await.is_none());
    let token = held.token();
    release(held).await;
    let next = acquire(&second, "x").await;
    assert!(next.token() > token, "{} after {token}", next.token());
}

#[tokio::test]
async fn a_step_forward_brings_jobs_at_once_and_loses_none() {
    let server = Server::start_with_own_clock();
    let jobs = server.queue().await;
    put(&jobs, ["a", "b"], NOW).await;
    put(&jobs, ["in an hour"], HOUR).await;
    let mut first = jobs.worker().lease(MINUTE).prefetch(2).start();
    // One is worked on, and one claimed.
    let job = next(&mut first).await;
    assert_eq!(job.id(), "a");
    set_clock(&server, 2 * HOURS);

    let other = server.queue().await;
    let seen = do_next_jobs(&mut other.worker().lease(MINUTE).start(), 3).await;
    // The lease of what was worked on has run out: it is delivered again, with another attempt.
    assert_eq!(seen, deliveries([("a", 2), ("b", 1), ("in an hour", 1)]));
    assert!(!job.done().await.unwrap());
    assert_eq!(counts(&other).await, [0, 0, 0]);
}

#[tokio::test]
async fn a_step_back_delays_jobs_and_loses_none() {
    let server = Server::start_with_own_clock();
    let jobs = server.queue().await;
    put(&jobs, ["before"], 6 * SECOND).await;
    put(&jobs, ["running"], NOW).await;
    let mut worker = jobs.worker().lease(6 * SECOND).start();
    let running = next(&mut worker).await;
    assert_eq!(running.id(), "running");
    set_clock(&server, -HOURS);

    put(&jobs, ["after"], NOW).await;
    assert_eq!(do_next(&mut worker).await.0, "after");
    // It is renewed by the clock that is there, by which the first one is not due yet.
    idle_until(&mut worker, held_for(&running, 8 * SECOND)).await;
    done(running).await;
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
    assert!(jobs.reschedule("before", NOW).await.unwrap());
    assert_eq!(next(&mut worker).await.id(), "before");
}

/// A worker that has claimed these jobs, which are due in three seconds.
async fn claim(server: &Server, jobs: &Jobs, ids: &[&str]) -> Worker {
    put(jobs, ids, 3 * SECOND).await;
    let mut worker = jobs.worker().lease(MINUTE).look_ahead(MINUTE).start();
    assert!(worker.next().now_or_never().is_none());
    claimed(server, ids.len() as u64).await;
    worker
}

#[tokio::test]
async fn a_job_that_was_claimed_ahead_is_not_early_after_a_step_back() {
    let server = Server::start_with_own_clock();
    let jobs = server.queue().await;
    let mut worker = claim(&server, &jobs, &["a", "b"]).await;
    set_clock(&server, -1000);
    idle_until(&mut worker, sleep(6 * SECOND)).await;
    assert_eq!(counts(&jobs).await, [2, 0, 0]);
    // A small step is not noticed later than the job is due.
    set_clock(&server, 0);
    for _ in 0..2 {
        let job = next(&mut worker).await;
        assert_eq!(job.attempt(), 1, "a start that came too early is no attempt");
        assert!(server.time() >= job.due());
        done(job).await;
    }
}

#[tokio::test]
async fn a_small_step_back_delays_a_claimed_job_by_no_more_than_itself() {
    let server = Server::start_with_own_clock();
    let jobs = server.queue().await;
    let mut worker = claim(&server, &jobs, &["a"]).await;
    let began = Instant::now();
    server.set_clock(-2);
    let job = next(&mut worker).await;
    assert!(server.time() >= job.due(), "early");
    // Not by a sweep more, which comes every five seconds.
    assert!(began.elapsed() < 8 * SECOND, "{:?}", began.elapsed());
    done(job).await;
}

/// No message says so.
#[tokio::test]
async fn a_job_whose_start_came_too_early_starts_when_it_is_due() {
    let server = Server::start_with_own_clock();
    let jobs = unnotified(server.connect().await);
    let mut worker = jobs.worker().lease(MINUTE).look_ahead(MINUTE).start();
    for step in 1..=3 {
        put(&jobs, [step], SECOND).await;
        idle_until(&mut worker, claimed(&server, 1)).await;
        server.set_clock(-step);
        let job = next(&mut worker).await;
        let late = server.time().duration_since(job.due()).expect("it is early");
        // A sweep would bring it after up to five seconds.
        assert!(late < 2 * SECOND, "{late:?}");
        done(job).await;
    }
}

/// The answers that Redis keeps of processes that have ended are few.
#[tokio::test]
async fn senders_that_are_gone_are_forgotten_by_those_that_come() {
    let server = Server::start_with_own_clock();
    let send = async |ids: std::ops::Range<u32>| {
        for id in ids {
            put(&server.queue().await, [id], MINUTE).await;
        }
        server.command::<u64>(&["HLEN", &key("last:calls")])
    };
    // A repeated call is to get the answer of the first.
    assert_eq!(send(0..20).await, 20);
    set_clock(&server, HOURS + 60);
    let senders = send(20..32).await;
    assert!(senders < 20, "{senders}");
}
