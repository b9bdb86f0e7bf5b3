//! `lost()`: it completes by the end of the lease, whatever Redis and the network do.

mod support;

use support::prelude::*;

const TTL: Duration = Duration::from_secs(2);

/// A lease that has been renewed once.
async fn hold(url: &str, name: &str) -> Lease {
    let lease = soon(leases(url).await.acquire(name, TTL)).await.unwrap();
    renewed(&lease).await;
    assert!(is_valid(&lease));
    lease
}

/// Waits until the holder hears of what was broken: not before the lease was near its end, as nobody said that it is
/// lost, and with a valid_until that is never later than it was promised.
async fn hears_of_it(lease: &Lease) {
    // What was under way may still have come.
    let mut promised = lease.valid_until();
    let mut lost = lease.lost();
    let told = soon(async {
        loop {
            tokio::select! {
                biased;
                () = &mut lost => break Instant::now(),
                () = sleep(MS) => promised = promised.max(lease.valid_until()),
            }
        }
    })
    .await;
    assert!(lease.valid_until() <= promised);
    assert!(lease.valid_until() <= told);
    // A tick for the wheel's sleep, which is never early.
    let early = promised.saturating_duration_since(told);
    assert!(early < 50 * MS, "told {early:?} too soon");
    assert!(!is_valid(lease), "it stays lost");
}

#[tokio::test]
async fn a_server_that_was_stopped() {
    let server = Server::start();
    let lease = hold(&server.url(), "x").await;
    server.stop();
    hears_of_it(&lease).await;
    server.cont();
    assert!(!soon(lease.release()).await.unwrap(), "it ran out meanwhile");
}

#[tokio::test]
async fn a_server_that_was_killed() {
    let mut server = Server::start();
    let lease = hold(&server.url(), "x").await;
    server.kill();
    hears_of_it(&lease).await;
}

/// Of one that answers late, Redis has renewed it all along: what counts is when the answer comes.
#[tokio::test]
async fn a_server_that_is_unreachable_or_answers_late() {
    let server = Server::start();
    for network in [
        Network::Silent,
        Network::Deaf,
        Network::Down,
        Network::Late(TTL * 2),
    ] {
        let proxy = Proxy::start(server.port()).await;
        let lease = hold(&proxy.url(), &format!("{network:?}")).await;
        proxy.set(network);
        hears_of_it(&lease).await;
        proxy.set(Network::Up);
    }
}

#[tokio::test]
async fn no_renewal_is_sent_after_a_loss_but_a_release_is() {
    let (server, proxy) = Server::with_proxy().await;
    let lease = hold(&proxy.url(), "x").await;
    // Redis keeps it for much longer than its holder may believe.
    proxy.set(Network::Deaf);
    hears_of_it(&lease).await;
    let _: () = server.command(&["PEXPIRE", &holder("x"), "3600000"]);
    proxy.set(Network::Up);
    let requests = proxy.requests();
    sleep(TTL).await;
    assert_eq!(proxy.requests(), requests);
    assert!(is_held(&server, "x"));
    drop(lease);
    is_free(&server, "x").await;
}

/// A timer of a wheel with slack may be late, but not the one by which a holder hears.
#[tokio::test]
async fn a_wheel_with_slack() {
    let server = Server::start();
    let wheel = Wheel::builder().slack(SECOND).build().unwrap();
    let leases = Leases::new(&wheel, server.connect().await);
    let jobs = DelayedJobs::new(&wheel, server.connect().await, "q");
    let ttl = 15 * SECOND;
    put(&jobs, ["a"], NOW).await;
    let mut worker = jobs.worker().lease(ttl).start();
    let job = next(&mut worker).await;
    let end_of_job = Instant::now() + ttl - ttl / 100;
    let mut held = Vec::new();
    for name in 0..10 {
        held.push(leases.acquire(&name.to_string(), ttl).await.unwrap());
        sleep(13 * MS).await;
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
    assert!(latest < 40 * MS, "{latest:?} late");
}

/// Nothing runs but this thread: no keeper, no driver.
#[tokio::test]
async fn every_poll_reads_the_clock() {
    let server = Server::start();
    let lease = server.leases().await.acquire("x", TTL).await.unwrap();
    let (mut lost, clone) = (lease.lost(), lease.lost());
    assert!((&mut lost).now_or_never().is_none());
    thread::sleep(lease.valid_until() - Instant::now());
    assert!((&mut lost).now_or_never().is_some());
    assert!(clone.clone().now_or_never().is_some());
    // The answer to a renewal that comes too late does not bring it back.
    sleep(TTL).await;
    assert!(clone.now_or_never().is_some());
    assert!(!is_valid(&lease));
}

#[tokio::test]
async fn who_gives_up_has_lost_it() {
    let (server, leases) = Server::with_leases().await;
    let lease = acquire(&leases, "x").await;
    let lost = lease.lost();
    let waiting = tokio::spawn(lost.clone());
    drop(lease);
    assert!(lost.now_or_never().is_some());
    soon(waiting).await.unwrap();

    let lease = acquire(&leases, "x").await;
    let lost = lease.lost();
    let mut releasing = Box::pin(lease.release());
    assert!((&mut releasing).now_or_never().is_none());
    assert!(lost.now_or_never().is_some(), "before anybody else can have it");
    // Dropped midway, it goes on.
    drop(releasing);
    is_free(&server, "x").await;
}

fn now() -> u128 {
    UNIX_EPOCH.elapsed().unwrap().as_micros()
}

/// Holds a lease, and says until when it believed so.
#[test]
#[ignore = "a role of another test"]
fn believer() {
    let Some(url) = setting("URL") else { return };
    die_with_parent();
    background().block_on(async {
        let lease = leases(&url).await.acquire("x", TTL).await.unwrap();
        let mut believed = now();
        say(&lease.token().to_string());
        loop {
            // The clock first: a stop between the two makes the belief earlier, not later.
            let now = now();
            if !is_valid(&lease) {
                break;
            }
            believed = now;
            sleep(MS).await;
        }
        say(&believed.to_string());
    });
}

/// A process that holds the lease, and its token.
fn start_believer(server: &Server) -> (Process, u64) {
    let mut holder = Process::start("believer", &[("URL", &server.url())]);
    let token = holder.line().unwrap().parse().unwrap();
    (holder, token)
}

#[tokio::test]
async fn a_holder_that_was_stopped_does_not_believe_that_it_holds() {
    let server = Server::start();
    let (mut holder, token) = start_believer(&server);
    holder.signal("STOP");
    let lease = soon(server.leases().await.acquire("x", TTL)).await.unwrap();
    let acquired = now();
    assert!(lease.token() > token);
    holder.signal("CONT");
    let believed: u128 = holder.line().unwrap().parse().unwrap();
    println!("believed until {believed}, was taken by {acquired}");
    assert!(believed < acquired);
    assert!(is_valid(&lease));
}

#[tokio::test]
async fn a_holder_that_was_killed_is_followed() {
    let server = Server::start();
    let (mut holder, token) = start_believer(&server);
    holder.kill();
    let lease = soon(server.leases().await.acquire("x", TTL)).await.unwrap();
    assert!(lease.token() > token);
}
