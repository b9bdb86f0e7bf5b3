//! One handle is used from several runtimes: what one of them ends, blocks or leaves undriven disturbs no
//! other.

mod support;

use std::{
    pin::pin,
    sync::mpsc,
    task::{Context, Poll, Waker},
};

use futures::future::poll_fn;
use support::prelude::*;
use tokio::runtime::Runtime;

const TTL: Duration = Duration::from_secs(1);

/// A server, and a runtime that serves connections.
fn served() -> (Server, Runtime) {
    (Server::start(), background())
}

fn leases(server: &Server, served: &Runtime) -> Leases<ConnectionManager> {
    served.block_on(server.leases())
}

fn served_leases() -> (Server, Runtime, Leases<ConnectionManager>) {
    let (server, served) = served();
    let leases = leases(&server, &served);
    (server, served, leases)
}

fn served_jobs() -> (Server, Runtime, Jobs) {
    let (server, served) = served();
    let jobs = unnotified(served.block_on(server.connect()));
    (server, served, jobs)
}

#[test]
fn a_runtime_that_ends_ends_no_others_lease() {
    let (_server, _served, leases) = served_leases();
    let (first, second) = (runtime(), runtime());
    let of_first = first.block_on(leases.acquire("first", TTL)).unwrap();
    let of_second = second.block_on(leases.acquire("second", TTL)).unwrap();
    drop(first);
    assert!(!is_valid(&of_first), "nobody renews it");
    second.block_on(async {
        // Renewed again and again.
        sleep(TTL * 3).await;
        assert!(is_valid(&of_second));
        release(of_second).await;
    });
}

#[test]
fn a_lease_of_an_ended_runtime_is_given_up_on_another() {
    let (server, _served, leases) = served_leases();
    let (first, second, third) = (runtime(), runtime(), runtime());
    let _kept = first.block_on(acquire(&leases, "kept"));
    let released = second.block_on(acquire(&leases, "released"));
    let dropped = second.block_on(acquire(&leases, "dropped"));
    drop(second);
    third.block_on(async {
        let outcome = soon(released.release()).await;
        assert!(matches!(outcome, Err(Error::NoRuntime)), "{outcome:?}");
        drop(dropped);
        is_free(&server, "released").await;
        is_free(&server, "dropped").await;
    });
}

#[test]
fn a_release_goes_on_on_the_runtime_that_polls_it() {
    let (server, _served, leases) = served_leases();
    let (first, second, third) = (runtime(), runtime(), runtime());
    let lease = first.block_on(acquire(&leases, "x"));
    server.stop();
    let mut releasing = Box::pin(lease.release());
    second.block_on(pending_for(&mut releasing, 50 * MS));
    drop(second);
    server.cont();
    assert!(third.block_on(soon(releasing)).unwrap());
    assert!(!is_held(&server, "x"));
}

/// Its lease is renewed by nobody, and nobody but the future itself can say so.
#[test]
fn a_loss_is_reported_where_somebody_waits_for_it() {
    let (_server, _served, leases) = served_leases();
    let undriven = runtime();
    let lease = undriven.block_on(leases.acquire("x", TTL)).unwrap();
    runtime().block_on(told(lease.lost()));
    assert!(lease.valid_until() <= Instant::now());
}

/// Waits for a loss, of which whoever waits is told, and does not find out by himself when he is polled for
/// another reason.
async fn told(lost: Lost) {
    let began = Instant::now();
    soon(lost).await;
    assert!(began.elapsed() < 30 * SECOND);
}

#[test]
fn a_lease_that_is_dropped_elsewhere_is_released_there() {
    let (server, _served, leases) = served_leases();
    let undriven = runtime();
    let lease = undriven.block_on(acquire(&leases, "x"));
    runtime().block_on(async {
        drop(lease);
        is_free(&server, "x").await;
    });
}

/// Its request was sent from a runtime that is left undriven, and answered on another.
#[test]
fn a_lease_is_renewed_where_its_acquire_went_on() {
    let (server, _served, leases) = served_leases();
    let (undriven, driven) = (runtime(), runtime());
    server.stop();
    let mut acquiring = Box::pin(leases.acquire("x", TTL));
    undriven.block_on(pending_for(&mut acquiring, 50 * MS));
    server.cont();
    driven.block_on(async {
        let lease = soon(acquiring).await.unwrap();
        sleep(TTL * 3).await;
        assert!(is_valid(&lease));
        release(lease).await;
    });
}

