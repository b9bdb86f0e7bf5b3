//! What an operator does to a queue: cancel what runs, pause, look at a job, and clear up what is dead.

mod support;

use std::future::pending;

use support::prelude::*;

#[tokio::test]
async fn cancel_says_where_a_job_was() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["dead", "running", "claimed"], NOW).await;
    put(&jobs, ["waiting"], HOUR).await;
    let mut worker = jobs.worker().lease(HOUR).prefetch(3).start();
    assert!(next(&mut worker).await.bury().await.unwrap());
    let running = next(&mut worker).await;
    for (id, expected) in [
        ("waiting", Cancelled::Waiting),
        ("waiting", Cancelled::Absent),
        ("claimed", Cancelled::Waiting),
        ("running", Cancelled::Running),
        ("running", Cancelled::Absent),
        ("dead", Cancelled::Absent),
        ("unknown", Cancelled::Absent),
    ] {
        assert_eq!(jobs.cancel(id).await.unwrap(), expected, "{id}");
    }
    assert_eq!(running.id(), "running");
    counts_become(&jobs, [0, 1, 1]).await;
    soon(running.lost()).await;
    drop(running);
    counts_become(&jobs, [0, 0, 1]).await;
    // Its id is free.
    put(&jobs, ["running"], HOUR).await;
}

/// With and without a subscription, whose worker is of another process as far as Redis knows.
#[tokio::test]
async fn the_worker_of_a_job_that_is_cancelled_learns_it_within_a_second() {
    let server = Server::start();
    let listening = server.queue().await;
    let deaf = unnotified(server.connect().await);
    for jobs in [&listening, &deaf] {
        put(jobs, ["a"], NOW).await;
        let mut worker = worker(jobs);
        let job = next(&mut worker).await;
        // It listens.
        sleep(SECOND).await;
        assert!(job.lost().now_or_never().is_none());
        let began = Instant::now();
        assert_eq!(deaf.cancel("a").await.unwrap(), Cancelled::Running);
        soon(job.lost()).await;
        println!("learnt after {:?}", began.elapsed());
        // Its handler runs.
        assert!(!listening.schedule("a", HOUR, b"").await.unwrap());
        let known = listening.get("a").await.unwrap().unwrap();
        assert_eq!(known.state, JobState::Running);
        assert!(!job.done().await.unwrap());
        counts_become(&listening, [0, 0, 0]).await;
    }
}

/// The renewal in flight was carried out before the job was cancelled, so that its answer does not say so.
#[tokio::test]
async fn a_job_that_is_cancelled_behind_a_renewal_in_flight_is_lost() {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let jobs = unnotified(connection).notifications(&Notifications::of(server.client()));
    let operator = server.queue().await;
    put(&jobs, ["first", "second"], NOW).await;
    let mut worker = worker(&jobs);
    let [first, second] = next_jobs(&mut worker).await;
    // It listens.
    sleep(SECOND).await;
    let lease_ends = || -> String { server.command(&["ZSCORE", &key("running"), "second"]) };
    let before = lease_ends();
    faults.set(Fault::Slow(5 * SECOND));
    assert_eq!(operator.cancel("first").await.unwrap(), Cancelled::Running);
    until(|| async { lease_ends() != before }).await;
    assert_eq!(operator.cancel("second").await.unwrap(), Cancelled::Running);
    faults.clear();
    soon(first.lost()).await;
    soon(second.lost()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_handler_of_a_job_that_is_cancelled_is_dropped() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    static BEGUN_AND_DROPPED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    struct Handler;
    impl Drop for Handler {
        fn drop(&mut self) {
            BEGUN_AND_DROPPED[1].fetch_add(1, SeqCst);
        }
    }
    let handler = async |_| {
        BEGUN_AND_DROPPED[0].fetch_add(1, SeqCst);
        let _handler = Handler;
        pending::<Result<(), JobError>>().await
    };
    let run = tokio::spawn(worker(&jobs).run(1, handler).into_future());
    let have_become = async |expected: [usize; 2]| {
        let counts = || BEGUN_AND_DROPPED.each_ref().map(|count| count.load(SeqCst));
        until(|| async { counts() == expected }).await;
    };
    have_become([1, 0]).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    have_become([1, 1]).await;
    counts_become(&jobs, [0, 0, 0]).await;
    put(&jobs, ["a"], NOW).await;
    have_become([2, 1]).await;
    run.abort();
}

#[tokio::test]
async fn a_job_that_is_dropped_before_its_worker_learns_that_it_was_cancelled_frees_its_id() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    // It has not been polled since.
    drop(job);
    until(|| async { jobs.get("a").await.unwrap().is_none() }).await;
    put(&jobs, ["a"], HOUR).await;
}

