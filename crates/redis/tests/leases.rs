//! Leases: one holder at a time, growing tokens, renewal, errors.

mod support;

use std::{collections::HashSet, time::Duration};

use futures::future::{FutureExt, join_all};
use redis::{aio::ConnectionManager, cluster::ClusterClient};
use support::{
    cluster::Cluster,
    connect,
    leases::{is_held, key, leases},
    process::{Process, die_with_parent, say, setting},
    proxy::{Network, Proxy},
    server::Server,
    soon, until,
};
use tickwheel::{SleepError, Wheel};
use tickwheel_redis::{Error, Lease, Leases, Notifications};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

/// The last token of the names in the slot of "x".
const FENCE_OF_X: &str = "tickwheel:lease:{5300}:fence";

fn holder(name: &str) -> String {
    key(name, "holder")
}

async fn try_acquire(leases: &Leases<ConnectionManager>, name: &str) -> Option<Lease> {
    leases.try_acquire(name, MINUTE).await.unwrap()
}

#[tokio::test]
async fn one_holder_at_a_time() {
    let server = Server::start();
    let (a, b) = (leases(&server.url()).await, leases(&server.url()).await);
    let lease = try_acquire(&a, "x").await.unwrap();
    assert_eq!((lease.name(), lease.ttl()), ("x", MINUTE));
    assert!(try_acquire(&b, "x").await.is_none());
    assert!(
        try_acquire(&a, "x").await.is_none(),
        "not even by the same process"
    );
    let other = try_acquire(&b, "y").await.unwrap();

    let token = lease.token();
    assert!(lease.release().await.unwrap());
    let next = try_acquire(&b, "x").await.unwrap();
    assert!(next.token() > token);
    assert!(other.release().await.unwrap());
}

