//! `lost()`: it completes by the end of the lease, whatever Redis and the network do.

mod support;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::{FutureExt, join_all};
use support::{
    connect,
    jobs::next,
    leases::{is_held, key, leases},
    process::{Process, die_with_parent, say, setting},
    proxy::{Network, Proxy},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Lease, Leases, Lost};
use tokio::time::{Instant, sleep};

const TTL: Duration = Duration::from_secs(2);

/// Breaks something, and waits until the holder hears of it: not before the lease was near its end, as nobody
/// said that it is lost, and with a valid_until that is never later than it was promised.
async fn hears_of(lease: &Lease, break_it: impl AsyncFnOnce()) {
    let end = lease.valid_until();
    until(|| async { lease.valid_until() > end }).await;
    assert!(lease.lost().now_or_never().is_none());
    break_it().await;
    // What was under way may still have come.
    let mut promised = lease.valid_until();
    let mut lost = lease.lost();
    let told = soon(async {
        loop {
            tokio::select! {
                biased;
                () = &mut lost => break Instant::now(),
                () = sleep(Duration::from_millis(1)) => promised = promised.max(lease.valid_until()),
            }
        }
    })
    .await;
    assert!(lease.valid_until() <= promised);
    assert!(lease.valid_until() <= told);
    // A tick for the wheel's sleep, which is never early.
    let early = promised.saturating_duration_since(told);
    assert!(early < Duration::from_millis(50), "told {early:?} too soon");
    assert!(lease.lost().now_or_never().is_some(), "it stays lost");
}

#[tokio::test]
async fn a_server_that_was_stopped() {
    let server = Server::start();
    let lease = leases(&server.url()).await.acquire("x", TTL).await.unwrap();
    hears_of(&lease, async || server.stop()).await;
    server.cont();
    assert!(!soon(lease.release()).await.unwrap(), "it ran out meanwhile");
}

#[tokio::test]
async fn a_server_that_was_killed() {
    let mut server = Server::start();
    let lease = leases(&server.url()).await.acquire("x", TTL).await.unwrap();
    hears_of(&lease, async || server.kill()).await;
}

#[tokio::test]
async fn a_server_that_is_unreachable() {
    let server = Server::start();
    for network in [Network::Silent, Network::Deaf, Network::Down] {
        let proxy = Proxy::start(server.port()).await;
        let lease = soon(leases(&proxy.url()).await.acquire(&format!("{network:?}"), TTL))
            .await
            .unwrap();
        hears_of(&lease, async || proxy.set(network)).await;
        proxy.set(Network::Up);
    }
}

#[tokio::test]
async fn a_server_that_answers_late() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let lease = leases(&proxy.url()).await.acquire("x", TTL).await.unwrap();
    // Redis has renewed it all along: what counts is when the answer comes.
    hears_of(&lease, async || proxy.set(Network::Late(TTL * 2))).await;
}

#[tokio::test]
async fn no_renewal_is_sent_after_a_loss_but_a_release_is() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let lease = leases(&proxy.url()).await.acquire("x", TTL).await.unwrap();
    // Redis keeps it for much longer than its holder may believe.
    hears_of(&lease, async || proxy.set(Network::Deaf)).await;
    let _: () = server.command(&["PEXPIRE", &key("x", "holder"), "60000"]);
    proxy.set(Network::Up);
    let requests = proxy.requests();
    sleep(TTL).await;
    assert_eq!(proxy.requests(), requests);
    assert!(is_held(&server, "x"));
    drop(lease);
    until(|| async { !is_held(&server, "x") }).await;
}

