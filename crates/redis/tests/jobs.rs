//! `DelayedJobs`, `Worker` and `Job`, on one server.

mod support;

use support::prelude::*;

/// Short enough to be waited for.
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_job_is_delivered_when_it_is_due_and_is_gone_when_it_is_done() {
    let (server, jobs) = Server::with_queue().await;
    let before = server.time();
    assert!(jobs.schedule("a", 300 * MS, b"payload").await.unwrap());
    let after = server.time();
    assert_eq!(counts(&jobs).await, [1, 0, 0]);

    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert!(server.time() >= job.due(), "early");
    assert!((before + 300 * MS..=after + 300 * MS).contains(&job.due()));
    assert_job(&job, "a", 1, b"payload");
    assert_eq!(counts(&jobs).await, [0, 1, 0]);
    assert!(job.lost().now_or_never().is_none());

    let lost = job.lost();
    done(job).await;
    soon(lost).await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    put(&jobs, ["a"], HOUR).await;
}

#[tokio::test]
async fn an_id_is_scheduled_once_while_it_waits_runs_or_is_dead() {
    let (_server, jobs) = Server::with_queue().await;
    assert!(jobs.schedule("a", NOW, b"first").await.unwrap());
    assert!(!jobs.schedule("a", HOUR, b"second").await.unwrap());

    let job = next(&mut worker(&jobs)).await;
    assert_eq!(job.payload(), b"first");
    assert!(!jobs.schedule("a", HOUR, b"third").await.unwrap());
    assert!(job.bury().await.unwrap());
    assert!(!jobs.schedule("a", HOUR, b"fourth").await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
    assert!(jobs.purge("a").await.unwrap());
    put(&jobs, ["a"], HOUR).await;
}

#[tokio::test]
async fn jobs_of_a_partition_come_in_the_order_in_which_they_are_due() {
    let (server, jobs) = Server::with_queue().await;
    let start = server.time() - HOUR;
    for n in [7, 3, 9, 1, 5, 8, 2, 6, 4, 0] {
        let scheduled = jobs.schedule_at(&n.to_string(), start + n * MS, b"").await;
        assert!(scheduled.unwrap());
    }
    let mut worker = worker(&jobs);
    for n in 0..10 {
        let job = next(&mut worker).await;
        assert_eq!((job.id(), job.due()), (&*n.to_string(), start + n * MS));
        done(job).await;
    }
}

#[tokio::test]
async fn due_times_in_the_past_now_and_in_ten_years() {
    let (_server, jobs) = Server::with_queue().await;
    let ten_years = 10 * 365 * 24 * HOUR;
    for (id, at) in [
        ("before 1970", UNIX_EPOCH - HOUR),
        ("long ago", UNIX_EPOCH + HOUR),
        ("later", SystemTime::now() + ten_years),
    ] {
        assert!(jobs.schedule_at(id, at, b"").await.unwrap());
    }
    for (id, delay) in [("now", NOW), ("late", ten_years), ("never", Duration::MAX)] {
        put(&jobs, [id], delay).await;
    }

    let mut worker = jobs.worker().lease(HOUR).look_ahead(SECOND).start();
    for id in ["before 1970", "long ago", "now"] {
        assert_eq!(do_next(&mut worker).await.0, id);
    }
    idle_until(&mut worker, sleep(100 * MS)).await;
    assert_eq!(counts(&jobs).await, [3, 0, 0]);
    // None of them is beyond what a score holds exactly.
    for id in ["late", "later", "never"] {
        assert!(jobs.reschedule(id, NOW).await.unwrap());
        assert_eq!(next(&mut worker).await.id(), id);
    }
}

#[tokio::test]
async fn payloads_from_nothing_to_a_megabyte() {
    let (_server, jobs) = Server::with_queue().await;
    let binary: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let (none, large) = (vec![], vec![7; 1 << 20]);
    let payloads = [none, vec![0], b"\r\n\0\xff\xfe".to_vec(), binary, large];
    let (jobs, payload) = (&jobs, |n: usize| &payloads[n % 5]);
    // Together they are more than one answer, or one batch, has room for.
    let schedule = |n: usize| async move { jobs.schedule(&n.to_string(), NOW, payload(n)).await.unwrap() };
    assert_eq!(join_all((0..15).map(schedule)).await, [true; 15]);
    let mut worker = worker(jobs);
    let mut seen = BTreeSet::new();
    for _ in 0..15 {
        let job = next(&mut worker).await;
        let n = job.id().parse().unwrap();
        assert!(job.payload() == payload(n), "payload of {n}");
        seen.insert(n);
        done(job).await;
    }
    assert_eq!(seen.len(), 15);
}

#[tokio::test]
async fn ids_are_any_text_but_none() {
    let server = Server::start();
    let queue = async |name: &str| DelayedJobs::new(&Wheel::new(), server.connect().await, name);
    let jobs = queue("a {queue} of 100%").await.partitions(4);
    let jobs = jobs.notifications(&Notifications::of(server.client()));
    let long = "x".repeat(1024);
    let ids = ["with space", "{braces}", "100%", "ключ", "-", "a\nb", "0", &long];
    for id in ids {
        assert!(jobs.schedule(id, NOW, id.as_bytes()).await.unwrap(), "{id}");
    }
    let mut worker = worker(&jobs);
    let mut seen = BTreeSet::new();
    for _ in ids {
        let job = next(&mut worker).await;
        assert_eq!(job.id().as_bytes(), job.payload());
        seen.insert(job.id().to_owned());
        done(job).await;
    }
    assert_eq!(seen, ids.map(str::to_owned).into());

    let too_long = format!("{long}x");
    for error in [
        jobs.schedule("", SECOND, b"").await.unwrap_err(),
        jobs.schedule(&too_long, SECOND, b"").await.unwrap_err(),
        jobs.cancel(&too_long).await.unwrap_err(),
        queue("").await.counts().await.unwrap_err(),
        queue(&too_long).await.counts().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    }
}

/// What `cancel` says of them is in `jobs_control.rs`.
#[tokio::test]
async fn only_what_waits_is_rescheduled_and_only_what_is_dead_revived_or_purged() {
    let (_server, jobs) = Server::with_queue().await;
    let changed = async || {
        let moved = jobs.reschedule("a", SECOND).await.unwrap();
        moved || jobs.revive("a").await.unwrap() || jobs.purge("a").await.unwrap()
    };
    assert!(!changed().await, "it is unknown");
    jobs.schedule("a", HOUR, b"kept").await.unwrap();
    assert!(!jobs.revive("a").await.unwrap() && !jobs.purge("a").await.unwrap());
    assert!(jobs.reschedule("a", NOW).await.unwrap());
    let job = next(&mut worker(&jobs)).await;
    assert_job(&job, "a", 1, b"kept");
    assert!(!changed().await, "it runs");
    assert!(job.bury().await.unwrap());
    assert!(!jobs.reschedule("a", SECOND).await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
}

#[tokio::test]
async fn a_claim_is_not_a_delivery() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, 0..10, NOW).await;
    let mut prefetching = jobs.worker().lease(HOUR).prefetch(10).start();
    let first = next(&mut prefetching).await;
    assert_eq!(first.id(), "0");
    assert_eq!(counts(&jobs).await, [9, 1, 0]);
    assert_eq!(jobs.cancel("1").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.reschedule("2", HOUR).await.unwrap());
    assert_eq!(next(&mut prefetching).await.id(), "3");
    assert_eq!(counts(&jobs).await, [7, 2, 0]);

    // Dropped, it gives the others back at once, with no attempt counted, and keeps what was delivered.
    drop(prefetching);
    let mut other = worker(&jobs);
    for n in 4..10 {
        assert_eq!(do_next(&mut other).await, (n.to_string(), 1));
    }
    // The third was dropped, and runs until its lease ends.
    assert_eq!(counts(&jobs).await, [1, 2, 0]);
    done(first).await;
}