#[tokio::test]
async fn it_is_valid_for_its_ttl_less_a_margin() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    for (ttl, margin) in [
        (Duration::from_millis(200), Duration::from_millis(30)),
        (MINUTE, Duration::from_millis(600)),
    ] {
        let before = Instant::now();
        // Longer than the margin of the shortest lease; it may take a few attempts on a loaded machine.
        let lease = loop {
            match leases.acquire("x", ttl).await {
                Ok(lease) => break lease,
                Err(Error::NoAnswer { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        };
        let after = Instant::now();
        let until = lease.valid_until();
        if until > after {
            assert!(until >= before + ttl - margin, "{ttl:?}");
        }
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn names_and_prefixes_do_not_meet() {
    let server = Server::start();
    let a = leases(&server.url()).await;
    let b = a.clone().prefix("other");
    let mut held = Vec::new();
    for name in ["x", "{x}", "}x{", "{", "%7Bx%7D", "a b\r\n\0", "ö"] {
        held.push(try_acquire(&a, name).await.unwrap());
        held.push(try_acquire(&b, name).await.unwrap());
    }
    let tokens: HashSet<u64> = held.iter().map(Lease::token).collect();
    assert_eq!(held.len(), 14);
    assert!(tokens.len() > 1);
    for lease in held {
        assert!(lease.release().await.unwrap());
    }
}

#[tokio::test]
async fn bad_input_is_refused() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let century = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    for ttl in [
        Duration::ZERO,
        Duration::from_millis(199),
        Duration::from_secs(24 * 60 * 60 + 1),
        century,
        Duration::MAX,
    ] {
        for error in [
            leases.try_acquire("x", ttl).await.unwrap_err(),
            leases.acquire("x", ttl).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidTtl { ttl: given, .. } if given == ttl));
            let text = error.to_string();
            assert!(
                text.contains(&format!("{ttl:?}")) && text.contains("200ms"),
                "{text}"
            );
        }
    }
    let error = leases.try_acquire("", MINUTE).await.unwrap_err();
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    assert_eq!(server.scripts_run(), 0, "Redis was not asked");
    for ttl in [Duration::from_millis(200), Duration::from_secs(24 * 60 * 60)] {
        drop(soon(leases.acquire("x", ttl)).await);
    }
}

#[tokio::test]
async fn a_full_wheel_refuses_before_redis_is_asked() {
    let server = Server::start();
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let leases = Leases::new(&wheel, connect(&server.url()).await);
    let lease = leases.try_acquire("x", MINUTE).await.unwrap().unwrap();
    let asked = server.scripts_run();
    for error in [
        leases.try_acquire("y", MINUTE).await.unwrap_err(),
        leases.acquire("y", MINUTE).await.unwrap_err(),
    ] {
        assert!(
            matches!(error, Error::Wheel(SleepError::AtCapacity { limit: 1, .. })),
            "{error}"
        );
    }
    assert_eq!(server.scripts_run(), asked);
    lease.release().await.unwrap();
    assert!(leases.try_acquire("y", MINUTE).await.unwrap().is_some());
}

#[tokio::test]
async fn a_wheel_shut_down() {
    let server = Server::start();
    let wheel = Wheel::new();
    let leases = Leases::new(&wheel, connect(&server.url()).await);
    let ttl = Duration::from_secs(3);
    let lease = leases.try_acquire("x", ttl).await.unwrap().unwrap();
    let dropped = leases.try_acquire("y", ttl).await.unwrap().unwrap();
    wheel.shutdown();
    soon(lease.lost()).await;
    soon(dropped.lost()).await;
    assert!(lease.valid_until() <= Instant::now());
    let error = leases.try_acquire("z", ttl).await.unwrap_err();
    assert!(matches!(error, Error::Wheel(SleepError::Shutdown)), "{error}");

    let other = self::leases(&server.url()).await;
    assert!(try_acquire(&other, "x").await.is_none(), "not yet released");
    lease.release().await.unwrap();
    assert!(try_acquire(&other, "x").await.is_some());
    drop(dropped);
    soon(other.acquire("y", MINUTE))
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn it_is_renewed_while_the_holder_lives_and_not_after() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let ttl = Duration::from_secs(2);
    let mut ends = Vec::new();
    for how in ["release", "drop", "panic", "shutdown"] {
        let wheel = Wheel::new();
        let leases = Leases::new(&wheel, connect(&server.url()).await);
        let lease = leases.try_acquire(how, ttl).await.unwrap().unwrap();
        ends.push((
            how,
            wheel,
            lease,
            server.command::<String>(&["GET", &holder(how)]),
        ));
    }
    let watched = leases.try_acquire("watched", ttl).await.unwrap().unwrap();
    let first = watched.valid_until();
    let mut latest = first;
    // Some three renewals.
    while latest < first + ttl {
        sleep(Duration::from_millis(50)).await;
        assert!(watched.lost().now_or_never().is_none());
        assert!(watched.valid_until() >= latest);
        latest = watched.valid_until();
    }
    drop(watched);
    let mut kept = Vec::new();
    for (how, wheel, lease, value) in ends {
        assert!(lease.lost().now_or_never().is_none(), "{how}");
        assert_eq!(server.command::<String>(&["GET", &holder(how)]), value);
        let lost = lease.lost();
        match how {
            "release" => assert!(lease.release().await.unwrap()),
            "drop" => drop(lease),
            "panic" => {
                let panicked = tokio::spawn(async move {
                    let _lease = lease;
                    panic!("on purpose");
                })
                .await;
                assert!(panicked.is_err());
            }
            "shutdown" => {
                wheel.shutdown();
                soon(lost.clone()).await;
                kept.push(lease);
            }
            _ => unreachable!(),
        }
        soon(lost).await;
    }
    // The key goes: at once, or when nobody renews it any more.
    for how in ["release", "drop", "panic", "shutdown"] {
        until(|| async { !is_held(&server, how) }).await;
    }
    let calls = server.scripts_run();
    sleep(ttl).await;
    assert_eq!(server.scripts_run(), calls, "somebody still renews");
}

#[tokio::test]
async fn a_thousand_leases_are_a_thousand_entries_and_one_task() {
    let server = Server::start();
    let wheel = Wheel::new();
    let leases = Leases::new(&wheel, connect(&server.url()).await);
    let metrics = tokio::runtime::Handle::current().metrics();
    let ttl = Duration::from_secs(6);
    drop(leases.acquire("first", ttl).await.unwrap());
    until(|| async { wheel.pending() == 0 }).await;
    let tasks = metrics.num_alive_tasks();
    let held = join_all((0..1000).map(|i| {
        let leases = leases.clone();
        async move { leases.acquire(&format!("lease-{i}"), ttl).await.unwrap() }
    }))
    .await;
    // Each is renewed at least once, some are on their way.
    let ends: Vec<Instant> = held.iter().map(Lease::valid_until).collect();
    until(|| async {
        assert!(wheel.pending() <= 1000);
        assert!(
            metrics.num_alive_tasks() <= tasks + 3,
            "{} tasks",
            metrics.num_alive_tasks()
        );
        held.iter()
            .zip(&ends)
            .all(|(lease, end)| lease.valid_until() > *end)
    })
    .await;
    assert!(held.iter().all(|lease| lease.lost().now_or_never().is_none()));
    until(|| async { wheel.pending() == 1000 }).await;
    drop(held);
    until(|| async { wheel.pending() == 0 }).await;
    until(|| async {
        let keys: Vec<String> = server.command(&["KEYS", "*:holder"]);
        keys.is_empty()
    })
    .await;
    until(|| async { metrics.num_alive_tasks() <= tasks }).await;
}

#[tokio::test]
async fn scripts_that_were_flushed_come_back() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let lease = leases
        .try_acquire("x", Duration::from_secs(3))
        .await
        .unwrap()
        .unwrap();
    let _: () = server.command(&["SCRIPT", "FLUSH"]);
    let end = lease.valid_until();
    until(|| async { lease.valid_until() > end }).await;
    let _: () = server.command(&["SCRIPT", "FLUSH"]);
    assert!(lease.release().await.unwrap());
    let _: () = server.command(&["SCRIPT", "FLUSH"]);
    assert!(try_acquire(&leases, "x").await.is_some());
}