#[test]
fn an_acquire_goes_on_on_the_runtime_that_polls_it() {
    let (server, served) = served();
    let others = leases(&server, &served);
    let leases = leases(&server, &served);
    let held = served.block_on(acquire(&others, "x"));
    let (undriven, driven) = (runtime(), runtime());
    let mut acquiring = Box::pin(leases.acquire("x", TTL));
    // It waits until it asks again.
    undriven.block_on(pending_for(&mut acquiring, 100 * MS));
    served.block_on(release(held));
    driven.block_on(async { release(soon(acquiring).await.unwrap()).await });
}

/// Each of them polls its `acquire` for a moment, and some are not driven for about as long as one keeps its
/// place.
#[test]
fn no_two_hold_a_lease_whose_runtimes_stand_still_between() {
    let server = Server::start();
    let leases = leases_on(Reconnecting::of(server.client()));
    let (holders, grants) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let end = Instant::now() + 12 * SECOND;
    let contend = |mut random: u64| {
        while Instant::now() < end {
            let runtime = runtime();
            let mut acquiring = Box::pin(leases.acquire("x", MINUTE));
            let lease = loop {
                random = (random * 1103 + 12345) % 65_521;
                let time = Duration::from_micros(random % 30_000);
                let polled = runtime.block_on(async { timeout(time, &mut acquiring).await });
                if let Ok(lease) = polled {
                    break lease.unwrap();
                }
                if random.is_multiple_of(10) {
                    thread::sleep(Duration::from_millis(2800 + random % 900));
                }
            };
            assert_eq!(holders.fetch_add(1, SeqCst), 0, "two hold it");
            runtime.block_on(async { sleep(5 * MS).await });
            assert!(is_valid(&lease));
            holders.fetch_sub(1, SeqCst);
            grants.fetch_add(1, SeqCst);
            runtime.block_on(release(lease));
        }
    };
    thread::scope(|scope| {
        for n in 0..6 {
            scope.spawn(move || contend(n));
        }
    });
    assert!(grants.load(SeqCst) > 0);
}

/// Its request was granted, and nobody takes the answer. Redis would keep the lease for as long as it lasts.
#[test]
fn an_acquire_that_is_kept_with_its_answer_blocks_no_other() {
    let (server, _served, leases) = served_leases();
    let (undriven, driven) = (runtime(), runtime());
    let used = driven.block_on(acquire(&leases, "another"));
    let mut kept = Box::pin(leases.acquire("x", HOUR));
    // No answer can come within the poll.
    server.stop();
    undriven.block_on(async { assert!((&mut kept).now_or_never().is_none()) });
    server.cont();
    until_blocking(|| is_held(&server, "x"));
    driven.block_on(async {
        let lease = acquire(&leases, "x").await;
        // It has lost its place, and takes its answer for nothing.
        pending_for(&mut kept, TTL).await;
        assert!(is_valid(&lease));
        release(lease).await;
        release(soon(kept).await.unwrap()).await;
        release(used).await;
    });
}

/// The tasks of a runtime that is left undriven, say, some of which have waited there. They are passed over together,
/// and hold nobody up who comes later.
#[test]
fn acquires_that_are_not_polled_any_more_block_no_other() {
    for (count, polled) in [(2, 50 * MS), (100, NOW)] {
        let (_server, _served, leases) = served_leases();
        let (undriven, driven) = (runtime(), runtime());
        let held = driven.block_on(acquire(&leases, "x"));
        let mut kept: Vec<_> = (0..count)
            .map(|_| Box::pin(leases.acquire("x", MINUTE)))
            .collect();
        for acquiring in &mut kept {
            undriven.block_on(pending_for(acquiring, polled));
        }
        driven.block_on(async {
            release(held).await;
            for _ in 0..3 {
                use_once(&leases, "x").await;
            }
        });
    }
}

/// Their wheel belongs to no runtime in particular, so what follows depends on the message alone where it is
/// in time.
#[test]
fn a_subscription_is_made_again_when_its_runtime_has_ended() {
    let (server, served) = served();
    let leases = leases(&server, &served).notifications(&Notifications::of(server.client()));
    let held = served.block_on(acquire(&leases, "x"));
    let (first, second) = (runtime(), runtime());
    let mut waiting = Box::pin(leases.acquire("x", MINUTE));
    first.block_on(pending_until(&mut waiting, || listeners(&server, "x") == 1));
    drop(first);
    until_blocking(|| listeners(&server, "x") == 0);
    second.block_on(async {
        pending_until(&mut waiting, || listeners(&server, "x") == 1).await;
        release(held).await;
        release(soon(waiting).await.unwrap()).await;
    });
}

