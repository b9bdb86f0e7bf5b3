//! Delayed jobs worked on by several processes, some of which are killed, on servers some of which are killed too.
//!
//! `TICKWHEEL_JOBS` is how many jobs each scene has: 100,000 where nobody is killed and a few thousand elsewhere, unless it says
//! otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    hash::{BuildHasher, RandomState},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use redis::{Client, cluster::ClusterClient};
use support::{
    PATIENCE,
    cluster::Cluster,
    connect,
    process::{Process, say, setting},
    server::{Server, signal},
    until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Connection, DelayedJobs, Notifications, Worker};

mod support;

const MS: Duration = Duration::from_millis(1);
const PARTITIONS: usize = 3;

fn size(otherwise: usize) -> usize {
    env::var("TICKWHEEL_JOBS").map_or(otherwise, |jobs| {
        jobs.parse().expect("TICKWHEEL_JOBS is a number")
    })
}

fn queue<C: Connection>(connection: C, notifications: &Notifications) -> DelayedJobs<C> {
    DelayedJobs::new(&Wheel::new(), connection, "fleet")
        .partitions(PARTITIONS)
        .notifications(notifications)
}

/// A worker process: says each delivery, `id attempt`, and then that it was done.
#[test]
#[ignore = "a role of the tests here"]
fn worker() {
    let Some(urls) = setting("urls") else { return };
    // It has nothing to say while there is nothing to do, and would not find out that its parent has gone.
    thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let lease = Duration::from_millis(setting("lease").unwrap().parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let start = |builder: tickwheel_redis::WorkerBuilder| {
            builder.lease(lease).attempts(1000).look_ahead(500 * MS).start()
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
        .for_each_concurrent(16, |job| async {
            // Redis is away for a while in some scenes.
            let Ok(job) = job else { return };
            let (id, attempt) = (job.id().to_owned(), job.attempt());
            say(&format!("got {id} {attempt}"));
            tokio::time::sleep(takes).await;
            if let Ok(true) = job.done().await {
                say(&format!("done {id} {attempt}"));
            }
        })
        .await;
}

/// As a program would have it; a master that has gone is given up after a second.
fn cluster_client(urls: Vec<String>) -> ClusterClient {
    ClusterClient::builder(urls)
        .use_protocol(redis::ProtocolVersion::RESP3)
        .connection_timeout(Duration::from_secs(2))
        .response_timeout(Duration::from_secs(1))
        .build()
        .unwrap()
}

/// What the workers have said.
#[derive(Default)]
struct Log {
    /// The attempts under which each job was delivered.
    got: Mutex<BTreeMap<String, Vec<u32>>>,
    done: Mutex<BTreeMap<String, Vec<u32>>>,
    ready: Mutex<usize>,
}

struct Fleet {
    log: Arc<Log>,
    /// The process ids of the workers.
    workers: Vec<u32>,
    settings: Vec<(String, String)>,
}

impl Fleet {
    /// Of workers that take so long for a job, in which they may be killed.
    fn new(urls: &str, lease: Duration, takes: Duration) -> Fleet {
        Fleet {
            log: Arc::default(),
            workers: Vec::new(),
            settings: vec![
                ("urls".to_owned(), urls.to_owned()),
                ("lease".to_owned(), lease.as_millis().to_string()),
                ("takes".to_owned(), takes.as_millis().to_string()),
            ],
        }
    }

    fn start_worker(&mut self) {
        let settings: Vec<(&str, &str)> = self
            .settings
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let mut process = Process::start("worker", &settings);
        self.workers.push(process.id());
        let log = self.log.clone();
        // It ends with the process, which is killed with the fleet.
        thread::spawn(move || {
            while let Some(line) = process.line() {
                let words: Vec<&str> = line.split(' ').collect();
                let book = match words[0] {
                    "got" => &log.got,
                    "done" => &log.done,
                    _ => {
                        *log.ready.lock().unwrap() += 1;
                        continue;
                    }
                };
                let mut book = book.lock().unwrap();
                book.entry(words[1].to_owned())
                    .or_default()
                    .push(words[2].parse().unwrap());
            }
        });
    }

    async fn is_ready(&self) {
        let workers = self.workers.len();
        until(|| async { *self.log.ready.lock().unwrap() >= workers }).await;
    }

    /// `kill -9` of a worker, and another in its place.
    fn replace_worker(&mut self) {
        let worker = random(self.workers.len() as u64);
        signal("KILL", self.workers.remove(worker as usize));
        self.start_worker();
    }

    /// Waits until every job of these has been done, for as long as there is progress.
    async fn has_done(&self, ids: &BTreeSet<String>) {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            let done = self.log.done.lock().unwrap().len();
            let got: usize = self.log.got.lock().unwrap().len();
            if done + got > last {
                (last, since) = (done + got, Instant::now());
            }
            let missing = || {
                let got = self.log.got.lock().unwrap();
                ids.iter().filter(|id| !got.contains_key(*id)).count()
            };
            if done >= ids.len() && missing() == 0 {
                return;
            }
            assert!(
                since.elapsed() < PATIENCE,
                "of {} jobs {} never came, and {done} were done",
                ids.len(),
                missing()
            );
            tokio::time::sleep(20 * MS).await;
        }
    }
}

/// A number at random, less than `below`.
fn random(below: u64) -> u64 {
    RandomState::new().hash_one(Instant::now()) % below
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for worker in &self.workers {
            let _ = std::process::Command::new("kill")
                .args(["-9", &worker.to_string()])
                .status();
        }
    }
}