#[tokio::test]
async fn a_worker_that_is_not_polled_leaves_the_jobs_to_others() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, 0..10, NOW).await;
    let mut busy = jobs.worker().lease(HOUR).prefetch(10).start();
    let _job = next(&mut busy).await;
    let delivered = do_next_jobs(&mut worker(&jobs), 9).await;
    assert!(delivered.iter().all(|(_, attempt)| *attempt == 1));
}

/// It has asked once, as in a `timeout` around `next`.
#[tokio::test]
async fn a_worker_that_is_not_polled_before_its_first_job_leaves_the_jobs_to_others() {
    for places in [None, Some(8)] {
        let (server, jobs) = Server::with_queue().await;
        let asks_once = jobs.worker().lease(HOUR);
        let asks_once = places.map_or(asks_once.clone(), |places| asks_once.concurrency(places));
        let mut asks_once = asks_once.start();
        assert!(timeout(SECOND, asks_once.next()).await.is_err());
        put_together(&jobs, 0..20, NOW).await;
        sleep(300 * MS).await;
        let mut other = worker(&jobs);
        let delivered = do_next_jobs(&mut other, 20).await;
        assert!(delivered.iter().all(|(_, attempt)| *attempt == 1));
        soon(other.close()).await;
        // Nor does it take a job again and again that nobody wants.
        put(&jobs, ["last"], NOW).await;
        sleep(SECOND).await;
        let before = server.scripts_run();
        sleep(2 * SECOND).await;
        let sent = server.scripts_run() - before;
        assert!(sent <= 3, "{sent} commands with {places:?} places");
        assert_eq!(sizes(&server), [1, 0, 0, 0]);
        assert_eq!(do_next(&mut asks_once).await, ("last".to_owned(), 1));
    }
}

