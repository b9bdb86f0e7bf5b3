//! Delayed jobs on several worker processes, some of which are killed, and on servers, some of which are
//! killed too.
//!
//! `TICKWHEEL_JOBS` is the number of jobs in each scene. The default is 100,000 where nothing is killed, and
//! a few thousand elsewhere.

use std::env;

use fleet::Fleet;
use futures::stream;
use log::{FailedMaster, LOST_DONE, Outcome};
use redis::cluster::ClusterClient;
use support::prelude::*;

mod fleet;
mod log;
#[path = "../support/mod.rs"]
mod support;

const PARTITIONS: usize = 3;
/// How many jobs a worker works on at once.
const PLACES: usize = 16;

fn size(otherwise: usize) -> usize {
    let jobs = env::var("TICKWHEEL_JOBS");
    jobs.map_or(otherwise, |jobs| {
        jobs.parse().expect("TICKWHEEL_JOBS is a number")
    })
}

fn queue<C: Connection>(connection: C, notifications: &Notifications) -> DelayedJobs<C> {
    DelayedJobs::new(&Wheel::new(), connection, "fleet")
        .partitions(PARTITIONS)
        .notifications(notifications)
}

/// A worker process: says each delivery, `got id attempt`, and then what came of `done`, as `done id
/// attempt`.
#[test]
#[ignore = "a role of the tests here"]
fn worker() {
    let Some(urls) = setting("urls") else { return };
    // It has nothing to say while there is nothing to do, and would not find out that its parent has gone.
    die_with_parent();
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let lease = Duration::from_millis(setting("lease").unwrap().parse().unwrap());
    runtime().block_on(async {
        let start = |worker: WorkerBuilder| {
            let worker = worker.lease(lease).concurrency(PLACES).attempts(1000);
            worker.look_ahead(500 * MS).start()
        };
        let worker = if let [url] = &urls[..] {
            let notifications = Notifications::of(Client::open(&**url).unwrap());
            start(queue(connect(url).await, &notifications).worker())
        } else {
            let client = cluster_client(urls);
            let notifications = Notifications::of_cluster(client.clone());
            let connection = client.get_async_connection().await.unwrap();
            start(queue(connection, &notifications).worker())
        };
        let takes = Duration::from_millis(setting("takes").unwrap().parse().unwrap());
        work(worker, takes).await;
    });
}

async fn work(worker: Worker, takes: Duration) {
    say("ready");
    worker
        .for_each_concurrent(PLACES, |job| async {
            // Redis is away for a while in some scenes.
            let Ok(job) = job else { return };
            let (id, attempt) = (job.id().to_owned(), job.attempt());
            assert_eq!(job.payload(), payload_of(&id));
            say(&format!("got {id} {attempt}"));
            sleep(takes).await;
            let outcome = match job.done().await {
                Ok(true) => Outcome::Done,
                Ok(false) => Outcome::Lost,
                Err(_) => Outcome::Unanswered,
            };
            say(&format!("{} {id} {attempt}", outcome.name()));
        })
        .await;
}

/// Where it comes with a job, Redis still has the job: a `done` deletes it.
fn payload_of(id: &str) -> Vec<u8> {
    format!("the payload of {id}").into_bytes()
}

/// As a program would have it; a master that has gone is given up after a second.
fn cluster_client(urls: Vec<String>) -> ClusterClient {
    ClusterClient::builder(urls)
        .use_protocol(redis::ProtocolVersion::RESP3)
        .connection_timeout(2 * SECOND)
        .response_timeout(SECOND)
        .build()
        .unwrap()
}

/// Schedules so many jobs, some at a time, due over the next `spread`. Returns the ids that were
/// acknowledged.
async fn schedule<C: Connection>(
    jobs: &DelayedJobs<C>,
    prefix: &str,
    count: usize,
    spread: Duration,
) -> BTreeSet<String> {
    stream::iter(0..count)
        .map(|n| async move {
            let id = format!("{prefix}{n}");
            let delay = spread.mul_f64((n * 7919 % count) as f64 / count as f64);
            let answer = jobs.schedule(&id, delay, &payload_of(&id)).await;
            // One that was repeated across a failover may find itself there.
            answer.is_ok().then_some(id)
        })
        .buffer_unordered(64)
        .filter_map(async |id| id)
        .collect()
        .await
}

