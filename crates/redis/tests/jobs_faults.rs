//! Delayed jobs while answers get lost, and while Redis is unreachable, suspended, restarted, full or
//! misconfigured.

mod support;

use support::prelude::*;

const SHORT: Duration = Duration::from_secs(2);

/// A server, and a queue behind a proxy; notifications come from the server itself. Redis knows the scripts: it cannot
/// carry out what it has to ask for first.
async fn behind_proxy() -> (Server, Proxy, Jobs) {
    let (server, proxy) = Server::with_proxy().await;
    let jobs = unnotified(connect(&proxy.url()).await).notifications(&Notifications::of(server.client()));
    put(&jobs, ["warm"], NOW).await;
    do_next(&mut worker(&jobs)).await;
    (server, proxy, jobs)
}

/// Loses the answer of what is asked, once it has been carried out, and lets the network recover.
async fn lose_answer<T: Send + 'static>(
    jobs: &Jobs,
    proxy: &Proxy,
    server: &Server,
    effect: [u64; 4],
    asked: impl Future<Output = T> + Send + 'static,
) -> T {
    // A connection that was cut before is found out now, and not when it could not be made again.
    jobs.counts().await.unwrap();
    eprintln!(
        "due, claimed, running, dead: {:?}, to become {effect:?}",
        sizes(server)
    );
    proxy.set(Network::Deaf);
    let asked = tokio::spawn(asked);
    until(|| async { sizes(server) == effect }).await;
    sleep(100 * MS).await;
    assert!(!asked.is_finished(), "the answer was not lost");
    proxy.cut().await;
    soon(asked).await.unwrap()
}

#[tokio::test]
async fn what_is_repeated_after_a_lost_answer_answers_as_the_first_did() {
    let (server, proxy, jobs) = behind_proxy().await;
    macro_rules! lose_answer {
        ($effect:expr, $asked:expr) => {{
            let asked = Box::pin($asked);
            let answer: bool = lose_answer(&jobs, &proxy, &server, $effect, asked).await.unwrap();
            assert!(answer);
        }};
    }
    let of = || jobs.clone();
    let (first, second, third) = (of(), of(), of());
    lose_answer!([1, 0, 0, 0], async move { first.schedule("a", HOUR, b"").await });
    lose_answer!([0, 0, 0, 0], async move {
        second.cancel("a").await.map(|found| found == Cancelled::Waiting)
    });
    put(&jobs, ["a"], NOW).await;
    let mut worker = worker(&jobs);
    let job = next_after_errors(&mut worker).await;
    lose_answer!([0, 0, 0, 0], job.done());
    put(&jobs, ["a"], NOW).await;
    let job = next_after_errors(&mut worker).await;
    lose_answer!([1, 0, 0, 0], job.retry_after(HOUR));
    jobs.reschedule("a", NOW).await.unwrap();
    let job = next_after_errors(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    lose_answer!([0, 0, 0, 1], job.bury());
    drop(worker);
    // A worker that went would take what is revived here.
    sleep(100 * MS).await;
    lose_answer!([1, 0, 0, 0], async move { third.revive("a").await });
}

#[tokio::test]
async fn a_take_whose_answer_was_lost_is_repeated() {
    let (server, proxy, jobs) = behind_proxy().await;
    for n in 0..5 {
        jobs.schedule(&n.to_string(), NOW, b"x").await.unwrap();
    }
    // The claims of the lost answer would stay for an hour.
    let mut worker = worker(&jobs);
    let (mut worker, job) = lose_answer(&jobs, &proxy, &server, [0, 5, 0, 0], async move {
        let job = next_after_errors(&mut worker).await;
        (worker, job)
    })
    .await;
    assert_eq!((job.id(), job.attempt()), ("0", 1));
    for n in 1..5 {
        let job = next_after_errors(&mut worker).await;
        assert_job(&job, &n.to_string(), 1, b"x");
    }
}

#[tokio::test]
async fn a_start_whose_answer_was_lost_is_repeated() {
    let (server, proxy, jobs) = behind_proxy().await;
    put(&jobs, 0..5, NOW).await;
    let mut worker = worker(&jobs);
    let _first = next_after_errors(&mut worker).await;
    let asked = async move { next_after_errors(&mut worker).await };
    let job = lose_answer(&jobs, &proxy, &server, [0, 3, 2, 0], asked).await;
    assert_eq!((job.id(), job.attempt()), ("1", 1));
}

#[tokio::test]
async fn a_take_that_was_dropped_midway_is_given_back() {
    let (server, proxy, jobs) = behind_proxy().await;
    put(&jobs, 0..5, NOW).await;
    let mut dropped = worker(&jobs);
    proxy.set(Network::Deaf);
    assert!(dropped.next().now_or_never().is_none());
    until(|| async { sizes(&server) == [0, 5, 0, 0] }).await;
    drop(dropped);
    sleep(100 * MS).await;
    proxy.cut().await;
    until(|| async { sizes(&server) == [5, 0, 0, 0] }).await;
    assert_eq!(next_after_errors(&mut worker(&jobs)).await.attempt(), 1);
}

#[tokio::test]
async fn redis_away_is_an_error_and_work_goes_on_when_it_is_back() {
    let (_server, proxy, jobs) = behind_proxy().await;
    let mut worker = worker(&jobs);
    assert!(worker.next().now_or_never().is_none());
    put(&jobs, ["a"], NOW).await;
    done(next_after_errors(&mut worker).await).await;

    for network in [Network::Down, Network::Silent] {
        proxy.set(network);
        match soon(jobs.schedule("b", NOW, b"")).await.unwrap_err() {
            Error::Redis(_) => {}
            // All of the attempts took so long, and not the last one.
            Error::NoAnswer { waited } if waited > 4 * SECOND => {}
            error => panic!("{network:?}: {error}"),
        }
        // A worker finds out at its next sweep.
        let error = next_error(&mut worker).await;
        assert_is!(error, Error::Redis(_) | Error::NoAnswer { .. });
        proxy.cut().await;
        jobs.schedule("b", NOW, b"").await.unwrap();
        let job = next_after_errors(&mut worker).await;
        assert_eq!(job.id(), "b");
        done(job).await;
    }
}

#[tokio::test]
async fn a_job_is_lost_when_redis_does_not_answer_for_its_lease() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, ["a", "b"], NOW).await;
    let mut worker = jobs.worker().lease(SHORT).start();
    let [a, b] = next_jobs(&mut worker).await;
    let asked = Instant::now();
    server.stop();
    soon(a.lost()).await;
    soon(b.lost()).await;
    assert!(asked.elapsed() <= SHORT + 10 * SECOND);
    // What was lost is not asked for any more: Redis is still away.
    assert!(!a.done().await.unwrap());
    server.cont();
    assert!(!b.done().await.unwrap());
    for _ in 0..2 {
        let again = next_after_errors(&mut worker).await;
        assert_eq!(again.attempt(), 2);
        done(again).await;
    }
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_has_every_job() {
    let mut server = Server::start_aof();
    let jobs = server.queue().await;
    put(&jobs, 10..30, NOW).await;
    let mut worker = jobs.worker().lease(HOUR).prefetch(5).start();
    let first = next_after_errors(&mut worker).await;
    server.restart();
    // Claims and running jobs are where they were.
    done(first).await;
    for n in 11..30 {
        let job = next_after_errors(&mut worker).await;
        assert_eq!(delivery(&job), (n.to_string(), 1));
        done(job).await;
    }
    assert_eq!(sizes(&server), [0; 4]);
}