#[tokio::test]
async fn a_policy_that_evicts_is_refused() {
    let server = Server::start();
    let _: () = server.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"] {
        let _: () = server.command(&["CONFIG", "SET", "maxmemory-policy", policy]);
        let error = leases(&server.url())
            .await
            .try_acquire("x", MINUTE)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::EvictionPolicy { policy: p, .. } if p == policy),
            "{error}"
        );
        assert!(error.to_string().contains(policy) && error.to_string().contains("noeviction"));
        let error = leases(&server.url())
            .await
            .acquire("x", MINUTE)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::EvictionPolicy { .. }), "{error}");
    }
    // Without a limit nothing is evicted.
    let _: () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(try_acquire(&leases(&server.url()).await, "x").await.is_some());
    let _: () = server.command(&[
        "CONFIG",
        "SET",
        "maxmemory",
        "100mb",
        "maxmemory-policy",
        "noeviction",
    ]);
    assert!(try_acquire(&leases(&server.url()).await, "y").await.is_some());
}

#[tokio::test]
async fn a_key_of_another_type_is_a_clear_error() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    for key in [holder("x"), FENCE_OF_X.to_owned()] {
        let _: () = server.command(&["RPUSH", &key, "not ours"]);
        for error in [
            leases.try_acquire("x", MINUTE).await.unwrap_err(),
            leases.acquire("x", MINUTE).await.unwrap_err(),
        ] {
            assert!(matches!(error, Error::WrongType { .. }), "{error}");
            assert!(error.to_string().contains(&key), "{error}");
        }
        let _: () = server.command(&["DEL", &key]);
    }
    assert!(try_acquire(&leases, "x").await.is_some());
}

#[tokio::test]
async fn a_server_that_is_busy_with_somebodys_script_is_waited_for() {
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let leases = leases(&server.url()).await;
    let ttl = Duration::from_secs(6);
    let lease = leases.try_acquire("x", ttl).await.unwrap().unwrap();
    let busy = support::server::keep_busy(&server);
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire("y", ttl).await }
    });
    // Its first renewal is refused.
    sleep(ttl / 3 + Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    let end = lease.valid_until();
    busy.end();
    assert!(
        soon(soon(waiting).await.unwrap().unwrap().release())
            .await
            .unwrap()
    );
    until(|| async { lease.valid_until() > end }).await;
    assert!(lease.lost().now_or_never().is_none());
    assert!(lease.release().await.unwrap());
}

