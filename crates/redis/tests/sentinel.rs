//! Redis Sentinel: a connection and notifications that follow the master over a failover, under load.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt};
use redis::Client;
use support::{
    sentinels::Sentinels,
    server::{Server, command},
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_exported::Source;
use tickwheel_redis::{DelayedJobs, Leases, Lost, Notifications, Reconnecting, sentinel::Connection};
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Failover {
    /// The master's connections are closed.
    Killed,
    /// They stay open, as those of a machine that has vanished do.
    Suspended,
    /// The master lives and becomes a replica.
    Ordered,
}

/// What a load has seen.
#[derive(Default)]
struct Log {
    /// Jobs whose schedule was acknowledged.
    scheduled: BTreeSet<String>,
    delivered: BTreeMap<String, u32>,
    /// Jobs whose `done` was acknowledged.
    done: BTreeSet<String>,
    /// What must never happen.
    wrong: Vec<String>,
    /// The tokens of the lease, in the order in which it was acquired.
    tokens: Vec<u64>,
    /// Who holds the lease by its own word.
    held: Option<Lost>,
}

type SharedLog = Arc<Mutex<Log>>;

/// Schedules jobs one after another until it is told to end.
async fn schedule(jobs: DelayedJobs<Connection>, task: usize, log: SharedLog, ends: Arc<AtomicBool>) {
    for n in 0.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let id = format!("{task}-{n}");
        // One whose answer never came may have been scheduled, and need not.
        match jobs.schedule(&id, 20 * MS, b"").await {
            Ok(true) => drop(log.lock().unwrap().scheduled.insert(id)),
            Ok(false) => log.lock().unwrap().wrong.push(format!("{id} is known already")),
            Err(error) => eprintln!("{id}: {error}"),
        }
        sleep(5 * MS).await;
    }
}

async fn work(jobs: DelayedJobs<Connection>, log: SharedLog) {
    let worker = jobs.worker().lease(3 * SECOND).attempts(1000).start();
    let each = async |job| {
        let job: tickwheel_redis::Job = match job {
            Ok(job) => job,
            Err(error) => return eprintln!("yielded: {error}"),
        };
        let id = job.id().to_owned();
        {
            let mut log = log.lock().unwrap();
            *log.delivered.entry(id.clone()).or_default() += 1;
            if log.done.contains(&id) {
                log.wrong.push(format!("{id} was done and is delivered again"));
            }
        }
        if let Ok(true) = job.done().await {
            log.lock().unwrap().done.insert(id);
        }
    };
    worker.for_each_concurrent(16, each).await;
}

/// Acquires and releases the same lease as others, again and again.
async fn contend(leases: Leases<Connection>, log: SharedLog) {
    loop {
        let lease = match leases.acquire("x", 3 * SECOND).await {
            Ok(lease) => lease,
            Err(error) => {
                eprintln!("acquire: {error}");
                continue;
            }
        };
        {
            let mut log = log.lock().unwrap();
            let other = log.held.replace(lease.lost());
            let is_held = |other: Lost| other.now_or_never().is_none();
            if lease.lost().now_or_never().is_none() && other.is_some_and(is_held) {
                log.wrong.push("the lease is held twice".to_owned());
            }
            if log.tokens.last().is_some_and(|last| *last >= lease.token()) {
                log.wrong.push("a token has not grown".to_owned());
            }
            log.tokens.push(lease.token());
        }
        tokio::select! {
            () = lease.lost() => eprintln!("the lease was lost"),
            () = sleep(50 * MS) => {}
        }
        {
            let mut log = log.lock().unwrap();
            // Unless another has it, as this one was lost.
            if lease.lost().now_or_never().is_none() {
                log.held = None;
            }
        }
        if let Err(error) = lease.release().await {
            eprintln!("release: {error}");
        }
    }
}

fn count_of(log: &SharedLog) -> (usize, usize) {
    let log = log.lock().unwrap();
    (log.done.len(), log.tokens.len())
}

