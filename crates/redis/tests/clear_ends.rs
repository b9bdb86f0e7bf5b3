//! Every call has a limit and a clear end, and one fault is the fault of one.

mod support;

use futures::future::TryFutureExt;
use support::prelude::*;

#[tokio::test]
async fn the_first_call_of_a_queue_has_a_limit() {
    let server = Server::start();
    let jobs = unnotified(server.connect().await);
    server.stop();
    let began = Instant::now();
    let outcomes = join_all([
        jobs.schedule("a", MINUTE, b"").map_ok(drop).boxed(),
        jobs.cancel("a").map_ok(drop).boxed(),
        jobs.counts().map_ok(drop).boxed(),
    ]);
    for outcome in soon(outcomes).await {
        match outcome {
            Err(Error::NoAnswer { waited }) => assert!(waited > SECOND, "{waited:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(began.elapsed() < 30 * SECOND);
    let mut worker = jobs.worker().start();
    let error = next_error(&mut worker).await;
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    server.cont();
    put(&jobs, ["a"], NOW).await;
    done(next_after_errors(&mut worker).await).await;
}

/// The first attempt is lost, the second is not.
#[tokio::test]
async fn the_first_call_of_a_queue_is_tried_again() {
    let server = Server::start();
    let jobs = unnotified(server.connect().await);
    server.stop();
    let scheduling = tokio::spawn(async move { put(&jobs, ["a"], MINUTE).await });
    sleep(2500 * MS).await;
    server.cont();
    soon(scheduling).await.unwrap();
}

/// The queue is opened just in time, and then nothing is answered any more.
#[tokio::test]
async fn the_first_call_of_a_queue_has_one_limit_in_all() {
    let limit = 5 * SECOND;
    let server = Server::start();
    let connection = server.connect().await;
    let jobs = || {
        let began = Instant::now();
        let mut answered = 0;
        unnotified(Faulty::new(connection.clone(), move |_| {
            // INFO, and the script that opens the queue: by EVALSHA, and by EVAL if it is not loaded yet.
            if began.elapsed() < limit - 1500 * MS || answered == 3 {
                return Fault::LoseRequest;
            }
            answered += 1;
            Fault::None
        }))
    };
    let began = Instant::now();
    let outcomes = join_all([
        async { jobs().schedule("a", MINUTE, b"").await.map(drop) }.boxed(),
        async { jobs().cancel("a").await.map(drop) }.boxed(),
        async { jobs().counts().await.map(drop) }.boxed(),
        async { jobs().sample().await.map(drop) }.boxed(),
        async { jobs().dead(10).await.map(drop) }.boxed(),
        async { jobs().waiting(0, 10).await.map(drop) }.boxed(),
    ]);
    for outcome in soon(outcomes).await {
        assert!(outcome.is_err(), "{outcome:?}");
    }
    // What a busy machine adds, and a second in which the answer of a batch is waited for.
    assert!(began.elapsed() < limit + 2 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_panic_of_the_connection_ends_no_lease() {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let leases = leases_on(connection);
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        // Long enough for a busy machine to print the backtrace of a panic.
        held.push(leases.acquire(name, 4 * SECOND).await.unwrap());
    }
    // In a renewal.
    faults.panic_once();
    until(|| async { faults.has_panicked() }).await;
    all_renewed(&held).await;
    assert!(held.iter().all(is_valid));
    // In a request for another, and in its release.
    faults.panic_once();
    let another = acquire(&leases, "d").await;
    faults.panic_once();
    release(another).await;
    for lease in held {
        release(lease).await;
    }
}

#[tokio::test]
async fn a_panic_of_the_connection_is_an_error_of_the_stream() {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let jobs = unnotified(connection);
    faults.panic_once();
    put(&jobs, ["a"], NOW).await;
    let mut worker = jobs.worker().start();
    faults.panic_once();
    let error = next_error(&mut worker).await;
    assert!(error.to_string().contains(PANIC), "{error}");
    let job = next_after_errors(&mut worker).await;
    faults.panic_once();
    done(job).await;
}

/// Each request has a clone of its own.
#[tokio::test]
async fn a_panic_of_a_connections_clone_ends_no_worker_and_no_call() {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let jobs = unnotified(connection);
    let mut worker = worker(&jobs);
    for id in 0..3 {
        faults.panic_at_clone();
        soon(put(&jobs, [id], NOW)).await;
        faults.panic_at_clone();
        done(next_after_errors(&mut worker).await).await;
    }
}
