//! Large payloads and damaged entries, which stop no other job, no partition and no lease.

use std::{collections::BTreeSet, time::Duration};

use futures::StreamExt;
use redis::{Client, aio::ConnectionManager};
use support::{
    connect,
    jobs::{Jobs, next, queue},
    server::Server,
    slow::SlowLink,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Error, Leases, Worker};

mod support;

const HOUR: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;

/// A key of the partition.
fn key(partition: usize, what: &str) -> String {
    format!("tickwheel:jobs:{{q:{partition}}}:{what}")
}

/// Stores a job as an older version or another program may have.
async fn plant(server: &Server, partition: usize, id: &[u8], payload: &[u8]) {
    let mut connection = connect(&server.url()).await;
    let _: () = redis::pipe()
        .hset(key(partition, "payload"), id, payload)
        .zadd(key(partition, "due"), id, 1)
        .query_async(&mut connection)
        .await
        .unwrap();
}

/// The next `count` jobs, whatever errors come between them.
async fn do_jobs(worker: &mut Worker, count: usize) -> (BTreeSet<String>, Vec<Error>) {
    let (mut seen, mut errors) = (BTreeSet::new(), Vec::new());
    soon(async {
        while seen.len() < count {
            match worker.next().await.unwrap() {
                Ok(job) => {
                    seen.insert(job.id().to_owned());
                    job.done().await.unwrap();
                }
                Err(error) => errors.push(error),
            }
        }
    })
    .await;
    (seen, errors)
}

fn on(connection: ConnectionManager) -> Jobs {
    DelayedJobs::new(&Wheel::new(), connection, "q").partitions(4)
}

/// 12 MB a second, and the client's own limit of half a second, which is its default.
async fn slow_connection(server: &Server) -> (SlowLink, ConnectionManager) {
    let link = SlowLink::start(server.port(), 12_000_000).await;
    let client = Client::open(link.url()).unwrap();
    let connection = client.get_connection_manager().await.unwrap();
    (link, connection)
}

/// 12 MB a second, and no limit of the client's own.
async fn slow_and_patient_connection(server: &Server) -> (SlowLink, ConnectionManager) {
    let link = SlowLink::start(server.port(), 12_000_000).await;
    let connection = connect(&link.url()).await;
    (link, connection)
}

