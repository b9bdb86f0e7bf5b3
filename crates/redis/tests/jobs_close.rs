//! `Worker::close`, while answers arrive and while the worker ends in other ways.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, StreamExt};
use redis::{
    Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
};
use support::{
    connect,
    faulty::{Fault, Faulty, says},
    jobs::entries,
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Error};
use tokio::{
    runtime,
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep},
};

mod support;

const JOBS: usize = 300;
const HOUR: Duration = Duration::from_secs(3600);

/// A connection to which it takes a while to send that a start is undone, so that what is not waited for arrives
/// after a look at the server.
#[derive(Clone)]
struct UndoesLate(ConnectionManager);

impl ConnectionLike for UndoesLate {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            if says(cmd, "undo_start") {
                sleep(Duration::from_millis(5)).await;
            }
            self.0.req_packed_command(cmd).await
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

/// The starts are answered one after the other, each of which wakes the engine that waits for the last of them.
/// Whatever the engine does at that moment, what was started has gone back when `close` returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn starts_that_are_answered_while_a_worker_is_closed_have_gone_back() {
    let server = Server::start();
    let jobs = DelayedJobs::new(&Wheel::new(), UndoesLate(connect(&server.url()).await), "q");
    for n in 0..JOBS {
        jobs.schedule(&n.to_string(), Duration::ZERO, b"").await.unwrap();
    }
    for round in 0..80 {
        let mut worker = jobs.worker().concurrency(JOBS).start();
        // The first poll lets the worker take jobs, which are started then.
        let mut yielded = worker.next().now_or_never();
        let (began, later) = (Instant::now(), Duration::from_micros(100) * (round % 75));
        while began.elapsed() < later {
            yield_now().await;
        }
        if yielded.is_none() {
            yielded = worker.next().now_or_never();
        }
        if let Some(job) = yielded {
            let job = job.expect("a stream without an end").unwrap();
            assert!(job.snooze(Duration::ZERO).await.unwrap());
        }
        soon(worker.close()).await;
        assert_eq!(entries(&server, "running"), 0, "in round {round}");
    }
}

