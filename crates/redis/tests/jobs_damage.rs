//! Delayed jobs whose keys Redis has lost or replaced: evicted, deleted, or restored from an old backup.

use std::{collections::BTreeSet, time::Duration};

use futures::{FutureExt, StreamExt, TryFutureExt, future::BoxFuture};
use support::{
    jobs::{KEYS, entries, key, next, queue},
    server::Server,
    soon, until,
};
use tickwheel_redis::{Cancelled, Error};

mod support;

const HOUR: Duration = Duration::from_secs(3600);

/// Puts a job in each place: `running` and `claimed` under leases that have run out, of a worker whose
/// runtime has gone.
fn put_a_job_in_each_place(server: &Server) {
    put_jobs(server);
    // A claim goes back that is not asked for within 50 ms, which a loaded machine may take to get here.
    while ["due", "claimed", "running", "dead"].map(|set| entries(server, set)) != [1; 4] {
        let _: String = server.command(&["FLUSHALL"]);
        put_jobs(server);
    }
    for id in ["running", "claimed"] {
        let _: i64 = server.command(&["ZADD", &key(id), "1", id]);
    }
}

fn put_jobs(server: &Server) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let left = runtime.block_on(async {
        let jobs = queue(server, "q").await;
        for id in ["dead", "running", "claimed"] {
            assert!(jobs.schedule(id, Duration::ZERO, b"kept").await.unwrap());
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
        std::thread::scope(|scope| scope.spawn(|| put_a_job_in_each_place(&server)).join().unwrap());
        let jobs = queue(&server, "q").await;
        assert_eq!(server.command::<u64>(&["DEL", &key(lost)]), 1);
        assert!(jobs.schedule("new", Duration::ZERO, b"kept").await.unwrap());
        let _ = jobs.reschedule("due", Duration::ZERO).await.unwrap();

        let mut worker = queue(&server, "q").await.worker().lease(HOUR).start();
        let mut seen = Vec::new();
        while seen.len() < left.len() {
            let job = next(&mut worker).await;
            assert_eq!(job.payload(), b"kept", "{lost}");
            seen.push(job.id().to_owned());
            assert!(job.done().await.unwrap(), "{lost}");
        }
        seen.sort();
        assert_eq!(seen, left, "without {lost}");
        until(|| async { jobs.counts().await.unwrap().waiting == 0 }).await;
        let counts = jobs.counts().await.unwrap();
        assert_eq!((counts.running, counts.dead), (0, dead), "without {lost}");
        if lost == "due" {
            // Its payload is still there.
            assert!(!jobs.schedule("due", Duration::ZERO, b"").await.unwrap());
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
    let old = queue(&server, "q").await.partitions(2);
    assert!(old.schedule("forgotten", HOUR, b"").await.unwrap());
    let mut worker = old.worker().lease(HOUR).start();
    assert!(old.schedule("before", Duration::ZERO, b"").await.unwrap());
    let held = next(&mut worker).await;

    let _: String = server.command(&["FLUSHALL"]);
    assert!(!held.done().await.unwrap());
    let new = queue(&server, "q").await.partitions(3);
    assert_eq!(new.counts().await.unwrap().waiting, 0);
    assert!(new.schedule("forgotten", HOUR, b"").await.unwrap());
    assert_eq!(new.cancel("forgotten").await.unwrap(), Cancelled::Waiting);
    // A program that starts with the number of before is refused.
    let refused = queue(&server, "q").await.partitions(2);
    let error = refused
        .schedule("refused", Duration::ZERO, b"")
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::Partitions {
                given: 2,
                stored: 3,
                ..
            }
        ),
        "{error}"
    );
    let error = soon(refused.worker().start().next()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Partitions { .. }), "{error}");

    let ids: BTreeSet<String> = (0..60).map(|n| format!("{n}")).collect();
    for (n, id) in ids.iter().enumerate() {
        let handle = if n % 2 == 0 { &old } else { &new };
        assert!(handle.schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    // The old worker is given what lies in the partitions that it knows.
    let mut seen = BTreeSet::new();
    let of_others = server.command::<usize>(&["HLEN", "tickwheel:jobs:{q:2}:payload"]);
    assert!(of_others > 0, "every job lies in the first two partitions");
    while seen.len() < ids.len() - of_others {
        let job = next(&mut worker).await;
        assert!(seen.insert(job.id().to_owned()), "{job:?}");
        assert!(job.done().await.unwrap());
    }
    assert_eq!(
        server.command::<usize>(&["HLEN", "tickwheel:jobs:{q:2}:payload"]),
        of_others
    );
    // The rest waits for one that knows them all.
    let mut worker = new.worker().lease(HOUR).start();
    while seen.len() < ids.len() {
        let job = next(&mut worker).await;
        assert!(seen.insert(job.id().to_owned()), "{job:?}");
        assert!(job.done().await.unwrap());
    }
    assert_eq!(seen, ids);
    let counts = new.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (0, 0, 0));
}

/// A batch that holds a `repeat` changes nothing while something else is at the key of the grids, and no job of it
/// is nowhere afterwards.
#[tokio::test]
async fn something_else_at_the_grids_loses_no_job_of_the_same_batch() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.counts().await.unwrap();
    let _: String = server.command(&["SET", &key("repeats"), "not ours"]);
    let (before, repeated, after) = futures::join!(
        jobs.schedule("before", HOUR, b"kept"),
        jobs.repeat("grid", HOUR, HOUR, b"kept"),
        jobs.schedule("after", HOUR, b"kept"),
    );
    for error in [before.map(drop), repeated.map(drop), after.map(drop)] {
        let error = error.unwrap_err();
        assert!(matches!(error, Error::WrongType { .. }), "{error}");
    }
    let _: u64 = server.command(&["DEL", &key("repeats")]);
    assert_eq!(jobs.counts().await.unwrap().waiting, 0);
    for id in ["before", "grid", "after"] {
        assert!(jobs.schedule(id, HOUR, b"kept").await.unwrap(), "{id}");
    }
    assert_eq!(jobs.counts().await.unwrap().waiting, 3);
}