#[test]
fn a_call_does_not_wait_for_a_runtime_that_is_left_undriven() {
    let (_server, _served, jobs) = served_jobs();
    let (undriven, driven) = (runtime(), runtime());
    undriven.block_on(put(&jobs, ["a"], MINUTE));
    driven.block_on(soon(put(&jobs, ["b"], MINUTE)));
    let cancelled = undriven.block_on(soon(jobs.cancel("a"))).unwrap();
    assert_eq!(cancelled, Cancelled::Waiting);
    assert_eq!(driven.block_on(soon(counts(&jobs))), [1, 0, 0]);
}

#[test]
fn a_first_call_that_was_polled_once_blocks_no_other() {
    let (server, served, jobs) = served_jobs();
    let (undriven, driven) = (runtime(), runtime());
    let mut kept = Box::pin(jobs.schedule("a", MINUTE, b""));
    // Rarely, all answers come within one poll.
    undriven.block_on(async { drop((&mut kept).now_or_never()) });
    driven.block_on(soon(put(&jobs, ["b"], MINUTE)));

    let leases = leases(&server, &served);
    let mut kept = Box::pin(leases.try_acquire("a", MINUTE));
    undriven.block_on(async { drop((&mut kept).now_or_never()) });
    assert!(driven.block_on(try_acquire(&leases, "b")).is_some());
}

fn senders(server: &Server) -> u64 {
    server.command(&["HLEN", &key("last:calls")])
}

/// Each of them sends operations, and ends as soon as its own are answered.
#[test]
fn jobs_are_finished_on_runtimes_that_end() {
    let (server, served, jobs) = served_jobs();
    served.block_on(put(&jobs, 0..400, NOW));
    let mut worker = served.block_on(async { jobs.worker().start() });
    let (sender, receiver) = mpsc::channel::<Job>();
    let receiver = Mutex::new(receiver);
    let receive = || receiver.lock().unwrap().recv();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Ok(job) = receive() {
                    runtime().block_on(done(job));
                }
            });
        }
        for _ in 0..400 {
            sender.send(served.block_on(next(&mut worker))).unwrap();
        }
        drop(sender);
    });
    let senders = senders(&server);
    assert!(senders < 20, "{senders} senders");
}

/// A runtime for each request.
#[test]
fn runtimes_that_come_and_go_leave_nothing_behind() {
    let (server, _served, jobs) = served_jobs();
    for job in 0..100 {
        runtime().block_on(put(&jobs, [job], MINUTE));
    }
    assert_eq!(senders(&server), 1);
}

#[test]
fn an_operation_of_an_ended_runtime_says_how_long_it_has_waited() {
    let (server, served, jobs) = served_jobs();
    served.block_on(put(&jobs, ["a"], NOW));
    let (first, second) = (runtime(), runtime());
    let mut scheduling = Box::pin(jobs.schedule("b", NOW, b""));
    server.stop();
    first.block_on(pending_for(&mut scheduling, 100 * MS));
    drop(first);
    match second.block_on(soon(scheduling)) {
        Err(Error::NoAnswer { waited }) => assert!(waited >= 100 * MS, "{waited:?}"),
        other => panic!("{other:?}"),
    }
    server.cont();
}

/// Polls a worker on a runtime that is not its own, and wakes nobody.
fn poll_elsewhere(runtime: &Runtime, worker: &mut Worker) {
    let mut cx = Context::from_waker(Waker::noop());
    let polled = runtime.block_on(poll_fn(|_| Poll::Ready(worker.poll_next_unpin(&mut cx))));
    assert!(polled.is_pending());
}

/// Its stream yields that its runtime is gone, and ends.
async fn says_that_its_runtime_has_ended(worker: &mut Worker) {
    let error = next_error(worker).await;
    assert!(matches!(error, Error::NoRuntime), "{error}");
    assert!(soon(worker.next()).await.is_none());
}

#[test]
fn a_worker_whose_runtime_has_ended_says_so() {
    let (_server, _served, jobs) = served_jobs();
    let (first, second) = (runtime(), runtime());
    let mut worker = first.block_on(async { jobs.worker().start() });
    first.block_on(async {
        put(&jobs, ["a"], NOW).await;
        do_next(&mut worker).await;
    });
    // Pending, as there is no job.
    poll_elsewhere(&second, &mut worker);
    drop(first);
    second.block_on(says_that_its_runtime_has_ended(&mut worker));
}

