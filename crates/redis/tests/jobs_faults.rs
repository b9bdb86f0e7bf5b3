//! Delayed jobs while replies get lost, and while Redis is unreachable, suspended, restarted, full or
//! misconfigured.

use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use support::{
    connect,
    jobs::{Jobs, KEYS, entries, next_after_errors},
    proxy::{Network, Proxy},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Error, Notifications, Worker};
use tokio::time::sleep;

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(2);

/// A queue behind `url`, which may be a proxy's; notifications come from the server itself.
async fn queue(url: &str, server: &Server) -> Jobs {
    DelayedJobs::new(&Wheel::new(), connect(url).await, "q")
        .notifications(&Notifications::of(server.client()))
}

/// With a lease that no test waits for.
fn worker(jobs: &Jobs) -> Worker {
    jobs.worker().lease(HOUR).start()
}

/// Lets Redis know the scripts: it cannot carry out what it has to ask for first.
async fn warm(jobs: &Jobs) {
    jobs.schedule("warm", Duration::ZERO, b"").await.unwrap();
    let mut worker = worker(jobs);
    assert!(next_after_errors(&mut worker).await.done().await.unwrap());
}

/// How many jobs are due, claimed, running and dead.
fn places(server: &Server) -> [u64; 4] {
    ["due", "claimed", "running", "dead"].map(|set| entries(server, set))
}

/// Loses the reply of what is asked, once it has been carried out, and lets the network recover.
async fn lose_reply<T: Send + 'static>(
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
        places(server)
    );
    proxy.set(Network::Deaf);
    let asked = tokio::spawn(asked);
    until(|| async { places(server) == effect }).await;
    sleep(100 * MS).await;
    assert!(!asked.is_finished(), "the reply was not lost");
    proxy.set(Network::Down);
    sleep(50 * MS).await;
    proxy.set(Network::Up);
    soon(asked).await.unwrap()
}

#[tokio::test]
async fn what_is_repeated_after_a_lost_reply_answers_as_the_first_did() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = queue(&proxy.url(), &server).await;
    warm(&jobs).await;
    macro_rules! lose_reply {
        ($effect:expr, $asked:expr) => {{
            #[allow(clippy::redundant_closure_call)]
            let asked = ($asked)(jobs.clone());
            let answer: bool = lose_reply(&jobs, &proxy, &server, $effect, asked).await.unwrap();
            assert!(answer);
        }};
    }
    lose_reply!([1, 0, 0, 0], |jobs: Jobs| async move {
        jobs.schedule("a", HOUR, b"").await
    });
    lose_reply!([0, 0, 0, 0], |jobs: Jobs| async move {
        jobs.cancel("a").await.map(|found| found == Cancelled::Waiting)
    });
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = worker(&jobs);
    let job = next_after_errors(&mut worker).await;
    lose_reply!([0, 0, 0, 0], |_: Jobs| job.done());
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let job = next_after_errors(&mut worker).await;
    lose_reply!([1, 0, 0, 0], |_: Jobs| job.retry_after(HOUR));
    jobs.reschedule("a", Duration::ZERO).await.unwrap();
    let job = next_after_errors(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    lose_reply!([0, 0, 0, 1], |_: Jobs| job.bury());
    drop(worker);
    // A worker that went would take what is revived here.
    sleep(100 * MS).await;
    lose_reply!([1, 0, 0, 0], |jobs: Jobs| async move { jobs.revive("a").await });
}

#[tokio::test]
async fn a_take_whose_reply_was_lost_is_repeated() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = queue(&proxy.url(), &server).await;
    warm(&jobs).await;
    for n in 0..5 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"x")
            .await
            .unwrap();
    }
    // The claims of the lost reply would stay for an hour.
    let mut worker = worker(&jobs);
    let (mut worker, job) = lose_reply(&jobs, &proxy, &server, [0, 5, 0, 0], async move {
        let job = next_after_errors(&mut worker).await;
        (worker, job)
    })
    .await;
    assert_eq!((job.id(), job.attempt()), ("0", 1));
    for n in 1..5 {
        let job = next_after_errors(&mut worker).await;
        assert_eq!(
            (job.id(), job.payload(), job.attempt()),
            (&*format!("{n}"), &b"x"[..], 1)
        );
    }
}

#[tokio::test]
async fn a_start_whose_reply_was_lost_is_repeated() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = queue(&proxy.url(), &server).await;
    for n in 0..5 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut worker = worker(&jobs);
    let _first = next_after_errors(&mut worker).await;
    let job = lose_reply(&jobs, &proxy, &server, [0, 3, 2, 0], async move {
        next_after_errors(&mut worker).await
    })
    .await;
    assert_eq!((job.id(), job.attempt()), ("1", 1));
}

