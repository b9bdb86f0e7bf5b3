//! One handle is used from several runtimes: what one of them ends, blocks or leaves undriven disturbs no
//! other.

mod support;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use futures::{
    StreamExt,
    future::{FutureExt, poll_fn},
};
use redis::{Cmd, aio::ConnectionManager};
use support::{
    connect,
    faulty::{Fault, Faulty, says},
    jobs::next,
    leases::{is_held, listeners},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{Cancelled, DelayedJobs, Error, Leases, Lost, Notifications, Reconnecting, Worker};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    time::{Instant, sleep, timeout},
};

const MINUTE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(1);

/// A runtime that runs only while somebody calls `block_on`.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime with threads of its own. A connection that is made there is served for as long as it lives.
fn background() -> Runtime {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn connection(server: &Server, runtime: &Runtime) -> ConnectionManager {
    let url = server.url();
    runtime.block_on(async move { connect(&url).await })
}

fn leases(server: &Server, runtime: &Runtime) -> Leases<ConnectionManager> {
    Leases::new(&Wheel::new(), connection(server, runtime))
}

fn queue(server: &Server, runtime: &Runtime) -> DelayedJobs<ConnectionManager> {
    DelayedJobs::new(&Wheel::new(), connection(server, runtime), "queue")
}

/// Polls a future a few times, until the request that it sent is answered, say.
async fn poll_for<F: Future + Unpin>(future: &mut F, time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!((&mut *future).now_or_never().is_none());
        sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_runtime_that_ends_ends_no_others_lease() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (first, second) = (runtime(), runtime());
    let of_first = first.block_on(leases.acquire("first", TTL)).unwrap();
    let of_second = second.block_on(leases.acquire("second", TTL)).unwrap();
    drop(first);
    assert!(of_first.lost().now_or_never().is_some(), "nobody renews it");
    second.block_on(async {
        // Renewed again and again.
        sleep(TTL * 3).await;
        assert!(of_second.lost().now_or_never().is_none());
        assert!(of_second.release().await.unwrap());
    });
}

#[test]
fn a_lease_of_an_ended_runtime_is_given_up_on_another() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (first, second, third) = (runtime(), runtime(), runtime());
    let _kept = first.block_on(leases.acquire("kept", MINUTE)).unwrap();
    let [released, dropped] =
        ["released", "dropped"].map(|name| second.block_on(leases.acquire(name, MINUTE)).unwrap());
    drop(second);
    third.block_on(async {
        let outcome = soon(released.release()).await;
        assert!(matches!(outcome, Err(Error::NoRuntime)), "{outcome:?}");
        drop(dropped);
        until(|| async { !is_held(&server, "released") && !is_held(&server, "dropped") }).await;
    });
}

#[test]
fn a_release_goes_on_on_the_runtime_that_polls_it() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (first, second, third) = (runtime(), runtime(), runtime());
    let lease = first.block_on(leases.acquire("x", MINUTE)).unwrap();
    server.stop();
    let mut releasing = Box::pin(lease.release());
    second.block_on(poll_for(&mut releasing, Duration::from_millis(50)));
    drop(second);
    server.cont();
    assert!(third.block_on(soon(releasing)).unwrap());
    assert!(!is_held(&server, "x"));
}

/// Its lease is renewed by nobody, and nobody but the future itself can say so.
#[test]
fn a_loss_is_reported_where_somebody_waits_for_it() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
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
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_lease_that_is_dropped_elsewhere_is_released_there() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let undriven = runtime();
    let lease = undriven.block_on(leases.acquire("x", MINUTE)).unwrap();
    runtime().block_on(async {
        drop(lease);
        until(|| async { !is_held(&server, "x") }).await;
    });
}

#[test]
fn an_acquire_that_was_polled_once_blocks_no_other() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (undriven, driven) = (runtime(), runtime());
    let held = driven.block_on(leases.acquire("x", MINUTE)).unwrap();
    let [mut first, mut second] = [(); 2].map(|()| Box::pin(leases.acquire("x", MINUTE)));
    undriven.block_on(async {
        poll_for(&mut first, Duration::from_millis(50)).await;
        poll_for(&mut second, Duration::from_millis(50)).await;
    });
    driven.block_on(async {
        held.release().await.unwrap();
        let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
        assert!(lease.release().await.unwrap());
    });
}