/// The start of a job is under way, and is left without an answer.
#[test]
fn a_worker_whose_runtime_ends_while_a_job_starts_says_so() {
    let (server, _served, jobs) = served_jobs();
    let (first, second) = (runtime(), runtime());
    let mut worker = first.block_on(async { jobs.worker().look_ahead(9 * SECOND).start() });
    poll_elsewhere(&second, &mut worker);
    let due = 400 * MS;
    first.block_on(async {
        put(&jobs, ["a"], due).await;
        // It is claimed ahead.
        sleep(due / 2).await;
        server.stop();
        sleep(due).await;
    });
    drop(first);
    second.block_on(says_that_its_runtime_has_ended(&mut worker));
    server.cont();
}

/// The start of a job does not depend on whoever polled the stream and has stopped.
#[test]
fn a_stream_that_was_polled_elsewhere_keeps_no_job() {
    let (_server, served, jobs) = served_jobs();
    let undriven = runtime();
    let mut worker = served.block_on(async { jobs.worker().start() });
    undriven.block_on(async {
        let mut next = pin!(worker.next());
        assert!(next.as_mut().now_or_never().is_none());
    });
    served.block_on(async {
        put(&jobs, ["a"], NOW).await;
        let mut other = jobs.worker().start();
        assert_eq!(do_next(&mut other).await.0, "a");
    });
    drop(worker);
}

/// Finished on a runtime that does not renew it.
#[test]
fn a_job_outlives_the_runtime_of_its_worker_by_its_lease() {
    let (_server, _served, jobs) = served_jobs();
    let (first, second) = (runtime(), runtime());
    let job = first.block_on(async {
        put(&jobs, ["a"], NOW).await;
        next(&mut jobs.worker().lease(2 * SECOND).start()).await
    });
    drop(first);
    second.block_on(async {
        assert!(job.lost().now_or_never().is_none());
        told(job.lost()).await;
        assert!(!job.done().await.unwrap());
    });
}

/// The first worker's consumer has not asked for the second job.
#[test]
fn what_goes_back_while_a_runtime_ends_is_given_back_by_another() {
    let (server, served) = served();
    let (connection, faults) = Faulty::with_faults(Reconnecting::of(server.client()));
    let jobs = unnotified(connection);
    served.block_on(put(&jobs, ["a", "b"], NOW));
    let mut other = served.block_on(async { worker(&jobs) });
    let ended = runtime();
    let _first = ended.block_on(async {
        let returned = faults.stop("give_back");
        let mut first = worker(&jobs);
        let held = next(&mut first).await;
        soon(returned.reached()).await;
        (first, held)
    });
    faults.clear();
    drop(ended);
    assert_eq!(served.block_on(do_next(&mut other)), ("b".to_owned(), 1));
}

/// The first worker's runtime ends while the answer to its take, or to its start, is on its way. What it has
/// claimed beside the job that starts has not been asked for.
#[test]
fn what_a_runtime_ends_in_the_middle_of_is_given_back_by_another() {
    for (held, set) in [("", "claimed"), ("start", "running")] {
        let (server, served) = served();
        let (connection, faults) = Faulty::with_faults(Reconnecting::of(server.client()));
        let jobs = unnotified(connection);
        let worker = |runtime: &Runtime| runtime.block_on(async { worker(&jobs) });
        // The server knows the scripts from now on.
        served.block_on(put(&jobs, ["known"], NOW));
        let mut other = worker(&served);
        served.block_on(do_next(&mut other));
        served.block_on(other.close());
        served.block_on(put(&jobs, 0..10, NOW));
        let mut other = worker(&served);
        let ended = runtime();
        let mut first = worker(&ended);
        faults.stop_answer(held);
        ended.block_on(yields_nothing_until(&mut first, || entries(&server, set) > 0));
        faults.clear();
        drop(ended);
        let delivered = served.block_on(do_next_jobs(&mut other, 10));
        assert!(
            delivered.iter().all(|(_, attempt)| *attempt == 1),
            "{set}: {delivered:?}"
        );
    }
}

/// Polls a worker that has no job yet, until it has claimed some.
async fn yields_nothing_until(worker: &mut Worker, is_so: impl Fn() -> bool) {
    pending_until(&mut poll_fn(|cx| worker.poll_next_unpin(cx)), is_so).await;
}
