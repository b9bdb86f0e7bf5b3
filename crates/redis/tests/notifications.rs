//! Notifications wake waiting tasks early, and nothing depends on their arrival.

mod support;

use redis::aio::ConnectionManagerConfig;
use support::prelude::*;
use tokio::runtime::{Builder, Runtime};

/// A wheel that never turns: nobody who waits on it looks again by himself.
struct StoppedWheel {
    wheel: Wheel,
    runtime: Option<Runtime>,
}

impl StoppedWheel {
    fn new() -> StoppedWheel {
        // Its driver belongs to a runtime that nobody runs.
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        let wheel = Wheel::builder().handle(runtime.handle().clone()).build().unwrap();
        StoppedWheel {
            wheel,
            runtime: Some(runtime),
        }
    }
}

impl Drop for StoppedWheel {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Hands a lease from one process's leases to the other's, again and again, each time when the other has
/// looked.
async fn hand_over<A: Connection, B: Connection>(giver: &Leases<A>, taker: &Leases<B>, times: u32) {
    for _ in 0..times {
        let lease = acquire(giver, "x").await;
        let taking = acquiring(taker, "x");
        // It has looked, subscribed, and looked again.
        sleep(200 * MS).await;
        release(lease).await;
        release(acquired(taking).await).await;
    }
}

/// How often each command was called, by those in scripts too.
fn calls(connection: &mut redis::Connection) -> BTreeMap<String, u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    let lines = stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="));
    lines
        .map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_release_wakes_who_waits_within_a_round_trip() {
    let server = Server::start();
    let stopped = StoppedWheel::new();
    let notifications = Notifications::of(server.client());
    let connect = async || Leases::new(&stopped.wheel, server.connect().await);
    let (giver, taker) = (connect().await, connect().await.notifications(&notifications));
    let mut observer = server.client().get_connection().unwrap();
    // Each has asked what it asks once.
    use_once(&giver, "x").await;
    use_once(&taker, "x").await;
    for _ in 0..10 {
        let held = acquire(&giver, "x").await;
        let began = calls(&mut observer)["evalsha"];
        let taking = acquiring(&taker, "x");
        let mut before = BTreeMap::new();
        // It has looked, subscribed, and looked again.
        until(|| {
            before = calls(&mut observer);
            let looked = before["evalsha"] - began;
            assert!(looked <= 2, "it looked {looked} times");
            async move { looked == 2 }
        })
        .await;
        release(held).await;
        let taken = acquired(taking).await;
        let mut sent = calls(&mut observer);
        for (name, calls) in before {
            *sent.get_mut(&name).unwrap() -= calls;
        }
        // Who waits no longer has no use for messages.
        sent.retain(|name, calls| *calls > 0 && name != "unsubscribe");
        // Two scripts, the release and the one request of the other, with what they do; and our question.
        let expected = [
            ("del", 1),
            ("evalsha", 2),
            ("exists", 1),
            ("get", 4),
            ("info", 1),
            ("publish", 1),
            ("set", 3),
            ("time", 1),
        ];
        let expected = expected.map(|(name, calls)| (name.to_owned(), calls));
        assert_eq!(sent, expected.into());
        release(taken).await;
    }
}

#[tokio::test]
async fn a_release_wakes_who_waits_in_a_cluster() {
    let cluster = Cluster::start();
    let stopped = StoppedWheel::new();
    let giver = Leases::new(&stopped.wheel, cluster.connect().await);
    let notifications = Notifications::of_cluster(cluster.client());
    let taker = Leases::new(&stopped.wheel, cluster.connect().await).notifications(&notifications);
    hand_over(&giver, &taker, 10).await;
}

#[tokio::test]
async fn a_channel_of_a_cluster_is_left_and_subscribed_again() {
    let cluster = Cluster::start();
    let giver = leases_on(cluster.connect().await);
    let has_subscriber = |node: &Node| {
        let clients: String = node.command(&["CLIENT", "LIST"]);
        clients.lines().any(|client| client.contains(" sub=1 "))
    };
    let is_subscribed = || cluster.nodes().iter().any(has_subscriber);
    let notifications = Notifications::of_cluster(cluster.client());
    for _ in 0..2 {
        let held = acquire(&giver, "x").await;
        let taker = leases_on(cluster.connect().await).notifications(&notifications);
        let taking = acquiring(&taker, "x");
        drop(taker);
        until(|| async { is_subscribed() }).await;
        release(held).await;
        release(acquired(taking).await).await;
        until(|| async { !is_subscribed() }).await;
    }
}

/// A node that vanishes without a word takes the subscription with it. Only a ping finds out.
#[tokio::test]
async fn a_silent_subscription_to_a_cluster_is_pinged() {
    let cluster = Cluster::start();
    let master = cluster.node(cluster.master_of("{x}"));
    let giver = leases_on(cluster.connect().await);
    let _held = soon(giver.acquire("x", MINUTE * 10)).await.unwrap();
    // It does not look again, and so sends nothing.
    let stopped = StoppedWheel::new();
    let taker = Leases::new(&stopped.wheel, cluster.connect().await)
        .notifications(&Notifications::of_cluster(cluster.client()));
    let taking = acquiring(&taker, "x");
    until(|| async { master.listeners(&lease_key("x", "released")) == 1 }).await;
    sleep(200 * MS).await;
    let before = master.calls("ping");
    tokio::time::pause();
    tokio::time::advance(31 * SECOND).await;
    tokio::time::resume();
    until(|| async { master.calls("ping") > before }).await;
    taking.abort();
}

#[tokio::test]
async fn without_it_or_with_a_lost_message_it_looks() {
    let (server, proxy) = Server::with_proxy().await;
    let notifications = Notifications::of(Client::open(proxy.url()).unwrap());
    let giver = server.leases().await;
    let deaf = server.leases().await.notifications(&notifications);
    for taker in [server.leases().await, deaf] {
        proxy.set(Network::Deaf);
        hand_over(&giver, &taker, 2).await;
        proxy.set(Network::Up);
    }
}

#[tokio::test]
async fn a_lease_that_runs_out_is_found() {
    let server = Server::start();
    let notifications = Notifications::of(server.client());
    let taker = server.leases().await.notifications(&notifications);
    let _: () = server.command(&["SET", &holder("x"), "other 1", "PX", "1500"]);
    drop(acquire(&taker, "x").await);
}

#[tokio::test]
async fn it_subscribes_once_and_only_while_somebody_waits() {
    let server = Server::start();
    let notifications = Notifications::of(server.client());
    let giver = server.leases().await;
    let held = acquire(&giver, "x").await;
    let takers = [server.leases().await, server.leases().await];
    let waiting = takers.map(|taker| {
        let taker = taker.notifications(&notifications);
        tokio::spawn(async move { use_once(&taker, "x").await })
    });
    until(|| async { listeners(&server, "x") == 1 }).await;
    release(held).await;
    for waiting in waiting {
        soon(waiting).await.unwrap();
    }
    until(|| async { listeners(&server, "x") == 0 }).await;

    // Its connection goes with its last clone.
    let list = || server.command::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    let _held = acquire(&giver, "x").await;
    let leases = server.leases().await.notifications(&notifications);
    let mut waiting = Box::pin(leases.acquire("x", MINUTE));
    pending_until(&mut waiting, || list().lines().count() == 1).await;
    drop(waiting);
    drop((leases, notifications));
    until(|| async { list().is_empty() }).await;
}

#[tokio::test]
async fn it_reconnects() {
    let mut server = Server::start_aof();
    let notifications = Notifications::of(server.client());
    let giver = server.leases().await;
    let taker = server.leases().await.notifications(&notifications);
    let held = acquire(&giver, "x").await;
    let waiting = acquiring(&taker, "x");
    until(|| async { listeners(&server, "x") == 1 }).await;
    server.restart();
    until(|| async { listeners(&server, "x") == 1 }).await;
    assert!(soon(held.release()).await.is_ok());
    release(acquired(waiting).await).await;
    let stopped = StoppedWheel::new();
    let taker = Leases::new(&stopped.wheel, server.connect().await).notifications(&notifications);
    hand_over(&giver, &taker, 10).await;
}

#[tokio::test]
async fn a_server_that_is_away_at_first() {
    let mut server = Server::start();
    server.kill();
    let notifications = Notifications::of(server.client());
    let (client, config) = (server.client(), ConnectionManagerConfig::new());
    let lazy = client.get_connection_manager_lazy(config).unwrap();
    let waiting = acquiring(&leases_on(lazy).notifications(&notifications), "x");
    sleep(300 * MS).await;
    assert!(!waiting.is_finished());
    server.restart();
    drop(acquired(waiting).await);
}

/// Listeners that come and go must not put off the ping by which a connection that went silent is found out.
#[tokio::test]
async fn a_silent_connection_is_pinged_while_listeners_come_and_go() {
    let (server, proxy) = Server::with_proxy().await;
    let notifications = Notifications::of(Client::open(proxy.url()).unwrap());
    let leases = server.leases().await.notifications(&notifications);
    let _held = leases.acquire("x", MINUTE * 10).await.unwrap();
    let mut waiting = Box::pin(leases.acquire("x", MINUTE));
    pending_until(&mut waiting, || listeners(&server, "x") == 1).await;
    proxy.set(Network::Silent);
    let before = proxy.requests();

    // While a blocking task runs, a paused clock moves only when it is told to.
    let (finish, finished) = std::sync::mpsc::channel::<()>();
    let blocking = tokio::task::spawn_blocking(move || finished.recv());
    tokio::time::pause();
    for _ in 0..40 {
        let mut another = Box::pin(leases.acquire("x", MINUTE));
        for _ in 0..20 {
            assert!(another.as_mut().now_or_never().is_none());
            thread::sleep(MS);
            tokio::task::yield_now().await;
        }
        drop(another);
        tokio::time::advance(SECOND).await;
    }
    let pinged = proxy.requests() > before;
    drop(finish);
    let _ = blocking.await;
    assert!(pinged, "nothing was sent on a connection silent for 40 s");
}
