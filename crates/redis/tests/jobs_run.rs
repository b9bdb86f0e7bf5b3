//! `Worker::run`: what becomes of jobs by the outcome of their handler.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use futures::future::pending;
use support::{
    connect,
    jobs::{counts_become, entries, queue},
    proxy::{Network, Proxy},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::{DelayedJobs, Error, Job, JobError, Notifications};
use tokio::{sync::oneshot, time::sleep};

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// What was seen of each job: its attempts, and since when.
type Seen = Arc<Mutex<BTreeMap<String, Vec<u32>>>>;

fn see(seen: &Seen, job: &Job) {
    let mut seen = seen.lock().unwrap();
    seen.entry(job.id().to_owned()).or_default().push(job.attempt());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_ends_as_its_handler_says() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let names = ["done", "fails", "later", "worthless", "limited", "panics"];
    for name in names {
        jobs.schedule(name, Duration::ZERO, name.as_bytes())
            .await
            .unwrap();
    }
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |job: Arc<Job>| {
            let seen = seen.clone();
            async move {
                see(&seen, &job);
                assert_eq!(job.id().as_bytes(), job.payload());
                let calls = seen.lock().unwrap()[job.id()].len();
                match job.id() {
                    "fails" => Err(io::Error::other("no"))?,
                    "later" if calls == 1 => return Err(JobError::RetryAfter(20 * MS, "not yet".into())),
                    "worthless" => return Err(JobError::bury("of no use")),
                    "limited" if calls < 4 => return Err(JobError::Snooze(20 * MS)),
                    "panics" => panic!("as it does"),
                    _ => {}
                }
                Ok::<(), JobError>(())
            }
        }
    };
    let worker = jobs.worker().lease(HOUR).attempts(3).start();
    let run = worker.run(4, handler).backoff(10 * MS, 20 * MS);
    let (end, ended) = oneshot::channel();
    let run = tokio::spawn(run.until(async { ended.await.unwrap() }).into_future());
    counts_become(&jobs, 0, 0, 3).await;
    end.send(()).unwrap();
    soon(run).await.unwrap().unwrap();
    let seen = seen.lock().unwrap().clone();
    let of = |name| &seen[name][..];
    assert_eq!(of("done"), [1]);
    assert_eq!(of("fails"), [1, 2, 3]);
    assert_eq!(of("later"), [1, 2]);
    assert_eq!(of("worthless"), [1]);
    assert_eq!(of("limited"), [1, 1, 1, 1]);
    assert_eq!(of("panics"), [1, 2, 3]);
    let mut dead: Vec<(String, u32)> = jobs
        .dead(10)
        .await
        .unwrap()
        .iter()
        .map(|job| (job.id().to_owned(), job.attempts()))
        .collect();
    dead.sort();
    let expected = [("fails", 3), ("panics", 3), ("worthless", 1)].map(|(id, n)| (id.to_owned(), n));
    assert_eq!(dead, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_no_more_than_it_can_start() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..40 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (now, most) = (now.clone(), most.clone());
        move |_: Arc<Job>| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(20 * MS).await;
                now.fetch_sub(1, SeqCst);
                Ok::<(), JobError>(())
            }
        }
    };
    let run = tokio::spawn(jobs.worker().lease(HOUR).start().run(3, handler));
    counts_become(&jobs, 0, 0, 0).await;
    assert_eq!(most.load(SeqCst), 3);
    run.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_what_runs_is_finished_or_given_back() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for name in ["0-ends", "1-hangs", "2-waits", "3-waits"] {
        jobs.schedule(name, Duration::ZERO, b"").await.unwrap();
    }
    let handled = Arc::new(AtomicUsize::new(0));
    let handler = {
        let handled = handled.clone();
        move |job: Arc<Job>| {
            handled.fetch_add(1, SeqCst);
            async move {
                match job.id() {
                    "0-ends" => sleep(300 * MS).await,
                    _ => pending().await,
                }
                Ok::<(), io::Error>(())
            }
        }
    };
    let worker = jobs.worker().lease(HOUR).start();
    let (end, ended) = oneshot::channel();
    let run = worker
        .run(2, handler)
        .grace(SECOND)
        .until(async { ended.await.unwrap() });
    let run = tokio::spawn(run);
    // A job that counts as running may not have been handed over yet.
    until(|| async { handled.load(SeqCst) == 2 }).await;
    counts_become(&jobs, 2, 2, 0).await;
    end.send(()).unwrap();
    let began = Instant::now();
    soon(run).await.unwrap().unwrap();
    assert!(began.elapsed() >= SECOND - 20 * MS, "{:?}", began.elapsed());
    counts_become(&jobs, 3, 0, 0).await;
    // None of them has an attempt more.
    let mut worker = jobs.worker().lease(HOUR).start();
    for name in ["1-hangs", "2-waits", "3-waits"] {
        let job = support::jobs::next(&mut worker).await;
        assert_eq!((job.id(), job.attempt()), (name, 1));
        assert!(job.done().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_period_without_an_end_waits_for_what_runs() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("x", Duration::ZERO, b"").await.unwrap();
    let (began, has_begun) = oneshot::channel();
    let began = Mutex::new(Some(began));
    let handler = move |_: Arc<Job>| {
        began.lock().unwrap().take().unwrap().send(()).unwrap();
        async {
            sleep(100 * MS).await;
            Ok::<(), io::Error>(())
        }
    };
    let run = jobs.worker().start().run(1, handler).grace(Duration::MAX);
    soon(run.until(async { has_begun.await.unwrap() })).await.unwrap();
    counts_become(&jobs, 0, 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_hangs_is_dropped_at_its_time_limit() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    let handler = {
        let dropped = dropped.clone();
        move |_: Arc<Job>| {
            let count = Count(dropped.clone());
            async move {
                let _count = count;
                pending::<Result<(), JobError>>().await
            }
        }
    };
    let worker = jobs
        .worker()
        .lease(SECOND)
        .attempts(2)
        .time_limit(500 * MS)
        .start();
    let run = tokio::spawn(worker.run(1, handler));
    counts_become(&jobs, 0, 0, 1).await;
    assert_eq!(dropped.load(SeqCst), 2);
    run.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_after_an_outage() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = DelayedJobs::new(&Wheel::new(), connect(&proxy.url()).await, "q")
        .notifications(&Notifications::of(server.client()));
    for n in 0..200 {
        jobs.schedule(&format!("{n}"), n * 10 * MS, b"").await.unwrap();
    }
    let seen = Seen::default();
    let handler = {
        let seen = seen.clone();
        move |job: Arc<Job>| {
            see(&seen, &job);
            async { Ok::<(), JobError>(()) }
        }
    };
    let run = tokio::spawn(jobs.worker().lease(2 * SECOND).start().run(4, handler));
    for _ in 0..3 {
        sleep(300 * MS).await;
        proxy.set(Network::Down);
        sleep(300 * MS).await;
        proxy.set(Network::Up);
    }
    let direct = queue(&server, "q").await;
    counts_become(&direct, 0, 0, 0).await;
    assert!(!run.is_finished());
    assert_eq!(
        seen.lock().unwrap().len(),
        200,
        "each was run, some perhaps twice"
    );
    run.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_an_error_and_the_end_of_the_wheel_is_the_end() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = support::jobs::queue_on(&wheel, &server, "q").await;
    let handler = |_: Arc<Job>| async { Ok::<(), JobError>(()) };
    let error = soon(jobs.worker().attempts(0).start().run(1, handler))
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::InvalidSetting {
                setting: "attempts",
                ..
            }
        ),
        "{error}"
    );
    let run = tokio::spawn(jobs.worker().start().run(1, handler));
    sleep(100 * MS).await;
    assert!(!run.is_finished());
    wheel.shutdown();
    soon(run).await.unwrap().unwrap();
}

