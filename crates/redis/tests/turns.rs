//! Several processes that want one name have it in turns.

mod support;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use futures::future::join_all;
use redis::aio::ConnectionManager;
use support::{connect, server::Server, soon};
use tickwheel::Wheel;
use tickwheel_redis::{Leases, Notifications};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(10);

/// What a process has: a connection and a subscription of its own.
async fn process(server: &Server, notified: bool) -> Leases<ConnectionManager> {
    let leases = Leases::new(&Wheel::new(), connect(&server.url()).await);
    if notified {
        leases.notifications(&Notifications::of(server.client()))
    } else {
        leases
    }
}

/// A process, of whose tasks each wants the lease again and again.
#[derive(Clone, Copy)]
struct Process {
    tasks: u32,
    notified: bool,
    /// How long each task pauses between.
    pause: Duration,
}

fn process_of(tasks: u32, notified: bool) -> Process {
    Process {
        tasks,
        notified,
        pause: Duration::ZERO,
    }
}

/// How many grants each process has within this time.
async fn grants<const N: usize>(
    server: &Server,
    processes: [Process; N],
    hold: Duration,
    time: Duration,
) -> [u32; N] {
    let counts = [(); N].map(|()| AtomicU32::new(0));
    let end = Instant::now() + time;
    let working = processes.iter().zip(&counts).map(|(&of, count)| async move {
        let leases = process(server, of.notified).await;
        join_all((0..of.tasks).map(|_| async {
            while Instant::now() < end {
                let lease = soon(leases.acquire("x", TTL)).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                sleep(hold).await;
                lease.release().await.unwrap();
                sleep(of.pause).await;
            }
        }))
        .await;
    });
    join_all(working).await;
    let counts = counts.map(AtomicU32::into_inner);
    println!("{counts:?} grants");
    counts
}

fn most_by_least(grants: &[u32]) -> f64 {
    let (least, most) = (grants.iter().min().unwrap(), grants.iter().max().unwrap());
    f64::from(*most) / f64::from(*least)
}

#[tokio::test]
async fn two_processes_have_it_in_turns() {
    let server = Server::start();
    let hold = Duration::from_millis(20);
    // One has many tasks that wait, which hear at once of a release in their own process.
    let processes = [process_of(8, true), process_of(1, true)];
    let grants = grants(&server, processes, hold, Duration::from_secs(12)).await;
    assert!(most_by_least(&grants) <= 2.0, "{grants:?}");
    assert!(grants.iter().sum::<u32>() > 150, "{grants:?}");
}

#[tokio::test]
async fn three_processes_without_messages_have_it_in_turns() {
    let server = Server::start();
    let hold = Duration::from_millis(20);
    let processes = [4, 1, 1].map(|tasks| process_of(tasks, false));
    let grants = grants(&server, processes, hold, Duration::from_secs(24)).await;
    assert!(most_by_least(&grants) <= 2.0, "{grants:?}");
}

/// The lease is kept for a moment for a process that has waited and does not come any more.
#[tokio::test]
async fn a_process_that_waits_no_longer_holds_nobody_up() {
    let server = Server::start();
    let (first, second) = (process(&server, false).await, process(&server, false).await);
    let held = first.acquire("x", TTL).await.unwrap();
    assert!(
        timeout(Duration::from_millis(1300), second.acquire("x", TTL))
            .await
            .is_err()
    );
    held.release().await.unwrap();
    // Whoever does not wait may have it.
    let lease = first.try_acquire("x", TTL).await.unwrap().unwrap();
    assert!(lease.release().await.unwrap());
    let lease = soon(first.acquire("x", TTL)).await.unwrap();
    assert!(lease.release().await.unwrap());
}

/// A process that waits leaves its name with the lease of another, which is renewed and released all the
/// same.
#[tokio::test]
async fn a_lease_for_which_others_wait_is_renewed() {
    let server = Server::start();
    let (first, second) = (process(&server, false).await, process(&server, false).await);
    let held = first.acquire("x", Duration::from_secs(2)).await.unwrap();
    let waiting = tokio::spawn(async move { second.acquire("x", TTL).await });
    sleep(Duration::from_secs(5)).await;
    assert!(!waiting.is_finished());
    let held_by: String = server.command(&["GET", "tickwheel:lease:{x}:holder"]);
    assert_eq!(held_by.split(';').count(), 2, "{held_by}");
    assert!(held_by.ends_with(&format!(" {}", held.token())), "{held_by}");
    assert!(held.release().await.unwrap());
    assert!(soon(waiting).await.unwrap().unwrap().release().await.unwrap());
}

/// It is in no line meanwhile.
#[tokio::test]
async fn a_process_that_pauses_between_has_its_turns() {
    let hold = Duration::from_millis(20);
    let pausing = |ms| async move {
        let server = Server::start();
        let mut processes = [4, 1].map(|tasks| process_of(tasks, false));
        processes[1].pause = Duration::from_millis(ms);
        grants(&server, processes, hold, Duration::from_secs(12)).await
    };
    let (short, long) = futures::join!(pausing(5), pausing(30));
    assert!(most_by_least(&short) <= 2.0, "{short:?}");
    // It holds it for 20 ms of at least 70, so it cannot have it as often.
    assert!(most_by_least(&long) <= 3.0, "{long:?}");
}