#[tokio::test]
async fn a_take_that_was_dropped_midway_is_given_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = queue(&proxy.url(), &server).await;
    warm(&jobs).await;
    for n in 0..5 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut dropped = worker(&jobs);
    proxy.set(Network::Deaf);
    assert!(dropped.next().now_or_never().is_none());
    until(|| async { places(&server) == [0, 5, 0, 0] }).await;
    drop(dropped);
    sleep(100 * MS).await;
    proxy.set(Network::Down);
    sleep(50 * MS).await;
    proxy.set(Network::Up);
    until(|| async { places(&server) == [5, 0, 0, 0] }).await;
    let mut worker = worker(&jobs);
    assert_eq!(next_after_errors(&mut worker).await.attempt(), 1);
}

#[tokio::test]
async fn redis_away_is_an_error_and_work_goes_on_when_it_is_back() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = queue(&proxy.url(), &server).await;
    let mut worker = worker(&jobs);
    assert!(worker.next().now_or_never().is_none());
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    next_after_errors(&mut worker).await.done().await.unwrap();

    for network in [Network::Down, Network::Silent] {
        proxy.set(network);
        let error = soon(jobs.schedule("b", Duration::ZERO, b"")).await.unwrap_err();
        // All of the attempts took so long, and not the last one.
        assert!(
            matches!(error, Error::Redis(_))
                || matches!(error, Error::NoAnswer { waited } if waited > 4 * SECOND),
            "{network:?}: {error}"
        );
        // A worker finds out at its next sweep.
        let error = soon(worker.next()).await.unwrap().unwrap_err();
        assert!(
            matches!(error, Error::Redis(_) | Error::NoAnswer { .. }),
            "{network:?}: {error}"
        );
        proxy.set(Network::Down);
        sleep(50 * MS).await;
        proxy.set(Network::Up);
        jobs.schedule("b", Duration::ZERO, b"").await.unwrap();
        let job = next_after_errors(&mut worker).await;
        assert_eq!(job.id(), "b");
        assert!(soon(job.done()).await.unwrap());
    }
}

#[tokio::test]
async fn a_job_is_lost_when_redis_does_not_answer_for_its_lease() {
    let server = Server::start();
    let jobs = queue(&server.url(), &server).await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    jobs.schedule("b", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(SHORT).start();
    let (a, b) = (
        next_after_errors(&mut worker).await,
        next_after_errors(&mut worker).await,
    );
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
        assert!(again.done().await.unwrap());
    }
}

#[tokio::test]
async fn a_server_that_is_killed_and_restarted_has_every_job() {
    let mut server = Server::start_aof();
    let jobs = queue(&server.url(), &server).await;
    for n in 0..20 {
        jobs.schedule(&format!("{n:02}"), Duration::ZERO, b"")
            .await
            .unwrap();
    }
    let mut worker = jobs.worker().lease(HOUR).prefetch(5).start();
    let first = next_after_errors(&mut worker).await;
    server.restart();
    // Claims and running jobs are where they were.
    assert!(soon(first.done()).await.unwrap());
    for n in 1..20 {
        let job = next_after_errors(&mut worker).await;
        assert_eq!((job.id(), job.attempt()), (&*format!("{n:02}"), 1));
        assert!(soon(job.done()).await.unwrap());
    }
    assert_eq!(places(&server), [0; 4]);
}

#[tokio::test]
async fn out_of_memory_nothing_is_scheduled_and_everything_is_finished() {
    let server = Server::start();
    let jobs = queue(&server.url(), &server).await;
    for n in 0..6 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut worker = jobs.worker().lease(SHORT).prefetch(1).start();
    let held = next_after_errors(&mut worker).await;
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = jobs.schedule("more", Duration::ZERO, b"").await.unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");

    assert_eq!(jobs.cancel("5").await.unwrap(), Cancelled::Waiting);
    assert!(jobs.reschedule("4", HOUR).await.unwrap());
    assert!(next_after_errors(&mut worker).await.done().await.unwrap());
    assert!(
        next_after_errors(&mut worker)
            .await
            .retry_after(HOUR)
            .await
            .unwrap()
    );
    assert!(next_after_errors(&mut worker).await.bury().await.unwrap());
    assert_eq!(jobs.dead(1).await.unwrap().len(), 1);
    tokio::select! {
        () = held.lost() => panic!("not renewed"),
        () = sleep(SHORT * 2) => {}
    }
    assert!(held.done().await.unwrap());
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(jobs.schedule("more", HOUR, b"").await.unwrap());
}