/// The limit of a job that runs, in place of a number.
#[tokio::test]
async fn a_damaged_limit_stops_no_other_job_of_the_same_batch() {
    for (limit, is_damaged) in [("--", true), ("1-2", true), ("-", false)] {
        let server = Server::start();
        let jobs = queue(&server, "q").await;
        for id in ["good", "other"] {
            assert!(jobs.schedule(id, Duration::ZERO, b"kept").await.unwrap());
        }
        let mut worker = jobs.worker().lease(HOUR).concurrency(2).start();
        let (good, other) = (next(&mut worker).await, next(&mut worker).await);
        assert_eq!((good.id(), other.id()), ("good", "other"));
        let state: String = server.command(&["HGET", &key("state"), "other"]);
        let (before, _) = state.rsplit_once(' ').unwrap();
        let _: u64 = server.command(&["HSET", &key("state"), "other", &format!("{before} {limit}")]);
        let (good, other) = futures::join!(good.retry_after(HOUR), other.retry_after(Duration::ZERO));
        assert!(good.unwrap(), "{limit}");
        // Of a damaged state nobody is the holder, until the lease has ended.
        assert_eq!(other.unwrap(), !is_damaged, "{limit}");
        if is_damaged {
            let _: u64 = server.command(&["ZADD", &key("running"), "1", "other"]);
        }
        worker.close().await;
        let mut worker = jobs.worker().lease(HOUR).start();
        let job = next(&mut worker).await;
        assert_eq!(
            (job.id(), job.attempt()),
            ("other", if is_damaged { 1 } else { 2 }),
            "{limit}"
        );
        assert!(job.done().await.unwrap(), "{limit}");
    }
}

