//! Leases: one holder at a time, growing tokens, renewal, errors.

mod support;

use std::collections::HashSet;

use redis::{aio::ConnectionManagerConfig, cluster::ClusterClient};
use support::prelude::*;
use tickwheel::SleepError;

/// The last token of the names in the slot of "x".
const FENCE_OF_X: &str = "tickwheel:lease:{5300}:fence";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test]
async fn one_holder_at_a_time() {
    let (_server, a, b) = Server::with_two_leases().await;
    let lease = try_acquire(&a, "x").await.unwrap();
    assert_eq!((lease.name(), lease.ttl()), ("x", HOUR));
    assert!(try_acquire(&b, "x").await.is_none());
    // Not even by the same process.
    assert!(try_acquire(&a, "x").await.is_none());
    let other = try_acquire(&b, "y").await.unwrap();

    let token = lease.token();
    release(lease).await;
    assert!(try_acquire(&b, "x").await.unwrap().token() > token);
    release(other).await;
}

#[tokio::test]
async fn it_is_valid_for_its_ttl_less_a_margin() {
    let (_server, leases) = Server::with_leases().await;
    for (ttl, margin) in [(200 * MS, 30 * MS), (MINUTE, 600 * MS)] {
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
    let a = server.leases().await;
    let b = a.clone().prefix("other");
    let mut held = Vec::new();
    for name in [
        "x",
        "{x}",
        "}x{",
        "{",
        "%7Bx%7D",
        "a b\r\n\0",
        "next:x 1",
        "ö",
        &"n".repeat(1024),
    ] {
        for leases in [&a, &b] {
            let lease = try_acquire(leases, name).await.unwrap();
            let holder = leases.holder(name).await.unwrap().unwrap();
            assert_eq!(holder.token, lease.token(), "{name:?}");
            held.push((leases, lease));
        }
    }
    for (leases, lease) in held {
        let name = lease.name().to_owned();
        release(lease).await;
        assert!(leases.holder(&name).await.unwrap().is_none(), "{name:?}");
    }
}

/// The errors of both ways to acquire.
async fn errors_of(leases: &Leases<ConnectionManager>, name: &str, ttl: Duration) -> [Error; 2] {
    [
        leases.try_acquire(name, ttl).await.unwrap_err(),
        leases.acquire(name, ttl).await.unwrap_err(),
    ]
}

#[tokio::test]
async fn bad_input_is_refused() {
    let (server, leases) = Server::with_leases().await;
    for ttl in [NOW, 199 * MS, DAY + SECOND, DAY * 36_500, Duration::MAX] {
        for error in errors_of(&leases, "x", ttl).await {
            assert_is!(error, Error::InvalidTtl { ttl: given, .. } if *given == ttl);
            assert_says(&error, &[&format!("{ttl:?}"), "200ms"]);
        }
    }
    let longest = "\u{fc}".repeat(512);
    for name in ["", &format!("{longest}x"), &"x".repeat(1 << 20)] {
        for error in errors_of(&leases, name, MINUTE).await {
            let text = error.to_string();
            assert!(matches!(error, Error::InvalidName { .. }), "{text}");
            let is_short = text.contains("1024 bytes") && text.len() < 500;
            assert!(name.is_empty() || is_short, "{text}");
        }
    }
    assert_eq!(server.scripts_run(), 0, "Redis was not asked");
    use_once(&leases, &longest).await;
    for ttl in [200 * MS, DAY] {
        drop(soon(leases.acquire("x", ttl)).await);
    }
}

#[tokio::test]
async fn a_full_wheel_refuses_before_redis_is_asked() {
    let server = Server::start();
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let leases = Leases::new(&wheel, server.connect().await);
    let lease = try_acquire(&leases, "x").await.unwrap();
    let asked = server.scripts_run();
    for error in errors_of(&leases, "y", MINUTE).await {
        assert_is!(error, Error::Wheel(SleepError::AtCapacity { limit: 1, .. }));
    }
    assert_eq!(server.scripts_run(), asked);
    release(lease).await;
    assert!(try_acquire(&leases, "y").await.is_some());
}

#[tokio::test]
async fn a_wheel_shut_down() {
    let server = Server::start();
    let wheel = Wheel::new();
    let leases = Leases::new(&wheel, server.connect().await);
    let ttl = 3 * SECOND;
    let lease = leases.try_acquire("x", ttl).await.unwrap().unwrap();
    let dropped = leases.try_acquire("y", ttl).await.unwrap().unwrap();
    wheel.shutdown();
    soon(lease.lost()).await;
    soon(dropped.lost()).await;
    assert!(lease.valid_until() <= Instant::now());
    let error = leases.try_acquire("z", ttl).await.unwrap_err();
    assert!(matches!(error, Error::Wheel(SleepError::Shutdown)), "{error}");

    let other = server.leases().await;
    assert!(try_acquire(&other, "x").await.is_none(), "not yet released");
    lease.release().await.unwrap();
    assert!(try_acquire(&other, "x").await.is_some());
    drop(dropped);
    use_once(&other, "y").await;
}

#[tokio::test]
async fn it_is_renewed_while_the_holder_lives_and_not_after() {
    let server = Server::start();
    let ttl = 2 * SECOND;
    let value = |name: &str| -> String { server.command(&["GET", &holder(name)]) };
    let mut held = Vec::new();
    for how in ["release", "drop", "panic", "shutdown"] {
        let wheel = Wheel::new();
        let leases = Leases::new(&wheel, server.connect().await);
        let lease = leases.try_acquire(how, ttl).await.unwrap().unwrap();
        held.push((how, wheel, lease, value(how)));
    }
    let leases = server.leases().await;
    let watched = leases.try_acquire("watched", ttl).await.unwrap().unwrap();
    let first = watched.valid_until();
    let mut latest = first;
    // Some three renewals.
    while latest < first + ttl {
        sleep(50 * MS).await;
        assert!(is_valid(&watched));
        assert!(watched.valid_until() >= latest);
        latest = watched.valid_until();
    }
    drop(watched);
    let mut kept = Vec::new();
    for (how, wheel, lease, first_value) in held {
        assert!(is_valid(&lease), "{how}");
        assert_eq!(value(how), first_value);
        let lost = lease.lost();
        match how {
            "release" => release(lease).await,
            "drop" => drop(lease),
            "panic" => {
                let panics = async move {
                    let _lease = lease;
                    panic!("on purpose");
                };
                assert!(tokio::spawn(panics).await.is_err());
            }
            _ => {
                wheel.shutdown();
                kept.push(lease);
            }
        }
        soon(lost).await;
    }
    // The key goes: at once, or when nobody renews it any more.
    for how in ["release", "drop", "panic", "shutdown"] {
        is_free(&server, how).await;
    }
    let calls = server.scripts_run();
    sleep(ttl).await;
    assert_eq!(server.scripts_run(), calls, "somebody still renews");
}

#[tokio::test]
async fn a_thousand_leases_are_a_thousand_entries_and_one_task() {
    let server = Server::start();
    let wheel = Wheel::new();
    let leases = &Leases::new(&wheel, server.connect().await);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let ttl = 6 * SECOND;
    drop(leases.acquire("first", ttl).await.unwrap());
    until(|| async { wheel.pending() == 0 }).await;
    let before = tasks();
    let acquire = |n| async move { leases.acquire(&format!("lease-{n}"), ttl).await.unwrap() };
    let held = join_all((0..1000).map(acquire)).await;
    // Each is renewed at least once, some are on their way.
    let few = async {
        loop {
            assert!(wheel.pending() <= 1000);
            assert!(tasks() <= before + 3, "{} tasks", tasks());
            sleep(5 * MS).await;
        }
    };
    tokio::select! {
        () = few => {}
        () = all_renewed(&held) => {}
    }
    assert!(held.iter().all(is_valid));
    until(|| async { wheel.pending() == 1000 }).await;
    drop(held);
    until(|| async { wheel.pending() == 0 }).await;
    until(|| async { server.command::<Vec<String>>(&["KEYS", "*:holder"]).is_empty() }).await;
    until(|| async { tasks() <= before }).await;
}

#[tokio::test]
async fn a_policy_that_evicts_is_refused() {
    let server = Server::start();
    server.set("maxmemory", "100mb");
    for policy in ["allkeys-lru", "allkeys-random", "volatile-ttl", "volatile-lfu"] {
        server.set("maxmemory-policy", policy);
        // Each is the first call of its handle.
        for error in [
            server.leases().await.try_acquire("x", MINUTE).await.unwrap_err(),
            server.leases().await.acquire("x", MINUTE).await.unwrap_err(),
        ] {
            assert_is!(error, Error::EvictionPolicy { policy: named, .. } if named == policy);
            assert_says(&error, &[policy, "noeviction"]);
        }
    }
    // Without a limit nothing is evicted.
    server.set("maxmemory", "0");
    assert!(try_acquire(&server.leases().await, "x").await.is_some());
    server.set("maxmemory", "100mb");
    server.set("maxmemory-policy", "noeviction");
    assert!(try_acquire(&server.leases().await, "y").await.is_some());
}

#[tokio::test]
async fn a_key_of_another_type_is_a_clear_error() {
    let (server, leases) = Server::with_leases().await;
    for key in [&*holder("x"), FENCE_OF_X] {
        let _: () = server.command(&["RPUSH", key, "not ours"]);
        for error in errors_of(&leases, "x", MINUTE).await {
            assert_is!(error, Error::WrongType { .. });
            assert_says(&error, &[key]);
        }
        server.delete(&[key]);
    }
    assert!(try_acquire(&leases, "x").await.is_some());
}

#[tokio::test]
async fn a_server_that_is_busy_with_somebodys_script_is_waited_for() {
    let server = Server::start_with(&["--busy-reply-threshold", "20"]);
    let leases = server.leases().await;
    let ttl = 6 * SECOND;
    let lease = leases.try_acquire("x", ttl).await.unwrap().unwrap();
    let endless = server.client();
    let script = thread::spawn(move || {
        let mut connection = endless.get_connection()?;
        redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .exec(&mut connection)
    });
    let answer = || server.try_command::<Option<String>>(&["GET", "x"]);
    until_blocking(|| answer().is_err_and(|error| error.code() == Some("BUSY")));
    let waiting = acquiring(&leases, "y");
    // Its first renewal is refused.
    sleep(ttl / 3 + 200 * MS).await;
    assert!(!waiting.is_finished());
    let end = lease.valid_until();
    let _: String = server.command(&["SCRIPT", "KILL"]);
    assert!(script.join().unwrap().is_err());
    release(acquired(waiting).await).await;
    until(|| async { lease.valid_until() > end }).await;
    assert!(is_valid(&lease));
    release(lease).await;
}

#[tokio::test]
async fn out_of_memory() {
    let (server, leases) = Server::with_leases().await;
    let lease = leases.acquire("x", 3 * SECOND).await.unwrap();
    server.set("maxmemory", "1");
    let error = leases.try_acquire("y", MINUTE).await.unwrap_err();
    assert_says(&error, &["out of memory"]);
    renewed(&lease).await;
    release(lease).await;

    let waiting = acquiring(&leases, "x");
    sleep(200 * MS).await;
    assert!(!waiting.is_finished());
    server.set("maxmemory", "0");
    drop(acquired(waiting).await);
}

#[tokio::test]
async fn tokens_grow_over_expiry_deletion_and_restart() {
    let mut server = Server::start();
    let leases = server.leases().await;
    let mut last = 0;
    let mut token = async |what: &str| {
        let lease = acquire(&leases, "x").await;
        println!("after {what}: {}", lease.token());
        assert!(lease.token() > last);
        last = lease.token();
        lease
    };
    let lease = token("nothing").await;
    let _: () = server.command(&["PEXPIRE", &holder("x"), "1"]);
    is_free(&server, "x").await;
    let second = token("expiry").await;
    drop(lease);
    server.delete(&[&holder("x")]);
    let third = token("deletion of the lease").await;
    drop(second);
    let _: () = server.command(&["FLUSHALL"]);
    let fourth = token("deletion of all").await;
    drop(third);
    server.restart();
    let fifth = token("restart").await;
    drop(fourth);
    release(fifth).await;

    // The clock of the server has gone back by an hour, or so it seems.
    let ahead = last + 3_600_000_000;
    let _: () = server.command(&["SET", FENCE_OF_X, &ahead.to_string()]);
    assert_eq!(acquire(&leases, "x").await.token(), ahead + 1);
}

#[tokio::test]
async fn a_renewal_keeps_the_fence() {
    let (server, leases) = Server::with_leases().await;
    let lease = leases.acquire("x", 3 * SECOND).await.unwrap();
    let lives = || Duration::from_millis(server.command(&["PTTL", FENCE_OF_X]));
    assert!(lives() > DAY - MINUTE);
    server.delete(&[FENCE_OF_X]);
    let fence = || server.command::<Option<u64>>(&["GET", FENCE_OF_X]);
    until(|| async { fence() == Some(lease.token()) }).await;
    assert!(lives() > DAY - MINUTE);
}

#[tokio::test]
async fn a_dropped_acquire_gives_back_what_it_got() {
    let (server, proxy) = Server::with_proxy().await;
    let leases = leases(&proxy.url()).await;
    use_once(&leases, "warm").await;

    proxy.set(Network::Deaf);
    let mut asked = Box::pin(leases.try_acquire("x", HOUR));
    pending_until(&mut asked, || is_held(&server, "x")).await;
    drop(asked);
    proxy.set(Network::Up);
    is_free(&server, "x").await;
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again() {
    let (server, proxy) = Server::with_proxy().await;
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(100 * MS));
    let client = Client::open(proxy.url()).unwrap();
    let leases = leases_on(client.get_connection_manager_with_config(config).await.unwrap());
    // Redis has both scripts: it cannot say while it is not heard that it lacks one.
    use_once(&leases, "warm").await;

    proxy.set(Network::Deaf);
    let acquiring = tokio::spawn(async move { try_acquire(&leases, "x").await });
    until(|| async { is_held(&server, "x") }).await;
    let value: String = server.command(&["GET", &holder("x")]);
    sleep(300 * MS).await;
    assert!(!acquiring.is_finished(), "{acquiring:?}");
    proxy.set(Network::Up);
    let lease = soon(acquiring).await.unwrap().expect("it is its own");
    assert!(value.ends_with(&format!(" {}", lease.token())), "{value}");

    proxy.set(Network::Deaf);
    let releasing = tokio::spawn(lease.release());
    is_free(&server, "x").await;
    let _next = try_acquire(&server.leases().await, "x").await.unwrap();
    sleep(300 * MS).await;
    proxy.set(Network::Up);
    assert!(soon(releasing).await.unwrap().unwrap(), "the first one succeeded");
    assert!(is_held(&server, "x"), "the next holder's is untouched");
}

#[tokio::test]
async fn redis_away() {
    let mut server = Server::start_aof();
    let leases = server.leases().await;
    use_once(&leases, "warm").await;
    server.kill();
    let error = soon(leases.try_acquire("x", MINUTE)).await.unwrap_err();
    assert!(matches!(error, Error::Redis(_)), "{error}");
    let waiting = acquiring(&leases, "x");
    sleep(500 * MS).await;
    assert!(!waiting.is_finished());
    server.restart();
    let lease = acquired(waiting).await;

    // A restart within the ttl is survived, by the lease and by the release.
    server.kill();
    sleep(300 * MS).await;
    assert!(is_valid(&lease));
    server.restart();
    assert!(is_held(&server, "x"));
    server.kill();
    let lost = lease.lost();
    drop(lease);
    soon(lost).await;
    server.restart();
    is_free(&server, "x").await;
}

#[tokio::test]
async fn of_those_who_wait_in_a_process_one_asks() {
    let server = Server::start();
    let other = server.leases().await;
    let held = acquire(&other, "x").await;
    let leases = server.leases().await;
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let leases = leases.clone();
            tokio::spawn(async move { leases.acquire("x", MINUTE).await.unwrap().token() })
        })
        .collect();
    let before = server.scripts_run();
    sleep(3 * SECOND).await;
    let asked = server.scripts_run() - before;
    assert!(asked < 20, "{asked} requests in 3 seconds");
    release(held).await;
    // Each releases as it goes; of their own process they are woken without a message.
    let tokens = soon(join_all(waiting)).await.into_iter().map(Result::unwrap);
    assert_eq!(tokens.collect::<HashSet<u64>>().len(), 100);
}

