//! `DelayedJobs::max_running`: how many jobs of a queue run at once, over all workers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use support::{
    jobs::{Jobs, next, queue},
    server::Server,
    until,
};
use tickwheel_redis::{Error, Job, JobError};
use tokio::{runtime::Runtime, task::JoinHandle, time::sleep};

mod support;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

async fn schedule(jobs: &Jobs, count: usize) {
    for n in 0..count {
        assert!(
            jobs.schedule(&format!("job-{n}"), Duration::ZERO, b"")
                .await
                .unwrap()
        );
    }
}

/// What the handlers of all workers have seen.
#[derive(Default)]
struct Seen {
    running: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

/// A worker with eight places, whose jobs take this long.
fn work(jobs: &Jobs, seen: &Arc<Seen>, each: Duration) -> JoinHandle<Result<(), Error>> {
    let seen = seen.clone();
    let handler = move |_: Arc<Job>| {
        let seen = seen.clone();
        async move {
            seen.most.fetch_max(seen.running.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(each).await;
            seen.running.fetch_sub(1, SeqCst);
            seen.done.fetch_add(1, SeqCst);
            Ok::<(), JobError>(())
        }
    };
    tokio::spawn(jobs.worker().start().run(8, handler))
}

/// Three handles, as of three processes, with 24 places in all.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_runs_no_more_jobs_at_once_than_it_may() {
    const JOBS: usize = 300;
    let server = Server::start();
    let first = queue(&server, "q").await.max_running(5);
    schedule(&first, JOBS).await;
    let before = server.scripts_run();
    let seen = Arc::<Seen>::default();
    let mut workers = vec![work(&first, &seen, 5 * MS)];
    for _ in 0..2 {
        // Which say nothing of it.
        workers.push(work(&queue(&server, "q").await, &seen, 5 * MS));
    }
    until(|| async { seen.done.load(SeqCst) == JOBS }).await;
    assert_eq!(seen.most.load(SeqCst), 5);
    let commands = server.scripts_run() - before;
    println!("{:.2} commands a job", commands as f64 / JOBS as f64);
    assert!(commands < 6 * JOBS as u64, "{commands} commands");
    workers.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_changed_holds_from_then_on() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.max_running(2);
    schedule(&jobs, 6).await;
    let mut worker = jobs.worker().lease(HOUR).concurrency(6).start();
    let (first, second) = (next(&mut worker).await, next(&mut worker).await);
    let running = async || jobs.counts().await.unwrap().running;
    let at_most = |most| queue(&server, "q").store_limit(most);
    sleep(300 * MS).await;
    assert_eq!(running().await, 2);
    // More may run, and the worker hears of it.
    at_most(3).await;
    let third = next(&mut worker).await;
    // Fewer may, though what runs goes on, and the first end makes no room.
    at_most(1).await;
    assert!(first.done().await.unwrap());
    assert!(second.retry_after(HOUR).await.unwrap());
    sleep(300 * MS).await;
    assert_eq!(running().await, 1);
    assert!(third.bury().await.unwrap());
    let fourth = next(&mut worker).await;
    assert_eq!(running().await, 1);
    // Any number may.
    at_most(u64::MAX).await;
    let rest = [next(&mut worker).await, next(&mut worker).await];
    assert_eq!(running().await, 3);
    drop((fourth, rest));
}

trait StoreLimit {
    /// Stores this limit with the queue.
    async fn store_limit(self, most: u64);
}

impl<F: Future<Output = Jobs>> StoreLimit for F {
    async fn store_limit(self, most: u64) {
        self.await.max_running(most).counts().await.unwrap();
    }
}

/// A holder that dies keeps its places until its leases end, and then they are another's.
#[test]
fn the_places_of_a_holder_that_has_died_are_free_when_its_leases_have_ended() {
    let server = Server::start();
    let lasting = Runtime::new().unwrap();
    let jobs = lasting.block_on(async {
        let jobs = queue(&server, "q").await.max_running(2);
        schedule(&jobs, 4).await;
        jobs
    });
    let dying = Runtime::new().unwrap();
    let held = dying.block_on(async {
        let jobs = queue(&server, "q").await;
        let mut worker = jobs.worker().lease(1000 * MS).concurrency(4).start();
        (next(&mut worker).await, next(&mut worker).await, worker)
    });
    // With it, everything ends that renews.
    dying.shutdown_background();
    lasting.block_on(async {
        let mut worker = jobs.worker().lease(HOUR).concurrency(4).start();
        let first = next(&mut worker).await;
        assert!(jobs.counts().await.unwrap().running <= 2);
        let second = next(&mut worker).await;
        assert_eq!(jobs.counts().await.unwrap().running, 2);
        drop((first, second));
    });
    drop(held);
}

#[tokio::test]
async fn a_limit_below_the_number_of_partitions_is_refused() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(4).max_running(3);
    let refused = jobs.counts().await.unwrap_err();
    assert!(
        matches!(&refused, Error::InvalidSetting { setting: "max_running", value, .. } if value == "3"),
        "{refused}"
    );
    jobs.max_running(4).counts().await.unwrap();
}
