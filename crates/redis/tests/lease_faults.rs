//! Leases on a real server, with faults injected between any two messages.

mod support;

use std::collections::HashSet;

use proptest::prelude::*;
use support::prelude::*;

/// A server, and leases on a connection whose faults are set as the test goes. Redis knows the scripts: it cannot carry
/// out what it has to ask for first.
async fn faulty() -> (Server, Leases<Faulty<ConnectionManager>>, Faults) {
    let server = Server::start();
    let (connection, faults) = Faulty::with_faults(server.connect().await);
    let leases = leases_on(connection);
    use_once(&leases, "warm").await;
    (server, leases, faults)
}

#[tokio::test]
async fn a_request_that_arrives_after_it_was_given_back_acquires_nothing() {
    let (server, leases, faults) = faulty().await;
    let arrive = faults.stop("");
    let mut asking = Box::pin(leases.try_acquire("x", HOUR));
    assert!((&mut asking).now_or_never().is_none());
    faults.clear();
    drop(asking);
    let ended = || server.command::<Vec<String>>(&["KEYS", "*{x}:ended:*"]);
    until(|| async { !ended().is_empty() }).await;
    let before = server.calls("evalsha");
    arrive.open();
    until(|| async { server.calls("evalsha") != before }).await;
    assert!(!is_held(&server, "x"));
    drop(acquire(&leases, "x").await);
}

/// Its repetition was told who holds the lease, and nobody waits for it any more.
#[tokio::test]
async fn a_request_that_arrives_after_its_repetition_was_refused_acquires_nothing() {
    let server = Server::start();
    let (arrive, breaks) = (Gate::default(), Arc::new(AtomicBool::new(false)));
    let connection = Faulty::new(server.connect().await, {
        let (arrive, breaks) = (arrive.clone(), breaks.clone());
        move |_| match breaks.swap(false, SeqCst) {
            true => Fault::Leave(arrive.clone()),
            false => Fault::None,
        }
    });
    let leases = leases_on(connection);
    use_once(&leases, "warm").await;
    let held = acquire(&server.leases().await, "x").await;
    breaks.store(true, SeqCst);
    assert!(try_acquire(&leases, "x").await.is_none());
    arrive.reached().await;
    release(held).await;
    // Its undoing overtakes it.
    let ended = || server.command::<Vec<String>>(&["KEYS", "*{x}:ended:*"]);
    until(|| async { ended().len() == 2 }).await;
    arrive.open();
    arrive.reached().await;
    assert!(!is_held(&server, "x"));
    drop(acquire(&leases, "x").await);
}

#[tokio::test]
async fn a_release_is_tried_again_in_the_background() {
    let (server, leases, faults) = faulty().await;
    for drop_it in [false, true] {
        let lease = acquire(&leases, "x").await;
        faults.set(Fault::LoseRequest);
        if drop_it {
            drop(lease);
            sleep(200 * MS).await;
        } else {
            assert!(soon(lease.release()).await.is_err());
        }
        assert!(is_held(&server, "x"));
        faults.clear();
        is_free(&server, "x").await;
    }
}

#[tokio::test]
async fn one_broken_connection_is_not_noticed() {
    let (server, ..) = faulty().await;
    let mut number = 0;
    // Every other request fails, in one way or the other, but for the first: that is INFO.
    let every_other = Faulty::new(server.connect().await, move |_| {
        number += 1;
        match number % 4 {
            2 => Fault::LoseAnswer,
            0 => Fault::LoseRequest,
            _ => Fault::None,
        }
    });
    let leases = leases_on(every_other);
    for _ in 0..10 {
        release(try_acquire(&leases, "x").await.unwrap()).await;
    }
}

fn millis(range: std::ops::Range<u32>) -> impl Strategy<Value = Duration> {
    range.prop_map(|millis| millis * MS)
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        8 => Just(Fault::None),
        1 => Just(Fault::LoseRequest),
        1 => Just(Fault::LoseAnswer),
        1 => millis(0..200).prop_map(Fault::Late),
        1 => millis(0..200).prop_map(Fault::Slow),
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
    let faults = prop::collection::vec(fault(), 1..60);
    let patience = prop::collection::vec(millis(1..400), 1..20);
    let holds = prop::collection::vec((millis(0..300), end), 1..20);
    (faults, patience, holds).prop_map(|(faults, patience, holds)| Contender {
        faults,
        patience,
        holds,
    })
}

const TTL: Duration = Duration::from_millis(200);

/// Acquires and holds for a while, and looks all the time whether what it believes is so. Returns its tokens.
async fn contend(url: String, contender: Contender, end: Instant) -> Vec<u64> {
    let mut truth = connect(&url).await;
    let mut faults = contender.faults.into_iter().cycle();
    let connection = Faulty::new(connect(&url).await, move |_| {
        // In the end all is well, and what is left is given back.
        if Instant::now() < end {
            faults.next().unwrap()
        } else {
            Fault::None
        }
    });
    let wheel = Wheel::builder().tick_duration(MS).build().unwrap();
    let leases = Leases::new(&wheel, connection);
    let mut patience = contender.patience.into_iter().cycle();
    let mut holds = contender.holds.into_iter().cycle();
    let mut tokens = Vec::new();
    while Instant::now() < end {
        // Dropped midway, often.
        let Ok(Ok(lease)) = timeout(patience.next().unwrap(), leases.acquire("x", TTL)).await else {
            continue;
        };
        tokens.push(lease.token());
        let (hold, how) = holds.next().unwrap();
        let until = Instant::now() + hold;
        while Instant::now() < until {
            let before = lease.valid_until();
            let asked = redis::cmd("GET").arg(holder("x")).query_async(&mut truth).await;
            let value: Option<String> = asked.unwrap();
            // It believed so when Redis was asked, and still does.
            if before > Instant::now() && is_valid(&lease) {
                let ours = format!(" {}", lease.token());
                let is_ours = value.as_ref().is_some_and(|value| value.ends_with(&ours));
                assert!(is_ours, "{value:?} is not{ours}");
            } else if !matches!(how, End::Overstay) {
                break;
            }
            sleep(2 * MS).await;
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
            let end = Instant::now() + 1500 * MS;
            let contending = contenders.iter().map(|one| tokio::spawn(contend(server.url(), one.clone(), end)));
            let tokens = join_all(contending).await;
            is_free(&server, "x").await;
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
