//! A process with many leases, whose server is silent for a while.
//!
//! `TICKWHEEL_LEASES=100000 cargo test --release -p tickwheel-redis --test many_leases -- --nocapture
//! --test-threads 1` tries as many as guarantees.md names, with a TTL of 30 s and a silence of 12 s, which takes a
//! machine that has nothing else to do.

mod support;

use futures::stream;
use support::prelude::*;

/// How many leases a test has, their TTL, and for how long the server is silent.
fn size() -> (usize, Duration, Duration) {
    match std::env::var("TICKWHEEL_LEASES") {
        Ok(leases) => (leases.parse().unwrap(), 30 * SECOND, 12 * SECOND),
        Err(_) => (3_000, 15 * SECOND, 6 * SECOND),
    }
}

async fn acquire_all<C: Connection>(leases: &Leases<C>, number: usize, ttl: Duration) -> Vec<Lease> {
    let acquire = async |n: usize| leases.try_acquire(&n.to_string(), ttl).await.unwrap().unwrap();
    let acquiring = stream::iter(0..number).map(acquire).buffer_unordered(128);
    let acquired: Vec<Lease> = acquiring.collect().await;
    assert_eq!(acquired.len(), number);
    acquired
}

/// Acquires leases and suspends these servers when the first of them are renewed, which loses none. They are suspended
/// together, so that no replica is promoted.
async fn outlive_a_silence(servers: &[&Node], connection: impl Connection) {
    let (number, ttl, silence) = size();
    let leases = leases_on(connection);
    let began = Instant::now();
    let held = acquire_all(&leases, number, ttl).await;
    let acquired = began.elapsed();
    let lost = || held.iter().filter(|lease| !is_valid(lease)).count();
    let scripts_run = || servers.iter().map(|server| server.scripts_run()).sum::<u64>();
    let before = scripts_run();
    // The first are due after four fifteenths of their TTL.
    sleep((ttl * 4 / 15).saturating_sub(acquired)).await;
    assert_eq!(lost(), 0, "before the silence");
    servers.iter().for_each(|server| server.stop());
    sleep(silence).await;
    servers.iter().for_each(|server| server.cont());
    let resumed = Instant::now();
    let are_renewed = || {
        held.iter()
            .all(|lease| lease.valid_until() > resumed + ttl * 3 / 5)
    };
    until(|| async {
        sleep(100 * MS).await;
        lost() > 0 || are_renewed()
    })
    .await;
    let renewed = resumed.elapsed();
    sleep(ttl / 3).await;
    let scripts = scripts_run() - before;
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
    let leases = leases_on(server.client().get_connection_manager().await.unwrap());
    let (number, ..) = size();
    let held = acquire_all(&leases, number, HOUR).await;
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
    outlive_a_silence(&[&server], connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_multiplexed_connection_outlive_a_silence() {
    let server = Server::start();
    let connection = server.client().get_multiplexed_async_connection().await.unwrap();
    outlive_a_silence(&[&server], connection).await;
}

/// Its requests have no timeout, and it is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_reconnecting_connection_outlive_a_silence() {
    let server = Server::start();
    outlive_a_silence(&[&server], Reconnecting::of(server.client())).await;
}

fn masters(cluster: &Cluster) -> Vec<&Node> {
    let masters = cluster.masters();
    masters.into_iter().map(|port| cluster.node(port)).collect()
}

/// Its requests time out after a second, as the README has it.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_cluster_outlive_a_silence() {
    let cluster = Cluster::start();
    let client = cluster.builder(SECOND).build().unwrap();
    let connection = client.get_async_connection().await.unwrap();
    outlive_a_silence(&masters(&cluster), connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_reconnecting_cluster_outlive_a_silence() {
    let cluster = Cluster::start();
    let client = cluster.builder(SECOND).build().unwrap();
    outlive_a_silence(&masters(&cluster), Reconnecting::of_cluster(client)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_sentinel_connection_outlive_a_silence() {
    let sentinels = Sentinels::start();
    let servers: Vec<&Node> = sentinels.servers().iter().collect();
    outlive_a_silence(&servers, sentinel::Connection::new(sentinels.client())).await;
}