#[tokio::test]
async fn a_job_that_is_dropped_comes_again_after_its_lease_until_it_is_dead_and_says_why() {
    let (_server, jobs) = Server::with_queue().await;
    jobs.schedule("a", NOW, b"x").await.unwrap();
    let mut worker = jobs.worker().lease(SHORT).attempts(2).start();
    let job = next(&mut worker).await;
    let (due, lost, dropped) = (job.due(), job.lost(), Instant::now());
    drop(job);
    soon(lost).await;
    let job = next(&mut worker).await;
    assert!(dropped.elapsed() > SHORT / 2, "the lease was given up");
    assert_eq!((job.id(), job.attempt(), job.due()), ("a", 2, due));
    let ran_out = jobs.get("a").await.unwrap().unwrap().error.unwrap();
    assert!(ran_out.contains("lease"), "{ran_out}");
    drop(job);
    // The stream has to be polled: a worker that nobody asks does not sweep.
    idle_until(&mut worker, counts_become(&jobs, [0, 0, 1])).await;
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].id(), dead[0].attempts()), ("a", 2));
    assert_eq!((dead[0].payload(), dead[0].error()), (&b"x"[..], Some(&*ran_out)));

    assert!(jobs.revive("a").await.unwrap());
    let job = next(&mut worker).await;
    assert_job(&job, "a", 1, b"x");
    // There is none of a burial by hand.
    assert!(job.bury().await.unwrap());
    assert_eq!(jobs.dead(1).await.unwrap()[0].error(), None);
}

#[tokio::test]
async fn a_retried_job_can_be_cancelled_and_scheduled_anew() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let mut worker = worker(&jobs);
    assert!(next(&mut worker).await.retry_after(HOUR).await.unwrap());
    assert!(!jobs.schedule("a", HOUR, b"").await.unwrap());
    assert!(jobs.reschedule("a", 2 * HOUR).await.unwrap());
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.schedule("a", NOW, b"new").await.unwrap());
    let job = next(&mut worker).await;
    assert_job(&job, "a", 1, b"new");
}

#[tokio::test]
async fn a_lease_is_renewed_for_as_long_as_the_job_lives() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let mut worker = jobs.worker().lease(SHORT).start();
    let job = next(&mut worker).await;
    let mut other = jobs.worker().lease(SHORT).start();
    // Also when its worker has gone.
    drop(worker);
    idle_until(&mut other, held_for(&job, SHORT * 3)).await;
    done(job).await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn finishing_a_lost_job_is_false_and_changes_nothing() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, ["a", "b", "c"], NOW).await;
    let mut first = worker(&jobs);
    let [a, b, c] = next_jobs(&mut first).await;
    for id in ["a", "b", "c"] {
        end_lease(&server, id);
    }
    let mut second = worker(&jobs);
    let held = next_jobs::<3>(&mut second).await;
    assert!(held.iter().all(|job| job.attempt() == 2));
    assert!(!a.done().await.unwrap());
    assert!(!b.retry_after(NOW).await.unwrap());
    assert!(!c.bury().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 3, 0]);
    for job in held {
        done(job).await;
    }
}