/// What is stored of the jobs of the queue.
fn stored(server: &Server) -> Vec<Option<Vec<u8>>> {
    let jobs = KEYS.iter().filter(|what| **what != "last:calls");
    jobs.map(|what| server.command(&["DUMP", &key(what)])).collect()
}

/// Keys that a call which changes something may do without.
fn are_not_needed(call: &str) -> &'static [&'static str] {
    match call {
        "schedule" => &["claimed", "running", "dead", "state", "repeats"],
        "repeat" => &["dead"],
        "done" => &["claimed", "dead"],
        _ => &[],
    }
}

/// Whatever key holds another type, a call that may need it to change something says so and changes nothing, and a
/// call that only reads says so or does not need that key.
#[tokio::test]
async fn each_call_beside_each_key_of_another_type() {
    for what in KEYS {
        let server = Server::start();
        let connection = support::connect(&server.url()).await;
        let jobs = tickwheel_redis::DelayedJobs::new(&tickwheel::Wheel::new(), connection, "q");
        for id in ["dead", "done", "retried", "snoozed", "buried"] {
            assert!(jobs.schedule(id, Duration::ZERO, b"kept").await.unwrap());
        }
        let mut worker = jobs.worker().lease(HOUR).start();
        assert!(next(&mut worker).await.bury().await.unwrap());
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(next(&mut worker).await);
        }
        worker.close().await;
        assert!(jobs.schedule("waiting", HOUR, b"kept").await.unwrap());
        let _ = jobs.repeat("repeated", HOUR, HOUR, b"kept").await.unwrap();

        let had_it: bool = server.command(&["EXISTS", &key(what)]);
        if had_it {
            let _: () = server.command(&["RENAME", &key(what), "saved"]);
        }
        let _: () = server.command(&["SET", &key(what), "not ours"]);
        let before = stored(&server);
        let [done, retried, snoozed, buried] = <[_; 4]>::try_from(held).unwrap();
        type Outcome<'a> = BoxFuture<'a, Result<(), Error>>;
        // Those that do not need the key are not made.
        let changes: [(&str, Outcome<'_>); 15] = [
            ("schedule", jobs.schedule("new", HOUR, b"").map_ok(drop).boxed()),
            (
                "repeat",
                jobs.repeat("repeated", HOUR, HOUR / 2, b"").map_ok(drop).boxed(),
            ),
            (
                "reschedule",
                jobs.reschedule("waiting", HOUR / 2).map_ok(drop).boxed(),
            ),
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
        for (call, outcome) in changes {
            if are_not_needed(call).contains(&what) {
                continue;
            }
            let error = outcome.await.expect_err(call);
            assert!(
                matches!(&error, Error::WrongType { keys, .. } if keys.contains(&key(what))),
                "{call} with {what}: {error}"
            );
        }
        let error = soon(jobs.worker().start().next()).await.unwrap().unwrap_err();
        assert!(
            matches!(error, Error::WrongType { .. }),
            "a take with {what}: {error}"
        );
        let reads = [
            ("counts", jobs.counts().await.map(drop)),
            ("get", jobs.get("waiting").await.map(drop)),
            ("waiting", jobs.waiting(0, 10).await.map(drop)),
            ("dead", jobs.dead(10).await.map(drop)),
        ];
        for (call, outcome) in reads {
            let is_clear = outcome.as_ref().is_ok() || matches!(outcome, Err(Error::WrongType { .. }));
            assert!(is_clear, "{call} with {what}: {outcome:?}");
        }
        assert!(stored(&server) == before, "something was changed beside {what}");

        let _: () = server.command(&["DEL", &key(what)]);
        if had_it {
            let _: () = server.command(&["RENAME", "saved", &key(what)]);
        }
        let counts = jobs.counts().await.unwrap();
        assert_eq!((counts.waiting, counts.running, counts.dead), (2, 4, 1), "{what}");
    }
}
