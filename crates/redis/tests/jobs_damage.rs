//! Delayed jobs whose keys Redis has lost or replaced: evicted, deleted, or restored from an old backup.

mod support;

use futures::{TryFutureExt, future::BoxFuture};
use support::prelude::*;

/// Puts a job in each place: `running` and `claimed` under leases that have run out, of a worker whose
/// runtime has gone.
fn put_a_job_in_each_place(server: &Server) {
    put_jobs(server);
    // A claim goes back that is not asked for within 50 ms, which a loaded machine may take to get here.
    while sizes(server) != [1; 4] {
        let _: String = server.command(&["FLUSHALL"]);
        put_jobs(server);
    }
    for id in ["running", "claimed"] {
        let _: i64 = server.command(&["ZADD", &key(id), "1", id]);
    }
}

fn put_jobs(server: &Server) {
    let runtime = runtime();
    let left = runtime.block_on(async {
        let jobs = server.queue().await;
        for id in ["dead", "running", "claimed"] {
            assert!(jobs.schedule(id, NOW, b"kept").await.unwrap());
        }
        let mut worker = jobs.worker().lease(HOUR).prefetch(3).start();
        assert!(next(&mut worker).await.bury().await.unwrap());
        let job = next(&mut worker).await;
        assert!(jobs.schedule("due", HOUR, b"kept").await.unwrap());
        (worker, job)
    });
    drop(runtime);
    drop(left);
}

#[tokio::test]
async fn a_queue_that_has_lost_a_key_goes_on_with_what_is_left() {
    for (lost, left, dead) in [
        ("due", &["claimed", "new", "running"][..], 1),
        ("claimed", &["due", "new", "running"], 1),
        ("running", &["claimed", "due", "new"], 1),
        ("dead", &["claimed", "due", "new", "running"], 0),
        ("state", &["claimed", "due", "new", "running"], 1),
        // There is nothing to deliver without a payload.
        ("payload", &["new"], 1),
    ] {
        let server = Server::start();
        thread::scope(|scope| scope.spawn(|| put_a_job_in_each_place(&server)).join().unwrap());
        let jobs = server.queue().await;
        server.delete(&[&key(lost)]);
        assert!(jobs.schedule("new", NOW, b"kept").await.unwrap());
        let _ = jobs.reschedule("due", NOW).await.unwrap();

        let mut worker = worker(&server.queue().await);
        let mut seen = Vec::new();
        while seen.len() < left.len() {
            let job = next(&mut worker).await;
            assert_eq!(job.payload(), b"kept", "{lost}");
            seen.push(job.id().to_owned());
            done(job).await;
        }
        seen.sort();
        assert_eq!(seen, left, "without {lost}");
        until(|| async { counts(&jobs).await == [0, 0, dead] }).await;
        if lost == "due" {
            // Its payload is still there.
            assert!(!jobs.schedule("due", NOW, b"").await.unwrap());
        }
        let listed = jobs.dead(10).await.unwrap();
        assert_eq!(listed.len() as u64, dead, "without {lost}");
        if dead == 1 {
            assert!(jobs.purge("dead").await.unwrap(), "without {lost}");
        }
    }
}

#[tokio::test]
async fn after_flushall_a_running_program_goes_on_and_a_new_one_may_bring_another_number() {
    let server = Server::start();
    let of = async |partitions| server.queue().await.partitions(partitions);
    let old = of(2).await;
    put(&old, ["forgotten"], HOUR).await;
    let mut old_worker = worker(&old);
    put(&old, ["before"], NOW).await;
    let held = next(&mut old_worker).await;

    let _: String = server.command(&["FLUSHALL"]);
    assert!(!held.done().await.unwrap());
    let new = of(3).await;
    assert_eq!(counts(&new).await, [0, 0, 0]);
    put(&new, ["forgotten"], HOUR).await;
    assert_eq!(new.cancel("forgotten").await.unwrap(), Cancelled::Waiting);
    // A program that starts with the number of before is refused.
    let refused = of(2).await;
    for error in [
        refused.schedule("refused", NOW, b"").await.unwrap_err(),
        next_error(&mut refused.worker().start()).await,
    ] {
        assert_eq!(partitions(&error), (2, 3));
    }

    put(&old, (0..60).step_by(2), NOW).await;
    put(&new, (1..60).step_by(2), NOW).await;
    // The old worker is given what lies in the partitions that it knows.
    let of_others = || server.command::<usize>(&["HLEN", &key_of(2, "payload")]);
    let rest = of_others();
    assert!(rest > 0, "every job lies in the first two partitions");
    let mut seen = do_next_jobs(&mut old_worker, 60 - rest).await;
    assert_eq!(of_others(), rest);
    // The rest waits for one that knows them all.
    seen.extend(do_next_jobs(&mut worker(&new), rest).await);
    let expected = (0..60).map(|id| (id.to_string(), 1));
    assert_eq!(BTreeSet::from_iter(seen), expected.collect());
    assert_eq!(counts(&new).await, [0, 0, 0]);
}

