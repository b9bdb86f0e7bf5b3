//! `Worker::run`: what becomes of jobs by the outcome of their handler.

mod support;

use std::{fmt, future::pending, io};

use support::prelude::*;

/// The attempts that were seen of each job.
type Seen = Mutex<BTreeMap<String, Vec<u32>>>;

/// Returns how often the job was seen before.
fn see(seen: &Seen, job: &Job) -> usize {
    let mut seen = seen.lock().unwrap();
    let attempts = seen.entry(job.id().to_owned()).or_default();
    attempts.push(job.attempt());
    attempts.len() - 1
}

/// Waits until so many handlers have begun.
async fn have_begun(begun: &AtomicUsize, count: usize) {
    until(|| async { begun.load(SeqCst) == count }).await;
}

/// A handler that tells that it begins, and does not end.
async fn hang(begun: &AtomicUsize) -> Result<(), JobError> {
    begun.fetch_add(1, SeqCst);
    pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_ends_as_its_handler_says() {
    let (_server, jobs) = Server::with_queue().await;
    for name in ["done", "fails", "later", "worthless", "limited", "panics"] {
        jobs.schedule(name, NOW, name.as_bytes()).await.unwrap();
    }
    static SEEN: Seen = Mutex::new(BTreeMap::new());
    let handler = async |job: Arc<Job>| {
        let before = see(&SEEN, &job);
        assert_eq!(job.id().as_bytes(), job.payload());
        match job.id() {
            "fails" => Err(io::Error::other("no"))?,
            "later" if before == 0 => return Err(JobError::RetryAfter(20 * MS, "not yet".into())),
            "worthless" => return Err(JobError::bury("of no use")),
            "limited" if before < 3 => return Err(JobError::Snooze(20 * MS)),
            "panics" => panic!("as it does"),
            _ => {}
        }
        Ok::<(), JobError>(())
    };
    let worker = jobs.worker().lease(HOUR).attempts(3).start();
    let run = Running::start(worker.run(4, handler).backoff(10 * MS, 20 * MS));
    counts_become(&jobs, [0, 0, 3]).await;
    ended(run.end()).await;
    let expected = [
        ("done", &[1][..]),
        ("fails", &[1, 2, 3]),
        ("later", &[1, 2]),
        ("limited", &[1, 1, 1, 1]),
        ("panics", &[1, 2, 3]),
        ("worthless", &[1]),
    ];
    let expected = expected.map(|(id, attempts)| (id.to_owned(), attempts.to_vec()));
    assert_eq!(*SEEN.lock().unwrap(), expected.into());
    let dead = jobs.dead(10).await.unwrap();
    let dead = dead.iter().map(|job| (job.id().to_owned(), job.attempts()));
    let mut dead: Vec<_> = dead.collect();
    dead.sort();
    assert_eq!(dead, deliveries([("fails", 3), ("panics", 3), ("worthless", 1)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_no_more_than_it_can_start() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, 0..40, NOW).await;
    static NOW_AND_MOST: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    let handler = async |_| {
        let [now, most] = &NOW_AND_MOST;
        most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
        sleep(20 * MS).await;
        now.fetch_sub(1, SeqCst);
        Ok::<(), JobError>(())
    };
    let run = Running::start(worker(&jobs).run(3, handler));
    counts_become(&jobs, [0, 0, 0]).await;
    assert_eq!(NOW_AND_MOST[1].load(SeqCst), 3);
    ended(run.end()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_end_what_runs_is_finished_or_given_back() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["0-ends", "1-hangs", "2-waits", "3-waits"], NOW).await;
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    let handler = async |job: Arc<Job>| match job.id() {
        "0-ends" => timeout(300 * MS, hang(&BEGUN)).await.unwrap_or(Ok(())),
        _ => hang(&BEGUN).await,
    };
    let run = Running::start(worker(&jobs).run(2, handler).grace(SECOND));
    // A job that counts as running may not have been handed over yet.
    have_begun(&BEGUN, 2).await;
    counts_become(&jobs, [2, 2, 0]).await;
    let began = Instant::now();
    ended(run.end()).await;
    assert!(began.elapsed() >= SECOND - 20 * MS, "{:?}", began.elapsed());
    counts_become(&jobs, [3, 0, 0]).await;
    // None of them has an attempt more.
    let mut worker = worker(&jobs);
    for name in ["1-hangs", "2-waits", "3-waits"] {
        assert_eq!(do_next(&mut worker).await, (name.to_owned(), 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grace_period_without_an_end_waits_for_what_runs() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["x"], NOW).await;
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    let handler = async |_| timeout(100 * MS, hang(&BEGUN)).await.unwrap_or(Ok(()));
    let run = Running::start(jobs.worker().start().run(1, handler).grace(Duration::MAX));
    have_begun(&BEGUN, 1).await;
    ended(run.end()).await;
    counts_become(&jobs, [0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_after_an_outage() {
    let (server, proxy) = Server::with_proxy().await;
    let jobs = unnotified(connect(&proxy.url()).await).notifications(&Notifications::of(server.client()));
    for n in 0..200 {
        put(&jobs, [n], n * 10 * MS).await;
    }
    static SEEN: Seen = Mutex::new(BTreeMap::new());
    let handler = async |job: Arc<Job>| {
        see(&SEEN, &job);
        Ok::<(), JobError>(())
    };
    let worker = jobs.worker().lease(2 * SECOND).start();
    let run = tokio::spawn(worker.run(4, handler).into_future());
    for _ in 0..3 {
        sleep(300 * MS).await;
        proxy.set(Network::Down);
        sleep(300 * MS).await;
        proxy.set(Network::Up);
    }
    counts_become(&server.queue().await, [0, 0, 0]).await;
    assert!(!run.is_finished());
    // Each was run, some perhaps twice.
    assert_eq!(SEEN.lock().unwrap().len(), 200);
    run.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_an_error_and_the_end_of_the_wheel_is_the_end() {
    let (_server, wheel, jobs) = Server::with_wheel().await;
    let handler = async |_| Ok::<(), JobError>(());
    let error = soon(jobs.worker().attempts(0).start().run(1, handler))
        .await
        .unwrap_err();
    assert_is!(error, Error::InvalidSetting { setting, .. } if *setting == "attempts");
    let run = tokio::spawn(jobs.worker().start().run(1, handler).into_future());
    sleep(100 * MS).await;
    assert!(!run.is_finished());
    wheel.shutdown();
    ended(run).await;
}

/// What it claimed has been given back when `run` ends, and nobody is told of jobs in its place. No job runs that a
/// grace period would be for.
#[tokio::test(flavor = "multi_thread")]
async fn when_it_ends_everything_has_been_given_back() {
    const JOBS: u64 = 20;
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, 0..JOBS, HOUR / 2).await;
    for grace in [HOUR, NOW] {
        let worker = jobs.worker().lease(HOUR).look_ahead(HOUR).prefetch(64).start();
        let run = Running::start(worker.run(64, async |_| Ok::<(), JobError>(())).grace(grace));
        claimed(&server, JOBS).await;
        server.stop();
        let run = run.end();
        sleep(300 * MS).await;
        assert!(!run.is_finished(), "grace: {grace:?}");
        server.cont();
        ended(run).await;
        let left = ["claimed", "due", "watching", "idle"].map(|set| entries(&server, set));
        assert_eq!(left, [0, JOBS, 0, 0], "grace: {grace:?}");
    }
}

/// A server that is silent keeps no program from its end.
#[tokio::test(flavor = "multi_thread")]
async fn the_grace_period_holds_with_a_server_that_is_silent() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    let handler = async |_| hang(&BEGUN).await;
    let run = Running::start(jobs.worker().start().run(1, handler).grace(SECOND));
    have_begun(&BEGUN, 1).await;
    server.stop();
    // The lease of 30 s is not waited for.
    timeout(10 * SECOND, ended(run.end())).await.unwrap();
    server.cont();
}

/// Places are not guessed: what is due at once starts at once.
#[tokio::test(flavor = "multi_thread")]
async fn as_many_start_at_once_as_there_are_places() {
    const JOBS: usize = 64;
    let (server, jobs) = Server::with_queue().await;
    static BEGUN: AtomicUsize = AtomicUsize::new(0);
    let handler = async |_| hang(&BEGUN).await;
    let run = tokio::spawn(worker(&jobs).run(JOBS, handler).into_future());
    // It listens, and has the scripts.
    put(&jobs, ["first"], NOW).await;
    have_begun(&BEGUN, 1).await;
    sleep(300 * MS).await;
    let due = server.time() + SECOND;
    for n in 1..JOBS {
        assert!(jobs.schedule_at(&n.to_string(), due, b"").await.unwrap());
    }
    // One more has no place.
    put(&jobs, ["last"], SECOND).await;
    let before = server.scripts_run();
    have_begun(&BEGUN, JOBS).await;
    let sent = server.scripts_run() - before;
    // Takes of up to 60 jobs and a start for each, and whatever a message or a sweep brings.
    assert!(sent <= 10, "{sent} commands to start {JOBS} jobs");
    counts_become(&jobs, [1, JOBS as u64, 0]).await;
    run.abort();
}

/// Handlers may fail with anything that converts into a boxed error. A job keeps that of its last attempt, cut to a
/// kilobyte.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_fail_with_whatever_they_like() {
    fn panics() -> JobError {
        panic!("as it does")
    }
    #[derive(Debug)]
    struct Unspeakable;
    impl fmt::Display for Unspeakable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("it has no text")
        }
    }
    impl std::error::Error for Unspeakable {}
    type Boxed = Box<dyn std::error::Error + Send + Sync>;
    let (server, jobs) = Server::with_queue().await;
    let before = server.time();
    let mut expected = BTreeMap::new();
    macro_rules! fails_with {
        ($error:expr, $type:ty, $attempts:expr) => {
            fails_with!($error, $type, $attempts, $error)
        };
        ($error:expr, $type:ty, $attempts:expr, $kept:expr) => {{
            let id = stringify!($error);
            expected.insert(id.to_owned(), ($attempts, $kept.to_string()));
            put(&jobs, [id], NOW).await;
            let worker = jobs.worker().attempts(2).start();
            let run = worker.run(1, |_| async { Err::<(), $type>($error) });
            let dead = expected.len() as u64;
            tokio::select! {
                ended = run.backoff(MS, MS).into_future() => panic!("{ended:?}"),
                () = counts_become(&jobs, [0, 0, dead]) => {}
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
    fails_with!(panics(), JobError, 2, "the handler panicked: as it does");
    fails_with!(
        Unspeakable,
        Unspeakable,
        2,
        "the handler panicked: it has no text"
    );
    fails_with!(
        JobError::bury(Unspeakable),
        JobError,
        1,
        "the handler panicked: it has no text"
    );
    fails_with!("ж".repeat(4000), String, 2, "ж".repeat(512));
    let dead = jobs.dead(10).await.unwrap();
    let after = server.time();
    for job in dead {
        let (attempts, error) = &expected[job.id()];
        println!("{job:?}");
        assert_eq!((job.attempts(), job.error()), (*attempts, Some(&**error)));
        assert!((before..=after).contains(&job.died_at()), "{job:?}");
        let info = jobs.get(job.id()).await.unwrap().unwrap();
        assert_eq!((info.state, info.error.as_ref()), (JobState::Dead, Some(error)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_waits_with_the_error_of_its_last_attempt() {
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["a"], NOW).await;
    let handler = async |job: Arc<Job>| Err::<(), _>(format!("attempt {}", job.attempt()));
    let worker = jobs.worker().lease(HOUR).attempts(3).start();
    let run = Running::start(worker.run(1, handler).backoff(500 * MS, SECOND));
    for attempt in 1..=2 {
        let expected = (JobState::Waiting, Some(format!("attempt {attempt}")));
        until(|| async {
            let info = jobs.get("a").await.unwrap().unwrap();
            (info.state, info.error) == expected
        })
        .await;
    }
    counts_become(&jobs, [0, 0, 1]).await;
    assert_eq!(jobs.dead(1).await.unwrap()[0].error(), Some("attempt 3"));
    let info = jobs.get("a").await.unwrap().unwrap();
    assert_eq!(info.error.as_deref(), Some("attempt 3"));
    ended(run.end()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_closed_has_given_back_what_it_claimed() {
    let (server, jobs) = Server::with_queue().await;
    put(&jobs, 0..5, NOW).await;
    let mut worker = jobs.worker().lease(HOUR).prefetch(5).start();
    let held = next(&mut worker).await;
    soon(worker.close()).await;
    assert_eq!(counts(&jobs).await, [4, 1, 0]);
    let left = ["claimed", "watching", "idle"].map(|set| entries(&server, set));
    assert_eq!(left, [0; 3]);
    // What was yielded stays.
    done(held).await;
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
    let (_server, jobs) = Server::with_queue().await;
    put(&jobs, ["first", "second"], NOW).await;
    static OVER: AtomicUsize = AtomicUsize::new(0);
    static KEPT: Mutex<Vec<Arc<Job>>> = Mutex::new(Vec::new());
    let handler = async |job: Arc<Job>| {
        let lost = job.lost();
        tokio::spawn(async {
            lost.await;
            OVER.fetch_add(1, SeqCst);
        });
        let hangs = job.id() == "third";
        KEPT.lock().unwrap().push(job);
        if hangs {
            pending::<()>().await;
        }
        Ok::<(), JobError>(())
    };
    let run = tokio::spawn(worker(&jobs).run(1, handler).into_future());
    until(|| async { OVER.load(SeqCst) == 2 }).await;
    counts_become(&jobs, [0, 0, 0]).await;
    put(&jobs, ["third"], NOW).await;
    until(|| async { KEPT.lock().unwrap().len() == 3 }).await;
    assert_eq!(OVER.load(SeqCst), 2);
    // Its handler is dropped with the run.
    run.abort();
    until(|| async { OVER.load(SeqCst) == 3 }).await;
}