#[tokio::test]
async fn out_of_memory() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let lease = leases
        .try_acquire("x", Duration::from_secs(3))
        .await
        .unwrap()
        .unwrap();
    let _: () = server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = leases.try_acquire("y", MINUTE).await.unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    let end = lease.valid_until();
    until(|| async { lease.valid_until() > end }).await;
    assert!(lease.release().await.unwrap());

    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire("x", MINUTE).await }
    });
    sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    let _: () = server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(soon(waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn tokens_grow_over_expiry_deletion_and_restart() {
    let mut server = Server::start();
    let leases = leases(&server.url()).await;
    let mut last = 0;
    let mut token = async |what: &str| {
        let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
        assert!(
            lease.token() > last,
            "after {what}: {} after {last}",
            lease.token()
        );
        last = lease.token();
        lease
    };
    let lease = token("nothing").await;
    let key = holder("x");
    let _: () = server.command(&["PEXPIRE", &key, "1"]);
    until(|| async { !server.command::<bool>(&["EXISTS", &key]) }).await;
    let second = token("expiry").await;
    drop(lease);
    let _: () = server.command(&["DEL", &key]);
    let third = token("deletion of the lease").await;
    drop(second);
    let _: () = server.command(&["FLUSHALL"]);
    let fourth = token("deletion of all").await;
    drop(third);
    server.restart();
    let fifth = token("restart").await;
    drop(fourth);
    assert!(fifth.release().await.unwrap());

    // The clock of the server has gone back by an hour, or so it seems.
    let ahead = last + 3_600_000_000;
    let _: () = server.command(&["SET", FENCE_OF_X, &ahead.to_string()]);
    let lease = leases.acquire("x", MINUTE).await.unwrap();
    assert_eq!(lease.token(), ahead + 1);
}

#[tokio::test]
async fn a_renewal_keeps_the_fence() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let lease = leases
        .try_acquire("x", Duration::from_secs(3))
        .await
        .unwrap()
        .unwrap();
    let fence = FENCE_OF_X;
    let day = 24 * 60 * 60 * 1000;
    assert!(server.command::<i64>(&["PTTL", fence]) > day - 60_000);
    let _: () = server.command(&["DEL", fence]);
    until(|| async { server.command::<Option<u64>>(&["GET", fence]) == Some(lease.token()) }).await;
    assert!(server.command::<i64>(&["PTTL", fence]) > day - 60_000);
}

#[tokio::test]
async fn a_lease_that_somebody_deleted_is_lost_and_not_made_again() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let lease = leases
        .try_acquire("x", Duration::from_secs(2))
        .await
        .unwrap()
        .unwrap();
    let _: () = server.command(&["DEL", &holder("x")]);
    soon(lease.lost()).await;
    assert!(!is_held(&server, "x"));
    assert!(!lease.release().await.unwrap());
}

#[tokio::test]
async fn a_release_does_not_end_another_holders_lease() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let old = try_acquire(&leases, "x").await.unwrap();
    let _: () = server.command(&["DEL", &holder("x")]);
    let new = try_acquire(&leases, "x").await.unwrap();
    assert!(!old.release().await.unwrap());
    assert!(try_acquire(&leases, "x").await.is_none());
    assert!(new.release().await.unwrap());
}

#[tokio::test]
async fn a_dropped_acquire_gives_back_what_it_got() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let leases = Leases::new(&Wheel::new(), connect(&proxy.url()).await);
    drop(leases.acquire("warm", MINUTE).await.unwrap());
    until(|| async { !is_held(&server, "warm") }).await;

    proxy.set(Network::Deaf);
    let mut asked = Box::pin(leases.try_acquire("x", MINUTE));
    until(|| {
        assert!(asked.as_mut().now_or_never().is_none());
        async { is_held(&server, "x") }
    })
    .await;
    drop(asked);
    proxy.set(Network::Up);
    until(|| async { !is_held(&server, "x") }).await;
}

/// The request was still under way when it was given back, and comes after that.
#[tokio::test]
async fn what_was_given_back_before_it_came_is_not_acquired() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let mut asked = Box::pin(leases.try_acquire("x", MINUTE));
    // Policy first: until the script is on its way.
    server.stop();
    let _ = asked.as_mut().now_or_never();
    for _ in 0..100 {
        tokio::task::yield_now().await;
        let _ = asked.as_mut().now_or_never();
    }
    drop(asked);
    server.cont();
    let other = self::leases(&server.url()).await;
    let lease = soon(other.acquire("x", MINUTE)).await.unwrap();
    assert!(lease.release().await.unwrap());
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let config =
        redis::aio::ConnectionManagerConfig::new().set_response_timeout(Some(Duration::from_millis(100)));
    let client = redis::Client::open(proxy.url()).unwrap();
    let connection = client.get_connection_manager_with_config(config).await.unwrap();
    let leases = Leases::new(&Wheel::new(), connection);
    // Redis has both scripts: it cannot say while it is not heard that it lacks one.
    let warm = soon(leases.acquire("warm", MINUTE)).await.unwrap();
    assert!(soon(warm.release()).await.unwrap());

    proxy.set(Network::Deaf);
    let acquiring = tokio::spawn({
        let leases = leases.clone();
        async move { leases.try_acquire("x", MINUTE).await }
    });
    until(|| async { is_held(&server, "x") }).await;
    let first: String = server.command(&["GET", &holder("x")]);
    sleep(Duration::from_millis(300)).await;
    assert!(!acquiring.is_finished(), "{acquiring:?}");
    proxy.set(Network::Up);
    let lease = soon(acquiring).await.unwrap().unwrap().expect("it is its own");
    assert!(first.ends_with(&format!(" {}", lease.token())), "{first}");

    proxy.set(Network::Deaf);
    let releasing = tokio::spawn(lease.release());
    until(|| async { !is_held(&server, "x") }).await;
    let _next = try_acquire(&self::leases(&server.url()).await, "x")
        .await
        .unwrap();
    sleep(Duration::from_millis(300)).await;
    proxy.set(Network::Up);
    assert!(soon(releasing).await.unwrap().unwrap(), "the first one succeeded");
}