/// The attempts that a job which runs may have, in place of a number.
#[tokio::test]
async fn a_damaged_number_of_attempts_stops_no_other_job_of_the_same_batch() {
    for (attempts, is_damaged) in [("--", true), ("1-2", true), ("-", false)] {
        let server = Server::start();
        let jobs = server.queue().await;
        put(&jobs, ["good", "other"], NOW).await;
        let mut first = jobs.worker().lease(HOUR).concurrency(2).start();
        let [good, other] = next_jobs(&mut first).await;
        assert_eq!((good.id(), other.id()), ("good", "other"));
        let state: String = server.command(&["HGET", &key("state"), "other"]);
        let (before, _) = state.rsplit_once(' ').unwrap();
        let _: u64 = server.command(&["HSET", &key("state"), "other", &format!("{before} {attempts}")]);
        let (good, other) = futures::join!(good.retry_after(HOUR), other.retry_after(NOW));
        assert!(good.unwrap(), "{attempts}");
        // Of a damaged state nobody is the holder, until the lease has ended.
        assert_eq!(other.unwrap(), !is_damaged, "{attempts}");
        if is_damaged {
            end_lease(&server, "other");
        }
        first.close().await;
        let attempt = if is_damaged { 1 } else { 2 };
        let delivered = do_next(&mut worker(&jobs)).await;
        assert_eq!(delivered, ("other".to_owned(), attempt), "{attempts}");
    }
}

/// It would be due again at once, for ever.
#[tokio::test]
async fn a_grid_without_a_period_is_none() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let _: u64 = server.command(&["HSET", &key("repeats"), "a", "1 0"]);
    do_next(&mut worker(&jobs)).await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

/// What is stored of the jobs of the queue.
fn stored(server: &Server) -> Vec<Option<Vec<u8>>> {
    let jobs = KEYS.iter().filter(|what| **what != "last:calls");
    jobs.map(|what| server.command(&["DUMP", &key(what)])).collect()
}

/// Keys that a call which changes something may do without. With a `max_running`, a call that may make room for
/// another job counts what runs and what is claimed.
fn are_not_needed(call: &str, has_max_running: bool) -> &'static [&'static str] {
    match (call, has_max_running) {
        ("schedule", false) => &["claimed", "running", "dead", "state", "repeats"],
        ("schedule", true) => &["dead", "state", "repeats"],
        ("repeat" | "repeat of a new one" | "start", _) | ("done", true) => &["dead"],
        ("done", false) => &["claimed", "dead"],
        ("undo_take", false) => &["running", "dead", "payload", "repeats"],
        ("undo_take", true) => &["dead", "payload", "repeats"],
        _ => &[],
    }
}