#[tokio::test]
async fn cancel_and_reschedule_race_with_delivery() {
    let server = Server::start();
    let jobs = &server.queue().await.partitions(2);
    const JOBS: usize = 600;
    join_all((0..JOBS).map(|n| put(jobs, [n], (n / 3) as u32 * MS))).await;

    let begun = AtomicUsize::new(0);
    let delivered = Mutex::new(Vec::new());
    let work = join_all((0..2).map(|_| {
        let worker = jobs.worker().lease(HOUR).look_ahead(50 * MS).start();
        worker.for_each_concurrent(8, |job| async {
            begun.fetch_add(1, SeqCst);
            let id = job.as_ref().unwrap().id().to_owned();
            let done = job.unwrap().done().await.unwrap();
            delivered.lock().unwrap().push((id, done));
        })
    }));
    let meddle = join_all((0..JOBS).map(|n| async move {
        sleep((n / 3) as u32 * MS).await;
        match n % 3 {
            0 => return Some(jobs.cancel(&n.to_string()).await.unwrap()),
            1 => drop(jobs.reschedule(&n.to_string(), 50 * MS).await.unwrap()),
            _ => {}
        }
        None
    }));
    let finish = async {
        let meddled = meddle.await;
        counts_become(jobs, [0, 0, 0]).await;
        // The answer to the end of the last job may still be on its way.
        until(|| async { delivered.lock().unwrap().len() == begun.load(SeqCst) }).await;
        meddled
    };
    let meddled = tokio::select! {
        _ = work => unreachable!(),
        meddled = finish => meddled,
    };
    let delivered = delivered.into_inner().unwrap();
    let done: BTreeMap<String, bool> = delivered.iter().cloned().collect();
    assert_eq!(done.len(), delivered.len(), "some job was delivered twice");
    for (n, cancelled) in meddled.into_iter().enumerate() {
        let done = done.get(&n.to_string());
        let is_as_said = match cancelled {
            Some(Cancelled::Waiting) => done.is_none(),
            // It may have been started and not yet yielded.
            Some(Cancelled::Running) => done != Some(&true),
            _ => done == Some(&true),
        };
        assert!(is_as_said, "job {n}, {cancelled:?}, done: {done:?}");
    }
}

#[tokio::test]
async fn handles_with_other_settings_are_of_the_same_queue() {
    let server = Server::start();
    let of = async |partitions| server.queue().await.partitions(partitions);
    put(&of(4).await, ["a"], HOUR).await;
    let error = of(5).await.counts().await.unwrap_err();
    assert_eq!(partitions(&error), (5, 4));
    let polled = server.queue().await.worker().start().next().now_or_never();
    assert!(polled.is_none());
    let error = next_error(&mut worker(&server.queue().await)).await;
    assert_eq!(partitions(&error), (1, 4));
    assert_eq!(counts(&of(4).await).await, [1, 0, 0]);
    let other = async || DelayedJobs::new(&Wheel::new(), server.connect().await, "other");
    for wrong in [0, 1025] {
        let error = other().await.partitions(wrong).counts().await.unwrap_err();
        assert_says(&error, &[&format!("partitions of {wrong}")]);
    }
    assert_eq!(counts(&other().await).await, [0, 0, 0]);
}