/// Its request was sent from a runtime that is left undriven, and answered on another.
#[test]
fn a_lease_is_renewed_where_its_acquire_went_on() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (undriven, driven) = (runtime(), runtime());
    server.stop();
    let mut acquiring = Box::pin(leases.acquire("x", TTL));
    undriven.block_on(poll_for(&mut acquiring, Duration::from_millis(50)));
    server.cont();
    driven.block_on(async {
        let lease = soon(acquiring).await.unwrap();
        sleep(TTL * 3).await;
        assert!(lease.lost().now_or_never().is_none());
        assert!(lease.release().await.unwrap());
    });
}

#[test]
fn an_acquire_goes_on_on_the_runtime_that_polls_it() {
    let (server, served) = (Server::start(), background());
    let others = leases(&server, &served);
    let leases = leases(&server, &served);
    let held = served.block_on(others.acquire("x", MINUTE)).unwrap();
    let (undriven, driven) = (runtime(), runtime());
    let mut acquiring = Box::pin(leases.acquire("x", TTL));
    // It waits until it asks again.
    undriven.block_on(poll_for(&mut acquiring, Duration::from_millis(100)));
    served.block_on(held.release()).unwrap();
    let lease = driven.block_on(soon(acquiring)).unwrap();
    assert!(driven.block_on(lease.release()).unwrap());
}

/// Each of them polls its `acquire` for a moment, and some are not driven for about as long as one keeps its
/// place.
#[test]
fn no_two_hold_a_lease_whose_runtimes_stand_still_between() {
    let server = Server::start();
    let leases = Leases::new(&Wheel::new(), Reconnecting::of(server.client()));
    let (holders, grants) = (AtomicU32::new(0), AtomicU32::new(0));
    let end = Instant::now() + Duration::from_secs(12);
    thread::scope(|scope| {
        for thread in 0..6 {
            let (leases, holders, grants) = (&leases, &holders, &grants);
            scope.spawn(move || {
                let mut random = thread;
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
                        if random % 10 == 0 {
                            thread::sleep(Duration::from_millis(2800 + random % 900));
                        }
                    };
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                    runtime.block_on(async { sleep(Duration::from_millis(5)).await });
                    assert!(lease.lost().now_or_never().is_none());
                    holders.fetch_sub(1, Ordering::SeqCst);
                    grants.fetch_add(1, Ordering::Relaxed);
                    assert!(runtime.block_on(lease.release()).unwrap());
                }
            });
        }
    });
    assert!(grants.into_inner() > 0);
}

/// Its request was granted, and nobody takes the answer. Redis would keep the lease for as long as it lasts.
#[test]
fn an_acquire_that_is_kept_with_its_answer_blocks_no_other() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (undriven, driven) = (runtime(), runtime());
    let used = driven.block_on(leases.acquire("another", MINUTE)).unwrap();
    let mut kept = Box::pin(leases.acquire("x", MINUTE * 60));
    // No answer can come within the poll.
    server.stop();
    undriven.block_on(async { assert!((&mut kept).now_or_never().is_none()) });
    server.cont();
    until_without_runtime(|| is_held(&server, "x"));
    driven.block_on(async {
        let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
        // It has lost its place, and takes its answer for nothing.
        poll_for(&mut kept, TTL).await;
        assert!(lease.lost().now_or_never().is_none());
        assert!(lease.release().await.unwrap());
        assert!(soon(kept).await.unwrap().release().await.unwrap());
        assert!(used.release().await.unwrap());
    });
}

/// The tasks of a runtime that is left undriven, say. They are passed over together, and hold nobody up who
/// comes later.
#[test]
fn many_acquires_that_were_polled_once_block_no_other() {
    let (server, served) = (Server::start(), background());
    let leases = leases(&server, &served);
    let (undriven, driven) = (runtime(), runtime());
    let held = driven.block_on(leases.acquire("x", MINUTE)).unwrap();
    let mut kept: Vec<_> = (0..100).map(|_| Box::pin(leases.acquire("x", MINUTE))).collect();
    undriven.block_on(async {
        for acquiring in &mut kept {
            assert!(acquiring.now_or_never().is_none());
        }
    });
    driven.block_on(async {
        held.release().await.unwrap();
        for _ in 0..3 {
            let lease = soon(leases.acquire("x", MINUTE)).await.unwrap();
            assert!(lease.release().await.unwrap());
        }
    });
}

