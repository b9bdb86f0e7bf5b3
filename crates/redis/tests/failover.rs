//! How long a failover delays a queue. The master of its slot dies, and every acknowledged job that the
//! replica has is delivered.
//!
//! `TICKWHEEL_FAILOVERS` is the number of failovers in each test, 1 by default. Each prints a line. They
//! alternate: the machine is idle or busy, the client has no response timeout or one of half a second, and
//! the jobs wait in Redis or have been claimed by a worker. `docs/operations.md` has the distribution over a
//! long run.

mod support;

use std::env;

use redis::{RedisResult, cluster::ClusterClient};
use support::prelude::*;
use tokio::task::JoinHandle;

const JOBS: usize = 200;
const LEASE: Duration = Duration::from_secs(1);
/// When the last job is due, after it was scheduled. The first is due after half of that.
const LAST_DUE: Duration = Duration::from_millis(4000);

#[derive(Clone, Copy, Debug)]
enum Death {
    /// Its connections are closed.
    Killed,
    /// Its connections stay open, as those of a machine that has vanished do.
    Suspended,
}

#[derive(Clone, Copy, Debug)]
struct Scene {
    death: Death,
    /// Whether two threads spin meanwhile.
    busy: bool,
    /// Whether a worker has claimed the jobs before the master dies, so that they come again after their
    /// leases.
    claimed: bool,
    /// The limit of the cluster client for an answer.
    response_timeout: Option<Duration>,
}

impl Scene {
    fn of_round(death: Death, round: usize) -> Scene {
        // A client that waits without a limit waits for a suspended master, also when it reads the slot map.
        let without_limit = matches!(death, Death::Killed) && round & 4 != 0;
        Scene {
            death,
            busy: round & 1 != 0,
            claimed: round & 2 != 0,
            response_timeout: (!without_limit).then_some(500 * MS),
        }
    }

    fn client(&self, cluster: &Cluster) -> ClusterClient {
        let builder = ClusterClient::builder(cluster.urls()).use_protocol(redis::ProtocolVersion::RESP3);
        match self.response_timeout {
            Some(limit) => builder.response_timeout(limit),
            None => builder,
        }
        .build()
        .unwrap()
    }
}

/// Keeps two cores busy until it is dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Load {
        let ended = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let ended = ended.clone();
            thread::spawn(move || {
                while !ended.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
        }
        Load(ended)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[derive(Default)]
struct Log {
    /// When each job was first delivered.
    delivered: BTreeMap<String, Instant>,
    delivered_again: usize,
}

impl Log {
    fn delivery(&mut self, id: &str) {
        if self.delivered.contains_key(id) {
            self.delivered_again += 1;
        } else {
            self.delivered.insert(id.to_owned(), Instant::now());
        }
    }

    /// How long the failover took.
    fn summary(&self, died: Instant, promoted: Instant, last_due: Instant) -> String {
        let last = *self.delivered.values().max().unwrap();
        let late = last.saturating_duration_since(promoted.max(last_due));
        format!(
            "promoted after {:.3} s, the last job {:.3} s after that and its due time, {} delivered again",
            (promoted - died).as_secs_f64(),
            late.as_secs_f64(),
            self.delivered_again,
        )
    }
}

async fn work_on(job: Result<Job, Error>, log: Arc<Mutex<Log>>) {
    let job = match job {
        Ok(job) => job,
        Err(error) => return eprintln!("yielded: {error}"),
    };
    let id = job.id().to_owned();
    log.lock().unwrap().delivery(&id);
    let done = job.done().await;
    if !matches!(done, Ok(true)) {
        eprintln!("done of {id}: {done:?}");
    }
}

/// Schedules the jobs of a round, and waits until the replica has them.
async fn schedule<C: Connection>(cluster: &Cluster, jobs: &DelayedJobs<C>, round: usize) {
    for n in 0..JOBS {
        // Due before, while, and after the replica takes over.
        let delay = LAST_DUE / 2 + LAST_DUE / 2 * n as u32 / JOBS as u32;
        put(jobs, [format!("{round}-{n}")], delay).await;
    }
    cluster.wait_for_replica(cluster.master_of("{q:0}"), "{q:0}");
}

/// When the replica accepts a write to the queue's slot.
fn promotion(cluster: &Cluster, replica: u16) -> JoinHandle<Instant> {
    let node = cluster.node(replica).client();
    tokio::spawn(async move {
        let mut connection = node.get_multiplexed_async_connection().await.unwrap();
        loop {
            let mut set = redis::cmd("SET");
            let set: RedisResult<()> = set.arg(&["{q:0}", ""]).query_async(&mut connection).await;
            if set.is_ok() {
                return Instant::now();
            }
            sleep(10 * MS).await;
        }
    })
}

async fn fail_over(cluster: &mut Cluster, scene: Scene, round: usize) {
    let client = scene.client(cluster);
    let jobs = unnotified(client.get_async_connection().await.unwrap());
    let jobs = jobs.notifications(&Notifications::of_cluster(client));
    let worker = jobs.worker().lease(LEASE).attempts(1000);
    let worker = if scene.claimed {
        worker.look_ahead(LAST_DUE * 2).prefetch(JOBS * 2)
    } else {
        worker
    };
    let log = Arc::new(Mutex::new(Log::default()));
    let working = tokio::spawn({
        let log = log.clone();
        worker
            .start()
            .for_each_concurrent(16, move |job| work_on(job, log.clone()))
    });
    let scheduled = Instant::now();
    schedule(cluster, &jobs, round).await;
    let master = cluster.master_of("{q:0}");
    let replica = cluster.replica_of(master);
    let load = scene.busy.then(Load::start);
    let died = Instant::now();
    match scene.death {
        Death::Killed => cluster.kill(master),
        Death::Suspended => cluster.node(master).stop(),
    }
    let promoted = promotion(cluster, replica).await.unwrap();
    until(|| async { log.lock().unwrap().delivered.len() == JOBS }).await;
    drop(load);

    let line = log.lock().unwrap().summary(died, promoted, scheduled + LAST_DUE);
    println!("{round}: {scene:?}: {line}");
    working.abort();
    until(|| async { jobs.counts().await.is_ok_and(|counts| counts.waiting == 0) }).await;
    cluster.kill(master);
    cluster.restart(master);
}

async fn fail_over_again_and_again(death: Death) {
    let rounds = env::var("TICKWHEEL_FAILOVERS").map_or(1, |rounds| rounds.parse().expect("a number"));
    let mut cluster = Cluster::start();
    for round in 0..rounds {
        fail_over(&mut cluster, Scene::of_round(death, round), round).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_delivered_when_a_master_is_killed() {
    fail_over_again_and_again(Death::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_delivered_when_a_master_is_suspended() {
    fail_over_again_and_again(Death::Suspended).await;
}
