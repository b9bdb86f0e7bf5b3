//! Several processes that want one name have it in turns.

mod support;

use support::prelude::*;

const HOLD: Duration = Duration::from_millis(20);

/// A process that shares nothing with others, of whose tasks each wants the lease again and again.
#[derive(Clone, Copy)]
struct Contender {
    tasks: u32,
    notified: bool,
    /// How long each task pauses between.
    pause: Duration,
}

fn contender(tasks: u32) -> Contender {
    Contender {
        tasks,
        notified: false,
        pause: NOW,
    }
}

fn notified(tasks: u32) -> Contender {
    Contender {
        notified: true,
        ..contender(tasks)
    }
}

/// How many grants each has within this time.
async fn grants<const N: usize>(server: &Server, contenders: [Contender; N], time: Duration) -> [usize; N] {
    let counts = [(); N].map(|()| AtomicUsize::new(0));
    let end = Instant::now() + time;
    join_all(contenders.iter().zip(&counts).map(|(of, count)| async move {
        let mut leases = server.leases().await;
        if of.notified {
            leases = leases.notifications(&Notifications::of(server.client()));
        }
        join_all((0..of.tasks).map(|_| async {
            while Instant::now() < end {
                let lease = soon(leases.acquire("x", 10 * SECOND)).await.unwrap();
                count.fetch_add(1, SeqCst);
                sleep(HOLD).await;
                lease.release().await.unwrap();
                sleep(of.pause).await;
            }
        }))
        .await;
    }))
    .await;
    let counts = counts.map(AtomicUsize::into_inner);
    println!("{counts:?} grants");
    counts
}

fn most_by_least(grants: &[usize]) -> f64 {
    let (least, most) = (grants.iter().min().unwrap(), grants.iter().max().unwrap());
    *most as f64 / *least as f64
}

#[tokio::test]
async fn two_processes_have_it_in_turns() {
    let server = Server::start();
    // One has many tasks that wait, which hear at once of a release in their own process.
    let grants = grants(&server, [notified(8), notified(1)], 12 * SECOND).await;
    assert!(most_by_least(&grants) <= 2.0, "{grants:?}");
    assert!(grants.iter().sum::<usize>() > 150, "{grants:?}");
}

#[tokio::test]
async fn three_processes_without_messages_have_it_in_turns() {
    let server = Server::start();
    let grants = grants(&server, [4, 1, 1].map(contender), 24 * SECOND).await;
    assert!(most_by_least(&grants) <= 2.0, "{grants:?}");
}

/// It is in no line meanwhile.
#[tokio::test]
async fn a_process_that_pauses_between_has_its_turns() {
    let pausing = async |pause| {
        let server = Server::start();
        let pausing = Contender {
            pause,
            ..contender(1)
        };
        grants(&server, [contender(4), pausing], 12 * SECOND).await
    };
    let (short, long) = futures::join!(pausing(5 * MS), pausing(30 * MS));
    assert!(most_by_least(&short) <= 2.0, "{short:?}");
    // It holds it for 20 ms of at least 70, so it cannot have it as often.
    assert!(most_by_least(&long) <= 3.0, "{long:?}");
}

/// Whoever has it then holds it for longer than a moment.
#[tokio::test]
async fn those_who_wait_for_a_lease_that_was_handed_over_ask_once_a_second() {
    let server = Server::start();
    let (first, second, third) = (
        server.leases().await,
        server.leases().await,
        server.leases().await,
    );
    let held = acquire(&first, "x").await;
    let waiting = acquiring(&second, "x");
    sleep(700 * MS).await;
    release(held).await;
    let held = acquired(waiting).await;
    let waiting = acquiring(&third, "x");
    sleep(2 * SECOND).await;
    let before = server.calls("evalsha");
    sleep(3 * SECOND).await;
    let asked = server.calls("evalsha") - before;
    assert!(asked <= 10, "{asked}");
    release(held).await;
    release(acquired(waiting).await).await;
}

/// The lease is reserved for a moment for a process that has waited and does not come any more.
#[tokio::test]
async fn a_process_that_waits_no_longer_holds_nobody_up() {
    let (_server, first, second) = Server::with_two_leases().await;
    let held = acquire(&first, "x").await;
    assert!(timeout(1300 * MS, second.acquire("x", MINUTE)).await.is_err());
    release(held).await;
    // Whoever does not wait may have it.
    release(try_acquire(&first, "x").await.unwrap()).await;
    use_once(&first, "x").await;
}

/// A process that waits leaves its name with the lease of another, which is renewed and released all the
/// same.
#[tokio::test]
async fn a_lease_for_which_others_wait_is_renewed() {
    let (server, first, second) = Server::with_two_leases().await;
    let held = first.acquire("x", 2 * SECOND).await.unwrap();
    let waiting = acquiring(&second, "x");
    sleep(5 * SECOND).await;
    assert!(!waiting.is_finished());
    let held_by: String = server.command(&["GET", &holder("x")]);
    assert_eq!(held_by.split(';').count(), 2, "{held_by}");
    assert!(held_by.ends_with(&format!(" {}", held.token())), "{held_by}");
    release(held).await;
    release(acquired(waiting).await).await;
}