#[tokio::test]
async fn redis_away() {
    let mut server = Server::start_aof();
    let leases = leases(&server.url()).await;
    drop(leases.acquire("warm", MINUTE).await.unwrap());
    until(|| async { !is_held(&server, "warm") }).await;
    server.kill();
    let error = soon(leases.try_acquire("x", MINUTE)).await.unwrap_err();
    assert!(matches!(error, Error::Redis(_)), "{error}");
    let waiting = tokio::spawn({
        let leases = leases.clone();
        async move { leases.acquire("x", MINUTE).await }
    });
    sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished());
    server.restart();
    let lease = soon(waiting).await.unwrap().unwrap();

    // A restart within the ttl is survived, by the lease and by the release.
    server.kill();
    sleep(Duration::from_millis(300)).await;
    assert!(lease.lost().now_or_never().is_none());
    server.restart();
    assert!(is_held(&server, "x"));
    server.kill();
    let lost = lease.lost();
    drop(lease);
    soon(lost).await;
    server.restart();
    until(|| async { !is_held(&server, "x") }).await;
}

#[tokio::test]
async fn of_those_who_wait_in_a_process_one_asks() {
    let server = Server::start();
    let other = leases(&server.url()).await;
    let held = try_acquire(&other, "x").await.unwrap();
    let leases = leases(&server.url()).await;
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move { leases.acquire("x", MINUTE).await.unwrap().token() })
        })
        .collect();
    let before = server.scripts_run();
    sleep(Duration::from_secs(3)).await;
    let asked = server.scripts_run() - before;
    assert!(asked < 20, "{asked} requests in 3 seconds");
    held.release().await.unwrap();
    // Each releases as it goes; of their own process they are woken without a message.
    let tokens: HashSet<u64> = soon(join_all(waiting))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(tokens.len(), 100);
}

#[tokio::test]
async fn a_lease_that_goes_round_in_a_process_costs_two_requests_each_time() {
    let server = Server::start();
    let leases = leases(&server.url())
        .await
        .notifications(&Notifications::of(server.client()));
    let (before, began) = (server.scripts_run(), Instant::now());
    let tasks = (0..8).map(|_| {
        let leases = leases.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                let lease = leases.acquire("x", MINUTE).await.unwrap();
                tokio::task::yield_now().await;
                assert!(lease.release().await.unwrap());
            }
        })
    });
    soon(join_all(tasks)).await.into_iter().for_each(Result::unwrap);
    // The text of each script is sent once, and who waits asks every second.
    let more = 2 + began.elapsed().as_secs();
    let asked = server.scripts_run() - before;
    assert!(asked <= 2 * 8 * 25 + more, "{asked} requests for 200 leases");
    let subscriptions: String = server.command(&["INFO", "commandstats"]);
    assert!(!subscriptions.contains("cmdstat_subscribe"), "{subscriptions}");
}

/// Takes the lease again and again, and checks from inside that it is alone.
#[test]
#[ignore = "a role of another test"]
fn contender() {
    let Some(url) = setting("URL") else { return };
    die_with_parent();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let connection = connect(&url).await;
        let leases = Leases::new(&Wheel::new(), connection.clone());
        let tasks = (0..4).map(|_| {
            let (leases, mut connection) = (leases.clone(), connection.clone());
            tokio::spawn(async move {
                for _ in 0..15 {
                    let lease = leases.acquire("x", Duration::from_secs(20)).await.unwrap();
                    let (inside,): (u64,) = redis::pipe()
                        .incr("inside", 1)
                        .query_async(&mut connection)
                        .await
                        .unwrap();
                    assert_eq!(inside, 1, "two at once");
                    let count: u64 = redis::cmd("GET")
                        .arg("count")
                        .query_async(&mut connection)
                        .await
                        .unwrap();
                    tokio::task::yield_now().await;
                    redis::pipe()
                        .set("count", count + 1)
                        .rpush("tokens", lease.token())
                        .decr("inside", 1)
                        .exec_async(&mut connection)
                        .await
                        .unwrap();
                    assert!(lease.release().await.unwrap());
                }
            })
        });
        for task in join_all(tasks).await {
            task.unwrap();
        }
    });
    say("done");
}