async fn fails_over(failover: Failover) {
    let mut sentinels = Sentinels::start();
    let notifications = Notifications::of_sentinel(sentinels.client());
    let (log, ends) = (SharedLog::default(), Arc::new(AtomicBool::new(false)));
    let (mut load, mut scheduling) = (JoinSet::new(), JoinSet::new());
    for process in 0..3 {
        // As processes, they share nothing.
        let (wheel, connection) = (Wheel::new(), Connection::new(sentinels.client()));
        let jobs = DelayedJobs::new(&wheel, connection.clone(), "q").notifications(&notifications);
        scheduling.spawn(schedule(jobs.clone(), process, log.clone(), ends.clone()));
        load.spawn(work(jobs, log.clone()));
        let leases = Leases::new(&wheel, connection).notifications(&notifications);
        load.spawn(contend(leases, log.clone()));
    }
    until(|| async { count_of(&log).0 > 100 && count_of(&log).1 > 10 }).await;

    let master = sentinels.master();
    sentinels.settle(master);
    let began = Instant::now();
    match failover {
        Failover::Killed => sentinels.kill(master),
        Failover::Suspended => sentinels.stop(master),
        Failover::Ordered => sentinels.fail_over(),
    }
    let before = count_of(&log);
    let next = tokio::task::block_in_place(|| sentinels.next_master(master));
    let promoted = began.elapsed();
    until(|| async { count_of(&log).0 > before.0 }).await;
    let worked = began.elapsed();
    until(|| async { count_of(&log).0 > before.0 + 100 && count_of(&log).1 > before.1 + 10 }).await;
    println!("{failover:?}: promoted after {promoted:?}, jobs are done after {worked:?}");
    // Messages come from the new master.
    until(|| async { sentinels.channels(next).len() >= 3 }).await;
    let reconnects = notifications.source().exported().unwrap();
    let reconnects = reconnects
        .iter()
        .find(|exported| exported.name.ends_with("_reconnects_total"));
    assert_ne!(
        reconnects.unwrap().value,
        tickwheel_exported::ExportedValue::Count(0)
    );
    // The old one becomes a replica, and what was under way to it is for nobody.
    match failover {
        Failover::Killed => {}
        Failover::Suspended => sentinels.cont(master),
        Failover::Ordered => sentinels.unsettle(master),
    }
    sleep(SECOND).await;

    ends.store(true, Ordering::Relaxed);
    while let Some(ended) = soon(scheduling.join_next()).await {
        ended.unwrap();
    }
    until(|| async {
        let log = log.lock().unwrap();
        log.scheduled.iter().all(|id| log.delivered.contains_key(id))
    })
    .await;
    load.shutdown().await;
    let log = log.lock().unwrap();
    assert_eq!(
        log.wrong,
        [""; 0],
        "of {} jobs and {} leases",
        log.done.len(),
        log.tokens.len()
    );
    let again = log.delivered.values().filter(|times| **times > 1).count();
    println!(
        "{failover:?}: {} jobs, {again} delivered again, {} leases",
        log.done.len(),
        log.tokens.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed() {
    fails_over(Failover::Killed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_suspended() {
    fails_over(Failover::Suspended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_a_replica() {
    fails_over(Failover::Ordered).await;
}

#[tokio::test]
async fn a_lease_outlives_a_failover_that_is_shorter() {
    let mut sentinels = Sentinels::start();
    let leases = Leases::new(&Wheel::new(), Connection::new(sentinels.client()));
    let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
    let master = sentinels.master();
    sentinels.settle(master);
    sentinels.kill(master);
    let end = lease.valid_until();
    let other = Leases::new(&Wheel::new(), Connection::new(sentinels.client()));
    soon(async {
        // Errors come until there is a new master.
        while !matches!(other.holder("x").await, Ok(Some(_))) {}
    })
    .await;
    assert_eq!(other.holder("x").await.unwrap().unwrap().token, lease.token());
    assert!(soon(other.try_acquire("x", MINUTE)).await.unwrap().is_none());
    until(|| async { lease.valid_until() > end }).await;
    assert!(lease.lost().now_or_never().is_none());
    assert!(soon(lease.release()).await.unwrap());
    assert!(soon(other.try_acquire("x", MINUTE)).await.unwrap().is_some());
}

#[tokio::test]
async fn sentinels_that_are_silent_or_gone_are_passed_over() {
    let mut sentinels = Sentinels::start();
    sentinels.stop(sentinels.sentinel_port(0));
    let leases = Leases::new(&Wheel::new(), Connection::new(sentinels.client()));
    let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
    sentinels.cont(sentinels.sentinel_port(0));
    for sentinel in 0..3 {
        sentinels.kill(sentinels.sentinel_port(sentinel));
        if sentinel < 2 {
            let other = Leases::new(&Wheel::new(), Connection::new(sentinels.client()));
            assert!(soon(other.holder("x")).await.unwrap().is_some());
        }
    }
    // The connection that there is needs none of them.
    assert!(soon(lease.release()).await.unwrap());
    let none = Leases::new(&Wheel::new(), Connection::new(sentinels.client()));
    let error = soon(none.holder("x")).await.unwrap_err();
    println!("without sentinels: {error}");
}

#[tokio::test]
async fn a_name_that_the_sentinels_do_not_know_is_a_clear_error() {
    let sentinels = Sentinels::start();
    let connection = || Connection::new(sentinels.client_of_name("mistyped"));
    let leases = Leases::new(&Wheel::new(), connection());
    let jobs = DelayedJobs::new(&Wheel::new(), connection(), "q");
    for error in [
        soon(leases.acquire("x", MINUTE)).await.unwrap_err(),
        soon(leases.holder("x")).await.unwrap_err(),
        soon(jobs.schedule("a", MINUTE, b"")).await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("mymaster"), "it says which names there are: {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_sentinel_is_listened_to_when_one_is_gone() {
    let mut sentinels = Sentinels::start();
    // Nothing but a message of a sentinel makes it leave a master whose connections stay open.
    let connection = Connection::new(sentinels.client()).silence(60 * MINUTE);
    let leases = Leases::new(&Wheel::new(), connection);
    let lease = soon(leases.acquire("x", 60 * MINUTE)).await.unwrap();
    // It is asked first.
    sentinels.kill(sentinels.sentinel_port(0));
    for _ in 0..2 {
        let old = sentinels.master();
        tokio::task::block_in_place(|| sentinels.settle(old));
        sentinels.fail_over();
        let next = tokio::task::block_in_place(|| sentinels.next_master(old));
        let other = soon(leases.acquire("y", 60 * MINUTE)).await.unwrap();
        let holder = ["EXISTS", "tickwheel:lease:{y}:holder"];
        assert_eq!(command::<i64>(&sentinels.client_of(next), &holder), 1);
        assert!(soon(other.release()).await.unwrap());
        // The old one follows before it can be the master again.
        sentinels.unsettle(old);
        tokio::task::block_in_place(|| sentinels.wait_until_followed(next));
    }
    assert!(soon(lease.release()).await.unwrap());
}

#[test]
fn a_runtime_that_is_not_driven_blocks_no_other() {
    let sentinels = Sentinels::start();
    let leases = Leases::new(&Wheel::new(), Connection::new(sentinels.client()));
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (idle, driven, last) = (runtime(), runtime(), runtime());
    let mut first = Box::pin(leases.holder("x"));
    idle.block_on(async { assert!((&mut first).now_or_never().is_none(), "it asks the sentinels") });
    for runtime in [driven, last] {
        let lease = runtime.block_on(soon(leases.acquire("x", MINUTE))).unwrap();
        assert!(runtime.block_on(soon(lease.release())).unwrap());
    }
    assert!(idle.block_on(soon(first)).unwrap().is_none());
}

#[tokio::test]
async fn a_server_that_has_become_a_replica_is_left_at_its_first_refusal() {
    let (old, new) = (Server::start(), Server::start());
    let port = Arc::new(AtomicU16::new(old.port()));
    let connection = {
        let port = port.clone();
        Reconnecting::new(move || {
            let url = format!("redis://127.0.0.1:{}/", port.load(Ordering::Relaxed));
            async move { Client::open(url)?.get_multiplexed_async_connection().await }
        })
    };
    let leases = Leases::new(&Wheel::new(), connection);
    let lease = leases.acquire("x", MINUTE).await.unwrap();
    assert!(lease.release().await.unwrap());
    // Its connections stay open.
    let _: () = old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    until(|| async {
        old.command::<String>(&["INFO", "replication"])
            .contains("master_link_status:up")
    })
    .await;
    port.store(new.port(), Ordering::Relaxed);
    let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
    assert_eq!(new.command::<i64>(&["EXISTS", "tickwheel:lease:{x}:holder"]), 1);
    assert!(lease.release().await.unwrap());
}