/// They were being given back before, because nobody had fetched them.
#[tokio::test]
async fn starts_that_are_being_undone_when_a_worker_is_closed_have_gone_back() {
    let server = Server::start();
    let (begins, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let next_fault = {
        let (begins, go_on) = (begins.clone(), go_on.clone());
        move |request: &Cmd| {
            if says(request, "undo_start") {
                begins.notify_one();
                Fault::Hold(go_on.clone())
            } else {
                Fault::None
            }
        }
    };
    let connection = Faulty::by_request(connect(&server.url()).await, next_fault);
    let jobs = DelayedJobs::new(&Wheel::new(), connection, "q");
    // The server knows the script from now on.
    jobs.cancel("none").await.unwrap();
    for id in ["a", "b", "c"] {
        jobs.schedule(id, Duration::ZERO, b"").await.unwrap();
    }
    let mut worker = jobs.worker().concurrency(3).start();
    assert!(worker.next().now_or_never().is_none());
    soon(begins.notified()).await;
    assert_eq!(entries(&server, "running"), 3);
    let close = async {
        soon(worker.close()).await;
        assert_eq!(entries(&server, "running"), 0);
    };
    let go_on = async {
        sleep(Duration::from_millis(100)).await;
        go_on.notify_one();
    };
    futures::join!(close, go_on);
}

/// Redis has carried it out, so it would run until its lease ends, and be dead then.
#[tokio::test]
async fn a_start_that_is_answered_after_the_end_of_the_wheel_has_gone_back() {
    let server = Server::start();
    let go_on = Arc::new(Notify::new());
    let next_fault = {
        let go_on = go_on.clone();
        move |request: &Cmd| {
            if says(request, "start") {
                Fault::HoldAnswer(go_on.clone())
            } else {
                Fault::None
            }
        }
    };
    let connection = Faulty::by_request(connect(&server.url()).await, next_fault);
    let wheel = Wheel::new();
    let jobs = DelayedJobs::new(&wheel, connection, "q");
    // The server knows the script from now on.
    jobs.cancel("none").await.unwrap();
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(HOUR).attempts(1).start();
    tokio::select! {
        job = worker.next() => panic!("{job:?}"),
        () = until(async || entries(&server, "running") == 1) => {}
    }
    wheel.shutdown();
    assert!(soon(worker.next()).await.is_none());
    let close = async {
        soon(worker.close()).await;
        assert_eq!((entries(&server, "running"), entries(&server, "due")), (0, 1));
    };
    let go_on = async {
        sleep(Duration::from_millis(100)).await;
        go_on.notify_one();
    };
    futures::join!(close, go_on);
}

/// Its attempt has been counted, and it waits for a worker that can fetch its payload.
#[tokio::test]
async fn a_claim_whose_payload_could_not_be_fetched_has_gone_back() {
    let server = Server::start();
    let direct = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "q");
    let payload = vec![7; 512 << 10];
    direct.schedule("large", Duration::ZERO, &payload).await.unwrap();
    let (begins, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let next_fault = {
        let (begins, go_on) = (begins.clone(), go_on.clone());
        move |request: &Cmd| {
            if says(request, "unfetched") {
                begins.notify_one();
                Fault::Hold(go_on.clone())
            } else if says(request, "large") {
                // Its payload never arrives.
                Fault::HoldAnswer(Arc::default())
            } else {
                Fault::None
            }
        }
    };
    let connection = Faulty::by_request(connect(&server.url()).await, next_fault);
    let jobs = DelayedJobs::new(&Wheel::new(), connection, "q").answer_within(Duration::from_millis(300));
    // The server knows the script from now on.
    direct.cancel("none").await.unwrap();
    let mut worker = jobs.worker().lease(HOUR).start();
    soon(async {
        // On a loaded machine, a take may have no answer within the limit either.
        while !matches!(worker.next().await, Some(Err(Error::Undeliverable { .. }))) {}
        begins.notified().await;
    })
    .await;
    assert_eq!(entries(&server, "claimed"), 1);
    let close = async {
        soon(worker.close()).await;
        assert_eq!((entries(&server, "claimed"), entries(&server, "due")), (0, 1));
    };
    let go_on = async {
        sleep(Duration::from_millis(50)).await;
        go_on.notify_one();
    };
    futures::join!(close, go_on);
}

/// The runtime of another worker gives back what is claimed.
#[test]
fn claims_of_a_runtime_that_has_ended_have_gone_back() {
    let server = Server::start();
    let ends = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let lasts = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let go_on = Arc::new(Notify::new());
    let next_fault = {
        let go_on = go_on.clone();
        move |request: &Cmd| {
            if says(request, "give_back") {
                Fault::Hold(go_on.clone())
            } else {
                Fault::None
            }
        }
    };
    let (jobs, other) = lasts.block_on(async {
        let connection = Faulty::by_request(connect(&server.url()).await, next_fault);
        let jobs = DelayedJobs::new(&Wheel::new(), connection, "q");
        // The server knows the script from now on.
        jobs.cancel("none").await.unwrap();
        jobs.schedule("a", HOUR / 2, b"").await.unwrap();
        let other = jobs.worker().start();
        (jobs, other)
    });
    let worker = ends.block_on(async {
        let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
        tokio::select! {
            job = worker.next() => panic!("{job:?}"),
            () = until(async || entries(&server, "claimed") == 1) => {}
        }
        // These are answered behind the take, so its answer is in the worker's hands then.
        for _ in 0..2 {
            jobs.counts().await.unwrap();
        }
        worker
    });
    let mut close = Box::pin(worker.close());
    lasts.block_on(async { assert!((&mut close).now_or_never().is_none()) });
    drop(ends);
    lasts.block_on(async {
        let close = async {
            soon(close).await;
            assert_eq!((entries(&server, "claimed"), entries(&server, "due")), (0, 1));
        };
        let go_on = async {
            sleep(Duration::from_millis(100)).await;
            go_on.notify_one();
        };
        futures::join!(close, go_on);
    });
    drop(other);
}