#[tokio::test]
async fn mutual_exclusion_among_processes_and_tasks() {
    let server = Server::start();
    let _: () = server.command(&["SET", "count", "0"]);
    let url = server.url();
    let mut processes: Vec<Process> = (0..3)
        .map(|_| Process::start("contender", &[("URL", &url)]))
        .collect();
    for process in &mut processes {
        assert_eq!(process.line().as_deref(), Some("done"));
    }
    assert_eq!(server.command::<u64>(&["GET", "count"]), 3 * 4 * 15);
    let tokens: Vec<u64> = server.command(&["LRANGE", "tokens", "0", "-1"]);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens grow");
}

#[tokio::test]
async fn leases_outlive_a_master_that_is_killed() {
    leases_outlive(Cluster::kill).await;
}

/// Its connections stay open, as those of a machine that has vanished do.
#[tokio::test]
async fn leases_outlive_a_master_that_is_suspended() {
    leases_outlive(|cluster, master| cluster.stop(master)).await;
}

async fn leases_outlive(master_dies: impl FnOnce(&mut Cluster, u16)) {
    let mut cluster = Cluster::start();
    let client = ClusterClient::builder(cluster.urls())
        .response_timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    let leases = Leases::new(&Wheel::new(), client.get_async_connection().await.unwrap());
    let ttl = Duration::from_secs(20);
    let mut held = Vec::new();
    for i in 0..20 {
        held.push(soon(leases.acquire(&format!("lease-{i}"), ttl)).await.unwrap());
    }
    let lease = soon(leases.acquire("x", ttl)).await.unwrap();
    assert!(leases.try_acquire("x", ttl).await.unwrap().is_none());
    let ends: Vec<Instant> = held.iter().map(Lease::valid_until).collect();

    let master = cluster.master_of(&holder("x"));
    master_dies(&mut cluster, master);
    // Whoever holds one goes on renewing it at the new master.
    until(|| async {
        held.iter()
            .zip(&ends)
            .all(|(lease, end)| lease.valid_until() > *end)
    })
    .await;
    let token = lease.token();
    drop(lease);
    let next = soon(leases.acquire("x", ttl)).await.unwrap();
    assert!(next.token() > token);
    for lease in held {
        assert!(soon(lease.release()).await.unwrap());
    }
}

/// A name that was released leaves nothing behind but its slot's fence, of which there are 16,384 at most.
#[tokio::test]
async fn names_that_were_released_cost_nothing() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    for round in 0..3 {
        let held = futures::future::join_all((0..500).map(|n| {
            let leases = leases.clone();
            async move {
                leases
                    .acquire(&format!("name-{round}-{n}"), MINUTE)
                    .await
                    .unwrap()
            }
        }))
        .await;
        for lease in held {
            assert!(lease.release().await.unwrap());
        }
    }
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    let lasting: Vec<i64> = keys
        .iter()
        .filter(|key| !key.contains(":ended:"))
        .map(|key| {
            assert!(key.ends_with("}:fence") && key.len() < 32, "{key}");
            server.command(&["MEMORY", "USAGE", key])
        })
        .collect();
    assert!(
        lasting.iter().all(|bytes| *bytes <= 120),
        "{:?}",
        lasting.iter().max()
    );
    for key in keys.iter().filter(|key| key.contains(":ended:")) {
        assert!(server.command::<i64>(&["PTTL", key]) <= 10_000, "{key}");
    }
}

#[tokio::test]
async fn a_name_has_at_most_1024_bytes() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let longest = "\u{fc}".repeat(512);
    assert!(
        leases
            .acquire(&longest, MINUTE)
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
    );
    for name in [format!("{longest}x"), "x".repeat(1 << 20)] {
        for error in [
            leases.try_acquire(&name, MINUTE).await.unwrap_err(),
            leases.acquire(&name, MINUTE).await.unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(matches!(error, Error::InvalidName { .. }), "{text}");
            assert!(text.contains("1024 bytes") && text.len() < 500, "{text}");
        }
    }
}
