//! `Leases::holder`: who holds a lease, and for how long.

mod support;

use std::time::Duration;

use redis::cluster::ClusterClient;
use support::{
    cluster::Cluster,
    leases::{key, leases},
    proxy::{Network, Proxy},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Connection, Error, Leases};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

async fn token<C: Connection>(leases: &Leases<C>, name: &str) -> Option<u64> {
    let holder = soon(leases.holder(name)).await.unwrap();
    holder.map(|holder| holder.token)
}

#[tokio::test]
async fn the_holder_is_found_by_others_until_it_releases() {
    let server = Server::start();
    let (here, there) = (leases(&server.url()).await, leases(&server.url()).await);
    assert_eq!(here.holder("x").await.unwrap(), None);
    for _ in 0..2 {
        let lease = here.acquire("x", MINUTE).await.unwrap();
        let asked = server.scripts_run();
        let holder = there.holder("x").await.unwrap().unwrap();
        assert_eq!(server.scripts_run(), asked + 1, "one command");
        assert_eq!(holder.token, lease.token());
        assert!(
            holder.expires_in <= MINUTE && holder.expires_in > MINUTE / 2,
            "{holder:?}"
        );
        assert_eq!(token(&there, "y").await, None);
        assert_eq!(token(&there.clone().prefix("other"), "x").await, None);
        assert!(lease.release().await.unwrap());
        assert_eq!(there.holder("x").await.unwrap(), None);
    }
}

#[tokio::test]
async fn it_is_found_until_its_ttl_has_passed_and_what_is_left_follows_renewals() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let ttl = Duration::from_secs(3);
    let lease = leases.acquire("x", ttl).await.unwrap();
    let end = lease.valid_until();
    until(|| async { lease.valid_until() > end }).await;
    let renewed = leases.holder("x").await.unwrap().unwrap();
    assert_eq!(renewed.token, lease.token());
    // It has died: its end comes, and nobody releases it.
    server.command::<()>(&["SET", &key("dead", "holder"), "nonce 17", "PX", "300"]);
    let holder = leases.holder("dead").await.unwrap().unwrap();
    assert!(
        holder.token == 17 && holder.expires_in <= Duration::from_millis(300),
        "{holder:?}"
    );
    until(|| async { token(&leases, "dead").await.is_none() }).await;
    assert_eq!(token(&leases, "x").await, Some(lease.token()));
}

#[tokio::test]
async fn a_lease_that_is_kept_for_a_process_that_waits_has_no_holder() {
    let server = Server::start();
    let (first, second) = (leases(&server.url()).await, leases(&server.url()).await);
    let lease = first.acquire("x", MINUTE).await.unwrap();
    let mut waits = Box::pin(second.acquire("x", MINUTE));
    // Until it stands in line.
    soon(async {
        while !server
            .command::<String>(&["GET", &key("x", "holder")])
            .contains(';')
        {
            tokio::select! {
                _ = &mut waits => panic!("it is held"),
                () = sleep(Duration::from_millis(10)) => {}
            }
        }
    })
    .await;
    assert_eq!(token(&first, "x").await, Some(lease.token()), "with a line");
    assert!(lease.release().await.unwrap());
    let kept: String = server.command(&["GET", &key("x", "holder")]);
    assert!(kept.starts_with("kept:"), "{kept}");
    assert_eq!(token(&first, "x").await, None);
    let lease = soon(waits).await.unwrap();
    assert_eq!(
        token(&first, "x").await,
        Some(lease.token()),
        "others want it too"
    );
}

#[tokio::test]
async fn names_may_have_braces_and_anything() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    for name in [
        "{x}",
        "}x{",
        "{",
        "%7Bx%7D",
        "a b\r\n\0",
        "kept:x 1",
        "ö",
        &"n".repeat(1024),
    ] {
        let lease = leases.acquire(name, MINUTE).await.unwrap();
        assert_eq!(token(&leases, name).await, Some(lease.token()), "{name:?}");
        assert!(lease.release().await.unwrap());
        assert_eq!(token(&leases, name).await, None, "{name:?}");
    }
    for name in ["", &"n".repeat(1025)] {
        let error = leases.holder(name).await.unwrap_err();
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_key_is_an_error_that_names_it() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    for damage in [
        vec!["SET", "garbage"],
        vec!["SET", ""],
        vec!["SET", "nonce "],
        vec!["SET", "nonce -1"],
        vec!["SET", "nonce 99999999999999999999999999"],
        vec!["SET", "\u{fffd} 1 2"],
        vec!["RPUSH", "a list"],
        vec!["HSET", "field", "value"],
    ] {
        let key = key("x", "holder");
        let words: Vec<&str> = [damage[0], &key]
            .into_iter()
            .chain(damage[1..].iter().copied())
            .collect();
        server.command::<redis::Value>(&words);
        match leases.holder("x").await {
            Err(Error::WrongType { keys }) => assert_eq!(keys, std::slice::from_ref(&key)),
            other => panic!("{words:?}: {other:?}"),
        }
        server.command::<i64>(&["DEL", &key]);
        assert_eq!(token(&leases, "x").await, None);
    }
}

#[tokio::test]
async fn one_without_an_end_is_found_until_it_is_renewed() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let lease = leases.acquire("x", Duration::from_secs(3)).await.unwrap();
    server.command::<i64>(&["PERSIST", &key("x", "holder")]);
    let holder = leases.holder("x").await.unwrap().unwrap();
    assert_eq!(holder.token, lease.token());
    until(|| async { leases.holder("x").await.unwrap().unwrap().expires_in < MINUTE }).await;
}

#[tokio::test]
async fn an_outage_is_waited_for_but_not_for_ever() {
    let mut server = Server::start_aof();
    let proxy = Proxy::start(server.port()).await;
    let leases = leases(&proxy.url()).await;
    let lease = leases.acquire("x", MINUTE).await.unwrap();
    proxy.set(Network::Silent);
    let began = Instant::now();
    let error = soon(leases.holder("x")).await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    assert!(began.elapsed() >= Duration::from_secs(4));
    proxy.set(Network::Up);
    assert_eq!(token(&leases, "x").await, Some(lease.token()));

    server.kill();
    let asked = tokio::spawn({
        let leases = leases.clone();
        async move { leases.holder("x").await }
    });
    server.restart();
    if let Some(holder) = soon(asked).await.unwrap().unwrap() {
        assert_eq!(holder.token, lease.token());
    }
    assert_eq!(token(&leases, "x").await, Some(lease.token()), "the file has it");
}

#[tokio::test]
async fn it_is_found_in_a_cluster() {
    let cluster = Cluster::start();
    let client = ClusterClient::new(cluster.urls()).unwrap();
    let leases = Leases::new(&Wheel::new(), client.get_async_connection().await.unwrap());
    for n in 0..9 {
        let name = format!("{{{n}}}");
        assert_eq!(token(&leases, &name).await, None);
        let lease = leases.acquire(&name, MINUTE).await.unwrap();
        assert_eq!(token(&leases, &name).await, Some(lease.token()));
        assert!(lease.release().await.unwrap());
        assert_eq!(token(&leases, &name).await, None);
    }
}
