//! Every call has a limit and a clear end, and one fault is the fault of one.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt,
    future::{FutureExt, TryFutureExt},
};
use redis::aio::ConnectionManager;
use support::{
    connect,
    faulty::{Fault, Faulty, PANIC},
    jobs::next_after_errors,
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Error, Leases};
use tokio::time::Instant;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn the_first_call_of_a_queue_has_a_limit() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "queue");
    let limit = Duration::from_secs(30);
    server.stop();
    let began = Instant::now();
    let outcomes = soon(futures::future::join_all([
        jobs.schedule("a", MINUTE, b"").boxed(),
        jobs.cancel("a")
            .map_ok(|found| found == Cancelled::Waiting)
            .boxed(),
        jobs.counts().map(|counts| counts.map(|_| true)).boxed(),
    ]))
    .await;
    for outcome in outcomes {
        match outcome {
            Err(Error::NoAnswer { waited }) => assert!(waited > Duration::from_secs(1), "{waited:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() < limit);
    let mut worker = jobs.worker().start();
    let outcome = soon(worker.next()).await;
    assert!(
        matches!(outcome, Some(Err(Error::NoAnswer { .. }))),
        "{outcome:?}"
    );
    server.cont();
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
    assert!(next_after_errors(&mut worker).await.done().await.unwrap());
}

/// The first attempt is lost, the second is not.
#[tokio::test]
async fn the_first_call_of_a_queue_is_tried_again() {
    let server = Server::start();
    let jobs = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "queue");
    server.stop();
    let scheduling = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.schedule("a", MINUTE, b"").await }
    });
    tokio::time::sleep(Duration::from_millis(2500)).await;
    server.cont();
    assert!(soon(scheduling).await.unwrap().unwrap());
}

/// The queue is opened just in time, and then nothing is answered any more.
#[tokio::test]
async fn the_first_call_of_a_queue_has_one_limit_in_all() {
    let limit = Duration::from_secs(5);
    let server = Server::start();
    let connection = connect(&server.url()).await;
    let jobs = || {
        let began = Instant::now();
        let mut answered = 0;
        let connection = Faulty::new(connection.clone(), move || {
            // INFO, and the script that opens the queue: by EVALSHA, and by EVAL if it is not loaded yet.
            if began.elapsed() < limit - Duration::from_millis(1500) || answered == 3 {
                return Fault::LoseRequest;
            }
            answered += 1;
            Fault::None
        });
        DelayedJobs::new(&Wheel::new(), connection, "queue")
    };
    let began = Instant::now();
    let outcomes = soon(futures::future::join_all([
        async { jobs().schedule("a", MINUTE, b"").await }.boxed(),
        async { jobs().cancel("a").await.map(|_| true) }.boxed(),
        async { jobs().counts().await.map(|_| true) }.boxed(),
        async { jobs().sample().await.map(|_| true) }.boxed(),
        async { jobs().dead(10).await.map(|_| true) }.boxed(),
        async { jobs().waiting(0, 10).await.map(|_| true) }.boxed(),
    ]))
    .await;
    for outcome in outcomes {
        assert!(outcome.is_err(), "{outcome:?}");
    }
    // What a busy machine adds, and a second in which the answer of a batch is waited for.
    assert!(
        began.elapsed() < limit + Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
}

/// A connection that panics in the request after it is told to.
async fn panicky(server: &Server) -> (Faulty<ConnectionManager>, Arc<AtomicBool>) {
    let panics = Arc::new(AtomicBool::new(false));
    let connection = Faulty::new(connect(&server.url()).await, {
        let panics = panics.clone();
        move || {
            if panics.swap(false, Ordering::Relaxed) {
                Fault::Panic
            } else {
                Fault::None
            }
        }
    });
    (connection, panics)
}

#[tokio::test]
async fn a_panic_of_the_connection_ends_no_lease() {
    let server = Server::start();
    let (connection, panics) = panicky(&server).await;
    let leases = Leases::new(&Wheel::new(), connection);
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        // Long enough for a busy machine to print the backtrace of a panic.
        held.push(leases.acquire(name, Duration::from_secs(4)).await.unwrap());
    }
    // In a renewal.
    panics.store(true, Ordering::Relaxed);
    until(|| async { !panics.load(Ordering::Relaxed) }).await;
    let ends: Vec<_> = held.iter().map(|lease| lease.valid_until()).collect();
    until(|| async {
        assert!(held.iter().all(|lease| lease.lost().now_or_never().is_none()));
        held.iter()
            .zip(&ends)
            .all(|(lease, end)| lease.valid_until() > *end)
    })
    .await;
    // In a request for another, and in its release.
    panics.store(true, Ordering::Relaxed);
    let another = soon(leases.acquire("d", MINUTE)).await.unwrap();
    panics.store(true, Ordering::Relaxed);
    assert!(soon(another.release()).await.unwrap());
    for lease in held {
        assert!(lease.release().await.unwrap());
    }
}

#[tokio::test]
async fn a_panic_of_the_connection_is_an_error_of_the_stream() {
    let server = Server::start();
    let (connection, panics) = panicky(&server).await;
    let jobs = DelayedJobs::new(&Wheel::new(), connection, "queue");
    panics.store(true, Ordering::Relaxed);
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().start();
    panics.store(true, Ordering::Relaxed);
    let outcome = soon(worker.next()).await.unwrap();
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains(PANIC), "{error}");
    let job = next_after_errors(&mut worker).await;
    panics.store(true, Ordering::Relaxed);
    assert!(job.done().await.unwrap());
}

/// Nothing is done by half.
#[tokio::test]
async fn a_payload_key_of_another_type_is_a_clear_error() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "queue");
    for id in ["a", "b", "c"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"x").await.unwrap());
    }
    let mut worker = jobs.worker().start();
    let job = next_after_errors(&mut worker).await;
    drop(worker);
    until(|| async { jobs.counts().await.unwrap().waiting == 2 }).await;
    assert!(jobs.schedule("d", MINUTE, b"x").await.unwrap());
    let key = "tickwheel:jobs:{queue:0}:payload";
    let _: () = server.command(&["RENAME", key, "kept"]);
    let _: () = server.command(&["SET", key, "not ours"]);
    let errors = [
        jobs.schedule("e", MINUTE, b"x").await.unwrap_err(),
        jobs.cancel("d").await.unwrap_err(),
        jobs.reschedule("d", MINUTE).await.unwrap_err(),
        job.done().await.unwrap_err(),
        soon(jobs.worker().start().next()).await.unwrap().unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::WrongType { .. }), "{error}");
        assert!(error.to_string().contains(key), "{error}");
    }
    let _: () = server.command(&["RENAME", "kept", key]);
    // All is as it was.
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running), (3, 1));
    assert_eq!(jobs.cancel("d").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.schedule("e", MINUTE, b"x").await.unwrap());
}