/// Refuses to schedule for want of memory.
async fn is_full<C: Connection>(jobs: &DelayedJobs<C>) {
    let error = jobs.schedule("more", NOW, b"").await.unwrap_err();
    assert_says(&error, &["out of memory"]);
}

#[tokio::test]
async fn out_of_memory_nothing_is_scheduled_and_everything_is_finished() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, 0..6, NOW).await;
    let mut worker = jobs.worker().lease(SHORT).prefetch(1).start();
    let held = next_after_errors(&mut worker).await;
    server.set("maxmemory", "1");
    is_full(&jobs).await;

    assert_eq!(jobs.cancel("5").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.reschedule("4", HOUR).await.unwrap());
    done(next_after_errors(&mut worker).await).await;
    let retried = next_after_errors(&mut worker).await;
    assert!(retried.retry_after(HOUR).await.unwrap());
    assert!(next_after_errors(&mut worker).await.bury().await.unwrap());
    assert_eq!(jobs.dead(1).await.unwrap().len(), 1);
    held_for(&held, SHORT * 2).await;
    done(held).await;
    server.set("maxmemory", "0");
    put(&jobs, ["more"], HOUR).await;
}

/// It is carried out, and refused when it is asked for again.
#[tokio::test]
async fn a_schedule_whose_answer_was_lost_is_not_refused_for_want_of_memory() {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let jobs = unnotified(connection);
    // The server knows the script from now on.
    put(&jobs, ["warm"], HOUR).await;
    faults.set(Fault::LoseAnswer);
    let scheduling = tokio::spawn(async move { jobs.schedule("a", HOUR, b"").await });
    until(|| async { sizes(&server) == [2, 0, 0, 0] }).await;
    server.set("maxmemory", "1");
    faults.clear();
    let error = soon(scheduling).await.unwrap().unwrap_err();
    assert_is!(error, Error::NoAnswer { .. });
}

