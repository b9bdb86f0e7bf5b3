//! Delayed jobs and leases while the slot of their keys moves to another node of a cluster.

mod support;

use futures::{future::select_all, stream};
use redis::cluster_async::ClusterConnection;
use support::prelude::*;

/// A slot on its way from one master to another.
struct Migration<'a> {
    cluster: &'a Cluster,
    slot: String,
    from: &'a Node,
    to: &'a Node,
}

impl Migration<'_> {
    fn begin<'a>(cluster: &'a Cluster, key: &str) -> Migration<'a> {
        let from = cluster.master_of(key);
        let to = cluster.masters().into_iter().find(|port| *port != from).unwrap();
        let (from, to) = (cluster.node(from), cluster.node(to));
        let slot = from.command::<i64>(&["CLUSTER", "KEYSLOT", key]).to_string();
        let _: String = to.command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        let _: String = from.command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
        Migration {
            cluster,
            slot,
            from,
            to,
        }
    }

    /// Moves so many of the slot's keys, and returns how many there were.
    fn move_keys(&self, most: usize) -> usize {
        let most = most.to_string();
        let keys: Vec<String> = self
            .from
            .command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &most]);
        for key in &keys {
            self.move_key(key);
        }
        keys.len()
    }

    fn move_key(&self, key: &str) {
        let port = self.to.port().to_string();
        let moved: String = self
            .from
            .command(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        assert_eq!(moved, "OK", "{key}");
    }

    fn end(self) {
        while self.move_keys(100) > 0 {}
        let masters = self.cluster.masters();
        let masters = masters.into_iter().map(|port| self.cluster.node(port));
        for node in [self.to, self.from].into_iter().chain(masters) {
            let _: String = node.command(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id(self.to)]);
        }
    }
}

fn id(node: &Node) -> String {
    node.command(&["CLUSTER", "MYID"])
}

type ClusterJobs = DelayedJobs<ClusterConnection>;

async fn queue(cluster: &Cluster) -> ClusterJobs {
    unnotified(cluster.connect().await)
}

/// The slot of this key moves.
const KEY: &str = "tickwheel:jobs:{q:0}:due";

