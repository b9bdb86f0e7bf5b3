//! Notifications wake waiting tasks early, and nothing depends on their arrival.

mod support;

use std::{collections::BTreeMap, time::Duration};

use futures::future::FutureExt;
use support::{
    cluster::Cluster,
    connect,
    leases::{leases, listeners},
    proxy::{Network, Proxy},
    server::{Server, command},
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Connection, Leases, Notifications};
use tokio::{runtime::Runtime, time::sleep};

const MINUTE: Duration = Duration::from_secs(60);

/// A wheel that never turns: nobody who waits on it looks again by himself.
struct StoppedWheel {
    wheel: Wheel,
    runtime: Option<Runtime>,
}

impl StoppedWheel {
    fn new() -> StoppedWheel {
        // Its driver belongs to a runtime that nobody runs.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
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
        let lease = soon(giver.acquire("x", MINUTE)).await.unwrap();
        let taking = tokio::spawn({
            let taker = taker.clone();
            async move { taker.acquire("x", MINUTE).await }
        });
        // It has looked, subscribed, and looked again.
        sleep(Duration::from_millis(200)).await;
        lease.release().await.unwrap();
        let taken = soon(taking).await.unwrap().unwrap();
        taken.release().await.unwrap();
    }
}

/// How often each command was called, by those in scripts too.
fn calls(connection: &mut redis::Connection) -> BTreeMap<String, u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(connection).unwrap();
    stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .map(|(name, rest)| (name.to_owned(), rest.split(',').next().unwrap().parse().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_release_wakes_who_waits_within_a_round_trip() {
    let server = Server::start();
    let stopped = StoppedWheel::new();
    let notifications = Notifications::of(server.client());
    let connect = async || Leases::new(&stopped.wheel, connect(&server.url()).await);
    let (giver, taker) = (connect().await, connect().await.notifications(&notifications));
    let mut observer = server.client().get_connection().unwrap();
    // Each has asked what it asks once.
    for leases in [&giver, &taker] {
        assert!(
            leases
                .acquire("x", MINUTE)
                .await
                .unwrap()
                .release()
                .await
                .unwrap()
        );
    }
    for _ in 0..10 {
        let held = soon(giver.acquire("x", MINUTE)).await.unwrap();
        let began = calls(&mut observer)["evalsha"];
        let taking = tokio::spawn({
            let taker = taker.clone();
            async move { taker.acquire("x", MINUTE).await }
        });
        let mut before = BTreeMap::new();
        // It has looked, subscribed, and looked again.
        until(|| {
            before = calls(&mut observer);
            let looked = before["evalsha"] - began;
            assert!(looked <= 2, "it looked {looked} times");
            async move { looked == 2 }
        })
        .await;
        assert!(held.release().await.unwrap());
        let taken = soon(taking).await.unwrap().unwrap();
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
        assert_eq!(
            sent,
            expected.map(|(name, calls)| (name.to_owned(), calls)).into()
        );
        assert!(taken.release().await.unwrap());
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
    let giver = Leases::new(&Wheel::new(), cluster.connect().await);
    let nodes: Vec<redis::Client> = cluster
        .urls()
        .into_iter()
        .map(|url| redis::Client::open(url).unwrap())
        .collect();
    let is_subscribed = || {
        nodes.iter().any(|node| {
            let clients: String = command(node, &["CLIENT", "LIST"]);
            clients.lines().any(|client| client.contains(" sub=1 "))
        })
    };
    let notifications = Notifications::of_cluster(cluster.client());
    for _ in 0..2 {
        let held = giver.acquire("x", MINUTE).await.unwrap();
        let taker = Leases::new(&Wheel::new(), cluster.connect().await).notifications(&notifications);
        let taking = tokio::spawn(async move { taker.acquire("x", MINUTE).await });
        until(|| async { is_subscribed() }).await;
        held.release().await.unwrap();
        assert!(soon(taking).await.unwrap().unwrap().release().await.unwrap());
        until(|| async { !is_subscribed() }).await;
    }
}

/// A node that vanishes without a word takes the subscription with it. Only a ping finds out.
#[tokio::test]
async fn a_silent_subscription_to_a_cluster_is_pinged() {
    let cluster = Cluster::start();
    let channel = ["PUBSUB", "NUMSUB", "tickwheel:lease:{x}:released"];
    let master = cluster.node(cluster.master_of("{x}"));
    let pings = || calls(&mut master.get_connection().unwrap()).get("ping").copied();
    let giver = Leases::new(&Wheel::new(), cluster.connect().await);
    let _held = soon(giver.acquire("x", MINUTE * 10)).await.unwrap();
    // It does not look again, and so sends nothing.
    let stopped = StoppedWheel::new();
    let taker = Leases::new(&stopped.wheel, cluster.connect().await)
        .notifications(&Notifications::of_cluster(cluster.client()));
    let taking = tokio::spawn(async move { taker.acquire("x", MINUTE).await });
    until(|| async { command::<(String, u64)>(&master, &channel).1 == 1 }).await;
    sleep(Duration::from_millis(200)).await;
    let before = pings();
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    until(|| async { pings() > before }).await;
    taking.abort();
}

#[tokio::test]
async fn without_it_or_with_a_lost_message_it_looks() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let notifications = Notifications::of(redis::Client::open(proxy.url()).unwrap());
    let giver = leases(&server.url()).await;
    for taker in [
        leases(&server.url()).await,
        leases(&server.url()).await.notifications(&notifications),
    ] {
        proxy.set(Network::Deaf);
        hand_over(&giver, &taker, 2).await;
        proxy.set(Network::Up);
    }
}

#[tokio::test]
async fn a_lease_that_runs_out_is_found() {
    let server = Server::start();
    let taker = leases(&server.url())
        .await
        .notifications(&Notifications::of(server.client()));
    let _: () = server.command(&["SET", "tickwheel:lease:{x}:holder", "other 1", "PX", "1500"]);
    drop(soon(taker.acquire("x", MINUTE)).await.unwrap());
}

#[tokio::test]
async fn it_subscribes_once_and_only_while_somebody_waits() {
    let server = Server::start();
    let notifications = Notifications::of(server.client());
    let holder = leases(&server.url()).await;
    let held = holder.acquire("x", MINUTE).await.unwrap();
    let waiting: Vec<_> = [leases(&server.url()).await, leases(&server.url()).await]
        .into_iter()
        .map(|leases| {
            let leases = leases.notifications(&notifications);
            tokio::spawn(async move { leases.acquire("x", MINUTE).await.unwrap().release().await })
        })
        .collect();
    until(|| async { listeners(&server, "x") == 1 }).await;
    held.release().await.unwrap();
    for waiting in waiting {
        assert!(soon(waiting).await.unwrap().unwrap());
    }
    until(|| async { listeners(&server, "x") == 0 }).await;

    // Its connection goes with its last clone.
    let clients = || {
        server
            .command::<String>(&["CLIENT", "LIST", "TYPE", "pubsub"])
            .lines()
            .count()
    };
    let held = holder.acquire("x", MINUTE).await.unwrap();
    let leases = leases(&server.url()).await.notifications(&notifications);
    let mut waiting = Box::pin(leases.acquire("x", MINUTE));
    until(|| {
        assert!(waiting.as_mut().now_or_never().is_none());
        async { clients() == 1 }
    })
    .await;
    drop(waiting);
    drop(leases);
    drop(notifications);
    until(|| async { clients() == 0 }).await;
    held.release().await.unwrap();
}

#[tokio::test]
async fn it_reconnects() {
    let mut server = Server::start_aof();
    let notifications = Notifications::of(server.client());
    let (giver, taker) = (
        leases(&server.url()).await,
        leases(&server.url()).await.notifications(&notifications),
    );
    let held = giver.acquire("x", MINUTE).await.unwrap();
    let waiting = tokio::spawn({
        let taker = taker.clone();
        async move { taker.acquire("x", MINUTE).await }
    });
    until(|| async { listeners(&server, "x") == 1 }).await;
    server.restart();
    until(|| async { listeners(&server, "x") == 1 }).await;
    assert!(soon(held.release()).await.is_ok());
    assert!(
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap()
    );
    let stopped = StoppedWheel::new();
    let taker = Leases::new(&stopped.wheel, connect(&server.url()).await).notifications(&notifications);
    hand_over(&giver, &taker, 10).await;
}

#[tokio::test]
async fn a_server_that_is_away_at_first() {
    let mut server = Server::start();
    let port = server.port();
    server.kill();
    let notifications = Notifications::of(server.client());
    let lazy = server
        .client()
        .get_connection_manager_lazy(redis::aio::ConnectionManagerConfig::new())
        .unwrap();
    let leases = Leases::new(&Wheel::new(), lazy).notifications(&notifications);
    let waiting = tokio::spawn(async move { leases.acquire("x", MINUTE).await });
    sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished(), "{port}");
    server.restart();
    drop(soon(waiting).await.unwrap().unwrap());
}

/// Listeners that come and go must not put off the ping by which a connection that went silent is found out.
#[tokio::test]
async fn a_silent_connection_is_pinged_while_listeners_come_and_go() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let notifications = Notifications::of(redis::Client::open(proxy.url()).unwrap());
    let leases = leases(&server.url()).await.notifications(&notifications);
    let held = leases.acquire("x", MINUTE * 10).await.unwrap();
    let mut waiting = Box::pin(leases.acquire("x", MINUTE));
    until(|| {
        assert!(waiting.as_mut().now_or_never().is_none());
        async { listeners(&server, "x") == 1 }
    })
    .await;
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
            std::thread::sleep(Duration::from_millis(1));
            tokio::task::yield_now().await;
        }
        drop(another);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let pinged = proxy.requests() > before;
    drop(finish);
    let _ = blocking.await;
    assert!(
        pinged,
        "nothing was sent on a connection that was silent for 40 s"
    );
    drop(held);
}