/// What it claimed has been given back when `run` ends, and nobody is told of jobs in its place. No job runs that a
/// grace period would be for.
#[tokio::test(flavor = "multi_thread")]
async fn when_it_ends_everything_has_been_given_back() {
    const JOBS: u64 = 20;
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..JOBS {
        jobs.schedule(&format!("{n}"), HOUR / 2, b"").await.unwrap();
    }
    for grace in [HOUR, Duration::ZERO] {
        let worker = jobs.worker().lease(HOUR).look_ahead(HOUR).prefetch(64).start();
        let (end, ended) = oneshot::channel();
        let run = worker
            .run(64, async |_| Ok::<(), JobError>(()))
            .grace(grace)
            .until(async { ended.await.unwrap() });
        let run = tokio::spawn(run);
        until(|| async { entries(&server, "claimed") == JOBS }).await;
        server.stop();
        end.send(()).unwrap();
        sleep(300 * MS).await;
        assert!(!run.is_finished(), "grace: {grace:?}");
        server.cont();
        soon(run).await.unwrap().unwrap();
        assert_eq!(
            (entries(&server, "claimed"), entries(&server, "due")),
            (0, JOBS),
            "grace: {grace:?}"
        );
        assert_eq!((entries(&server, "watching"), entries(&server, "idle")), (0, 0));
    }
}

/// A server that is silent keeps no program from its end.
#[tokio::test(flavor = "multi_thread")]
async fn the_grace_period_holds_with_a_server_that_is_silent() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    jobs.schedule("a", Duration::ZERO, b"").await.unwrap();
    let (began, has_begun) = oneshot::channel();
    let began = Mutex::new(Some(began));
    let handler = move |_: Arc<Job>| {
        began.lock().unwrap().take().unwrap().send(()).unwrap();
        pending::<Result<(), JobError>>()
    };
    let run = jobs.worker().start().run(1, handler).grace(SECOND);
    let (end, ended) = oneshot::channel();
    let run = tokio::spawn(run.until(async { ended.await.unwrap() }));
    has_begun.await.unwrap();
    server.stop();
    end.send(()).unwrap();
    // The lease of 30 s is not waited for.
    tokio::time::timeout(10 * SECOND, run)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    server.cont();
}