/// Forty small jobs in four partitions and a lease of five seconds live through one large job, which ends as
/// `settle` expects.
async fn large_job(limits: impl Fn(Jobs) -> Jobs, delivered: bool) {
    let server = Server::start();
    let direct = queue(&server, "q").await.partitions(4);
    for n in 0..40 {
        assert!(
            direct
                .schedule(&format!("{n}"), Duration::ZERO, b"x")
                .await
                .unwrap()
        );
    }
    let partitions = (0..4).filter(|n| server.command::<bool>(&["EXISTS", &key(*n, "due")]));
    assert_eq!(partitions.count(), 4);
    // "large" has to be where the queue looks for it.
    assert!(direct.schedule("large", HOUR, b"").await.unwrap());
    let partition = (0..4)
        .find(|n| server.command::<bool>(&["HEXISTS", &key(*n, "payload"), "large"]))
        .unwrap();
    plant(&server, partition, b"large", &vec![7; 16 * MIB]).await;

    // A payload that is fetched as one answer takes longer than the default limit of a client.
    let (_link, connection) = if delivered {
        slow_and_patient_connection(&server).await
    } else {
        slow_connection(&server).await
    };
    let jobs = limits(on(connection.clone()));
    let leases = Leases::new(&Wheel::new(), connection);
    let lease = leases.acquire("x", Duration::from_secs(5)).await.unwrap();
    let mut worker = jobs.worker().attempts(2).start();
    let lost = lease.lost();
    let work = async {
        let (seen, errors) = do_jobs(&mut worker, 40 + usize::from(delivered)).await;
        assert_eq!(seen.contains("large"), delivered, "{errors:?}");
        if !delivered {
            // The stream has to be polled for the other attempt.
            tokio::select! {
                job = async {
                    loop {
                        if let Ok(job) = worker.next().await.unwrap() {
                            break job;
                        }
                    }
                } => panic!("{job:?}"),
                () = until(async || jobs.counts().await.is_ok_and(|counts| counts.dead == 1)) => {}
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = lost => panic!("the lease was lost"),
    }
    assert!(lease.release().await.unwrap());
    if !delivered {
        let dead = direct.dead(10).await.unwrap();
        assert_eq!(dead.len(), 1);
        assert_eq!((dead[0].id(), dead[0].attempts()), ("large", 2));
        let reason = dead[0].error().unwrap();
        assert!(reason.contains("16777216 bytes"), "{reason}");
        assert!(dead[0].payload().is_empty(), "it is larger than what is fetched");
    }
}

#[tokio::test]
async fn a_job_that_is_too_large_dies_alone() {
    large_job(|jobs| jobs, false).await;
}

#[tokio::test]
async fn a_large_job_that_may_be_is_delivered() {
    large_job(
        |jobs| jobs.max_payload(16 * MIB).answer_within(Duration::from_secs(30)),
        true,
    )
    .await;
}

#[tokio::test]
async fn a_large_job_that_takes_too_long_dies_alone() {
    large_job(
        |jobs| {
            jobs.max_payload(16 * MIB)
                .answer_within(Duration::from_millis(300))
        },
        false,
    )
    .await;
}

/// More of them than a worker prefetches, all due before the small ones.
#[tokio::test]
async fn large_jobs_that_cannot_be_fetched_let_others_pass() {
    let server = Server::start();
    let direct = queue(&server, "q").await;
    for n in 0..12 {
        plant(&server, 0, format!("large-{n}").as_bytes(), &vec![n; 4 * MIB]).await;
    }
    for n in 0..10 {
        assert!(
            direct
                .schedule(&format!("{n}"), Duration::ZERO, b"x")
                .await
                .unwrap()
        );
    }
    let (_link, connection) = slow_connection(&server).await;
    let jobs = DelayedJobs::new(&Wheel::new(), connection, "q")
        .max_payload(4 * MIB)
        .answer_within(Duration::from_millis(150));
    let mut worker = jobs.worker().prefetch(2).attempts(2).start();
    let (seen, _) = do_jobs(&mut worker, 10).await;
    assert!(!seen.iter().any(|id| id.starts_with("large")), "{seen:?}");
    tokio::select! {
        _ = async { while worker.next().await.is_some() {} } => {}
        () = until(async || direct.counts().await.unwrap().dead == 12) => {}
    }
    let dead = direct.dead(20).await.unwrap();
    assert!(
        dead.iter()
            .all(|job| job.attempts() == 2 && job.error().unwrap().contains("in time"))
    );
}

/// As many as are prefetched, each as large as may be.
#[tokio::test]
async fn a_backlog_of_large_jobs_keeps_leases() {
    let server = Server::start();
    let direct = queue(&server, "q").await.partitions(4);
    for n in 0..40 {
        let payload = vec![n; MIB - usize::from(n)];
        assert!(
            direct
                .schedule(&format!("{n}"), Duration::ZERO, &payload)
                .await
                .unwrap()
        );
    }
    let (_link, connection) = slow_connection(&server).await;
    let lease = Leases::new(&Wheel::new(), connection.clone())
        .acquire("x", Duration::from_secs(1))
        .await
        .unwrap();
    let mut worker = on(connection).worker().start();
    let work = async {
        for _ in 0..40 {
            let job = next(&mut worker).await;
            let n: u8 = job.id().parse().unwrap();
            assert_eq!(job.payload(), vec![n; MIB - usize::from(n)]);
            assert_eq!(job.attempt(), 1);
            assert!(job.done().await.unwrap());
        }
    };
    tokio::select! {
        () = work => {}
        () = lease.lost() => panic!("the lease was lost"),
    }
}

#[tokio::test]
async fn what_schedule_refuses_is_not_stored() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let error = jobs.schedule("a", HOUR, &vec![0; MIB + 1]).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("1048577 bytes") && text.contains("1048576 bytes"),
        "{text}"
    );
    assert_eq!(server.command::<u64>(&["DBSIZE"]), 0);
    assert!(jobs.schedule("a", HOUR, &vec![0; MIB]).await.unwrap());
    let small = queue(&server, "q").await.max_payload(10);
    assert!(small.schedule("b", HOUR, &[0; 11]).await.is_err());
    assert!(small.schedule("b", HOUR, &[0; 10]).await.unwrap());
    for wrong in [
        queue(&server, "q").await.max_payload((16 << 20) + 1),
        queue(&server, "q").await.answer_within(Duration::ZERO),
        queue(&server, "q").await.answer_within(Duration::MAX),
    ] {
        let error = wrong.counts().await.unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    }
}

