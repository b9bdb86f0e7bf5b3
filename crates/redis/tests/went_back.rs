//! A Redis that has gone back to an earlier state, through a failover to a lagging replica or a restart from
//! an old file. Whatever was acknowledged after that state is lost, as docs/guarantees.md says; the rest has
//! to be consistent.

mod support;

use std::time::Duration;

use support::{
    jobs::{next_after_errors, queue},
    leases::{is_held, leases},
    server::Server,
    soon, until,
};
use tickwheel_redis::Cancelled;
use tokio::time::Instant;

const SHORT: Duration = Duration::from_secs(5);
const MINUTE: Duration = Duration::from_secs(60);

/// From now on the server goes back to what it is now.
fn remember(server: &Server) {
    let _: String = server.command(&["SAVE"]);
}

fn go_back(server: &mut Server) {
    server.restart();
}

#[tokio::test]
async fn a_lease_that_was_forgotten_is_lost_and_the_next_token_is_greater() {
    let mut server = Server::start();
    let (first, second) = (leases(&server.url()).await, leases(&server.url()).await);
    drop(soon(first.acquire("x", MINUTE)).await.unwrap());
    until(|| async { !is_held(&server, "x") }).await;
    remember(&server);
    let held = soon(first.acquire("x", 10 * SHORT)).await.unwrap();
    go_back(&mut server);

    let next = soon(second.acquire("x", MINUTE)).await.unwrap();
    assert!(next.token() > held.token());
    let end = held.valid_until();
    soon(held.lost()).await;
    assert!(Instant::now() < end, "it was not told by its renewal");
    assert!(!soon(held.release()).await.unwrap());
    assert!(soon(next.release()).await.unwrap());
}

#[tokio::test]
async fn a_release_that_was_forgotten_runs_out() {
    let mut server = Server::start();
    let leases = leases(&server.url()).await;
    let held = soon(leases.acquire("x", SHORT)).await.unwrap();
    remember(&server);
    let token = held.token();
    assert!(held.release().await.unwrap());
    go_back(&mut server);
    let next = soon(leases.acquire("x", SHORT)).await.unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn jobs_are_what_they_were_and_each_is_delivered() {
    let mut server = Server::start();
    let jobs = queue(&server, "q").await;
    for id in ["done", "running", "cancelled"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    let mut worker = jobs.worker().lease(SHORT).prefetch(3).start();
    let done = next_after_errors(&mut worker).await;
    // One runs, two are claimed.
    remember(&server);
    assert!(done.done().await.unwrap());
    let running = next_after_errors(&mut worker).await;
    assert_eq!(jobs.cancel("cancelled").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.schedule("forgotten", Duration::ZERO, b"").await.unwrap());
    go_back(&mut server);

    // Its start was forgotten.
    assert!(!soon(running.done()).await.unwrap());
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let job = next_after_errors(&mut worker).await;
        seen.push((job.id().to_owned(), job.attempt()));
        assert!(soon(job.done()).await.unwrap());
    }
    seen.sort();
    let expected = [("cancelled", 1), ("done", 2), ("running", 1)];
    assert_eq!(seen, expected.map(|(id, attempt)| (id.to_owned(), attempt)));
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (0, 0, 0));
    // An id that was forgotten is free.
    assert!(jobs.schedule("forgotten", Duration::ZERO, b"").await.unwrap());
    assert_eq!(next_after_errors(&mut worker).await.id(), "forgotten");
}
