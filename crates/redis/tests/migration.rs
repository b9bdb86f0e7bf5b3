//! Delayed jobs and leases while the slot of their keys moves to another node of a cluster.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{StreamExt, future::select_all};
use redis::{Client, cluster_async::ClusterConnection};
use support::{cluster::Cluster, jobs::next_after_errors, server::command, soon};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Error, Leases};
use tokio::{task::JoinSet, time::sleep};

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// A slot on its way from one master to another.
struct Migration {
    slot: String,
    from: Client,
    to: Client,
    to_id: String,
    to_port: u16,
    masters: Vec<Client>,
}

impl Migration {
    fn begin(cluster: &Cluster, key: &str) -> Migration {
        let from_port = cluster.master_of(key);
        let ports: Vec<u16> = cluster.masters();
        let to_port = *ports.iter().find(|port| **port != from_port).unwrap();
        let (from, to) = (cluster.node(from_port), cluster.node(to_port));
        let id = |node: &Client| -> String { command(node, &["CLUSTER", "MYID"]) };
        let slot = command::<i64>(&from, &["CLUSTER", "KEYSLOT", key]).to_string();
        let _: String = command(&to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(&from)]);
        let _: String = command(&from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(&to)]);
        Migration {
            slot,
            to_id: id(&to),
            from,
            to,
            to_port,
            masters: ports.iter().map(|port| cluster.node(*port)).collect(),
        }
    }

    /// Moves so many of the slot's keys, and returns how many there were.
    fn move_keys(&self, most: usize) -> usize {
        let keys: Vec<String> = command(
            &self.from,
            &["CLUSTER", "GETKEYSINSLOT", &self.slot, &most.to_string()],
        );
        for key in &keys {
            self.move_key(key);
        }
        keys.len()
    }

    fn move_key(&self, key: &str) {
        let port = self.to_port.to_string();
        let moved: String = command(&self.from, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
        assert_eq!(moved, "OK", "{key}");
    }

    fn end(self) {
        while self.move_keys(100) > 0 {}
        let owner = ["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.to_id];
        let _: String = command(&self.to, &owner);
        let _: String = command(&self.from, &owner);
        for master in &self.masters {
            let _: String = command(master, &owner);
        }
    }
}

fn queue(connection: ClusterConnection) -> DelayedJobs<ClusterConnection> {
    DelayedJobs::new(&Wheel::new(), connection, "q")
}

const KEY: &str = "tickwheel:jobs:{q:0}:due";

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_in_migration_delays_and_loses_nothing() {
    let cluster = Cluster::start();
    let jobs = queue(cluster.connect().await);
    for n in 0..3 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut worker = jobs.worker().lease(9 * SECOND).start();
    let held = next_after_errors(&mut worker).await;
    let other = queue(cluster.connect().await);
    let mut others = other.worker().lease(9 * SECOND).start();

    let migration = Migration::begin(&cluster, KEY);
    let began = Instant::now();
    let scheduled = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.schedule("during", HOUR, b"").await }
    });
    // The keys are on both nodes for a while, so that no script can run.
    sleep(SECOND).await;
    migration.move_keys(2);
    tokio::select! {
        () = held.lost() => panic!("not renewed"),
        job = async {
            loop {
                match others.next().await.unwrap() {
                    Ok(job) => break job,
                    Err(error) => println!("yielded after {:?}: {error}", began.elapsed()),
                }
            }
        } => panic!("out of a slot on two nodes: {job:?}"),
        () = sleep(2 * SECOND) => {}
    }
    migration.end();
    let ended = Instant::now();
    assert!(soon(scheduled).await.unwrap().unwrap());
    println!("scheduled {:?} after the end", ended.elapsed());
    tokio::select! {
        () = held.lost() => panic!("not renewed"),
        () = sleep(8 * SECOND) => {}
    }
    assert!(held.done().await.unwrap());
    for _ in 1..3 {
        let job = tokio::select! {
            job = next_after_errors(&mut worker) => job,
            job = next_after_errors(&mut others) => job,
        };
        println!("{job:?} after {:?}", ended.elapsed());
        assert_eq!(job.attempt(), 1);
        assert!(job.done().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_first_used_while_its_slot_migrates() {
    let cluster = Cluster::start();
    let migration = Migration::begin(&cluster, KEY);
    let jobs = queue(cluster.connect().await);
    let began = Instant::now();
    let scheduled = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.schedule("a", Duration::ZERO, b"").await }
    });
    sleep(2 * SECOND).await;
    println!("finished: {}", scheduled.is_finished());
    migration.end();
    assert!(soon(scheduled).await.unwrap().unwrap());
    println!("after {:?}", began.elapsed());
    let mut worker = jobs.worker().start();
    assert!(next_after_errors(&mut worker).await.done().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_does_not_end_is_a_clear_error() {
    let cluster = Cluster::start();
    let jobs = queue(cluster.connect().await);
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let migration = Migration::begin(&cluster, KEY);
    migration.move_keys(1);
    let asked = Instant::now();
    let error = soon(jobs.schedule("b", HOUR, b"")).await.unwrap_err();
    println!("after {:?}: {error}", asked.elapsed());
    assert!(asked.elapsed() < 10 * SECOND, "{:?}", asked.elapsed());
    // The cluster client tries again for longer than a call may take.
    assert!(
        matches!(&error, Error::NoAnswer { .. } | Error::Redis(_)),
        "{error}"
    );
    migration.end();
    assert!(soon(jobs.schedule("c", HOUR, b"")).await.unwrap());
}

/// Nobody can take a job while its keys are on two nodes, and its holder cannot renew it. It is lost in time, and
/// delivered again when the migration is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_outlasts_a_lease_has_a_running_job_delivered_again() {
    let lease = 1500 * MS;
    let cluster = Cluster::start();
    let jobs = queue(cluster.connect().await);
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(lease).start();
    let held = next_after_errors(&mut worker).await;
    let other = queue(cluster.connect().await);
    let mut others = other.worker().lease(lease).start();
    let migration = Migration::begin(&cluster, KEY);
    migration.move_key(&KEY.replace("due", "running"));
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
    assert_eq!((again.id(), again.attempt()), ("a", 2));
    assert!(again.done().await.unwrap());
    assert!(!held.done().await.unwrap());
}

