//! Leases on a real server, with faults injected between any two messages.

mod support;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::{FutureExt, join_all};
use proptest::prelude::*;
use redis::aio::ConnectionManager;
use support::{
    connect,
    faulty::{Fault, Faulty},
    leases::{is_held, key},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::Leases;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

const MINUTE: Duration = Duration::from_secs(60);

/// A connection whose faults are set as the test goes.
async fn controlled(server: &Server) -> (Faulty<ConnectionManager>, Arc<Mutex<Fault>>) {
    let fault = Arc::new(Mutex::new(Fault::None));
    let connection = Faulty::new(connect(&server.url()).await, {
        let fault = fault.clone();
        move || fault.lock().unwrap().clone()
    });
    (connection, fault)
}

/// Lets Redis know the scripts: it cannot carry out what it has to ask for first.
async fn warm(leases: &Leases<Faulty<ConnectionManager>>) {
    let lease = leases.acquire("warm", MINUTE).await.unwrap();
    assert!(lease.release().await.unwrap());
}

#[tokio::test]
async fn a_request_that_arrives_after_it_was_given_back_acquires_nothing() {
    let server = Server::start();
    let (connection, fault) = controlled(&server).await;
    let leases = Leases::new(&Wheel::new(), connection);
    drop(leases.acquire("warm", MINUTE).await.unwrap());

    let arrive = Arc::new(Notify::new());
    *fault.lock().unwrap() = Fault::Hold(arrive.clone());
    let mut asking = Box::pin(leases.try_acquire("x", MINUTE));
    assert!((&mut asking).now_or_never().is_none());
    *fault.lock().unwrap() = Fault::None;
    drop(asking);
    until(|| async {
        !server
            .command::<Vec<String>>(&["KEYS", "*{x}:ended:*"])
            .is_empty()
    })
    .await;
    let scripts = || {
        let stats: String = server.command(&["INFO", "commandstats"]);
        let calls = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
        calls.map(str::to_owned).collect::<String>()
    };
    let before = scripts();
    arrive.notify_one();
    until(|| async { scripts() != before }).await;
    assert!(!is_held(&server, "x"));
    drop(soon(leases.acquire("x", MINUTE)).await.unwrap());
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_is_answered_as_the_first() {
    let server = Server::start();
    let (connection, fault) = controlled(&server).await;
    let leases = Leases::new(&Wheel::new(), connection);
    warm(&leases).await;
    let lease = leases.acquire("x", MINUTE).await.unwrap();
    *fault.lock().unwrap() = Fault::LoseAnswer;
    let releasing = tokio::spawn(lease.release());
    until(|| async { !is_held(&server, "x") }).await;
    let next = Leases::new(&Wheel::new(), connect(&server.url()).await);
    let next = next.try_acquire("x", MINUTE).await.unwrap().unwrap();
    *fault.lock().unwrap() = Fault::None;
    assert!(soon(releasing).await.unwrap().unwrap());
    assert!(is_held(&server, "x"), "the next holder's is untouched");
    assert!(next.release().await.unwrap());
}

#[tokio::test]
async fn a_release_is_tried_again_in_the_background() {
    let server = Server::start();
    let (connection, fault) = controlled(&server).await;
    let leases = Leases::new(&Wheel::new(), connection);
    for drop_it in [false, true] {
        let lease = leases.acquire("x", MINUTE).await.unwrap();
        *fault.lock().unwrap() = Fault::LoseRequest;
        if drop_it {
            drop(lease);
            sleep(Duration::from_millis(200)).await;
        } else {
            assert!(soon(lease.release()).await.is_err());
        }
        assert!(is_held(&server, "x"));
        *fault.lock().unwrap() = Fault::None;
        until(|| async { !is_held(&server, "x") }).await;
    }
}

#[tokio::test]
async fn one_broken_connection_is_not_noticed() {
    let server = Server::start();
    let (connection, fault) = controlled(&server).await;
    let leases = Leases::new(&Wheel::new(), connection.clone());
    warm(&leases).await;
    let mut number = 0;
    // Every other request fails, in one way or the other, but for the first: that is INFO.
    let every_other = Faulty::new(connection, move || {
        number += 1;
        match number % 4 {
            2 => Fault::LoseAnswer,
            0 => Fault::LoseRequest,
            _ => Fault::None,
        }
    });
    drop(fault);
    let leases = Leases::new(&Wheel::new(), every_other);
    for _ in 0..10 {
        let lease = soon(leases.try_acquire("x", MINUTE)).await.unwrap().unwrap();
        assert!(soon(lease.release()).await.unwrap());
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    let short = || (0..200u64).prop_map(Duration::from_millis);
    prop_oneof![
        8 => Just(Fault::None),
        1 => Just(Fault::LoseRequest),
        1 => Just(Fault::LoseAnswer),
        1 => short().prop_map(Fault::Late),
        1 => short().prop_map(Fault::Slow),
    ]
}

/// What a contender does with a lease that it has got.
#[derive(Clone, Copy, Debug)]
enum End {
    Release,
    Drop,
    /// It is slow to notice, and releases after it was lost.
    Overstay,
}

#[derive(Clone, Debug)]
struct Contender {
    faults: Vec<Fault>,
    patience: Vec<Duration>,
    holds: Vec<(Duration, End)>,
}

fn contender() -> impl Strategy<Value = Contender> {
    let end = prop_oneof![Just(End::Release), Just(End::Drop), Just(End::Overstay)];
    (
        prop::collection::vec(fault(), 1..60),
        prop::collection::vec((1..400u64).prop_map(Duration::from_millis), 1..20),
        prop::collection::vec(((0..300u64).prop_map(Duration::from_millis), end), 1..20),
    )
        .prop_map(|(faults, patience, holds)| Contender {
            faults,
            patience,
            holds,
        })
}

const TTL: Duration = Duration::from_millis(200);

/// Acquires and holds for a while, and looks all the time whether what it believes is so. Returns its tokens.
async fn contend(url: &str, contender: Contender, end: Instant) -> Vec<u64> {
    let mut truth = connect(url).await;
    let mut faults = contender.faults.into_iter().cycle();
    let connection = Faulty::new(connect(url).await, move || {
        // In the end all is well, and what is left is given back.
        if Instant::now() < end {
            faults.next().unwrap()
        } else {
            Fault::None
        }
    });
    let wheel = Wheel::builder()
        .tick_duration(Duration::from_millis(1))
        .build()
        .unwrap();
    let leases = Leases::new(&wheel, connection);
    let (mut patience, mut holds) = (
        contender.patience.into_iter().cycle(),
        contender.holds.into_iter().cycle(),
    );
    let mut tokens = Vec::new();
    while Instant::now() < end {
        // Dropped midway, often.
        let Ok(acquired) = timeout(patience.next().unwrap(), leases.acquire("x", TTL)).await else {
            continue;
        };
        let Ok(lease) = acquired else { continue };
        tokens.push(lease.token());
        let (hold, how) = holds.next().unwrap();
        let until = Instant::now() + hold;
        while Instant::now() < until {
            let before = lease.valid_until();
            let holder: Option<String> = redis::cmd("GET")
                .arg(key("x", "holder"))
                .query_async(&mut truth)
                .await
                .unwrap();
            // It believed so when Redis was asked, and still does.
            if before > Instant::now() && lease.lost().now_or_never().is_none() {
                let ours = format!(" {}", lease.token());
                assert!(
                    holder.as_ref().is_some_and(|holder| holder.ends_with(&ours)),
                    "{holder:?} is not{ours}"
                );
            } else if !matches!(how, End::Overstay) {
                break;
            }
            sleep(Duration::from_millis(2)).await;
        }
        match how {
            End::Release | End::Overstay => drop(lease.release().await),
            End::Drop => drop(lease),
        }
    }
    tokens
}

#[test]
fn whoever_believes_holds_and_nothing_stays_held() {
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let total = Mutex::new(0);
    let config = ProptestConfig {
        cases: 12,
        max_shrink_iters: 0,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(contenders in prop::collection::vec(contender(), 3))| {
        let tokens = runtime.block_on(async {
            let end = Instant::now() + Duration::from_millis(1500);
            let url = server.url();
            let tokens = join_all(contenders.iter().map(|contender| {
                let (url, contender) = (url.clone(), contender.clone());
                tokio::spawn(async move { contend(&url, contender, end).await })
            }))
            .await;
            until(|| async { !is_held(&server, "x") }).await;
            tokens.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        });
        for tokens in &tokens {
            prop_assert!(tokens.is_sorted_by(|a, b| a < b), "{:?}", tokens);
        }
        let all: Vec<u64> = tokens.concat();
        let distinct: HashSet<u64> = all.iter().copied().collect();
        prop_assert_eq!(distinct.len(), all.len(), "a token was given twice");
        *total.lock().unwrap() += all.len();
    });
    let total = *total.lock().unwrap();
    assert!(total > 20, "only {total} leases were acquired");
}
