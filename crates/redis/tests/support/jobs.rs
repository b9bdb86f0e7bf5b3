//! Queues, and the jobs that workers yield.

use futures::StreamExt;
use redis::aio::ConnectionManager;
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Job, Notifications, Worker};

use super::{connect, server::Server, soon};

pub type Jobs = DelayedJobs<ConnectionManager>;

/// A queue of that name on a wheel of its own, whose workers are notified.
pub async fn queue(server: &Server, name: &str) -> Jobs {
    queue_on(&Wheel::new(), server, name).await
}

/// One on this wheel.
pub async fn queue_on(wheel: &Wheel, server: &Server, name: &str) -> Jobs {
    DelayedJobs::new(wheel, connect(&server.url()).await, name)
        .notifications(&Notifications::of(server.client()))
}

/// The next job, of a worker that has no reason to yield an error.
pub async fn next(worker: &mut Worker) -> Job {
    soon(worker.next())
        .await
        .expect("a stream without an end")
        .unwrap()
}

/// The next job, while Redis may be away for a moment.
pub async fn next_after_errors(worker: &mut Worker) -> Job {
    soon(async {
        loop {
            match worker.next().await.expect("a stream without an end") {
                Ok(job) => return job,
                Err(error) => eprintln!("yielded: {error}"),
            }
        }
    })
    .await
}