#[tokio::test]
async fn a_process_that_starts_when_redis_is_out_of_memory_drains_the_queue() {
    let server = Server::start();
    let before = queue(&server.url(), &server).await;
    for n in 0..4 {
        before
            .schedule(&format!("{n}"), Duration::ZERO, b"x")
            .await
            .unwrap();
    }
    let _: String = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    // Nor does the server know any script.
    let _: String = server.command(&["SCRIPT", "FLUSH"]);
    let jobs = queue(&server.url(), &server).await;
    assert_eq!(jobs.counts().await.unwrap().waiting, 4);
    let mut worker = jobs.worker().lease(SHORT).start();
    let held = next_after_errors(&mut worker).await;
    assert!(next_after_errors(&mut worker).await.bury().await.unwrap());
    assert_eq!(jobs.dead(10).await.unwrap()[0].payload(), b"x");
    assert!(jobs.revive("1").await.unwrap());
    for _ in 0..3 {
        assert!(next_after_errors(&mut worker).await.done().await.unwrap());
    }
    tokio::select! {
        () = held.lost() => panic!("not renewed"),
        () = sleep(SHORT * 2) => {}
    }
    assert!(held.done().await.unwrap());
    assert_eq!(places(&server), [0; 4]);
    let error = jobs.schedule("more", Duration::ZERO, b"").await.unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    // A queue that is used for the first time is opened, too, so that the error is the same.
    let other = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "other");
    let error = other.schedule("a", Duration::ZERO, b"").await.unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    assert_eq!(other.counts().await.unwrap().waiting, 0);
}

#[tokio::test]
async fn a_server_that_evicts_is_refused() {
    let server = Server::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let jobs = queue(&server.url(), &server).await;
    let error = jobs.schedule("a", SECOND, b"").await.unwrap_err();
    assert!(
        matches!(&error, Error::EvictionPolicy { policy, .. } if policy == "allkeys-lru"),
        "{error}"
    );
    let mut worker = worker(&jobs);
    let error = soon(worker.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::EvictionPolicy { .. }), "{error}");
    // No key of a queue has a time to live, so a policy that evicts those with one touches no job.
    let _: String = server.command(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert!(jobs.schedule("a", Duration::ZERO, b"").await.unwrap());
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
    let jobs = queue(&server.url(), &server).await;
    jobs.counts().await.unwrap();
    let too_long = vec![0; (1 << 20) + 1];
    let small = |prefix: &'static str| {
        let small = (0..20).map(|n| {
            let jobs = jobs.clone();
            async move { jobs.schedule(&format!("{prefix}-{n}"), HOUR, b"x").await }
        });
        futures::future::join_all(small)
    };
    let asked = Instant::now();
    let (before, long, after) = soon(futures::future::join3(
        small("before"),
        jobs.schedule("long", HOUR, &too_long),
        small("after"),
    ))
    .await;
    println!("{:?}: {long:?}", asked.elapsed());
    long.unwrap_err();
    for scheduled in before.into_iter().chain(after) {
        assert!(scheduled.unwrap());
    }
    assert_eq!(jobs.counts().await.unwrap().waiting, 40);
}

#[test]
fn a_worker_that_outlives_its_runtime_yields_an_error() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut worker = runtime.block_on(async {
        let jobs = queue(&server.url(), &server).await;
        for n in 0..300 {
            assert!(jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap());
        }
        let mut worker = jobs.worker().lease(HOUR).prefetch(200).start();
        let _first = next_after_errors(&mut worker).await;
        until(async || places(&server)[1] > 100).await;
        worker
    });
    let handle = runtime.handle().clone();
    runtime.shutdown_timeout(SECOND);
    let (ends, end) = std::sync::mpsc::channel();
    // Nothing interrupts a thread that hangs, but a test can go on without it.
    std::thread::spawn(move || {
        // The worker asks for the next start as it is polled, and the runtime drops that there and then.
        let _entered = handle.enter();
        // An error is not told that comes soon after another.
        let last = std::time::Instant::now() + 20 * SECOND;
        let mut yielded = false;
        while !yielded && std::time::Instant::now() < last {
            yielded = matches!(worker.next().now_or_never(), Some(Some(Err(_))));
            std::thread::sleep(Duration::from_millis(10));
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
    let call = |names: &str, id: &str| -> redis::RedisResult<String> {
        let mut connection = server.client().get_connection().unwrap();
        redis::cmd("EVAL")
            .arg(concat!(
                include_str!("../src/jobs/store/scripts/prelude.lua"),
                include_str!("../src/jobs/store/scripts/schedule.lua"),
                "end)()"
            ))
            .arg(KEYS.len())
            .arg(&KEYS)
            .arg(&[names, "channel", "in", id, "0", "0", "payload"])
            .query(&mut connection)
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
    let mut ids: Vec<String> = server.command(&["HKEYS", "payload"]);
    ids.sort();
    assert_eq!(ids, ["a", "c"]);
}