#[tokio::test]
async fn nothing_is_lost_and_nothing_done_twice_while_every_worker_lives() {
    let server = Server::start();
    let count = size(100_000);
    let fleet = Fleet::start(3, &server.url(), MINUTE, NOW).await;
    let jobs = queue(server.connect().await, &Notifications::of(server.client()));
    let ids = schedule(&jobs, "", count, 2000 * MS).await;
    assert_eq!(ids.len(), count);
    fleet.has_done(&ids).await;
    let attempts = fleet.log.attempts();
    let twice = attempts.iter().find(|(_, attempts)| **attempts != [1]);
    assert_eq!(twice, None, "delivered twice");
    assert_eq!(attempts.len(), count);
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn with_workers_and_the_server_killed_every_acknowledged_job_is_delivered() {
    let mut server = Server::start_aof();
    let count = size(3_000);
    let mut fleet = Fleet::start(3, &server.url(), 3 * SECOND, 20 * MS).await;
    let jobs = queue(server.connect().await, &Notifications::of(server.client()));
    let scheduling = tokio::spawn({
        let jobs = jobs.clone();
        async move { schedule(&jobs, "", count, 4000 * MS).await }
    });
    for round in 0..4 {
        sleep(Duration::from_millis(400 + fastrand::u64(..800))).await;
        fleet.replace_worker();
        if round % 2 == 1 {
            server.restart();
        }
    }
    let ids = scheduling.await.unwrap();
    assert!(!ids.is_empty());
    is_empty(&jobs).await;
    fleet.has_done(&ids).await;
    let reasons = fleet.explain_duplicates(None);
    println!("{} acknowledged; delivered again: {reasons:?}", ids.len());
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

/// Until no job is left.
async fn is_empty<C: Connection>(jobs: &DelayedJobs<C>) {
    until(|| async {
        let counts = jobs.counts().await;
        counts.is_ok_and(|counts| counts.waiting + counts.running == 0)
    })
    .await;
}

fn key(partition: usize, what: &str) -> String {
    format!("tickwheel:jobs:{{fleet:{partition}}}:{what}")
}

/// The jobs of these partitions that are not done, with the attempts that were counted.
fn jobs_of(node: &Node, partitions: &[usize]) -> BTreeMap<String, u32> {
    let mut jobs = BTreeMap::new();
    for partition in partitions {
        let ids: Vec<String> = node.command(&["HKEYS", &key(*partition, "payload")]);
        let states: BTreeMap<String, String> = node.command(&["HGETALL", &key(*partition, "state")]);
        // Token, attempts, due time.
        let attempts = |id| {
            states
                .get(id)
                .map_or("0", |state| state.split(' ').nth(1).unwrap())
        };
        jobs.extend(ids.iter().map(|id| (id.clone(), attempts(id).parse().unwrap())));
    }
    jobs
}

/// One master hands over to its replica, which loses nothing. Another dies after its replica has been cut off
/// from it: that is as bad as a failover gets. What it acknowledged in between is lost, and no more: its file
/// shows what that was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_masters_failed_over_every_acknowledged_job_is_delivered_and_each_duplicate_explained() {
    const FAILING: [usize; 2] = [0, 1];
    const OTHER: usize = 2;
    let mut cluster = Cluster::start();
    let count = size(1_500).min(20_000) / 3;
    let fleet = Fleet::start(2, &cluster.urls().join(","), 5 * SECOND, 50 * MS).await;
    let client = cluster_client(cluster.urls());
    let connection = client.get_async_connection().await.unwrap();
    let jobs = queue(connection, &Notifications::of_cluster(client));
    let [master, same, other] =
        [FAILING[0], FAILING[1], OTHER].map(|partition| cluster.master_of(&key(partition, "due")));
    assert!(master == same && master != other);

    let mut ids = schedule(&jobs, "early-", count, 1500 * MS).await;
    assert_eq!(ids.len(), count);
    cluster.hand_over(other);
    until(|| async { fleet.log.done_of(&ids) > count / 4 }).await;
    // What a replica has not got yet is lost with its master. So all is scheduled before, and most is done
    // after.
    fleet.signal("STOP");
    let late = schedule(&jobs, "late-", count, 300 * MS).await;
    assert_eq!(late.len(), count);
    ids.extend(late.iter().cloned());
    cluster.wait_for_replica(master, "{fleet:0}");
    let before: BTreeSet<String> = jobs_of(cluster.node(master), &FAILING).into_keys().collect();
    let replica = cluster.cut_off_replica(master);
    fleet.signal("CONT");
    let in_vain = &before & &late;
    until(|| async { fleet.log.done_of(&in_vain) >= 20 }).await;
    cluster.kill(master);
    cluster.node(replica).cont();
    ids.extend(schedule(&jobs, "after-", count, 1000 * MS).await);
    fleet.has_done(&ids).await;
    is_empty(&jobs).await;
    fleet.has_done(&ids).await;

    let after = jobs_of(cluster.data_of_killed(master), &FAILING);
    let reasons = fleet.explain_duplicates(Some(&FailedMaster { before, after }));
    println!("{} acknowledged; delivered again: {reasons:?}", ids.len());
    assert!(reasons[LOST_DONE] >= 20);
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}