/// A task that schedules a job.
fn scheduling(jobs: &ClusterJobs, id: &'static str, delay: Duration) -> tokio::task::JoinHandle<()> {
    let jobs = jobs.clone();
    tokio::spawn(async move { put(&jobs, [id], delay).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_in_migration_delays_and_loses_nothing() {
    let cluster = Cluster::start();
    let jobs = queue(&cluster).await;
    put(&jobs, 0..3, NOW).await;
    let mut worker = jobs.worker().lease(9 * SECOND).start();
    let held = next_after_errors(&mut worker).await;
    let mut others = queue(&cluster).await.worker().lease(9 * SECOND).start();

    let migration = Migration::begin(&cluster, KEY);
    let scheduled = scheduling(&jobs, "during", HOUR);
    // The keys are on both nodes for a while, so that no script can run.
    sleep(SECOND).await;
    migration.move_keys(2);
    tokio::select! {
        job = next_after_errors(&mut others) => panic!("out of a slot on two nodes: {job:?}"),
        () = held_for(&held, 2 * SECOND) => {}
    }
    migration.end();
    let ended = Instant::now();
    soon(scheduled).await.unwrap();
    println!("scheduled {:?} after the end", ended.elapsed());
    held_for(&held, 8 * SECOND).await;
    done(held).await;
    let jobs = stream::select(worker, others).filter_map(async |yielded| yielded.ok());
    let mut jobs = Box::pin(jobs);
    for _ in 1..3 {
        let job = soon(jobs.next()).await.unwrap();
        println!("{job:?} after {:?}", ended.elapsed());
        assert_eq!(job.attempt(), 1);
        done(job).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_first_used_while_its_slot_migrates() {
    let cluster = Cluster::start();
    let migration = Migration::begin(&cluster, KEY);
    let jobs = queue(&cluster).await;
    let began = Instant::now();
    let scheduled = scheduling(&jobs, "a", NOW);
    sleep(2 * SECOND).await;
    println!("finished: {}", scheduled.is_finished());
    migration.end();
    soon(scheduled).await.unwrap();
    println!("after {:?}", began.elapsed());
    done(next_after_errors(&mut jobs.worker().start()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_does_not_end_is_a_clear_error() {
    let cluster = Cluster::start();
    let jobs = queue(&cluster).await;
    put(&jobs, ["a"], NOW).await;
    let migration = Migration::begin(&cluster, KEY);
    migration.move_keys(1);
    let asked = Instant::now();
    let error = soon(jobs.schedule("b", HOUR, b"")).await.unwrap_err();
    println!("after {:?}: {error}", asked.elapsed());
    assert!(asked.elapsed() < 10 * SECOND, "{:?}", asked.elapsed());
    // The cluster client tries again for longer than a call may take.
    assert_is!(error, Error::NoAnswer { .. } | Error::Redis(_));
    migration.end();
    soon(put(&jobs, ["c"], HOUR)).await;
}

/// Nobody can take a job while its keys are on two nodes, and its holder cannot renew it. It is lost in time, and
/// delivered again when the migration is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_outlasts_a_lease_has_a_running_job_delivered_again() {
    let lease = 1500 * MS;
    let cluster = Cluster::start();
    let jobs = queue(&cluster).await;
    put(&jobs, ["a"], NOW).await;
    let mut worker = jobs.worker().lease(lease).start();
    let held = next_after_errors(&mut worker).await;
    let mut others = queue(&cluster).await.worker().lease(lease).start();
    let migration = Migration::begin(&cluster, KEY);
    migration.move_key(&key("running"));
    let mut again = Box::pin(next_after_errors(&mut others));
    tokio::select! {
        () = soon(held.lost()) => {}
        job = &mut again => panic!("delivered while it was held: {job:?}"),
    }
    tokio::select! {
        () = sleep(2 * lease) => {}
        job = &mut again => panic!("taken from keys on two nodes: {job:?}"),
    }
    migration.end();
    drop(worker);
    let again = again.await;
    assert_eq!(delivery(&again), ("a".to_owned(), 2));
    done(again).await;
    assert!(!held.done().await.unwrap());
}

/// Schedules a job and does it, with handles that have been in use and with new ones.
async fn works(cluster: &Cluster, old: &ClusterJobs, id: &str) {
    let new = queue(cluster).await;
    for (n, (schedules, works)) in [(old, &new), (&new, old)].into_iter().enumerate() {
        let id = format!("{id}-{n}");
        let scheduled = soon(schedules.schedule(&id, NOW, b"payload")).await;
        assert!(scheduled.unwrap(), "{id}");
        let job = next(&mut works.worker().start()).await;
        assert_eq!((job.id(), job.payload()), (&*id, &b"payload"[..]));
        done(job).await;
    }
    assert_eq!(counts(&new).await, [0, 0, 0]);
    assert!(new.waiting(0, 10).await.unwrap().is_empty());
    assert!(new.dead(10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_works_while_its_keys_are_on_one_node() {
    let cluster = Cluster::start();
    let old = queue(&cluster).await;
    works(&cluster, &old, "before").await;
    let migration = Migration::begin(&cluster, KEY);
    works(&cluster, &old, "unmoved").await;
    while migration.move_keys(100) > 0 {}
    works(&cluster, &old, "moved").await;
    migration.end();
    works(&cluster, &old, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_renewed_while_its_slot_migrates() {
    let cluster = Cluster::start();
    let other = leases_on(cluster.connect().await);
    let mut held = Vec::new();
    // The last one never answers by itself before the lease has ended.
    for (name, response_timeout, ttl) in [
        ("x", 500 * MS, 3 * SECOND),
        ("y", SECOND, 3 * SECOND),
        ("z", 10 * SECOND, 1500 * MS),
    ] {
        let leases = leases_on(cluster.connect_with(response_timeout).await);
        let lease = leases.acquire(name, ttl).await.unwrap();
        let migration = Migration::begin(&cluster, &holder(name));
        // Of its two keys, one is on each node.
        assert_eq!(migration.move_keys(1), 1);
        held.push((lease, migration, acquiring(&other, name)));
    }
    let lost = select_all(held.iter().map(|(lease, ..)| lease.lost()));
    tokio::select! {
        ((), which, _) = lost => panic!("{:?} is not renewed", held[which].0),
        () = sleep(8 * SECOND) => {}
    }
    for (lease, migration, waiting) in held {
        assert!(!waiting.is_finished());
        migration.end();
        release(lease).await;
        release(acquired(waiting).await).await;
    }
}

/// As while a cluster is rebalanced under load.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_to_and_fro_under_load_loses_and_repeats_nothing() {
    const JOBS: usize = 200;
    let cluster = Cluster::start();
    // A minute is longer than a migration takes on a loaded machine, as docs/operations.md asks for.
    let jobs = queue(&cluster).await.answer_within(MINUTE);
    put(&jobs, ["first"], HOUR).await;
    let finished = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..2 {
        let worker = queue(&cluster).await.worker().lease(MINUTE).start();
        let finished = finished.clone();
        workers.spawn(worker.for_each_concurrent(4, move |job| {
            let finished = finished.clone();
            async move {
                let job = match job {
                    Ok(job) => job,
                    Err(error) => return println!("yielded: {error}"),
                };
                assert_eq!(job.attempt(), 1, "{job:?}");
                sleep(5 * MS).await;
                done(job).await;
                finished.fetch_add(1, SeqCst);
            }
        }));
    }
    let scheduling = tokio::spawn({
        let jobs = jobs.clone();
        async move {
            for n in 0..JOBS {
                assert!(jobs.schedule(&n.to_string(), 50 * MS, b"payload").await.unwrap());
                sleep(5 * MS).await;
            }
        }
    });
    let mut moves = 0;
    while !scheduling.is_finished() {
        let migration = Migration::begin(&cluster, KEY);
        sleep(20 * MS).await;
        while migration.move_keys(3) > 0 {
            sleep(20 * MS).await;
        }
        sleep(20 * MS).await;
        migration.end();
        moves += 1;
        sleep(300 * MS).await;
    }
    scheduling.await.unwrap();
    println!("{moves} moves");
    tokio::select! {
        ended = workers.join_next() => panic!("{ended:?}"),
        () = until(|| async { finished.load(SeqCst) == JOBS }) => {}
    }
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}
