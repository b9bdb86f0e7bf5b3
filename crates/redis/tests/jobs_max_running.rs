//! `DelayedJobs::max_running`: how many jobs of a queue run at once, over all workers.

mod support;

use support::prelude::*;

/// What the handlers of all workers have seen: how many jobs run, how many did at most, and how many have ended.
static SEEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// A worker with eight places, whose jobs take 5 ms.
fn work(jobs: &Jobs) -> Running {
    let handler = async |_| {
        let [running, most, ended] = &SEEN;
        most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
        sleep(5 * MS).await;
        running.fetch_sub(1, SeqCst);
        ended.fetch_add(1, SeqCst);
        Ok::<(), JobError>(())
    };
    Running::start(jobs.worker().start().run(8, handler))
}

/// Three handles, as of three processes, with 24 places in all.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_runs_no_more_jobs_at_once_than_it_may() {
    const JOBS: usize = 300;
    let server = Server::start();
    let first = server.queue().await.max_running(5);
    put(&first, 0..JOBS, NOW).await;
    let before = server.scripts_run();
    // The other two say nothing of it.
    let others = [server.queue().await, server.queue().await];
    let workers = [&first, &others[0], &others[1]].map(work);
    until(|| async { SEEN[2].load(SeqCst) == JOBS }).await;
    assert_eq!(SEEN[1].load(SeqCst), 5);
    let commands = server.scripts_run() - before;
    println!("{:.2} commands a job", commands as f64 / JOBS as f64);
    assert!(commands < 6 * JOBS as u64, "{commands} commands");
    for worker in workers {
        ended(worker.end()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_changed_counts_from_then_on() {
    let server = Server::start();
    let jobs = server.queue().await.max_running(2);
    put(&jobs, 0..6, NOW).await;
    let mut worker = jobs.worker().lease(HOUR).concurrency(6).start();
    let [first, second] = next_jobs(&mut worker).await;
    let running = async || jobs.counts().await.unwrap().running;
    // Stores this number with the queue.
    let at_most = async |most| {
        server.queue().await.max_running(most).counts().await.unwrap();
    };
    sleep(300 * MS).await;
    assert_eq!(running().await, 2);
    // More may run, and the worker hears of it.
    at_most(3).await;
    let third = next(&mut worker).await;
    // Fewer may, though what runs goes on, and the first end makes no room.
    at_most(1).await;
    done(first).await;
    assert!(second.retry_after(HOUR).await.unwrap());
    sleep(300 * MS).await;
    assert_eq!(running().await, 1);
    assert!(third.bury().await.unwrap());
    let fourth = next(&mut worker).await;
    assert_eq!(running().await, 1);
    // Any number may.
    at_most(u64::MAX).await;
    let rest = next_jobs::<2>(&mut worker).await;
    assert_eq!(running().await, 3);
    drop((fourth, rest));
}

/// Who has room hears of it from the end of the job that runs, and not when it is scheduled.
#[tokio::test]
async fn what_is_scheduled_while_no_more_may_run_comes_when_it_is_due() {
    for look_ahead in [Duration::ZERO, 10 * SECOND] {
        let server = Server::start();
        let jobs = server.queue().await.max_running(1);
        let worker = jobs.worker().lease(HOUR).concurrency(2);
        let mut worker = worker.look_ahead(look_ahead).start();
        // It listens by then, and does not look again for five seconds.
        idle_until(&mut worker, sleep(300 * MS)).await;
        put(&jobs, ["first"], NOW).await;
        let first = next(&mut worker).await;
        idle_until(&mut worker, sleep(300 * MS)).await;
        let other = server.queue().await;
        put(&other, ["cancelled"], NOW).await;
        put(&other, ["second"], SECOND).await;
        idle_until(&mut worker, sleep(300 * MS)).await;
        assert_eq!(other.cancel("cancelled").await.unwrap(), Cancelled::Waiting);
        done(first).await;
        let second = next(&mut worker).await;
        let late = server.time().duration_since(second.due()).unwrap();
        assert!(late < 2 * SECOND, "{late:?}");
        done(second).await;
    }
}

/// No message says so.
#[tokio::test]
async fn a_job_that_was_cancelled_makes_room_when_it_has_ended() {
    let server = Server::start();
    let jobs = unnotified(server.connect().await).max_running(1);
    let mut worker = jobs.worker().lease(HOUR).concurrency(2).start();
    for is_finished in [false, true] {
        put(&jobs, ["first"], NOW).await;
        let first = next(&mut worker).await;
        put(&jobs, ["second"], NOW).await;
        idle_until(&mut worker, sleep(300 * MS)).await;
        assert_eq!(jobs.cancel("first").await.unwrap(), Cancelled::Running);
        if is_finished {
            assert!(!first.done().await.unwrap());
        } else {
            idle_until(&mut worker, soon(first.lost())).await;
            drop(first);
        }
        let second = next(&mut worker).await;
        // A second for the renewal; a sweep would bring it after up to five.
        let late = server.time().duration_since(second.due()).unwrap();
        assert!(late < 3 * SECOND, "{late:?}");
        done(second).await;
    }
}

/// A holder that dies keeps its places until its leases end, and then they are another's.
#[test]
fn the_places_of_a_holder_that_has_died_are_free_when_its_leases_have_ended() {
    let server = Server::start();
    let (lasting, dying) = (background(), background());
    let jobs = lasting.block_on(async {
        let jobs = server.queue().await.max_running(2);
        put(&jobs, 0..4, NOW).await;
        jobs
    });
    let held = dying.block_on(async {
        let mut worker = server.queue().await.worker().lease(SECOND).concurrency(4).start();
        (next_jobs::<2>(&mut worker).await, worker)
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
async fn fewer_than_there_are_partitions_are_refused() {
    let server = Server::start();
    let jobs = server.queue().await.partitions(4).max_running(3);
    let error = jobs.counts().await.unwrap_err();
    assert_is!(error, Error::InvalidSetting { setting, .. } if *setting == "max_running");
    assert_is!(error, Error::InvalidSetting { value, .. } if value == "3");
    jobs.max_running(4).counts().await.unwrap();
}