/// Schedules so many jobs, some at a time, due over the next `spread`. Returns the ids that were acknowledged.
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
            let answer = jobs.schedule(&id, delay, &n.to_be_bytes()).await;
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
    let mut fleet = Fleet::new(&server.url(), Duration::from_secs(60), Duration::ZERO);
    for _ in 0..3 {
        fleet.start_worker();
    }
    fleet.is_ready().await;
    let jobs = queue(connect(&server.url()).await, &Notifications::of(server.client()));
    let ids = schedule(&jobs, "", count, 2000 * MS).await;
    assert_eq!(ids.len(), count);
    fleet.has_done(&ids).await;
    let got = fleet.log.got.lock().unwrap().clone();
    let twice: Vec<_> = got.iter().filter(|(_, attempts)| **attempts != [1]).collect();
    assert!(
        twice.is_empty(),
        "{} delivered twice, as {:?}",
        twice.len(),
        twice[0]
    );
    assert_eq!(got.len(), count);
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (0, 0, 0));
}

/// A job is delivered again only after a lease was lost, and each time with another attempt.
fn assert_duplicates_are_explained(log: &Log) -> usize {
    let got = log.got.lock().unwrap();
    let done = log.done.lock().unwrap();
    for (id, attempts) in got.iter() {
        let distinct: BTreeSet<_> = attempts.iter().collect();
        assert_eq!(
            distinct.len(),
            attempts.len(),
            "{id} came twice under one lease: {attempts:?}"
        );
    }
    for (id, attempts) in done.iter() {
        assert_eq!(
            attempts.len(),
            1,
            "{id} was done under several leases: {attempts:?}"
        );
    }
    got.values().filter(|attempts| attempts.len() > 1).count()
}

#[tokio::test]
async fn with_workers_and_the_server_killed_every_acknowledged_job_is_delivered() {
    let mut server = Server::start_aof();
    let count = size(3_000);
    let mut fleet = Fleet::new(&server.url(), Duration::from_secs(3), 20 * MS);
    for _ in 0..3 {
        fleet.start_worker();
    }
    fleet.is_ready().await;
    let jobs = queue(connect(&server.url()).await, &Notifications::of(server.client()));
    let scheduling = tokio::spawn({
        let jobs = jobs.clone();
        async move { schedule(&jobs, "", count, 4000 * MS).await }
    });
    for round in 0..4 {
        tokio::time::sleep(Duration::from_millis(400 + random(800))).await;
        fleet.replace_worker();
        if round % 2 == 1 {
            server.restart();
        }
    }
    let ids = scheduling.await.unwrap();
    assert!(!ids.is_empty());
    // What was done by a worker that was killed before it said so is seen by its delivery alone.
    until(|| async {
        let counts = jobs.counts().await;
        counts.is_ok_and(|counts| counts.waiting + counts.running == 0)
    })
    .await;
    let log = fleet.log.clone();
    until(|| async {
        let got = log.got.lock().unwrap();
        ids.iter().all(|id| got.contains_key(id))
    })
    .await;
    let twice = assert_duplicates_are_explained(&log);
    println!(
        "{} acknowledged, {twice} delivered again after a lost lease",
        ids.len()
    );
    assert_eq!(jobs.counts().await.unwrap().dead, 0);
}

/// Until a replica of this master has what was written before.
fn wait_for_a_replica(master: u16) {
    let client = Client::open(format!("redis://127.0.0.1:{master}/")).unwrap();
    let mut connection = client.get_connection().unwrap();
    // WAIT waits for what its own connection has written.
    let (_, replicas): (String, i64) = redis::pipe()
        .cmd("SET")
        .arg("{fleet:0}")
        .arg("")
        .cmd("WAIT")
        .arg(1)
        .arg(30_000)
        .query(&mut connection)
        .unwrap();
    assert_eq!(replicas, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_master_failed_over_every_acknowledged_job_is_delivered() {
    let mut cluster = Cluster::start();
    let count = size(1_500).min(20_000);
    let mut fleet = Fleet::new(&cluster.urls().join(","), Duration::from_secs(5), Duration::ZERO);
    for _ in 0..2 {
        fleet.start_worker();
    }
    fleet.is_ready().await;
    let client = cluster_client(cluster.urls());
    let connection = client.get_async_connection().await.unwrap();
    let jobs = queue(connection, &Notifications::of_cluster(client));
    let mut ids = schedule(&jobs, "before-", count, 6000 * MS).await;
    assert_eq!(ids.len(), count);
    // What a replica has not got yet is lost with its master: that is what Redis promises, and no more.
    let master = cluster.master_of("tickwheel:jobs:{fleet:0}:due");
    wait_for_a_replica(master);
    cluster.kill(master);
    ids.extend(schedule(&jobs, "after-", count, 1000 * MS).await);
    let log = fleet.log.clone();
    until(|| async {
        let got = log.got.lock().unwrap();
        ids.iter().all(|id| got.contains_key(id))
    })
    .await;
    until(|| async {
        let counts = jobs.counts().await;
        counts.is_ok_and(|counts| counts.waiting + counts.running == 0)
    })
    .await;
    let got = log.got.lock().unwrap();
    let twice = got.values().filter(|attempts| attempts.len() > 1).count();
    println!(
        "{} acknowledged, {twice} delivered again across the failover",
        ids.len()
    );
    // What was finished in the moment of the failover may come again; the rest may not.
    assert!(twice < count / 4, "{twice} of {} came twice", ids.len());
}
