//! Connections whose other end has vanished without a word.

mod support;

use std::time::Duration;

use futures::future::FutureExt;
use redis::{Client, cluster::ClusterClient};
use support::{
    cluster::Cluster,
    jobs::next_after_errors,
    proxy::Proxy,
    server::{Server, command},
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Leases, Reconnecting};
use tokio::{runtime::Builder, time::sleep};

const MINUTE: Duration = Duration::from_secs(60);

fn reconnecting(url: &str) -> Reconnecting {
    Reconnecting::of(Client::open(url).unwrap()).silence(Duration::from_secs(1))
}

#[tokio::test]
async fn a_lease_survives_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let leases = Leases::new(&Wheel::new(), reconnecting(&proxy.url()));
    let lease = leases.acquire("x", Duration::from_secs(9)).await.unwrap();
    for _ in 0..2 {
        proxy.forget_connections();
        let end = lease.valid_until();
        until(|| async { lease.valid_until() > end }).await;
        assert!(lease.lost().now_or_never().is_none());
    }
    proxy.forget_connections();
    assert!(soon(lease.release()).await.unwrap());
}

#[tokio::test]
async fn the_longest_silence_is_none_at_all() {
    let server = Server::start();
    let client = Client::open(server.url()).unwrap();
    let leases = Leases::new(&Wheel::new(), Reconnecting::of(client).silence(Duration::MAX));
    let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
    assert!(soon(lease.release()).await.unwrap());
}

#[tokio::test]
async fn a_worker_survives_it() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = DelayedJobs::new(&Wheel::new(), reconnecting(&proxy.url()), "queue");
    let mut worker = jobs.worker().start();
    for round in 0..3 {
        let id = round.to_string();
        assert!(soon(jobs.schedule(&id, Duration::ZERO, b"")).await.unwrap());
        let job = next_after_errors(&mut worker).await;
        assert_eq!(job.id(), id);
        proxy.forget_connections();
        assert!(soon(job.done()).await.unwrap());
        proxy.forget_connections();
    }
}

#[tokio::test]
async fn a_cluster_is_survived_too() {
    let cluster = Cluster::start();
    let client = ClusterClient::builder(cluster.urls())
        .response_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let connection = Reconnecting::of_cluster(client).silence(Duration::from_secs(1));
    let leases = Leases::new(&Wheel::new(), connection);
    let lease = leases.acquire("x", Duration::from_secs(30)).await.unwrap();
    assert!(lease.release().await.unwrap());
    drop(soon(leases.acquire("x", MINUTE)).await.unwrap());
}

fn clients(server: &Server) -> usize {
    let clients: String = command(&server.client(), &["CLIENT", "LIST"]);
    // One is that which asks.
    clients.lines().count() - 1
}

/// Also of runtimes that end: each takes its connection along.
#[test]
fn each_runtime_has_its_own() {
    let server = Server::start();
    let leases = Leases::new(&Wheel::new(), reconnecting(&server.url()));
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (undriven, driven) = (runtime(), runtime());
    let _kept = undriven.block_on(leases.acquire("kept", MINUTE)).unwrap();
    for round in 0..10 {
        let lease = runtime().block_on(async {
            let lease = soon(leases.acquire(&round.to_string(), MINUTE)).await.unwrap();
            lease.release().await.unwrap()
        });
        assert!(lease);
    }
    driven.block_on(async {
        let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
        assert!(lease.release().await.unwrap());
        until(|| async { clients(&server) == 2 }).await;
    });
}

#[tokio::test]
async fn a_server_that_restarts() {
    let mut server = Server::start_aof();
    let leases = Leases::new(&Wheel::new(), reconnecting(&server.url()));
    let lease = leases.acquire("x", MINUTE).await.unwrap();
    server.kill();
    assert!(soon(leases.try_acquire("y", MINUTE)).await.is_err());
    sleep(Duration::from_millis(100)).await;
    server.restart();
    assert!(soon(lease.release()).await.unwrap());
    drop(soon(leases.acquire("y", MINUTE)).await.unwrap());
}