#[tokio::test]
async fn settings_that_are_not_allowed_are_what_the_stream_yields() {
    let (_server, jobs) = Server::with_queue().await;
    let worker = || jobs.worker();
    let rows = [
        (worker().lease(199 * MS), "199ms"),
        (worker().lease(24 * HOUR + MS), "86400.001s"),
        (worker().lease(Duration::MAX), "lease of"),
        (worker().attempts(0), "attempts of 0"),
        (worker().prefetch(0), "prefetch of 0"),
        (worker().look_ahead(2 * HOUR), "look_ahead of 7200s"),
        (worker().time_limit(NOW), "time_limit of 0ns"),
    ];
    join_all(rows.map(|(worker, expected)| async move {
        let mut worker = worker.start();
        let error = next_error(&mut worker).await;
        assert_says(&error, &[expected]);
        // Paced, and without an end.
        let began = Instant::now();
        assert_eq!(next_error(&mut worker).await.to_string(), error.to_string());
        assert!(began.elapsed() > 500 * MS);
    }))
    .await;
}

#[tokio::test]
async fn many_partitions_and_few_places() {
    let (_server, jobs) = Server::with_partitions(16).await;
    put_together(&jobs, 0..200, 50 * MS).await;
    let mut worker = jobs.worker().lease(HOUR).prefetch(1).start();
    let mut seen = BTreeSet::new();
    while seen.len() < 200 {
        let (id, _) = do_next(&mut worker).await;
        assert!(seen.insert(id));
    }
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn the_end_of_the_wheel_is_the_end_of_the_stream() {
    let (server, wheel, jobs) = Server::with_wheel().await;
    put(&jobs, 0..4, NOW).await;
    put(&jobs, ["later"], 10 * SECOND).await;
    let mut first = jobs.worker().lease(HOUR).look_ahead(MINUTE).start();
    let job = next(&mut first).await;
    let lost = job.lost();
    wheel.shutdown();
    soon(lost).await;
    assert!(soon(first.next()).await.is_none());
    // What was claimed is given back, and what was delivered can still be finished.
    done(job).await;
    let other = server.queue().await;
    let mut worker = worker(&other);
    for n in 1..4 {
        assert_eq!(do_next(&mut worker).await, (n.to_string(), 1));
    }
    assert_eq!(other.cancel("later").await.unwrap(), Cancelled::Waiting);
}

#[tokio::test]
async fn a_full_wheel_delays_nobody() {
    let server = Server::start();
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let mut occupied = Box::pin(wheel.sleep(HOUR));
    assert!(occupied.as_mut().now_or_never().is_none());
    let jobs = server.queue_on(&wheel).await;
    put(&jobs, ["a"], 200 * MS).await;
    let mut worker = jobs.worker().lease(SHORT).look_ahead(SECOND).start();
    let job = next(&mut worker).await;
    assert!(server.time() >= job.due());
    held_for(&job, SHORT * 2).await;
    done(job).await;
}

#[tokio::test]
async fn a_snoozed_job_comes_again_with_the_same_attempt() {
    let (server, jobs) = Server::with_queue().await;
    jobs.schedule("a", NOW, b"x").await.unwrap();
    let mut worker = jobs.worker().lease(HOUR).attempts(3).start();
    for _ in 0..5 {
        let job = next(&mut worker).await;
        assert_job(&job, "a", 1, b"x");
        assert!(server.time() >= job.due());
        assert!(job.snooze(20 * MS).await.unwrap());
    }
    assert!(next(&mut worker).await.retry_after(NOW).await.unwrap());
    for _ in 0..3 {
        let job = next(&mut worker).await;
        assert_eq!(job.attempt(), 2, "earlier attempts still count");
        assert!(job.snooze(20 * MS).await.unwrap());
    }
    // It waits, and can be cancelled and rescheduled.
    assert!(next(&mut worker).await.snooze(HOUR).await.unwrap());
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
    assert!(jobs.reschedule("a", NOW).await.unwrap());
    let job = next(&mut worker).await;
    end_lease(&server, "a");
    assert!(!job.snooze(HOUR).await.unwrap(), "it was lost");
    // It comes again as one whose worker has died, for the last time.
    let mut other = jobs.worker().lease(HOUR).attempts(3).start();
    let job = next(&mut other).await;
    assert_eq!(job.attempt(), 3);
    assert!(job.bury().await.unwrap());
    assert_eq!(counts(&jobs).await, [0, 0, 1]);
}

#[tokio::test]
async fn a_job_that_takes_too_long_is_lost_and_has_failed() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a", "b"], NOW).await;
    let limit = 3 * SECOND;
    let mut worker = jobs.worker().lease(SHORT).attempts(2).time_limit(limit).start();
    let (hangs, began) = (next(&mut worker).await, Instant::now());
    let quick = next(&mut worker).await;
    assert_eq!((hangs.id(), quick.id()), ("a", "b"));
    // It is renewed until then, and no longer.
    held_for(&hangs, limit - SECOND / 2).await;
    done(quick).await;
    soon(hangs.lost()).await;
    let lost = began.elapsed();
    assert!(lost >= limit - 50 * MS && lost < limit + SECOND, "{lost:?}");
    let again = next(&mut worker).await;
    assert_eq!((again.id(), again.attempt()), ("a", 2));
    assert!(began.elapsed() > limit, "nobody else had it before");
    assert!(!hangs.done().await.unwrap());
    // Also when the stream was dropped.
    drop(worker);
    soon(again.lost()).await;
    assert!(!again.done().await.unwrap());
    let mut other = jobs.worker().lease(SHORT).attempts(2).start();
    idle_until(&mut other, counts_become(&jobs, [0, 0, 1])).await;
    assert_eq!(jobs.dead(1).await.unwrap()[0].attempts(), 2);
}