/// Dead jobs are listed with their payloads, however large they are together.
#[tokio::test]
async fn large_dead_jobs_are_listed() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..5 {
        let payload = vec![n; 200_000 * usize::from(n)];
        assert!(
            jobs.schedule(&format!("{n}"), Duration::ZERO, &payload)
                .await
                .unwrap()
        );
    }
    let mut worker = jobs.worker().start();
    for _ in 0..5 {
        assert!(next(&mut worker).await.bury().await.unwrap());
    }
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead.len(), 5);
    for job in &dead {
        let n: u8 = job.id().parse().unwrap();
        assert_eq!(job.payload(), vec![n; 200_000 * usize::from(n)]);
        assert_eq!(job.error(), None);
        assert!(!format!("{job:?}").contains("[0") && format!("{job:?}").len() < 200);
    }
}

/// Entries that this crate would not have stored. Each is skipped or buried and named, and its neighbours are
/// delivered.
#[tokio::test]
async fn damaged_entries_stop_no_partition() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    assert_eq!(jobs.counts().await.unwrap().waiting, 0);
    let secret = b"SECRET";
    plant(&server, 0, b"\xff\xfe", secret).await;
    plant(&server, 0, &vec![b'i'; 1025], secret).await;
    plant(&server, 0, "\u{10348} \u{7ff} \u{ffff}".as_bytes(), secret).await;
    let states = [
        "",
        "x",
        "a b c",
        "- 99999999999 1",
        "- 1 99999999999999999999",
        "- -1 -1",
    ];
    for (n, state) in states.iter().enumerate() {
        let id = format!("state-{n}");
        plant(&server, 0, id.as_bytes(), secret).await;
        let _: i64 = server.command(&["HSET", &key(0, "state"), &id, state]);
    }
    let scores = ["-inf", "-5", "1.5", "inf", "1e300"];
    for (n, score) in scores.iter().enumerate() {
        let id = format!("score-{n}");
        plant(&server, 0, id.as_bytes(), secret).await;
        let _: i64 = server.command(&["ZADD", &key(0, "due"), score, &id]);
    }
    for set in ["running", "claimed"] {
        let _: i64 = server.command(&["ZADD", &key(0, set), "inf", "nobody's"]);
        let _: i64 = server.command(&["ZADD", &key(0, set), "-inf", "nobody's either"]);
    }
    assert!(jobs.schedule("good", Duration::ZERO, secret).await.unwrap());

    let mut worker = jobs.worker().start();
    // All but the two whose ids are none, and the two that are due in a far future.
    let (seen, errors) = do_jobs(&mut worker, 1 + 1 + states.len() + scores.len() - 2).await;
    assert!(
        seen.contains("good") && seen.contains("\u{10348} \u{7ff} \u{ffff}"),
        "{seen:?}"
    );
    until(async || jobs.counts().await.unwrap().dead == 2).await;
    let dead = jobs.dead(10).await.unwrap();
    let reasons: BTreeSet<&str> = dead.iter().map(|job| job.error().unwrap()).collect();
    assert_eq!(
        reasons,
        BTreeSet::from(["its id has 1025 bytes", "its id is not UTF-8"])
    );
    assert!(!errors.is_empty());
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(matches!(error, Error::Undeliverable { .. }), "{text}");
        assert!(!text.contains("SECRET") && !text.contains("83, 69"), "{text}");
    }
}

#[tokio::test]
async fn a_name_or_an_id_has_at_most_1024_bytes() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let longest = "x".repeat(1024);
    assert!(jobs.schedule(&longest, Duration::ZERO, b"").await.unwrap());
    let mut worker = jobs.worker().start();
    assert!(next(&mut worker).await.done().await.unwrap());
    let too_long = format!("{longest}x");
    for error in [
        jobs.schedule(&too_long, HOUR, b"").await.unwrap_err(),
        jobs.cancel(&too_long).await.unwrap_err(),
        queue(&server, &too_long).await.counts().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    }
}