#[tokio::test]
async fn a_lease_that_goes_round_in_a_process_costs_two_requests_each_time() {
    let server = Server::start();
    let notifications = Notifications::of(server.client());
    let leases = server.leases().await.notifications(&notifications);
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
    assert_eq!(server.calls("subscribe"), 0);
}

/// Takes the lease again and again, and checks from inside that it is alone.
#[test]
#[ignore = "a role of another test"]
fn contender() {
    let Some(url) = setting("URL") else { return };
    die_with_parent();
    async fn contend(leases: Leases<ConnectionManager>, mut connection: ConnectionManager) {
        for _ in 0..15 {
            let lease = leases.acquire("x", 20 * SECOND).await.unwrap();
            let connection = &mut connection;
            let mut begin = redis::pipe();
            begin.incr("inside", 1).get("count");
            let (inside, count): (u64, u64) = begin.query_async(connection).await.unwrap();
            assert_eq!(inside, 1, "two at once");
            tokio::task::yield_now().await;
            let mut end = redis::pipe();
            end.set("count", count + 1)
                .rpush("tokens", lease.token())
                .decr("inside", 1);
            end.exec_async(connection).await.unwrap();
            assert!(lease.release().await.unwrap());
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let connection = connect(&url).await;
        let leases = leases_on(connection.clone());
        let tasks = (0..4).map(|_| tokio::spawn(contend(leases.clone(), connection.clone())));
        join_all(tasks).await.into_iter().for_each(Result::unwrap);
    });
    say("done");
}

