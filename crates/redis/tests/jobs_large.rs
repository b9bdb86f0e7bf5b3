//! Large payloads and damaged entries, which stop no other job, no partition and no lease.

mod support;

use support::prelude::*;

const MIB: usize = 1 << 20;

/// Stores a job as an older version or another program may have.
async fn plant(server: &Server, partition: usize, id: &[u8], payload: &[u8]) {
    let mut connection = server.connect().await;
    let mut stored = redis::pipe();
    stored
        .hset(key_of(partition, "payload"), id, payload)
        .zadd(key_of(partition, "due"), id, 1);
    stored.exec_async(&mut connection).await.unwrap();
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

/// Polls a worker that yields nothing but errors, until so many jobs are dead.
async fn are_dead<C: Connection>(worker: &mut Worker, jobs: &DelayedJobs<C>, count: u64) {
    let dead = until(async || jobs.counts().await.is_ok_and(|counts| counts.dead == count));
    let delivered = async { while let Some(Err(_)) = worker.next().await {} };
    tokio::select! {
        () = delivered => panic!("a job was delivered"),
        () = dead => {}
    }
}

/// 12 MB a second, and the client's own limit of half a second, which is its default, or none.
async fn slow_connection(server: &Server, is_patient: bool) -> (Proxy, ConnectionManager) {
    let link = Proxy::start(server.port()).await;
    link.set(Network::Narrow(12_000_000));
    let connection = if is_patient {
        connect(&link.url()).await
    } else {
        Client::open(link.url())
            .unwrap()
            .get_connection_manager()
            .await
            .unwrap()
    };
    (link, connection)
}

/// Forty small jobs in four partitions and a lease of five seconds live through one large job.
async fn large_job(settings: impl Fn(Jobs) -> Jobs, is_delivered: bool) {
    let server = Server::start();
    let direct = server.queue().await.partitions(4);
    for n in 0..40 {
        assert!(direct.schedule(&n.to_string(), NOW, b"x").await.unwrap());
    }
    assert!((0..4).all(|n| server.exists(&key_of(n, "due"))));
    // "large" has to be where the queue looks for it.
    put(&direct, ["large"], HOUR).await;
    let has_it = |n: &usize| server.command::<bool>(&["HEXISTS", &key_of(*n, "payload"), "large"]);
    let partition = (0..4).find(has_it).unwrap();
    plant(&server, partition, b"large", &vec![7; 16 * MIB]).await;

    // A payload that is fetched as one answer takes longer than the default limit of a client.
    let (_link, connection) = slow_connection(&server, is_delivered).await;
    let jobs = settings(unnotified(connection.clone()).partitions(4));
    let lease = leases_on(connection).acquire("x", 5 * SECOND).await.unwrap();
    let mut worker = jobs.worker().attempts(2).start();
    let work = async {
        let (seen, errors) = do_jobs(&mut worker, 40 + usize::from(is_delivered)).await;
        assert_eq!(seen.contains("large"), is_delivered, "{errors:?}");
        if !is_delivered {
            are_dead(&mut worker, &jobs, 1).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = lease.lost() => panic!("the lease was lost"),
    }
    release(lease).await;
    if !is_delivered {
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
    large_job(|jobs| jobs.max_payload(16 * MIB).answer_within(30 * SECOND), true).await;
}

#[tokio::test]
async fn a_large_job_that_takes_too_long_dies_alone() {
    large_job(|jobs| jobs.max_payload(16 * MIB).answer_within(300 * MS), false).await;
}

/// Redis ends the connection of a client to which an answer is larger than it may be.
#[tokio::test]
async fn a_large_job_whose_answer_ends_the_connection_dies_alone() {
    let server = Server::start();
    let direct = server.queue().await;
    plant(&server, 0, b"large", &vec![7; 2 * MIB]).await;
    put(&direct, ["small"], NOW).await;
    let _: () = server.command(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"]);
    let jobs = unnotified(Reconnecting::of(server.client())).max_payload(4 * MIB);
    let mut worker = jobs.answer_within(300 * MS).worker().attempts(4).start();
    let (seen, _) = do_jobs(&mut worker, 1).await;
    assert!(seen.contains("small"), "{seen:?}");
    let each_counts = async {
        loop {
            let error = next_error(&mut worker).await;
            assert_is!(error, Error::Undeliverable { id, .. } if id == "large");
        }
    };
    tokio::select! {
        () = each_counts => {}
        () = counts_become(&direct, [0, 0, 1]) => {}
    }
}

/// A cluster's connection says so of a node whose own connection has broken.
#[tokio::test]
async fn a_large_job_whose_fetch_finds_no_connection_counts_an_attempt() {
    let server = Server::start();
    let direct = server.queue().await;
    plant(&server, 0, b"large", &vec![7; 2 * MIB]).await;
    let is_fetch = |request: &redis::Cmd| {
        let is_change = ["give_back", "unfetched"]
            .iter()
            .any(|change| says(request, change));
        says(request, "large") && !is_change
    };
    let connection = Faulty::new(server.connect().await, move |request| {
        if is_fetch(request) {
            Fault::Fail(redis::ErrorKind::ClusterConnectionNotFound)
        } else {
            Fault::None
        }
    });
    let jobs = unnotified(connection)
        .max_payload(4 * MIB)
        .answer_within(300 * MS);
    let mut worker = jobs.worker().attempts(2).start();
    are_dead(&mut worker, &direct, 1).await;
}

/// More of them than a worker prefetches, all due before the small ones.
#[tokio::test]
async fn large_jobs_that_cannot_be_fetched_let_others_pass() {
    let server = Server::start();
    let direct = server.queue().await;
    for n in 0..12 {
        plant(&server, 0, format!("large-{n}").as_bytes(), &vec![n; 4 * MIB]).await;
    }
    for n in 0..10 {
        assert!(direct.schedule(&n.to_string(), NOW, b"x").await.unwrap());
    }
    let (_link, connection) = slow_connection(&server, false).await;
    let jobs = unnotified(connection)
        .max_payload(4 * MIB)
        .answer_within(150 * MS);
    let mut worker = jobs.worker().prefetch(2).attempts(2).start();
    let (seen, _) = do_jobs(&mut worker, 10).await;
    assert!(!seen.iter().any(|id| id.starts_with("large")), "{seen:?}");
    are_dead(&mut worker, &direct, 12).await;
    for job in direct.dead(20).await.unwrap() {
        assert_eq!(job.attempts(), 2);
        assert!(job.error().unwrap().contains("in time"), "{job:?}");
    }
}

/// As many as are prefetched, each as large as may be.
#[tokio::test]
async fn a_backlog_of_large_jobs_keeps_leases() {
    let server = Server::start();
    let direct = server.queue().await.partitions(4);
    let payload = |n: u8| vec![n; MIB - usize::from(n)];
    for n in 0..40 {
        assert!(direct.schedule(&n.to_string(), NOW, &payload(n)).await.unwrap());
    }
    let (_link, connection) = slow_connection(&server, false).await;
    let lease = leases_on(connection.clone()).acquire("x", SECOND).await.unwrap();
    let mut worker = unnotified(connection).partitions(4).worker().start();
    let work = async {
        for _ in 0..40 {
            let job = next(&mut worker).await;
            assert_eq!(job.payload(), payload(job.id().parse().unwrap()));
            assert_eq!(job.attempt(), 1);
            done(job).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = lease.lost() => panic!("the lease was lost"),
    }
}

#[tokio::test]
async fn what_schedule_refuses_is_not_stored() {
    let (server, jobs) = Server::with_queue().await;
    let error = jobs.schedule("a", HOUR, &vec![0; MIB + 1]).await.unwrap_err();
    assert_says(&error, &["1048577 bytes", "1048576 bytes"]);
    assert_eq!(server.command::<u64>(&["DBSIZE"]), 0);
    assert!(jobs.schedule("a", HOUR, &vec![0; MIB]).await.unwrap());
    let small = server.queue().await.max_payload(10);
    assert!(small.schedule("b", HOUR, &[0; 11]).await.is_err());
    assert!(small.schedule("b", HOUR, &[0; 10]).await.unwrap());
    for wrong in [
        server.queue().await.max_payload((16 << 20) + 1),
        server.queue().await.answer_within(NOW),
        server.queue().await.answer_within(Duration::MAX),
    ] {
        let error = wrong.counts().await.unwrap_err();
        assert!(matches!(error, Error::InvalidSetting { .. }), "{error}");
    }
}

/// Dead jobs are listed with their payloads, however large they are together.
#[tokio::test]
async fn large_dead_jobs_are_listed() {
    let (_server, jobs) = Server::with_queue().await;
    let payload = |n: u8| vec![n; 200_000 * usize::from(n)];
    let mut worker = jobs.worker().start();
    for n in 0..5 {
        assert!(jobs.schedule(&n.to_string(), NOW, &payload(n)).await.unwrap());
        assert!(next(&mut worker).await.bury().await.unwrap());
    }
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead.len(), 5);
    for job in &dead {
        assert_eq!(job.payload(), payload(job.id().parse().unwrap()));
        assert_eq!(job.error(), None);
        assert!(!format!("{job:?}").contains("[0") && format!("{job:?}").len() < 200);
    }
}

/// Entries that this crate would not have stored. Each is skipped or buried and named, and its neighbours are
/// delivered.
#[tokio::test]
async fn damaged_entries_stop_no_partition() {
    let (server, jobs) = Server::with_queue().await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    let secret = b"SECRET";
    let plant = async |id: &[u8]| plant(&server, 0, id, secret).await;
    let odd_id = "\u{10348} \u{7ff} \u{ffff}";
    for id in [b"\xff\xfe", &[b'i'; 1025][..], odd_id.as_bytes()] {
        plant(id).await;
    }
    let states = "|x|a b c|- 99999999999 1|- 1 99999999999999999999|- -1 -1".split('|');
    let states: Vec<&str> = states.collect();
    for state in &states {
        let id = format!("state {state}");
        plant(id.as_bytes()).await;
        let _: i64 = server.command(&["HSET", &key("state"), &id, state]);
    }
    let scores = ["-inf", "-5", "1.5", "inf", "1e300"];
    for score in scores {
        let id = format!("score {score}");
        plant(id.as_bytes()).await;
        let _: i64 = server.command(&["ZADD", &key("due"), score, &id]);
    }
    for set in ["running", "claimed"] {
        let _: i64 = server.command(&["ZADD", &key(set), "inf", "nobody's", "-inf", "nobody's either"]);
    }
    assert!(jobs.schedule("good", NOW, secret).await.unwrap());

    let mut worker = jobs.worker().start();
    // All but the two whose ids are none, and the two that are due in a far future.
    let (seen, errors) = do_jobs(&mut worker, 1 + 1 + states.len() + scores.len() - 2).await;
    assert!(seen.contains("good") && seen.contains(odd_id), "{seen:?}");
    until(async || jobs.counts().await.unwrap().dead == 2).await;
    let dead = jobs.dead(10).await.unwrap();
    let reasons: BTreeSet<&str> = dead.iter().map(|job| job.error().unwrap()).collect();
    let expected = ["its id has 1025 bytes", "its id is not UTF-8"];
    assert_eq!(reasons, expected.into());
    assert!(!errors.is_empty());
    for error in errors {
        let text = format!("{error} {error:?}");
        assert!(matches!(error, Error::Undeliverable { .. }), "{text}");
        assert!(!text.contains("SECRET") && !text.contains("83, 69"), "{text}");
    }
}