/// Its worker learns of it after the start was answered and before the consumer has received it.
#[tokio::test]
async fn a_job_that_is_cancelled_between_its_start_and_its_delivery_is_gone() {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let jobs = unnotified(connection).notifications(&Notifications::of(server.client()));
    let operator = server.queue().await;
    // The server knows the script from now on.
    assert_eq!(jobs.cancel("none").await.unwrap(), Cancelled::Absent);
    let mut worker = worker(&jobs);
    assert!(worker.next().now_or_never().is_none());
    until(|| async { server.listeners(&key("sooner:renew")) == 1 }).await;
    let (start, renewal) = (faults.stop_answer("start"), faults.notice("renew"));
    put(&operator, ["a"], NOW).await;
    soon(start.reached()).await;
    assert_eq!(operator.cancel("a").await.unwrap(), Cancelled::Running);
    // Its renewal is sent behind the answer to its start.
    sleep(300 * MS).await;
    start.open();
    soon(renewal.reached()).await;
    // What is asked for after the renewal is answered after it.
    assert_eq!(jobs.cancel("none").await.unwrap(), Cancelled::Absent);
    assert!(worker.next().now_or_never().is_none());
    until(|| async { entries(&server, "running") == 0 }).await;
    // Its id is free.
    put(&operator, ["a"], HOUR).await;
}

/// Nobody confirms it: it is gone with its lease, and not delivered again.
#[tokio::test]
async fn a_job_that_is_cancelled_and_whose_worker_has_died_is_gone() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let dying = background();
    let url = server.url();
    let held = dying.spawn(async move {
        let mut worker = unnotified(connect(&url).await).worker().lease(SECOND).start();
        (next(&mut worker).await, worker)
    });
    let held = held.await.unwrap();
    dying.shutdown_background();
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    idle_until(&mut worker(&jobs), counts_become(&jobs, [0, 0, 0])).await;
    drop(held);
}

#[tokio::test]
async fn a_queue_that_is_paused_starts_nothing_until_it_is_resumed() {
    let (server, jobs) = Server::with_partitions(2).await;
    let other = server.queue().await.partitions(2);
    put(&jobs, ["runs"], NOW).await;
    put(&jobs, 0..10, 2 * SECOND).await;
    let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
    let running = next(&mut worker).await;
    idle_until(&mut worker, sleep(200 * MS)).await;
    let claimed = || [0, 1].map(|n| server.command::<u64>(&["ZCARD", &key_of(n, "claimed")]));
    until(|| async { claimed() != [0, 0] }).await;
    assert!(other.pause().await.unwrap());
    assert!(!other.pause().await.unwrap());
    assert!(jobs.counts().await.unwrap().paused);
    assert!(jobs.sample().await.unwrap().counts.paused);
    // What was claimed goes back, and nothing starts when it is due.
    until(|| async { claimed() == [0, 0] }).await;
    idle_until(&mut worker, sleep(3 * SECOND)).await;
    // All else works.
    done(running).await;
    put(&jobs, ["more"], NOW).await;
    assert_eq!(jobs.cancel("more").await.unwrap(), Cancelled::Waiting);
    counts_become(&jobs, [10, 0, 0]).await;
    assert!(other.resume().await.unwrap());
    assert!(!other.resume().await.unwrap());
    do_next_jobs(&mut worker, 10).await;
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.paused), (0, false));
}