#[tokio::test]
async fn mutual_exclusion_among_processes_and_tasks() {
    let server = Server::start();
    let _: () = server.command(&["SET", "count", "0"]);
    let url = server.url();
    let start = |_| Process::start("contender", &[("URL", &url)]);
    for mut process in (0..3).map(start).collect::<Vec<_>>() {
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
    leases_outlive(|cluster, master| cluster.node(master).stop()).await;
}

async fn leases_outlive(master_dies: impl FnOnce(&mut Cluster, u16)) {
    let mut cluster = Cluster::start();
    // By RESP2, as by a client that says nothing.
    let client = ClusterClient::builder(cluster.urls())
        .response_timeout(2 * SECOND)
        .build()
        .unwrap();
    let leases = leases_on(client.get_async_connection().await.unwrap());
    let ttl = 20 * SECOND;
    let mut held = Vec::new();
    for i in 0..20 {
        held.push(soon(leases.acquire(&format!("lease-{i}"), ttl)).await.unwrap());
    }
    let lease = soon(leases.acquire("x", ttl)).await.unwrap();
    assert!(try_acquire(&leases, "x").await.is_none());

    let master = cluster.master_of(&holder("x"));
    master_dies(&mut cluster, master);
    // Whoever holds one goes on renewing it at the new master.
    all_renewed(&held).await;
    let token = lease.token();
    drop(lease);
    assert!(acquire(&leases, "x").await.token() > token);
    for lease in held {
        release(lease).await;
    }
}

/// Nobody serves the slots of another master any more, whose replica has gone before.
#[tokio::test]
async fn a_handle_is_first_used_while_another_master_is_silent() {
    let mut cluster = Cluster::start();
    for node in cluster.nodes() {
        node.set("cluster-require-full-coverage", "no");
    }
    let leases = leases_on(cluster.connect_with(SECOND).await);
    let master = cluster.master_of(&holder("x"));
    let other = cluster.masters().into_iter().find(|port| *port != master);
    let other = other.unwrap();
    cluster.kill(cluster.replica_of(other));
    cluster.node(other).stop();
    assert!(try_acquire(&leases, "x").await.is_some());
}

/// A name that was released leaves nothing behind but its slot's fence, of which there are 16,384 at most.
#[tokio::test]
async fn names_that_were_released_cost_nothing() {
    let server = Server::start();
    let leases = &server.leases().await;
    for round in 0..3 {
        let name = |n| format!("name-{round}-{n}");
        let held = join_all((0..500).map(|n| async move { acquire(leases, &name(n)).await })).await;
        join_all(held.into_iter().map(release)).await;
    }
    let keys: Vec<String> = server.command(&["KEYS", "*"]);
    for key in &keys {
        if key.contains(":ended:") {
            assert!(server.command::<i64>(&["PTTL", key]) <= 10_000, "{key}");
        } else {
            assert!(key.ends_with("}:fence") && key.len() < 32, "{key}");
            let bytes: i64 = server.command(&["MEMORY", "USAGE", key]);
            assert!(bytes <= 120, "{key} has {bytes} bytes");
        }
    }
}