#[tokio::test]
async fn waiting_jobs_are_listed_in_order_of_due_time() {
    let server = Server::start();
    let jobs = &server.queue().await.partitions(3);
    assert_eq!(jobs.waiting(0, 10).await.unwrap(), []);
    let start = server.time() + HOUR;
    let schedule = |n| async move {
        jobs.schedule_at(&format!("{n:03}"), start + n * MS, b"")
            .await
            .unwrap()
    };
    assert_eq!(join_all((0..350).map(schedule)).await, [true; 350]);
    let ids = async |offset, count| -> Vec<u32> {
        let waiting = jobs.waiting(offset, count).await.unwrap();
        waiting.iter().map(|job| job.id.parse().unwrap()).collect()
    };
    for (offset, count, expected) in [
        (0, 0, 0..0),
        (0, usize::MAX, 0..350),
        (120, 7, 120..127),
        (345, 100, 345..350),
        (350, 100, 0..0),
    ] {
        assert_eq!(ids(offset, count).await, Vec::from_iter(expected));
    }
    let first = &jobs.waiting(0, 1).await.unwrap()[0];
    assert_eq!((&*first.id, first.attempt), ("000", 1));
    let late = start
        .duration_since(first.due)
        .unwrap_or_else(|early| early.duration());
    assert!(late < MS, "{late:?}");
}

#[tokio::test]
async fn jobs_that_were_tried_or_are_claimed_are_listed_as_waiting() {
    let (_server, jobs) = Server::with_queue().await;
    for (n, id) in (1..).zip(["tried", "runs", "claimed", "later"]) {
        assert!(jobs.schedule_at(id, UNIX_EPOCH + HOUR * n, b"").await.unwrap());
    }
    let mut worker = worker(&jobs);
    let [tried, _runs] = next_jobs(&mut worker).await;
    assert!(tried.retry_after(HOUR / 2).await.unwrap());
    // A job that the worker claims or gives back between two reads may be listed twice or not at all.
    until(|| async {
        let listed = jobs.waiting(0, 10).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|job| (&*job.id, job.attempt)).collect();
        listed == [("claimed", 1), ("later", 1), ("tried", 2)]
    })
    .await;
}

/// How many attempts a job may have is stored with it at each start, so that a worker that was told otherwise judges
/// no delivery but its own.
#[tokio::test]
async fn the_attempts_of_a_delivery_are_those_of_its_worker() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let mut many = jobs.worker().lease(SHORT / 2).attempts(10).start();
    drop(next(&mut many).await);
    drop(many);
    // Whichever sweeps, the delivery was under ten attempts.
    let mut one = jobs.worker().lease(HOUR).attempts(1).start();
    let job = next(&mut one).await;
    assert_eq!(job.attempt(), 2);
    assert_eq!(counts(&jobs).await, [0, 1, 0]);
    // This one is under one attempt.
    assert!(job.retry_after(NOW).await.unwrap());
    counts_become(&jobs, [0, 0, 1]).await;
}