#[tokio::test]
async fn what_is_known_of_a_job() {
    let (server, jobs) = Server::with_queue().await;
    let get = async || jobs.get("a").await.unwrap().unwrap();
    assert!(jobs.get("a").await.unwrap().is_none());
    let before = server.time();
    assert!(jobs.schedule("a", HOUR, b"payload").await.unwrap());
    let info = get().await;
    assert_eq!((info.state, info.attempt), (JobState::Waiting, 1));
    assert!(info.error.is_none() && info.due >= before + HOUR);
    assert!(jobs.reschedule("a", NOW).await.unwrap());
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let info = get().await;
    assert_eq!((info.state, info.attempt), (JobState::Running, 1));
    assert_eq!(info.due, job.due());
    assert!(job.retry_after(NOW).await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!(get().await.attempt, 2);
    let due = job.due();
    assert!(job.bury().await.unwrap());
    let info = get().await;
    assert_eq!((info.state, info.attempt, info.due), (JobState::Dead, 2, due));
    assert!(jobs.revive("a").await.unwrap());
    assert_eq!(next(&mut worker).await.attempt(), 1);
    assert!(jobs.get("").await.is_err());
}

#[tokio::test]
async fn dead_jobs_are_kept_as_the_queue_was_told() {
    let server = Server::start();
    let queue = async || server.queue().await.partitions(2);
    let jobs = queue().await;
    let mut worker = worker(&jobs);
    let bury = async |id: usize, worker: &mut Worker| {
        put(&jobs, [id], NOW).await;
        assert!(next(worker).await.bury().await.unwrap());
    };
    for n in 0..40 {
        bury(n, &mut worker).await;
    }
    counts_become(&jobs, [0, 0, 40]).await;
    // A handle that says something trims at once, and others keep to it.
    let told = queue().await.keep_dead(9, HOUR);
    assert!(told.counts().await.unwrap().dead <= 10);
    let dead = jobs.dead(100).await.unwrap();
    assert!(dead.iter().any(|job| job.id() == "39"), "the oldest go: {dead:?}");
    for n in 40..60 {
        bury(n, &mut worker).await;
        assert!(jobs.counts().await.unwrap().dead <= 10);
    }
    // A handle that says nothing changes nothing.
    queue().await.counts().await.unwrap();
    // What is trimmed leaves nothing behind, and its id is free.
    let left = [0, 1].map(|n| server.command::<u64>(&["HLEN", &key_of(n, "payload")]));
    assert_eq!(left[0] + left[1], jobs.counts().await.unwrap().dead);
    put(&jobs, ["0"], HOUR).await;
    // What is too old goes as workers look.
    queue().await.keep_dead(1000, SECOND).counts().await.unwrap();
    idle_until(&mut worker, counts_become(&jobs, [1, 0, 0])).await;
}

#[tokio::test]
async fn a_batch_of_deaths_removes_no_more_dead_jobs_than_one() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, ["a", "b"], NOW).await;
    let mut worker = worker(&jobs);
    let [a, b] = next_jobs(&mut worker).await;
    // A look of the worker would remove some, too.
    worker.close().await;
    let now = server
        .time()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_micros()
        .to_string();
    for n in 0..250 {
        let _: u64 = server.command(&["ZADD", &key("dead"), &now, &n.to_string()]);
    }
    let told = server.queue().await.keep_dead(1, HOUR);
    assert_eq!(counts(&told).await, [0, 2, 150]);
    let (a, b) = futures::join!(a.bury(), b.bury());
    assert!(a.unwrap() && b.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 52]);
}

#[tokio::test]
async fn dead_jobs_are_listed_by_pages_and_revived_and_purged_one_by_one_and_in_batches() {
    let (server, jobs) = Server::with_partitions(3).await;
    assert_eq!(jobs.revive_dead(10).await.unwrap(), 0);
    let ids: BTreeSet<String> = (0..250).map(|n| n.to_string()).collect();
    put_together(&jobs, &ids, NOW).await;
    let bury = async |job: Result<Job, Error>| assert!(job.unwrap().bury().await.unwrap());
    soon(worker(&jobs).take(250).for_each_concurrent(50, bury)).await;
    assert_eq!(counts(&jobs).await, [0, 0, 250]);
    let dead = jobs.dead(usize::MAX).await.unwrap();
    let listed: BTreeSet<String> = dead.iter().map(|job| job.id().to_owned()).collect();
    assert_eq!(listed, ids);
    assert_eq!(jobs.dead(0).await.unwrap(), []);
    assert_eq!(jobs.dead(7).await.unwrap(), dead[..7]);

    for is_dead in [true, false] {
        assert_eq!(jobs.revive("17").await.unwrap(), is_dead);
        assert_eq!(jobs.purge("18").await.unwrap(), is_dead);
    }
    assert_eq!(counts(&jobs).await, [1, 0, 248]);
    assert_eq!(jobs.purge_dead(0).await.unwrap(), 0);
    assert_eq!(jobs.purge_dead(25).await.unwrap(), 25);
    assert_eq!(jobs.revive_dead(15).await.unwrap(), 15);
    assert_eq!(counts(&jobs).await, [16, 0, 208]);
    assert_eq!(jobs.revive_dead(usize::MAX).await.unwrap(), 208);
    assert_eq!(counts(&jobs).await, [224, 0, 0]);
    assert_eq!(entries(&server, "dead"), 0);
    assert_eq!(next(&mut worker(&jobs)).await.attempt(), 1);
}
