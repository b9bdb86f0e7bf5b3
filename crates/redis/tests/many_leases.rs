//! A process with many leases, whose server is silent for a while.
//!
//! `TICKWHEEL_LEASES=100000 cargo test --release -p tickwheel-redis --test many_leases -- --nocapture
//! --test-threads 1` tries as many as guarantees.md names, with a TTL of 30 s and a silence of 12 s, which takes a
//! machine that has nothing else to do.

mod support;

use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use redis::{ProtocolVersion, aio::ConnectionLike, cluster::ClusterClient};
use support::{
    cluster::Cluster,
    sentinels::Sentinels,
    server::{Server, scripts_run},
    until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Lease, Leases, Reconnecting, sentinel};
use tokio::time::{Instant, sleep};

const HOUR: Duration = Duration::from_secs(3600);

/// How many leases a test has, their TTL, and for how long the server is silent.
fn size() -> (usize, Duration, Duration) {
    match std::env::var("TICKWHEEL_LEASES") {
        Ok(leases) => (
            leases.parse().unwrap(),
            Duration::from_secs(30),
            Duration::from_secs(12),
        ),
        Err(_) => (3_000, Duration::from_secs(10), Duration::from_secs(4)),
    }
}

async fn acquire<C: ConnectionLike + Clone + Send + Sync + 'static>(
    leases: &Leases<C>,
    number: usize,
    ttl: Duration,
) -> Vec<Lease> {
    let acquired: Vec<Lease> = stream::iter(0..number)
        .map(|n| async move {
            let name = n.to_string();
            leases.try_acquire(&name, ttl).await.unwrap().unwrap()
        })
        .buffer_unordered(128)
        .collect()
        .await;
    assert_eq!(acquired.len(), number);
    acquired
}

/// The servers that keep the leases, which can be suspended together.
trait Servers {
    fn stop(&self);
    fn cont(&self);
    /// How many scripts they were asked to run.
    fn scripts_run(&self) -> u64;
}

impl Servers for Server {
    fn stop(&self) {
        Server::stop(self);
    }

    fn cont(&self) {
        Server::cont(self);
    }

    fn scripts_run(&self) -> u64 {
        Server::scripts_run(self)
    }
}

/// All masters at once, so that none of their replicas is elected.
struct Masters {
    cluster: Cluster,
    ports: Vec<u16>,
}

impl Masters {
    fn start() -> Masters {
        let cluster = Cluster::start();
        let ports = cluster.masters();
        Masters { cluster, ports }
    }

    /// A client with the settings that the README recommends.
    fn client(&self) -> ClusterClient {
        ClusterClient::builder(self.cluster.urls())
            .use_protocol(ProtocolVersion::RESP3)
            .response_timeout(Duration::from_secs(1))
            .build()
            .unwrap()
    }
}

impl Servers for Masters {
    fn stop(&self) {
        self.ports.iter().for_each(|port| self.cluster.stop(*port));
    }

    fn cont(&self) {
        self.ports.iter().for_each(|port| self.cluster.cont(*port));
    }

    fn scripts_run(&self) -> u64 {
        let nodes = self.ports.iter().map(|port| self.cluster.node(*port));
        nodes.map(|node| scripts_run(&node)).sum()
    }
}

/// The master and its replicas at once, so that the sentinels find none to promote.
impl Servers for Sentinels {
    fn stop(&self) {
        self.servers()
            .iter()
            .for_each(|port| Sentinels::stop(self, *port));
    }

    fn cont(&self) {
        self.servers()
            .iter()
            .for_each(|port| Sentinels::cont(self, *port));
    }

    fn scripts_run(&self) -> u64 {
        scripts_run(&self.client_of(self.master()))
    }
}

/// Acquires leases and suspends the servers when the first of them are renewed, which loses none.
async fn outlive_a_silence<C: ConnectionLike + Clone + Send + Sync + 'static>(
    servers: &impl Servers,
    connection: C,
) {
    let (number, ttl, silence) = size();
    let leases = Leases::new(&Wheel::new(), connection);
    let began = Instant::now();
    let held = acquire(&leases, number, ttl).await;
    let acquired = began.elapsed();
    let lost = || {
        held.iter()
            .filter(|lease| lease.lost().now_or_never().is_some())
            .count()
    };
    let before = servers.scripts_run();
    // The first are due after four fifteenths of their TTL.
    sleep((ttl * 4 / 15).saturating_sub(acquired)).await;
    assert_eq!(lost(), 0, "before the silence");
    servers.stop();
    sleep(silence).await;
    servers.cont();
    let resumed = Instant::now();
    until(|| async {
        sleep(Duration::from_millis(100)).await;
        lost() > 0
            || held
                .iter()
                .all(|lease| lease.valid_until() > resumed + ttl * 3 / 5)
    })
    .await;
    let renewed = resumed.elapsed();
    sleep(ttl / 3).await;
    let scripts = servers.scripts_run() - before;
    println!(
        "{number} leases, acquired in {acquired:?}: {} lost, renewed after {renewed:?}, {scripts} scripts",
        lost(),
    );
    assert_eq!(lost(), 0, "after the silence");
    // What was sent meanwhile would come before all else.
    assert!(scripts < 3 * number as u64, "{scripts} scripts");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_are_dropped_at_once_are_released() {
    let server = Server::start();
    let connection = server.client().get_connection_manager().await.unwrap();
    let leases = Leases::new(&Wheel::new(), connection);
    let (number, ..) = size();
    let held = acquire(&leases, number, HOUR).await;
    let began = Instant::now();
    drop(held);
    until(|| async { server.command::<Vec<String>>(&["KEYS", "*:holder"]).is_empty() }).await;
    println!("{number} leases, released in {:?}", began.elapsed());
}

/// Its requests time out after 500 ms.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_the_default_connection_manager_outlive_a_silence() {
    let server = Server::start();
    let connection = server.client().get_connection_manager().await.unwrap();
    outlive_a_silence(&server, connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_multiplexed_connection_outlive_a_silence() {
    let server = Server::start();
    let connection = server.client().get_multiplexed_async_connection().await.unwrap();
    outlive_a_silence(&server, connection).await;
}

/// Its requests have no timeout, and it is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_reconnecting_connection_outlive_a_silence() {
    let server = Server::start();
    outlive_a_silence(&server, Reconnecting::of(server.client())).await;
}

/// Its requests time out after a second, as the README has it.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_cluster_outlive_a_silence() {
    let masters = Masters::start();
    let connection = masters.client().get_async_connection().await.unwrap();
    outlive_a_silence(&masters, connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_reconnecting_cluster_outlive_a_silence() {
    let masters = Masters::start();
    let connection = Reconnecting::of_cluster(masters.client());
    outlive_a_silence(&masters, connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_sentinel_connection_outlive_a_silence() {
    let sentinels = Sentinels::start();
    let connection = sentinel::Connection::new(sentinels.client());
    outlive_a_silence(&sentinels, connection).await;
}