/// Their wheel belongs to no runtime in particular, so what follows depends on the message alone where it is
/// in time.
#[test]
fn a_subscription_is_made_again_when_its_runtime_has_ended() {
    let (server, served) = (Server::start(), background());
    let notifications = Notifications::of(server.client());
    let leases = leases(&server, &served).notifications(&notifications);
    let held = served.block_on(leases.acquire("x", MINUTE)).unwrap();
    let (first, second) = (runtime(), runtime());
    let mut waiting = Box::pin(leases.acquire("x", MINUTE));
    first.block_on(async {
        until(|| {
            assert!(waiting.as_mut().now_or_never().is_none());
            async { listeners(&server, "x") == 1 }
        })
        .await;
    });
    drop(first);
    until_without_runtime(|| listeners(&server, "x") == 0);
    second.block_on(async {
        until(|| {
            assert!(waiting.as_mut().now_or_never().is_none());
            async { listeners(&server, "x") == 1 }
        })
        .await;
        held.release().await.unwrap();
        assert!(soon(waiting).await.unwrap().release().await.unwrap());
    });
}

fn until_without_runtime(mut look: impl FnMut() -> bool) {
    let end = Instant::now() + support::PATIENCE;
    while !look() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_does_not_wait_for_a_runtime_that_is_left_undriven() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    let (undriven, driven) = (runtime(), runtime());
    assert!(undriven.block_on(jobs.schedule("a", MINUTE, b"")).unwrap());
    assert!(driven.block_on(soon(jobs.schedule("b", MINUTE, b""))).unwrap());
    assert_eq!(
        undriven.block_on(soon(jobs.cancel("a"))).unwrap(),
        Cancelled::Waiting
    );
    assert_eq!(driven.block_on(soon(jobs.counts())).unwrap().waiting, 1);
}

#[test]
fn a_first_call_that_was_polled_once_blocks_no_other() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    let (undriven, driven) = (runtime(), runtime());
    let mut kept = Box::pin(jobs.schedule("a", MINUTE, b""));
    // Rarely, all answers come within one poll.
    undriven.block_on(async { drop((&mut kept).now_or_never()) });
    assert!(driven.block_on(soon(jobs.schedule("b", MINUTE, b""))).unwrap());

    let leases = leases(&server, &served);
    let mut kept = Box::pin(leases.try_acquire("a", MINUTE));
    undriven.block_on(async { drop((&mut kept).now_or_never()) });
    let other = driven.block_on(soon(leases.try_acquire("b", MINUTE))).unwrap();
    assert!(other.is_some());
}

/// Each of them sends operations, and ends as soon as its own are answered.
#[test]
fn jobs_are_finished_on_runtimes_that_end() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    served.block_on(async {
        for job in 0..400 {
            assert!(
                jobs.schedule(&job.to_string(), Duration::ZERO, b"")
                    .await
                    .unwrap()
            );
        }
    });
    let mut worker = served.block_on(async { jobs.worker().start() });
    let (sender, receiver) = std::sync::mpsc::channel();
    let receiver = std::sync::Mutex::new(receiver);
    thread::scope(|scope| {
        let finishing: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut outcomes = Vec::new();
                    loop {
                        let received = receiver.lock().unwrap().recv();
                        let Ok(job): Result<tickwheel_redis::Job, _> = received else {
                            return outcomes;
                        };
                        outcomes.push(runtime().block_on(job.done()));
                    }
                })
            })
            .collect();
        for _ in 0..400 {
            sender.send(served.block_on(next(&mut worker))).unwrap();
        }
        drop(sender);
        for outcomes in finishing {
            for outcome in outcomes.join().unwrap() {
                assert!(matches!(outcome, Ok(true)), "{outcome:?}");
            }
        }
    });
    let senders: u64 = server.command(&["HLEN", "tickwheel:jobs:{queue:0}:last:calls"]);
    assert!(senders < 20, "{senders} senders");
}

