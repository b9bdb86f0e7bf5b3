//! `Worker::close`, while answers arrive and while the worker ends in other ways.

mod support;

use support::prelude::*;

const JOBS: usize = 300;

/// A queue whose requests meet faults. Its script is known to the server.
async fn faulty(wheel: &Wheel, server: &Server) -> (DelayedJobs<Faulty<ConnectionManager>>, Faults) {
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let jobs = DelayedJobs::new(wheel, connection, "q");
    jobs.cancel("none").await.unwrap();
    (jobs, faults)
}

/// Opens the gate a while after the worker began to close. Returns how many jobs are due, claimed, running and dead
/// when it has closed.
async fn close_and_open(close: impl Future<Output = ()>, gate: &Gate, server: &Server) -> [u64; 4] {
    let close = async {
        soon(close).await;
        sizes(server)
    };
    let open = async {
        sleep(100 * MS).await;
        gate.open();
    };
    futures::join!(close, open).0
}

/// The starts are answered one after the other, each of which wakes the engine that waits for the last of them.
/// Whatever the engine does at that moment, what was started has gone back when `close` returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn starts_that_are_answered_while_a_worker_is_closed_have_gone_back() {
    let server = Server::start();
    let (jobs, faults) = faulty(&Wheel::new(), &server).await;
    // So that what is not waited for arrives after a look at the server.
    faults.set_for("give_back", Fault::SlowRequest(5 * MS));
    put(&jobs, 0..JOBS, NOW).await;
    for round in 0..80 {
        let mut worker = jobs.worker().concurrency(JOBS).start();
        // The first poll lets the worker take jobs, which are started then.
        let mut yielded = worker.next().now_or_never();
        let (began, later) = (Instant::now(), Duration::from_micros(100) * (round % 75));
        while began.elapsed() < later {
            tokio::task::yield_now().await;
        }
        if yielded.is_none() {
            yielded = worker.next().now_or_never();
        }
        if let Some(job) = yielded {
            let job = job.expect("a stream without an end").unwrap();
            assert!(job.snooze(NOW).await.unwrap());
        }
        soon(worker.close()).await;
        assert_eq!(entries(&server, "running"), 0, "in round {round}");
    }
}

/// They were being given back before, because nobody had received them.
#[tokio::test]
async fn starts_that_are_being_undone_when_a_worker_is_closed_have_gone_back() {
    let server = Server::start();
    let (jobs, faults) = faulty(&Wheel::new(), &server).await;
    let undo = faults.stop("give_back");
    put(&jobs, ["a", "b", "c"], NOW).await;
    let mut worker = jobs.worker().concurrency(3).start();
    assert!(worker.next().now_or_never().is_none());
    soon(undo.reached()).await;
    assert_eq!(entries(&server, "running"), 3);
    assert_eq!(close_and_open(worker.close(), &undo, &server).await, [3, 0, 0, 0]);
}

/// Redis has carried it out, so it would run until its lease ends, and be dead then.
#[tokio::test]
async fn a_start_that_is_answered_after_the_end_of_the_wheel_has_gone_back() {
    let server = Server::start();
    let wheel = Wheel::new();
    let (jobs, faults) = faulty(&wheel, &server).await;
    let start = faults.stop_answer("start");
    put(&jobs, ["a"], NOW).await;
    let mut worker = jobs.worker().lease(HOUR).attempts(1).start();
    idle_until(&mut worker, start.reached()).await;
    assert_eq!(entries(&server, "running"), 1);
    wheel.shutdown();
    assert!(soon(worker.next()).await.is_none());
    let left = close_and_open(worker.close(), &start, &server).await;
    assert_eq!(left, [1, 0, 0, 0]);
}

/// Its attempt has been counted, and it waits for a worker that can fetch its payload.
#[tokio::test]
async fn a_claim_whose_payload_could_not_be_fetched_has_gone_back() {
    let server = Server::start();
    let direct = server.queue().await;
    direct.schedule("large", NOW, &[7; 512 << 10]).await.unwrap();
    let (jobs, faults) = faulty(&Wheel::new(), &server).await;
    let jobs = jobs.answer_within(300 * MS);
    // Its payload never arrives.
    faults.stop_answer("large");
    let unfetched = faults.stop("unfetched");
    let mut worker = worker(&jobs);
    soon(async {
        // On a loaded machine, a take may have no answer within the limit either.
        while !matches!(worker.next().await, Some(Err(Error::Undeliverable { .. }))) {}
        unfetched.reached().await;
    })
    .await;
    assert_eq!(entries(&server, "claimed"), 1);
    let left = close_and_open(worker.close(), &unfetched, &server).await;
    assert_eq!(left, [1, 0, 0, 0]);
}

/// The runtime of another worker gives back what is claimed.
#[test]
fn claims_of_a_runtime_that_has_ended_have_gone_back() {
    let server = Server::start();
    let (ends, lasts) = (runtime(), background());
    let (jobs, faults) = lasts.block_on(faulty(&Wheel::new(), &server));
    let give_back = faults.stop("give_back");
    let other = lasts.block_on(async {
        put(&jobs, ["a"], HOUR / 2).await;
        jobs.worker().start()
    });
    let worker = ends.block_on(async {
        let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
        idle_until(&mut worker, claimed(&server, 1)).await;
        // These are answered behind the take, so its answer is in the worker's hands then.
        for _ in 0..2 {
            jobs.counts().await.unwrap();
        }
        worker
    });
    let mut close = Box::pin(worker.close());
    lasts.block_on(async { assert!((&mut close).now_or_never().is_none()) });
    drop(ends);
    let left = lasts.block_on(close_and_open(close, &give_back, &server));
    assert_eq!(left, [1, 0, 0, 0]);
    drop(other);
}