/// Whatever key holds another type, a call that may need it says so, and no call changes anything. Those of the first
/// table are a program's, and so are those of the last, which only read; the others are a worker's own.
#[tokio::test]
async fn each_call_beside_each_key_of_another_type() {
    for (what, has_max_running) in KEYS.into_iter().flat_map(|what| [(what, false), (what, true)]) {
        let server = Server::start();
        let jobs = unnotified(server.connect().await);
        let jobs = if has_max_running {
            jobs.max_running(10)
        } else {
            jobs
        };
        for id in ["dead", "done", "retried", "snoozed", "buried"] {
            assert!(jobs.schedule(id, NOW, b"kept").await.unwrap());
        }
        let mut worker = worker(&jobs);
        assert!(next(&mut worker).await.bury().await.unwrap());
        let [done, retried, snoozed, buried] = next_jobs(&mut worker).await;
        worker.close().await;
        assert!(jobs.schedule("claimed", NOW, b"kept").await.unwrap());
        let take = ["1", "1", "0", "60000000", "5", "0", "1000", "1000", ""];
        let _: redis::Value = run_script(&server, "take", "take@taker", &take).unwrap();
        assert_eq!(sizes(&server), [0, 1, 4, 1]);
        assert!(jobs.schedule("due", NOW, b"kept").await.unwrap());
        assert!(jobs.schedule("waiting", HOUR, b"kept").await.unwrap());
        let _ = jobs.repeat("repeated", HOUR, HOUR, b"kept").await.unwrap();

        let had_it = server.exists(&key(what));
        if had_it {
            let _: () = server.command(&["RENAME", &key(what), "saved"]);
        }
        let _: () = server.command(&["SET", &key(what), "not ours"]);
        let before = stored(&server);
        let needs_it = |call: &str| !are_not_needed(call, has_max_running).contains(&what);
        let repeat = |id| jobs.repeat(id, HOUR, HOUR / 2, b"").map_ok(drop);
        let reschedule = jobs.reschedule("waiting", HOUR / 2);
        // Those that do not need the key are not made.
        let changes: [(&str, BoxFuture<'_, Result<(), Error>>); 16] = [
            // Before the first that is due, of which workers are told.
            (
                "schedule",
                jobs.schedule_at("new", UNIX_EPOCH, b"").map_ok(drop).boxed(),
            ),
            ("repeat", repeat("repeated").boxed()),
            ("repeat of a new one", repeat("new").boxed()),
            ("reschedule", reschedule.map_ok(drop).boxed()),
            ("cancel", jobs.cancel("waiting").map_ok(drop).boxed()),
            ("cancel of what runs", jobs.cancel("done").map_ok(drop).boxed()),
            ("revive", jobs.revive("dead").map_ok(drop).boxed()),
            ("purge", jobs.purge("dead").map_ok(drop).boxed()),
            ("revive_dead", jobs.revive_dead(10).map_ok(drop).boxed()),
            ("purge_dead", jobs.purge_dead(10).map_ok(drop).boxed()),
            ("pause", jobs.pause().map_ok(drop).boxed()),
            ("resume", jobs.resume().map_ok(drop).boxed()),
            ("done", done.done().map_ok(drop).boxed()),
            ("retry_after", retried.retry_after(HOUR).map_ok(drop).boxed()),
            ("snooze", snoozed.snooze(HOUR).map_ok(drop).boxed()),
            ("bury", buried.bury().map_ok(drop).boxed()),
        ];
        for (call, outcome) in changes.into_iter().filter(|(call, _)| needs_it(call)) {
            let error = outcome.await.expect_err(call);
            println!("{call} with {what}: {error}");
            assert_is!(error, Error::WrongType { keys } if keys.contains(&key(what)));
            // No call reads these before it has looked at their type, whereby it knows which it is.
            if ["dead", "watching"].contains(&what) {
                assert_is!(error, Error::WrongType { keys } if keys.len() == 1);
                assert!(!error.to_string().contains("one of"), "{error}");
            }
            assert_says(&error, &[&key(what)]);
        }
        let of_workers: [&[&str]; 9] = [
            &["start", "claimed", "take", "60000000", "5"],
            &["renew", "claimed", "take", "60000000"],
            &["give_back", "claimed", "take", "0"],
            &["unfetched", "claimed", "take", "5"],
            &["confirm", "claimed", "take"],
            &["keep_dead", "1", "60000000"],
            &["set_max_running", "3"],
            &["unlist", "worker"],
            &["undo_take"],
        ];
        for change in of_workers.into_iter().filter(|change| needs_it(change[0])) {
            let outcome = match change {
                ["undo_take"] => run_script::<redis::Value>(&server, "undo_take", "take@taker", &[]),
                _ => run_script(&server, "update", "change@worker", change),
            };
            let error = outcome.expect_err(change[0]);
            assert_eq!(error.code(), Some("WRONGTYPE"), "{change:?} with {what}: {error}");
        }
        let error = next_error(&mut jobs.worker().start()).await;
        println!("a take with {what}: {error}");
        assert_is!(error, Error::WrongType { keys } if keys.contains(&key(what)));
        let counted = &["due", "claimed", "running", "dead", "settings"][..];
        for (call, needed, outcome) in [
            ("counts", counted, jobs.counts().await.map(drop)),
            ("sample", counted, jobs.sample().await.map(drop)),
            ("get", &["due", "state"], jobs.get("waiting").await.map(drop)),
            (
                "waiting",
                &["due", "claimed", "state"],
                jobs.waiting(0, 10).await.map(drop),
            ),
            (
                "dead",
                &["dead", "state", "payload"],
                jobs.dead(10).await.map(drop),
            ),
        ] {
            match outcome {
                Ok(()) => assert!(!needed.contains(&what), "{call} with {what}"),
                Err(error) => {
                    assert!(needed.contains(&what), "{call} with {what}: {error}");
                    assert_is!(error, Error::WrongType { keys } if keys.contains(&key(what)));
                }
            }
        }
        assert!(stored(&server) == before, "something was changed beside {what}");

        server.delete(&[&key(what)]);
        if had_it {
            let _: () = server.command(&["RENAME", "saved", &key(what)]);
        }
        assert_eq!(counts(&jobs).await, [4, 4, 1], "{what}");
        assert_eq!(jobs.cancel("waiting").await.unwrap(), Cancelled::Waiting);
    }
}
