//! Connections whose other end has vanished without a word.

mod support;

use redis::cluster::ClusterClient;
use support::prelude::*;

fn reconnecting(url: &str) -> Reconnecting {
    Reconnecting::of(Client::open(url).unwrap()).silence(SECOND)
}

#[tokio::test]
async fn a_lease_survives_it() {
    let (_server, proxy) = Server::with_proxy().await;
    let leases = leases_on(reconnecting(&proxy.url()));
    let lease = leases.acquire("x", 9 * SECOND).await.unwrap();
    for _ in 0..2 {
        proxy.forget_connections();
        renewed(&lease).await;
        assert!(is_valid(&lease));
    }
    proxy.forget_connections();
    release(lease).await;
}

#[tokio::test]
async fn the_longest_silence_is_none_at_all() {
    let server = Server::start();
    let leases = leases_on(Reconnecting::of(server.client()).silence(Duration::MAX));
    use_once(&leases, "x").await;
}

#[tokio::test]
async fn a_worker_survives_it() {
    let (_server, proxy) = Server::with_proxy().await;
    let jobs = unnotified(reconnecting(&proxy.url()));
    let mut worker = jobs.worker().start();
    for round in 0..3 {
        soon(put(&jobs, [round], NOW)).await;
        let job = next_after_errors(&mut worker).await;
        assert_eq!(job.id(), round.to_string());
        proxy.forget_connections();
        done(job).await;
        proxy.forget_connections();
    }
}

#[tokio::test]
async fn a_cluster_is_survived_too() {
    let cluster = Cluster::start();
    // By RESP2, as by a client that says nothing.
    let client = ClusterClient::builder(cluster.urls())
        .response_timeout(500 * MS)
        .build()
        .unwrap();
    let leases = leases_on(Reconnecting::of_cluster(client).silence(SECOND));
    use_once(&leases, "x").await;
    drop(acquire(&leases, "x").await);
}

/// Also of runtimes that end: each takes its connection along.
#[test]
fn each_runtime_has_its_own() {
    let server = Server::start();
    let leases = leases_on(reconnecting(&server.url()));
    let (undriven, driven) = (runtime(), runtime());
    let _kept = undriven.block_on(acquire(&leases, "kept"));
    for round in 0..10 {
        runtime().block_on(use_once(&leases, &round.to_string()));
    }
    // One is that which asks.
    let clients = || server.command::<String>(&["CLIENT", "LIST"]).lines().count() - 1;
    driven.block_on(async {
        use_once(&leases, "x").await;
        until(|| async { clients() == 2 }).await;
    });
}
