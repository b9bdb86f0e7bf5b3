//! A Redis that has gone back to an earlier state, through a failover to a lagging replica or a restart from
//! an old file. Whatever was acknowledged after that state is lost, as docs/guarantees.md says; the rest has
//! to be consistent.

mod support;

use support::prelude::*;

const SHORT: Duration = Duration::from_secs(5);

/// From now on, a restart takes the server back to what it is now.
fn remember(server: &Server) {
    let _: String = server.command(&["SAVE"]);
}

#[tokio::test]
async fn a_lease_that_was_forgotten_is_lost_and_the_next_token_is_greater() {
    let mut server = Server::start();
    let (first, second) = (server.leases().await, server.leases().await);
    use_once(&first, "x").await;
    remember(&server);
    let held = soon(first.acquire("x", 10 * SHORT)).await.unwrap();
    server.restart();

    let next = acquire(&second, "x").await;
    assert!(next.token() > held.token());
    let end = held.valid_until();
    soon(held.lost()).await;
    assert!(Instant::now() < end, "it was not told by its renewal");
    assert!(!soon(held.release()).await.unwrap());
    release(next).await;
}

#[tokio::test]
async fn a_release_that_was_forgotten_runs_out() {
    let mut server = Server::start();
    let leases = server.leases().await;
    let held = soon(leases.acquire("x", SHORT)).await.unwrap();
    remember(&server);
    let token = held.token();
    release(held).await;
    server.restart();
    let next = soon(leases.acquire("x", SHORT)).await.unwrap();
    assert!(next.token() > token);
}

#[tokio::test]
async fn jobs_are_what_they_were_and_each_is_delivered() {
    let mut server = Server::start();
    let jobs = server.queue().await;
    put(&jobs, ["done", "running", "cancelled"], NOW).await;
    let mut worker = jobs.worker().lease(SHORT).prefetch(3).start();
    let first = next_after_errors(&mut worker).await;
    // One runs, two are claimed.
    remember(&server);
    done(first).await;
    let running = next_after_errors(&mut worker).await;
    assert_eq!(jobs.cancel("cancelled").await.unwrap(), Cancelled::Waiting);
    put(&jobs, ["forgotten"], NOW).await;
    server.restart();

    // Its start was forgotten.
    assert!(!soon(running.done()).await.unwrap());
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let job = next_after_errors(&mut worker).await;
        seen.push(delivery(&job));
        done(job).await;
    }
    seen.sort();
    assert_eq!(seen, deliveries([("cancelled", 1), ("done", 2), ("running", 1)]));
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    // An id that was forgotten is free.
    put(&jobs, ["forgotten"], NOW).await;
    assert_eq!(next_after_errors(&mut worker).await.id(), "forgotten");
}