/// Schedules a job and does it, with handles that have been in use and with new ones.
async fn works(cluster: &Cluster, old: &DelayedJobs<ClusterConnection>, id: &str) {
    let new = queue(cluster.connect().await);
    for (n, (schedules, works)) in [(old, &new), (&new, old)].into_iter().enumerate() {
        let id = format!("{id}-{n}");
        assert!(
            soon(schedules.schedule(&id, Duration::ZERO, b"payload"))
                .await
                .unwrap(),
            "{id}"
        );
        let mut worker = works.worker().start();
        let job = soon(worker.next()).await.unwrap().unwrap();
        assert_eq!((job.id(), job.payload()), (&*id, &b"payload"[..]));
        assert!(job.done().await.unwrap(), "{id}");
    }
    let counts = new.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (0, 0, 0));
    assert!(new.waiting(0, 10).await.unwrap().is_empty());
    assert!(new.dead(10).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_works_while_its_keys_are_on_one_node() {
    let cluster = Cluster::start();
    let old = queue(cluster.connect().await);
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
    let other = Leases::new(&Wheel::new(), cluster.connect().await);
    let mut held = Vec::new();
    // The last one never answers by itself before the lease has ended.
    for (name, response_timeout, ttl) in [
        ("x", 500 * MS, 3 * SECOND),
        ("y", SECOND, 3 * SECOND),
        ("z", 10 * SECOND, 1500 * MS),
    ] {
        let leases = Leases::new(&Wheel::new(), cluster.connect_with(response_timeout).await);
        let lease = leases.acquire(name, ttl).await.unwrap();
        let migration = Migration::begin(&cluster, &format!("tickwheel:lease:{{{name}}}:holder"));
        // Of its two keys, one is on each node.
        assert_eq!(migration.move_keys(1), 1);
        let other = other.clone();
        let waiting = tokio::spawn(async move { other.acquire(name, HOUR).await });
        held.push((lease, migration, waiting));
    }
    let lost = select_all(held.iter().map(|(lease, ..)| lease.lost()));
    tokio::select! {
        ((), which, _) = lost => panic!("{:?} is not renewed", held[which].0),
        () = sleep(8 * SECOND) => {}
    }
    for (lease, migration, waiting) in held {
        assert!(!waiting.is_finished());
        migration.end();
        assert!(lease.release().await.unwrap());
        assert!(soon(waiting).await.unwrap().unwrap().release().await.unwrap());
    }
}

/// As while a cluster is rebalanced under load.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_to_and_fro_under_load_loses_and_repeats_nothing() {
    const JOBS: usize = 200;
    let cluster = Cluster::start();
    // Longer than a migration takes on a loaded machine, as docs/operations.md asks for.
    const MINUTE: Duration = Duration::from_secs(60);
    let jobs = queue(cluster.connect().await).answer_within(MINUTE);
    assert!(jobs.schedule("first", HOUR, b"").await.unwrap());
    let done = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..2 {
        let (worker, done) = (
            queue(cluster.connect().await).worker().lease(MINUTE).start(),
            done.clone(),
        );
        workers.spawn(worker.for_each_concurrent(4, move |job| {
            let done = done.clone();
            async move {
                match job {
                    Ok(job) => {
                        assert_eq!(job.attempt(), 1, "{job:?}");
                        sleep(5 * MS).await;
                        assert!(job.done().await.unwrap());
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => println!("yielded: {error}"),
                }
            }
        }));
    }
    let scheduling = tokio::spawn({
        let jobs = jobs.clone();
        async move {
            for n in 0..JOBS {
                assert!(
                    jobs.schedule(&n.to_string(), 50 * MS, b"payload").await.unwrap(),
                    "{n}"
                );
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
    soon(async {
        while done.load(Ordering::Relaxed) < JOBS {
            match workers.try_join_next() {
                Some(ended) => panic!("{ended:?}"),
                None => sleep(20 * MS).await,
            }
        }
    })
    .await;
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running, counts.dead), (1, 0, 0));
}