#[tokio::test]
async fn a_process_that_starts_when_redis_is_out_of_memory_drains_the_queue() {
    let server = Server::start();
    let before = server.queue().await;
    for n in 0..4 {
        before.schedule(&n.to_string(), NOW, b"x").await.unwrap();
    }
    server.set("maxmemory", "1");
    // Nor does the server know any script.
    let _: String = server.command(&["SCRIPT", "FLUSH"]);
    let jobs = server.queue().await;
    assert_eq!(counts(&jobs).await, [4, 0, 0]);
    let mut worker = jobs.worker().lease(SHORT).start();
    let held = next_after_errors(&mut worker).await;
    assert!(next_after_errors(&mut worker).await.bury().await.unwrap());
    assert_eq!(jobs.dead(10).await.unwrap()[0].payload(), b"x");
    assert!(jobs.revive("1").await.unwrap());
    for _ in 0..3 {
        done(next_after_errors(&mut worker).await).await;
    }
    held_for(&held, SHORT * 2).await;
    done(held).await;
    assert_eq!(sizes(&server), [0; 4]);
    is_full(&jobs).await;
    // A queue that is used for the first time is opened, too, so that the error is the same.
    let other = DelayedJobs::new(&Wheel::new(), server.connect().await, "other");
    is_full(&other).await;
    assert_eq!(counts(&other).await, [0, 0, 0]);
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let jobs = server.queue().await;
    let mut worker = worker(&jobs);
    let refused = jobs.schedule("a", SECOND, b"").await.unwrap_err();
    for error in [refused, next_error(&mut worker).await] {
        assert_is!(error, Error::EvictionPolicy { policy, .. } if policy == "allkeys-lru");
    }
    // No key of a queue has a time to live, so a policy that evicts those with one touches no job.
    server.set("maxmemory-policy", "volatile-lru");
    put(&jobs, ["a"], NOW).await;
    assert_eq!(next_after_errors(&mut worker).await.id(), "a");
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    assert!(keys.len() > 3, "{keys:?}");
    for key in keys {
        assert_eq!(server.command::<i64>(&["PTTL", &key]), -1, "{key}");
    }
}

/// A server may accept no more than that. It closes the connection then, which fails whatever is in the same batch.
#[tokio::test]
async fn an_operation_over_a_mebibyte_has_a_batch_of_its_own() {
    let server = Server::start_with(&["--proto-max-bulk-len", "1mb"]);
    let jobs = server.queue().await.max_payload(2 << 20);
    jobs.counts().await.unwrap();
    let too_long = vec![0; (1 << 20) + 1];
    let ((), long, ()) = soon(futures::future::join3(
        put_together(&jobs, 0..20, HOUR),
        jobs.schedule("long", HOUR, &too_long),
        put_together(&jobs, 20..40, HOUR),
    ))
    .await;
    assert_is!(long.unwrap_err(), Error::Redis(_) | Error::NoAnswer { .. });
    assert_eq!(counts(&jobs).await, [40, 0, 0]);
}

#[test]
fn a_worker_that_outlives_its_runtime_yields_an_error() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut worker = runtime.block_on(async {
        let jobs = server.queue().await;
        put(&jobs, 0..300, NOW).await;
        let mut worker = jobs.worker().lease(HOUR).prefetch(200).start();
        let _first = next_after_errors(&mut worker).await;
        until(async || entries(&server, "claimed") > 100).await;
        worker
    });
    let handle = runtime.handle().clone();
    runtime.shutdown_timeout(SECOND);
    let (ends, end) = std::sync::mpsc::channel();
    // Nothing interrupts a thread that hangs, but a test can go on without it.
    thread::spawn(move || {
        // The worker asks for the next start as it is polled, and the runtime drops that there and then.
        let _entered = handle.enter();
        // An error is not told that comes soon after another.
        let last = Instant::now() + 20 * SECOND;
        let mut yielded = false;
        while !yielded && Instant::now() < last {
            yielded = matches!(worker.next().now_or_never(), Some(Some(Err(_))));
            thread::sleep(10 * MS);
        }
        ends.send(yielded).unwrap();
    });
    let yielded = end
        .recv_timeout(30 * SECOND)
        .expect("it hangs, or it has panicked");
    assert!(yielded, "no error");
}

#[tokio::test]
async fn a_batch_that_comes_late_is_refused() {
    // A request may wait in a network for longer than its sender does, and arrive behind the next one.
    let server = Server::start();
    // The name of the call, and of the one before it.
    let call = |names: &str, id: &str| {
        run_script::<String>(&server, "schedule", names, &["in", id, "0", "0", "payload"])
    };
    assert_eq!(call("1", "a").unwrap(), "1");
    assert_eq!(call("1", "a").unwrap(), "1");
    assert_eq!(call("2 1", "a").unwrap(), "0");
    let error = call("1", "b").unwrap_err();
    assert_eq!(error.code(), Some("STALE"), "{error}");
    // The outcome of the third is unknown to its sender. It never arrived, or not yet.
    assert_eq!(call("4 3 2", "c").unwrap(), "1");
    // A copy of the process, from before that, knows only the second.
    let error = call("5 2", "d").unwrap_err();
    assert_eq!(error.code(), Some("STALE"), "{error}");
    let mut ids: Vec<String> = server.command(&["HKEYS", &key("payload")]);
    ids.sort();
    assert_eq!(ids, ["a", "c"]);
}
