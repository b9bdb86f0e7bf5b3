//! What a failover costs the jobs of a queue: the master of its slot is killed, again and again, and each acknowledged job that the
//! replica had is delivered.
//!
//! `TICKWHEEL_FAILOVERS` is how many masters are killed, 2 unless it says otherwise. Each prints a line, and every second one happens
//! on a machine whose cores are busy. `docs/guarantees.md` has the distribution of a long run.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use futures::StreamExt;
use redis::{ProtocolVersion, cluster::ClusterClient};
use support::{cluster::Cluster, server::command, until};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Notifications};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

mod support;

const MS: Duration = Duration::from_millis(1);
const JOBS: usize = 200;
const LEASE: Duration = Duration::from_secs(1);
/// From which time on the log of a failover is printed.
const SLOW: Duration = Duration::from_secs(2);

/// Keeps two cores busy until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Load {
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let ended = ended.clone();
            thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Load(ended)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What happened since the master was killed.
#[derive(Default)]
struct Log {
    /// When each job was delivered first.
    delivered: BTreeMap<String, Instant>,
    again: usize,
    events: Vec<(Instant, String)>,
}

fn client(cluster: &Cluster, round: usize) -> ClusterClient {
    let builder = ClusterClient::builder(cluster.urls()).use_protocol(ProtocolVersion::RESP3);
    // The client's own limits, half a second for an answer, and some that are longer than a lease.
    let builder = if round / 2 % 2 == 0 {
        builder
    } else {
        builder
            .connection_timeout(Duration::from_secs(10))
            .response_timeout(Duration::from_secs(10))
    };
    builder.build().unwrap()
}

/// When the replica accepts a write for the queue's slot.
fn promotion(cluster: &Cluster, replica: u16) -> JoinHandle<Instant> {
    let node = cluster.node(replica);
    tokio::spawn(async move {
        let mut connection = node.get_multiplexed_async_connection().await.unwrap();
        loop {
            let set: redis::RedisResult<()> = redis::cmd("SET")
                .arg("{q:0}")
                .arg("")
                .query_async(&mut connection)
                .await;
            if set.is_ok() {
                return Instant::now();
            }
            sleep(10 * MS).await;
        }
    })
}

async fn fail_over(cluster: &mut Cluster, round: usize) -> Duration {
    let client = client(cluster, round);
    let connection = client.get_async_connection().await.unwrap();
    let jobs =
        DelayedJobs::new(&Wheel::new(), connection, "q").notifications(&Notifications::of_cluster(client));
    let log = Arc::new(Mutex::new(Log::default()));
    // Half of the time most jobs have been claimed before the master dies, and come again after their leases.
    let claimed = round / 4 % 2 == 1;
    let worker = if claimed {
        jobs.worker().look_ahead(Duration::from_secs(10)).prefetch(1000)
    } else {
        jobs.worker()
    };
    let worker = worker.lease(LEASE).attempts(1000).start();
    let work = tokio::spawn({
        let log = log.clone();
        worker.for_each_concurrent(16, move |job| {
            let log = log.clone();
            async move {
                let now = Instant::now();
                let job = match job {
                    Ok(job) => job,
                    Err(error) => {
                        log.lock().unwrap().events.push((now, format!("yielded {error}")));
                        return;
                    }
                };
                {
                    let mut log = log.lock().unwrap();
                    if log.delivered.insert(job.id().to_owned(), now).is_some() {
                        log.again += 1;
                    }
                }
                let (id, done) = (job.id().to_owned(), job.done().await);
                if !matches!(done, Ok(true)) {
                    let event = format!("done of {id}: {done:?}");
                    log.lock().unwrap().events.push((Instant::now(), event));
                }
            }
        })
    });
    let mut ids = BTreeSet::new();
    for n in 0..JOBS {
        // Due around the time at which the replica takes over.
        let delay = 2000 * MS + MS * (n as u32) * 10;
        let id = format!("{round}-{n}");
        jobs.schedule(&id, delay, b"x").await.unwrap();
        ids.insert(id);
    }
    let master = cluster.master_of("{q:0}");
    let replica = cluster.replica_of(master);
    sleep(200 * MS).await;
    let (_, replicas): (String, i64) = redis::pipe()
        .cmd("SET")
        .arg("{q:0}")
        .arg("")
        .cmd("WAIT")
        .arg(1)
        .arg(30_000)
        .query(&mut cluster.node(master).get_connection().unwrap())
        .unwrap();
    assert_eq!(replicas, 1);
    let load = (round % 2 == 1).then(Load::start);
    let killed = Instant::now();
    cluster.kill(master);
    let promoted = promotion(cluster, replica).await.unwrap();
    let last_due = killed + 4000 * MS;
    until(|| async { log.lock().unwrap().delivered.len() >= JOBS }).await;
    drop(load);
    let (took, from_promotion) = {
        let log = log.lock().unwrap();
        let last = *log.delivered.values().max().unwrap();
        (
            last - killed,
            last.saturating_duration_since(promoted.max(last_due)),
        )
    };
    println!(
        "{round}: {}, {}, {}: promoted after {:?}, last job after {took:?}, {from_promotion:?} after both it and the promotion; \
         {} delivered again",
        if round % 2 == 1 { "busy" } else { "idle" },
        if round / 2 % 2 == 0 {
            "client of 0.5 s"
        } else {
            "client of 10 s"
        },
        if claimed { "claimed" } else { "waiting" },
        promoted - killed,
        log.lock().unwrap().again
    );
    if from_promotion > SLOW || promoted - killed > 3 * SLOW {
        for (at, event) in &log.lock().unwrap().events {
            println!("    {:?}: {event}", at.saturating_duration_since(killed));
        }
        println!("{}", cluster.log_of(replica));
    }
    work.abort();
    // All that is left is due again once its lease has run out; what the next round finds is its own.
    drop(jobs);
    let node = cluster.node(replica);
    let keys: Vec<String> = command(&node, &["KEYS", "tickwheel:jobs:{q:0}:*"]);
    let keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
    if !keys.is_empty() {
        let _: i64 = command(&node, &[&["DEL"], &keys[..]].concat());
    }
    cluster.restart(master);
    from_promotion
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_job_that_the_replica_has_is_delivered() {
    let rounds = env::var("TICKWHEEL_FAILOVERS").map_or(2, |rounds| rounds.parse().expect("a number"));
    let mut cluster = Cluster::start();
    let mut took = Vec::new();
    for round in 0..rounds {
        took.push(fail_over(&mut cluster, round).await);
    }
    took.sort();
    println!("{took:?}");
}