/// A runtime for each request.
#[test]
fn runtimes_that_come_and_go_leave_nothing_behind() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    for job in 0..100 {
        let scheduled = runtime().block_on(jobs.schedule(&job.to_string(), MINUTE, b""));
        assert!(scheduled.unwrap());
    }
    assert_eq!(
        server.command::<u64>(&["HLEN", "tickwheel:jobs:{queue:0}:last:calls"]),
        1
    );
}

#[test]
fn an_operation_of_an_ended_runtime_says_how_long_it_has_waited() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    served.block_on(jobs.schedule("a", Duration::ZERO, b"")).unwrap();
    let (first, second) = (runtime(), runtime());
    let mut scheduling = Box::pin(jobs.schedule("b", Duration::ZERO, b""));
    server.stop();
    let time = Duration::from_millis(100);
    first.block_on(poll_for(&mut scheduling, time));
    drop(first);
    match second.block_on(soon(scheduling)) {
        Err(Error::NoAnswer { waited }) => assert!(waited >= time, "{waited:?}"),
        other => panic!("{other:?}"),
    }
    server.cont();
}

#[test]
fn a_worker_whose_runtime_has_ended_says_so() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    let (first, second) = (runtime(), runtime());
    let mut worker = first.block_on(async { jobs.worker().start() });
    first.block_on(async {
        jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
        assert!(next(&mut worker).await.done().await.unwrap());
    });
    // Pending, as there is no job.
    let mut cx = Context::from_waker(Waker::noop());
    let polled = second.block_on(poll_fn(|_| Poll::Ready(worker.poll_next_unpin(&mut cx))));
    assert!(polled.is_pending());
    drop(first);
    second.block_on(async {
        let outcome = soon(worker.next()).await;
        assert!(matches!(outcome, Some(Err(Error::NoRuntime))), "{outcome:?}");
        assert!(soon(worker.next()).await.is_none());
    });
}

/// The start of a job is under way, and is left without an answer.
#[test]
fn a_worker_whose_runtime_ends_while_a_job_starts_says_so() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    let (first, second) = (runtime(), runtime());
    let mut worker = first.block_on(async { jobs.worker().look_ahead(Duration::from_secs(9)).start() });
    let mut cx = Context::from_waker(Waker::noop());
    let polled = second.block_on(poll_fn(|_| Poll::Ready(worker.poll_next_unpin(&mut cx))));
    assert!(polled.is_pending());
    let due = Duration::from_millis(400);
    first.block_on(async {
        jobs.schedule("a", due, b"").await.unwrap();
        // It is claimed ahead.
        sleep(due / 2).await;
        server.stop();
        sleep(due).await;
    });
    drop(first);
    second.block_on(async {
        let outcome = soon(worker.next()).await;
        assert!(matches!(outcome, Some(Err(Error::NoRuntime))), "{outcome:?}");
        assert!(soon(worker.next()).await.is_none());
    });
    server.cont();
}

/// The start of a job does not depend on whoever polled the stream and has stopped.
#[test]
fn a_stream_that_was_polled_elsewhere_keeps_no_job() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    let undriven = runtime();
    let mut worker = served.block_on(async { jobs.worker().start() });
    undriven.block_on(async {
        let mut next = pin!(worker.next());
        assert!(next.as_mut().now_or_never().is_none());
    });
    served.block_on(async {
        jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
        let mut other = jobs.worker().start();
        let job = next(&mut other).await;
        assert_eq!(job.id(), "a");
        assert!(job.done().await.unwrap());
    });
    drop(worker);
}

/// Finished on a runtime that does not renew it.
#[test]
fn a_job_outlives_the_runtime_of_its_worker_by_its_lease() {
    let (server, served) = (Server::start(), background());
    let jobs = queue(&server, &served);
    let (first, second) = (runtime(), runtime());
    let job = first.block_on(async {
        jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
        let mut worker = jobs.worker().lease(Duration::from_secs(2)).start();
        next(&mut worker).await
    });
    drop(first);
    second.block_on(async {
        assert!(job.lost().now_or_never().is_none());
        told(job.lost()).await;
        assert!(!job.done().await.unwrap());
    });
}