/// A timer of a wheel with slack may be late, but not the one by which a holder hears.
#[tokio::test]
async fn a_wheel_with_slack() {
    let server = Server::start();
    let wheel = Wheel::builder().slack(Duration::from_secs(1)).build().unwrap();
    let leases = Leases::new(&wheel, connect(&server.url()).await);
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "queue");
    let ttl = Duration::from_secs(15);
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let mut worker = jobs.worker().lease(ttl).start();
    let job = next(&mut worker).await;
    let end_of_job = Instant::now() + ttl - ttl / 100;
    let mut held = Vec::new();
    for name in 0..10 {
        held.push(leases.acquire(&name.to_string(), ttl).await.unwrap());
        sleep(Duration::from_millis(13)).await;
    }
    server.stop();
    let late = |lost: Lost, until: Instant| async move {
        soon(lost).await;
        Instant::now().saturating_duration_since(until)
    };
    let lost = held.iter().map(|lease| late(lease.lost(), lease.valid_until()));
    let (late, job_late) = tokio::join!(join_all(lost), late(job.lost(), end_of_job));
    // Of ten seconds, a hundredth are 100 ms.
    let latest = late.into_iter().max().unwrap().max(job_late);
    assert!(latest < Duration::from_millis(40), "{latest:?} late");
}

/// Nothing runs but this thread: no keeper, no driver.
#[tokio::test]
async fn every_poll_reads_the_clock() {
    let server = Server::start();
    let lease = leases(&server.url()).await.acquire("x", TTL).await.unwrap();
    let (mut lost, clone) = (lease.lost(), lease.lost());
    assert!((&mut lost).now_or_never().is_none());
    std::thread::sleep(lease.valid_until() - Instant::now());
    assert!((&mut lost).now_or_never().is_some());
    assert!(clone.clone().now_or_never().is_some());
    // The answer to a renewal that comes too late does not bring it back.
    sleep(TTL).await;
    assert!(clone.now_or_never().is_some());
    assert!(lease.lost().now_or_never().is_some());
}

#[tokio::test]
async fn who_gives_up_has_lost_it() {
    let server = Server::start();
    let leases = leases(&server.url()).await;
    let lease = leases.acquire("x", TTL).await.unwrap();
    let lost = lease.lost();
    let waiting = tokio::spawn(lost.clone());
    drop(lease);
    assert!(lost.now_or_never().is_some());
    soon(waiting).await.unwrap();

    let lease = leases.acquire("x", TTL).await.unwrap();
    let lost = lease.lost();
    let mut releasing = Box::pin(lease.release());
    assert!((&mut releasing).now_or_never().is_none());
    assert!(lost.now_or_never().is_some(), "before anybody else can have it");
    // Dropped midway, it goes on.
    drop(releasing);
    until(|| async { !is_held(&server, "x") }).await;
}

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()
}

/// Holds a lease, and says until when it believed so.
#[test]
#[ignore = "a role of another test"]
fn believer() {
    let Some(url) = setting("URL") else { return };
    die_with_parent();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let lease = leases(&url).await.acquire("x", TTL).await.unwrap();
        let mut believed = now();
        say(&lease.token().to_string());
        loop {
            // The clock first: a stop between the two makes the belief earlier, not later.
            let now = now();
            if lease.lost().now_or_never().is_some() {
                break;
            }
            believed = now;
            sleep(Duration::from_millis(1)).await;
        }
        say(&believed.to_string());
    });
}

#[tokio::test]
async fn a_holder_that_was_stopped_does_not_believe_that_it_holds() {
    let server = Server::start();
    let url = server.url();
    let mut holder = Process::start("believer", &[("URL", &url)]);
    let token: u64 = holder.line().unwrap().parse().unwrap();
    holder.signal("STOP");
    let lease = soon(leases(&url).await.acquire("x", TTL)).await.unwrap();
    let acquired = now();
    assert!(lease.token() > token);
    holder.signal("CONT");
    let believed: u128 = holder.line().unwrap().parse().unwrap();
    assert!(
        believed < acquired,
        "believed until {believed}, was taken by {acquired}"
    );
    assert!(lease.lost().now_or_never().is_none());
}

#[tokio::test]
async fn a_holder_that_was_killed_is_followed() {
    let server = Server::start();
    let url = server.url();
    let mut holder = Process::start("believer", &[("URL", &url)]);
    let token: u64 = holder.line().unwrap().parse().unwrap();
    holder.kill();
    let lease = soon(leases(&url).await.acquire("x", TTL)).await.unwrap();
    assert!(lease.token() > token);
}
