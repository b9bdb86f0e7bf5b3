//! `Leases::holder`: who holds a lease, and for how long.

mod support;

use redis::cluster::ClusterClient;
use support::prelude::*;

async fn token<C: Connection>(leases: &Leases<C>, name: &str) -> Option<u64> {
    let holder = soon(leases.holder(name)).await.unwrap();
    holder.map(|holder| holder.token)
}

#[tokio::test]
async fn the_holder_is_found_by_others_until_it_releases() {
    let (server, here, there) = Server::with_two_leases().await;
    assert_eq!(here.holder("x").await.unwrap(), None);
    for _ in 0..2 {
        let lease = acquire(&here, "x").await;
        let asked = server.scripts_run();
        let holder = there.holder("x").await.unwrap().unwrap();
        assert_eq!(server.scripts_run(), asked + 1, "one command");
        assert_eq!(holder.token, lease.token());
        let left = holder.expires_in;
        assert!(left <= HOUR && left > HOUR / 2, "{holder:?}");
        assert_eq!(token(&there, "y").await, None);
        assert_eq!(token(&there.clone().prefix("other"), "x").await, None);
        release(lease).await;
        assert_eq!(there.holder("x").await.unwrap(), None);
    }
}

#[tokio::test]
async fn it_is_found_until_its_ttl_has_passed_and_what_is_left_follows_renewals() {
    let (server, leases) = Server::with_leases().await;
    let ttl = 3 * SECOND;
    let lease = leases.acquire("x", ttl).await.unwrap();
    renewed(&lease).await;
    assert_eq!(token(&leases, "x").await, Some(lease.token()));
    // It has died: its end comes, and nobody releases it.
    server.command::<()>(&["SET", &holder("dead"), "nonce 17", "PX", "300"]);
    let dead = leases.holder("dead").await.unwrap().unwrap();
    assert!(dead.token == 17 && dead.expires_in <= 300 * MS, "{dead:?}");
    until(|| async { token(&leases, "dead").await.is_none() }).await;
    assert_eq!(token(&leases, "x").await, Some(lease.token()));
}

#[tokio::test]
async fn a_lease_that_is_reserved_for_a_process_that_waits_has_no_holder() {
    let (server, first, second) = Server::with_two_leases().await;
    let value = || server.command::<String>(&["GET", &holder("x")]);
    let lease = acquire(&first, "x").await;
    let mut waits = Box::pin(second.acquire("x", MINUTE));
    // Until it stands in line.
    pending_until(&mut waits, || value().contains(';')).await;
    assert_eq!(token(&first, "x").await, Some(lease.token()), "with a line");
    release(lease).await;
    assert!(value().starts_with("next:"), "{}", value());
    assert_eq!(token(&first, "x").await, None);
    let lease = soon(waits).await.unwrap();
    // Others want it, too.
    assert_eq!(token(&first, "x").await, Some(lease.token()));
}

#[tokio::test]
async fn a_name_that_is_none_is_refused() {
    let (_server, leases) = Server::with_leases().await;
    for name in ["", &"n".repeat(1025)] {
        let error = leases.holder(name).await.unwrap_err();
        assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_damaged_key_is_an_error_that_names_it() {
    let (server, leases) = Server::with_leases().await;
    let key = &*holder("x");
    for damage in [
        ["SET", key, "garbage", "KEEPTTL"],
        ["SET", key, "", "KEEPTTL"],
        ["SET", key, "nonce ", "KEEPTTL"],
        ["SET", key, "nonce -1", "KEEPTTL"],
        ["SET", key, "nonce 99999999999999999999999999", "KEEPTTL"],
        ["SET", key, "\u{fffd} 1 2", "KEEPTTL"],
        ["RPUSH", key, "a", "list"],
        ["HSET", key, "field", "value"],
    ] {
        server.command::<redis::Value>(&damage);
        match leases.holder("x").await {
            Err(Error::WrongType { keys }) => assert_eq!(keys, [key]),
            other => panic!("{damage:?}: {other:?}"),
        }
        match soon(leases.acquire("x", MINUTE)).await {
            Err(Error::WrongType { keys }) => assert!(keys.iter().any(|named| *named == key), "{keys:?}"),
            other => panic!("{damage:?}: {other:?}"),
        }
        server.delete(&[key]);
        assert_eq!(token(&leases, "x").await, None);
    }
}

#[tokio::test]
async fn one_without_an_end_is_found_until_it_is_renewed() {
    let (server, leases) = Server::with_leases().await;
    let lease = leases.acquire("x", 3 * SECOND).await.unwrap();
    server.command::<i64>(&["PERSIST", &holder("x")]);
    assert_eq!(token(&leases, "x").await, Some(lease.token()));
    until(|| async { leases.holder("x").await.unwrap().unwrap().expires_in < MINUTE }).await;
}

#[tokio::test]
async fn an_outage_is_waited_for_but_not_for_ever() {
    let mut server = Server::start_aof();
    let proxy = Proxy::start(server.port()).await;
    let leases = leases(&proxy.url()).await;
    let lease = acquire(&leases, "x").await;
    proxy.set(Network::Silent);
    let began = Instant::now();
    let error = soon(leases.holder("x")).await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error}");
    assert!(began.elapsed() >= 4 * SECOND);
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
    let leases = leases_on(client.get_async_connection().await.unwrap());
    for n in 0..9 {
        let name = format!("{{{n}}}");
        assert_eq!(token(&leases, &name).await, None);
        let lease = acquire(&leases, &name).await;
        assert_eq!(token(&leases, &name).await, Some(lease.token()));
        release(lease).await;
        assert_eq!(token(&leases, &name).await, None);
    }
}