/// A test each, say, of which one ends while its worker has claimed the jobs of another.
#[test]
fn what_an_ended_runtime_has_claimed_is_given_back_by_another() {
    let (server, served) = (Server::start(), background());
    let jobs = DelayedJobs::new(&Wheel::new(), Reconnecting::of(server.client()), "queue");
    let worker = |runtime: &Runtime, look_ahead| {
        let worker = jobs.worker().lease(MINUTE * 60).look_ahead(look_ahead);
        runtime.block_on(async move { worker.start() })
    };
    let claimed = || -> u64 { server.command(&["ZCARD", "tickwheel:jobs:{queue:0}:claimed"]) };
    let mut other = worker(&served, Duration::ZERO);
    for delay in [Duration::ZERO, TTL * 2] {
        for job in 0..10 {
            let id = format!("{delay:?}-{job}");
            assert!(served.block_on(jobs.schedule(&id, delay, b"")).unwrap());
        }
        let ended = runtime();
        let mut first = worker(&ended, MINUTE);
        ended.block_on(async {
            if delay.is_zero() {
                assert!(next(&mut first).await.done().await.unwrap());
            } else {
                poll_until(&mut first, || claimed() > 0).await;
            }
        });
        assert!(claimed() > 0);
        drop(ended);
        let left = if delay.is_zero() { 9 } else { 10 };
        served.block_on(async {
            for _ in 0..left {
                let job = next(&mut other).await;
                assert_eq!(job.attempt(), 1);
                assert!(job.done().await.unwrap());
            }
        });
    }
}

/// The first worker's runtime ends while the answer to its take, or to its start, is on its way.
#[test]
fn what_a_runtime_ends_in_the_middle_of_is_given_back_by_another() {
    for (held, set) in [("take", "claimed"), ("start", "running")] {
        let (server, served) = (Server::start(), background());
        let is_held = Arc::new(AtomicBool::new(false));
        let next_fault = {
            let is_held = is_held.clone();
            move |request: &Cmd| {
                if is_held.load(Ordering::Relaxed) && (held == "take" || says(request, held)) {
                    Fault::HoldAnswer(Arc::new(Notify::new()))
                } else {
                    Fault::None
                }
            }
        };
        let connection = Faulty::by_request(Reconnecting::of(server.client()), next_fault);
        let jobs = DelayedJobs::new(&Wheel::new(), connection, "queue");
        let worker = |runtime: &Runtime| {
            let worker = jobs.worker().lease(MINUTE * 60);
            runtime.block_on(async move { worker.start() })
        };
        let count = || -> u64 { server.command(&["ZCARD", &format!("tickwheel:jobs:{{queue:0}}:{set}")]) };
        // The server knows the scripts from now on.
        assert!(
            served
                .block_on(jobs.schedule("known", Duration::ZERO, b""))
                .unwrap()
        );
        let mut other = worker(&served);
        served.block_on(async { assert!(next(&mut other).await.done().await.unwrap()) });
        served.block_on(other.close());
        assert!(served.block_on(jobs.schedule("a", Duration::ZERO, b"")).unwrap());
        let mut other = worker(&served);
        let ended = runtime();
        let mut first = worker(&ended);
        is_held.store(true, Ordering::Relaxed);
        ended.block_on(poll_until(&mut first, || count() == 1));
        is_held.store(false, Ordering::Relaxed);
        drop(ended);
        let job = served.block_on(next(&mut other));
        assert_eq!((job.id(), job.attempt()), ("a", 1), "{held}");
        assert!(served.block_on(job.done()).unwrap());
    }
}

/// Polls a worker that has no job yet, until it has claimed some.
async fn poll_until(worker: &mut Worker, is_so: impl Fn() -> bool) {
    let end = Instant::now() + support::PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end);
        assert!(worker.next().now_or_never().is_none());
        sleep(Duration::from_millis(5)).await;
    }
}
