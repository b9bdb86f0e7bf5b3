//! Redis Sentinel: a connection and notifications that follow the master over a failover, under load.

mod support;

use std::sync::atomic::AtomicU16;

use support::prelude::*;
use tickwheel_exported::{ExportedValue, Source};
use tickwheel_redis::sentinel::Connection;

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

impl Log {
    fn delivery(&mut self, id: &str) {
        *self.delivered.entry(id.to_owned()).or_default() += 1;
        if self.done.contains(id) {
            self.wrong.push(format!("{id} was done and is delivered again"));
        }
    }

    fn grant(&mut self, lease: &Lease) {
        let other = self.held.replace(lease.lost());
        let is_held = |other: Lost| other.now_or_never().is_none();
        if is_valid(lease) && other.is_some_and(is_held) {
            self.wrong.push("the lease is held twice".to_owned());
        }
        if self.tokens.last().is_some_and(|last| *last >= lease.token()) {
            self.wrong.push("a token has not grown".to_owned());
        }
        self.tokens.push(lease.token());
    }
}

type SharedLog = Arc<Mutex<Log>>;

/// Schedules jobs one after another until it is told to end.
async fn schedule(jobs: DelayedJobs<Connection>, task: usize, log: SharedLog, ends: Arc<AtomicBool>) {
    for n in 0.. {
        if ends.load(SeqCst) {
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
        log.lock().unwrap().delivery(&id);
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
        log.lock().unwrap().grant(&lease);
        tokio::select! {
            () = lease.lost() => eprintln!("the lease was lost"),
            () = sleep(50 * MS) => {}
        }
        {
            let mut log = log.lock().unwrap();
            // Unless another has it, as this one was lost.
            if is_valid(&lease) {
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
        let connection = Connection::new(sentinels.client());
        let jobs = unnotified(connection.clone()).notifications(&notifications);
        scheduling.spawn(schedule(jobs.clone(), process, log.clone(), ends.clone()));
        load.spawn(work(jobs, log.clone()));
        let leases = leases_on(connection).notifications(&notifications);
        load.spawn(contend(leases, log.clone()));
    }
    until(|| async { count_of(&log).0 > 100 && count_of(&log).1 > 10 }).await;

    let master = sentinels.master();
    sentinels.settle(master);
    let began = Instant::now();
    match failover {
        Failover::Killed => sentinels.kill(master),
        Failover::Suspended => sentinels.node(master).stop(),
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
    let exported = notifications.source().exported().unwrap();
    let mut exported = exported.iter();
    let reconnects = exported.find(|exported| exported.name.ends_with("_reconnects_total"));
    assert_ne!(reconnects.unwrap().value, ExportedValue::Count(0));
    // The old one becomes a replica, and what was under way to it is for nobody.
    match failover {
        Failover::Killed => {}
        Failover::Suspended => sentinels.node(master).cont(),
        Failover::Ordered => sentinels.unsettle(master),
    }
    sleep(SECOND).await;

    ends.store(true, SeqCst);
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
    let (jobs, leases) = (log.done.len(), log.tokens.len());
    assert_eq!(log.wrong, [""; 0], "of {jobs} jobs and {leases} leases");
    let again = log.delivered.values().filter(|times| **times > 1).count();
    println!("{failover:?}: {jobs} jobs, {again} delivered again, {leases} leases");
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

/// As of a process of its own.
fn leases(sentinels: &Sentinels) -> Leases<Connection> {
    leases_on(Connection::new(sentinels.client()))
}

#[tokio::test]
async fn a_lease_outlives_a_failover_that_is_shorter() {
    let mut sentinels = Sentinels::start();
    let lease = soon(leases(&sentinels).acquire("x", MINUTE)).await.unwrap();
    let master = sentinels.master();
    sentinels.settle(master);
    sentinels.kill(master);
    let end = lease.valid_until();
    let other = leases(&sentinels);
    // Errors come until there is a new master.
    until(|| async { matches!(other.holder("x").await, Ok(Some(_))) }).await;
    assert_eq!(other.holder("x").await.unwrap().unwrap().token, lease.token());
    assert!(try_acquire(&other, "x").await.is_none());
    until(|| async { lease.valid_until() > end }).await;
    assert!(is_valid(&lease));
    release(lease).await;
    assert!(try_acquire(&other, "x").await.is_some());
}

#[tokio::test]
async fn sentinels_that_are_silent_or_gone_are_passed_over() {
    let mut sentinels = Sentinels::start();
    let first = sentinels.sentinel_port(0);
    sentinels.node(first).stop();
    let lease = acquire(&leases(&sentinels), "x").await;
    sentinels.node(first).cont();
    for sentinel in 0..3 {
        sentinels.kill(sentinels.sentinel_port(sentinel));
        if sentinel < 2 {
            assert!(soon(leases(&sentinels).holder("x")).await.unwrap().is_some());
        }
    }
    // The connection that there is needs none of them.
    release(lease).await;
    let error = soon(leases(&sentinels).holder("x")).await.unwrap_err();
    println!("without sentinels: {error}");
}

#[tokio::test]
async fn a_name_that_the_sentinels_do_not_know_is_a_clear_error() {
    let sentinels = Sentinels::start();
    let connection = || Connection::new(sentinels.client_of_name("mistyped"));
    let (leases, jobs) = (leases_on(connection()), unnotified(connection()));
    for error in [
        soon(leases.acquire("x", MINUTE)).await.unwrap_err(),
        soon(leases.holder("x")).await.unwrap_err(),
        soon(jobs.schedule("a", MINUTE, b"")).await.unwrap_err(),
    ] {
        // It says which names there are.
        assert_says(&error, &["mymaster"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_sentinel_is_listened_to_when_one_is_gone() {
    let mut sentinels = Sentinels::start();
    // Nothing but a message of a sentinel makes it leave a master whose connections stay open.
    let leases = leases_on(Connection::new(sentinels.client()).silence(HOUR));
    let lease = soon(leases.acquire("x", HOUR)).await.unwrap();
    // It is asked first.
    sentinels.kill(sentinels.sentinel_port(0));
    for _ in 0..2 {
        let old = sentinels.master();
        tokio::task::block_in_place(|| sentinels.settle(old));
        sentinels.fail_over();
        let next = tokio::task::block_in_place(|| sentinels.next_master(old));
        let other = soon(leases.acquire("y", HOUR)).await.unwrap();
        assert!(sentinels.node(next).exists(&holder("y")));
        release(other).await;
        // The old one follows before it can be the master again.
        sentinels.unsettle(old);
        tokio::task::block_in_place(|| sentinels.wait_until_followed(next));
    }
    release(lease).await;
}

#[test]
fn a_runtime_that_is_not_driven_blocks_no_other() {
    let sentinels = Sentinels::start();
    let leases = leases(&sentinels);
    let (idle, driven, last) = (runtime(), runtime(), runtime());
    let mut first = Box::pin(leases.holder("x"));
    idle.block_on(async { assert!((&mut first).now_or_never().is_none(), "it asks the sentinels") });
    for runtime in [driven, last] {
        let lease = runtime.block_on(acquire(&leases, "x"));
        runtime.block_on(release(lease));
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
            let url = format!("redis://127.0.0.1:{}/", port.load(SeqCst));
            async move { Client::open(url)?.get_multiplexed_async_connection().await }
        })
    };
    let leases = leases_on(connection);
    use_once(&leases, "x").await;
    // Its connections stay open.
    let _: () = old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let replication = || old.command::<String>(&["INFO", "replication"]);
    until(|| async { replication().contains("master_link_status:up") }).await;
    port.store(new.port(), SeqCst);
    let lease = acquire(&leases, "x").await;
    assert!(is_held(&new, "x"));
    release(lease).await;
}
