//! `Worker::close`, while the answers to starts arrive.

use std::time::Duration;

use futures::{FutureExt, StreamExt};
use redis::{
    Cmd, Pipeline, RedisFuture, Value,
    aio::{ConnectionLike, ConnectionManager},
};
use support::{connect, server::Server, soon};
use tickwheel::Wheel;
use tickwheel_redis::DelayedJobs;
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

mod support;

const JOBS: usize = 300;

/// A connection to which it takes a while to send that a start is undone, so that what is not waited for arrives
/// after a look at the server.
#[derive(Clone)]
struct UndoesLate(ConnectionManager);

impl ConnectionLike for UndoesLate {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let packed = cmd.get_packed_command();
            if packed.windows(7).any(|part| part == b"unstart") {
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
        let running: u64 = server.command(&["ZCARD", "tickwheel:jobs:{q:0}:running"]);
        assert_eq!(running, 0, "in round {round}");
    }
}