/// Places are not guessed: what is due at once starts at once.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_start_at_once_as_there_are_places() {
    const JOBS: usize = 64;
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let started = Arc::new(AtomicUsize::new(0));
    let handler = {
        let started = started.clone();
        move |_: Arc<Job>| {
            started.fetch_add(1, SeqCst);
            pending::<Result<(), JobError>>()
        }
    };
    let run = jobs.worker().lease(HOUR).start().run(JOBS, handler);
    let run = tokio::spawn(run);
    // It listens, and has the scripts.
    jobs.schedule("first", Duration::ZERO, b"").await.unwrap();
    until(|| async { started.load(SeqCst) == 1 }).await;
    sleep(300 * MS).await;
    let due = server.time() + SECOND;
    for n in 1..JOBS {
        assert!(jobs.schedule_at(&format!("{n}"), due, b"").await.unwrap());
    }
    // One more has no place.
    assert!(jobs.schedule("last", SECOND, b"").await.unwrap());
    let before = server.scripts_run();
    until(|| async { started.load(SeqCst) == JOBS }).await;
    let sent = server.scripts_run() - before;
    // Takes of up to 60 jobs and a start for each, and whatever a message or a sweep brings.
    assert!(sent <= 10, "{sent} commands to start {JOBS} jobs");
    counts_become(&jobs, 1, JOBS as u64, 0).await;
    run.abort();
}

/// Handlers may fail with anything that converts into a boxed error.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_fail_with_whatever_they_like() {
    type Boxed = Box<dyn std::error::Error + Send + Sync>;
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let mut expected = BTreeMap::new();
    macro_rules! fails_with {
        ($error:expr, $type:ty, $attempts:expr) => {{
            let id = stringify!($error);
            expected.insert(id.to_owned(), ($attempts, $error.to_string()));
            jobs.schedule(id, Duration::ZERO, b"").await.unwrap();
            let worker = jobs.worker().attempts(2).start();
            let run = worker
                .run(1, |_| async { Err::<(), $type>($error) })
                .backoff(MS, MS);
            let dead = expected.len() as u64;
            tokio::select! {
                ended = run => panic!("{ended:?}"),
                () = counts_become(&jobs, 0, 0, dead) => {}
            }
        }};
    }
    fails_with!("a text", &'static str, 2);
    fails_with!("a string".to_owned(), String, 2);
    fails_with!(io::Error::other("of the system"), io::Error, 2);
    fails_with!(Boxed::from("in a box"), Boxed, 2);
    fails_with!(JobError::bury("for good"), JobError, 1);
    fails_with!(Boxed::from(JobError::bury("for good, in a box")), Boxed, 1);
    fails_with!(Error::NoRuntime, Error, 2);
    for job in jobs.dead(10).await.unwrap() {
        let (attempts, error) = &expected[job.id()];
        assert_eq!(
            (job.attempts(), job.error()),
            (*attempts, Some(&**error)),
            "{}",
            job.id()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_closed_has_given_back_what_it_claimed() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..5 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let mut worker = jobs.worker().lease(HOUR).prefetch(5).start();
    let held = support::jobs::next(&mut worker).await;
    soon(worker.close()).await;
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.waiting, counts.running), (4, 1));
    assert_eq!(
        (
            entries(&server, "claimed"),
            entries(&server, "watching"),
            entries(&server, "idle")
        ),
        (0, 0, 0)
    );
    assert!(held.done().await.unwrap(), "what was yielded stays");
    // Without a server there is a limit.
    let worker = jobs.worker().start();
    server.stop();
    let began = Instant::now();
    soon(worker.close()).await;
    assert!(began.elapsed() < 20 * SECOND, "{:?}", began.elapsed());
    server.cont();
}

/// As a task does that a handler has spawned and that goes on after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_keeps_its_job_leaves_its_place_and_hears_that_it_is_over() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for id in ["first", "second"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    let over = Arc::new(AtomicUsize::new(0));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (over, kept) = (over.clone(), kept.clone());
        move |job: Arc<Job>| {
            let (over, lost) = (over.clone(), job.lost());
            tokio::spawn(async move {
                lost.await;
                over.fetch_add(1, SeqCst);
            });
            kept.lock().unwrap().push(job);
            async { Ok::<(), JobError>(()) }
        }
    };
    let run = tokio::spawn(jobs.worker().lease(HOUR).start().run(1, handler));
    until(|| async { over.load(SeqCst) == 2 }).await;
    counts_become(&jobs, 0, 0, 0).await;
    assert_eq!(kept.lock().unwrap().len(), 2);
    run.abort();
}
