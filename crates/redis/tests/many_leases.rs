//! A process with many leases, whose server is silent for a while.
//!
//! `TICKWHEEL_LEASES=100000 cargo test --release -p tickwheel-redis --test many_leases -- --nocapture
//! --test-threads 1` tries as many as guarantees.md names, with a TTL of 30 s and a silence of 15 s, which takes a
//! machine that has nothing else to do.

mod support;

use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use redis::aio::ConnectionLike;
use support::{server::Server, until};
use tickwheel::Wheel;
use tickwheel_redis::{Lease, Leases, Reconnecting};
use tokio::time::{Instant, sleep};

const HOUR: Duration = Duration::from_secs(3600);

/// How many leases a test has, their TTL, and for how long the server is silent.
fn size() -> (usize, Duration, Duration) {
    match std::env::var("TICKWHEEL_LEASES") {
        Ok(leases) => (
            leases.parse().unwrap(),
            Duration::from_secs(30),
            Duration::from_secs(15),
        ),
        Err(_) => (6_000, Duration::from_secs(20), Duration::from_secs(6)),
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

/// Acquires leases and suspends the server, which loses none.
async fn outlive_a_silence<C: ConnectionLike + Clone + Send + Sync + 'static>(
    server: &Server,
    connection: C,
) {
    let (number, ttl, silence) = size();
    let leases = Leases::new(&Wheel::new(), connection);
    let held = acquire(&leases, number, ttl).await;
    let lost = || {
        held.iter()
            .filter(|lease| lease.lost().now_or_never().is_some())
            .count()
    };
    // They become due in the silence.
    sleep(ttl / 6).await;
    assert_eq!(lost(), 0, "before the silence");
    let before = server.scripts_run();
    server.stop();
    sleep(silence).await;
    server.cont();
    let resumed = Instant::now();
    until(|| async {
        lost() > 0
            || held
                .iter()
                .all(|lease| lease.valid_until() > resumed + ttl * 3 / 5)
    })
    .await;
    let (renewed, scripts) = (resumed.elapsed(), server.scripts_run() - before);
    println!(
        "{number} leases: {} lost, renewed after {renewed:?} by {scripts} scripts",
        lost()
    );
    assert_eq!(lost(), 0, "after the silence");
    // What was sent meanwhile would come before all else.
    assert!(scripts < 2 * number as u64, "{scripts} scripts");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_are_dropped_at_once_are_released() {
    let server = Server::start();
    let connection = server.client().get_connection_manager().await.unwrap();
    let leases = Leases::new(&Wheel::new(), connection);
    let (number, ..) = size();
    drop(acquire(&leases, number, HOUR).await);
    until(|| async { server.command::<Vec<String>>(&["KEYS", "*:holder"]).is_empty() }).await;
}

/// Its requests time out after 500 ms.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_the_default_connection_manager_outlive_a_silence() {
    let server = Server::start();
    let connection = server.client().get_connection_manager().await.unwrap();
    outlive_a_silence(&server, connection).await;
}

/// Its requests have no timeout, and it is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn leases_on_a_reconnecting_connection_outlive_a_silence() {
    let server = Server::start();
    outlive_a_silence(&server, Reconnecting::of(server.client())).await;
}
