//! Jobs that come again at the points of a grid.

mod support;

use support::prelude::*;

const EVERY: Duration = Duration::from_millis(300);

/// How many points of the grid lie after the first one, up to this one.
fn points_to(first: SystemTime, due: SystemTime, every: Duration) -> u32 {
    let micros = due.duration_since(first).unwrap().as_micros();
    assert_eq!(micros % every.as_micros(), 0, "not on the grid");
    (micros / every.as_micros()) as u32
}

/// A queue with the job "a" that is due now and every so often.
async fn repeating(server: Server, every: Duration) -> (Server, Jobs) {
    let jobs = server.queue().await;
    let repeated = jobs.repeat("a", NOW, every, b"payload").await;
    assert_eq!(repeated.unwrap(), Repeated::New);
    (server, jobs)
}

#[tokio::test]
async fn a_job_comes_at_each_point_of_its_grid_until_it_is_cancelled() {
    let (server, jobs) = Server::with_queue().await;
    let repeat = |first| jobs.repeat("a", first, EVERY, b"payload");
    let before = server.time();
    assert_eq!(repeat(200 * MS).await.unwrap(), Repeated::New);
    let after = server.time();
    assert_eq!(repeat(HOUR).await.unwrap(), Repeated::Same);
    assert!(!jobs.schedule("a", HOUR, b"other").await.unwrap());
    let mut worker = worker(&jobs);
    let mut first = None;
    for n in 0..6 {
        let job = next(&mut worker).await;
        assert!(server.time() >= job.due(), "early");
        assert_job(&job, "a", 1, b"payload");
        let first = *first.get_or_insert(job.due());
        assert!((before + 200 * MS..=after + 200 * MS).contains(&first));
        // On a loaded machine one may be late by more than a period.
        assert!(points_to(first, job.due(), EVERY) >= n);
        done(job).await;
        assert_eq!(counts(&jobs).await, [1, 0, 0]);
    }
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Waiting);
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Absent);
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
    idle_until(&mut worker, sleep(2 * EVERY)).await;
    for what in ["repeats", "payload", "state"] {
        assert!(!server.exists(&key(what)), "{what}");
    }
    // Its id is free, also for one that comes once.
    put(&jobs, ["a"], NOW).await;
    do_next(&mut worker).await;
    assert_eq!(counts(&jobs).await, [0, 0, 0]);
}

#[tokio::test]
async fn its_death_takes_the_id_of_no_other_job() {
    let (_server, jobs) = Server::with_queue().await;
    let repeated = jobs.repeat("a", NOW, HOUR, b"payload").await;
    assert_eq!(repeated.unwrap(), Repeated::New);
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let micros = job.due().duration_since(UNIX_EPOCH).unwrap().as_micros();
    let other = format!("a@{micros}");
    assert!(jobs.schedule(&other, NOW, b"other").await.unwrap());
    assert!(job.bury().await.unwrap());
    assert_eq!(counts(&jobs).await, [2, 0, 1]);
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead[0].payload(), b"payload");
    assert!(
        dead[0].id().starts_with(&other) && dead[0].id() != other,
        "{dead:?}"
    );
    assert!(jobs.purge(dead[0].id()).await.unwrap());
    let job = next(&mut worker).await;
    assert_job(&job, &other, 1, b"other");
    done(job).await;
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn points_without_a_worker_are_made_up_by_one() {
    let every = 2 * SECOND;
    let (server, jobs) = repeating(Server::start(), every).await;
    // As if no worker had been there for an hour and a second.
    let past = server.time() - HOUR - SECOND;
    let micros = past.duration_since(UNIX_EPOCH).unwrap().as_micros().to_string();
    let _: i64 = server.command(&["ZADD", &key("due"), &micros, "a"]);
    let grid = format!("{micros} {}", every.as_micros());
    let _: i64 = server.command(&["HSET", &key("repeats"), "a", &grid]);
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let first = job.due();
    done(job).await;
    let ended = server.time();
    let job = next(&mut worker).await;
    assert!(points_to(first, job.due(), every) >= 1801);
    assert!(job.due() > ended, "one made up for all");
    done(job).await;
}

#[tokio::test]
async fn points_that_pass_while_it_runs_are_made_up_by_one() {
    let every = SECOND;
    let (server, jobs) = repeating(Server::start(), every).await;
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let first = job.due();
    // "Never two at once": nothing comes while it runs.
    idle_until(&mut worker, sleep(2 * every + 300 * MS)).await;
    let before = server.time();
    done(job).await;
    let job = next(&mut worker).await;
    let made_up = points_to(first, job.due(), every);
    assert!(made_up >= 2 && job.due() <= before, "{made_up}");
    done(job).await;
    let ended = server.time();
    let job = next(&mut worker).await;
    assert!(points_to(first, job.due(), every) > made_up);
    assert!(job.due() + every > ended);
    done(job).await;
}

#[tokio::test]
async fn its_death_is_a_job_of_its_own_and_the_grid_goes_on() {
    let (_server, jobs) = repeating(Server::start(), EVERY).await;
    let payload = &b"payload"[..];
    let mut worker = jobs.worker().lease(HOUR).attempts(2).start();
    let job = next(&mut worker).await;
    let first = job.due();
    assert!(job.retry_after(50 * MS).await.unwrap());
    let job = next(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    assert!(job.retry_after(HOUR).await.unwrap());
    let job = next(&mut worker).await;
    assert_job(&job, "a", 1, payload);
    assert!(points_to(first, job.due(), EVERY) >= 1);
    assert!(job.bury().await.unwrap());
    let dead = jobs.dead(10).await.unwrap();
    assert_eq!(dead.len(), 2);
    for (dead, attempts) in dead.iter().zip([2, 1]) {
        assert!(dead.id().starts_with("a@"), "{}", dead.id());
        assert_eq!((dead.payload(), dead.attempts()), (payload, attempts));
    }
    assert!(jobs.purge(dead[0].id()).await.unwrap());
    assert!(jobs.revive(dead[1].id()).await.unwrap());
    let mut seen = next_jobs(&mut worker).await;
    seen.sort_by_key(|job| job.id() != "a");
    let [repeated, revived] = seen;
    assert_eq!((revived.id(), revived.payload()), (dead[1].id(), payload));
    done(revived).await;
    done(repeated).await;
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

/// When the first job is due.
async fn due(jobs: &Jobs) -> SystemTime {
    jobs.waiting(0, 1).await.unwrap()[0].due
}

#[tokio::test]
async fn a_job_that_waits_is_changed_and_its_next_point_stays() {
    let (_server, jobs) = Server::with_queue().await;
    let repeat = |first, every, payload: &'static [u8]| jobs.repeat("a", first, every, payload);
    assert_eq!(repeat(HOUR, HOUR, b"old").await.unwrap(), Repeated::New);
    let point = due(&jobs).await;
    assert_eq!(repeat(SECOND, HOUR, b"old").await.unwrap(), Repeated::Same);
    assert_eq!(repeat(SECOND, 2 * HOUR, b"old").await.unwrap(), Repeated::Changed);
    assert_eq!(repeat(SECOND, 2 * HOUR, b"new").await.unwrap(), Repeated::Changed);
    assert_eq!(repeat(SECOND, 2 * HOUR, b"new").await.unwrap(), Repeated::Same);
    assert_eq!(due(&jobs).await, point);
    // Whatever moves one delivery leaves the grid.
    assert!(jobs.reschedule("a", NOW).await.unwrap());
    let job = next(&mut worker(&jobs)).await;
    assert_eq!(job.payload(), b"new");
    done(job).await;
    assert_eq!(due(&jobs).await, point);
    put(&jobs, ["once"], HOUR).await;
    let taken = jobs.repeat("once", SECOND, SECOND, b"").await.unwrap();
    assert_eq!(taken, Repeated::Taken);
    let _ = repeat(SECOND, EVERY, b"new").await.unwrap();
    assert_eq!(counts(&jobs).await, [2, 0, 0]);
}

#[tokio::test]
async fn a_job_that_runs_is_changed_and_its_next_point_stays() {
    let (_server, jobs) = repeating(Server::start(), HOUR).await;
    let repeat = |every| jobs.repeat("a", NOW, every, b"payload");
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    let point = job.due();
    assert_eq!(repeat(SECOND).await.unwrap(), Repeated::Changed);
    assert_eq!(repeat(SECOND).await.unwrap(), Repeated::Same);
    done(job).await;
    // The hour that had begun is not cut short.
    assert_eq!(due(&jobs).await, point + HOUR);
    // One that is put off goes on with the grid, too.
    assert!(jobs.reschedule("a", NOW).await.unwrap());
    assert!(next(&mut worker).await.retry_after(MINUTE).await.unwrap());
    assert_eq!(repeat(2 * HOUR).await.unwrap(), Repeated::Changed);
    assert!(jobs.reschedule("a", NOW).await.unwrap());
    do_next(&mut worker).await;
    assert_eq!(due(&jobs).await, point + HOUR);
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn a_claim_is_not_delivered_with_an_old_payload() {
    let (server, jobs) = Server::with_queue().await;
    let repeat = |payload: &'static [u8]| jobs.repeat("a", 2 * SECOND, HOUR, payload);
    assert_eq!(repeat(b"old").await.unwrap(), Repeated::New);
    let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
    idle_until(&mut worker, claimed(&server, 1)).await;
    // These are answered behind the take, so its answer is in the worker's hands then.
    for _ in 0..2 {
        assert_eq!(counts(&jobs).await, [1, 0, 0]);
    }
    assert_eq!(repeat(b"new").await.unwrap(), Repeated::Changed);
    let job = next(&mut worker).await;
    assert_job(&job, "a", 1, b"new");
    done(job).await;
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn repeated_after_it_was_cancelled_while_it_runs_it_comes_after_that() {
    let (_server, jobs) = repeating(Server::start(), HOUR).await;
    let repeat = || jobs.repeat("a", NOW, HOUR, b"new");
    let mut worker = worker(&jobs);
    let job = next(&mut worker).await;
    assert_eq!(jobs.cancel("a").await.unwrap(), Cancelled::Running);
    assert!(!jobs.schedule("a", HOUR, b"").await.unwrap(), "its id is taken");
    assert_eq!(repeat().await.unwrap(), Repeated::New);
    assert_eq!(repeat().await.unwrap(), Repeated::Same);
    soon(job.lost()).await;
    idle_until(&mut worker, sleep(500 * MS)).await;
    drop(job);
    let job = next(&mut worker).await;
    assert_job(&job, "a", 1, b"new");
    done(job).await;
    assert_eq!(counts(&jobs).await, [1, 0, 0]);
}

#[tokio::test]
async fn it_survives_the_death_of_its_worker_and_a_restart() {
    let (mut server, jobs) = repeating(Server::start_aof(), EVERY).await;
    let mut dying = jobs.worker().lease(SECOND).start();
    let job = next(&mut dying).await;
    let first = job.due();
    drop((job, dying));
    server.restart();
    let mut worker = worker(&server.queue().await);
    let job = next_after_errors(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    done(job).await;
    for _ in 0..3 {
        let job = next_after_errors(&mut worker).await;
        assert_eq!(job.attempt(), 1);
        assert!(points_to(first, job.due(), EVERY) >= 1);
        done(job).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn never_two_at_once_and_on_time_without_notifications() {
    let server = Server::start();
    let jobs = unnotified(server.connect().await).partitions(2);
    for id in ["0", "1", "2", "3"] {
        let repeated = jobs.repeat(id, 100 * MS, EVERY, b"").await;
        assert_eq!(repeated.unwrap(), Repeated::New);
    }
    let running = [(); 4].map(|()| AtomicUsize::new(0));
    let deliveries = AtomicUsize::new(0);
    let work = join_all((0..3).map(|_| {
        worker(&jobs).for_each_concurrent(2, async |job| {
            let job = job.unwrap();
            let running = &running[job.id().parse::<usize>().unwrap()];
            assert_eq!(running.fetch_add(1, SeqCst), 0, "two at once");
            sleep(20 * MS).await;
            running.fetch_sub(1, SeqCst);
            done(job).await;
            deliveries.fetch_add(1, SeqCst);
        })
    }));
    let began = Instant::now();
    tokio::select! {
        _ = work => unreachable!(),
        () = until(|| async { deliveries.load(SeqCst) >= 40 }) => {}
    }
    // Ten rounds of 300 ms; a sweep would bring each after up to five seconds.
    println!("40 deliveries in {:?}", began.elapsed());
    assert!(began.elapsed() < 10 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn what_is_not_allowed() {
    let (_server, jobs) = Server::with_queue().await;
    let error = jobs.repeat("a", SECOND, MS / 2, b"").await.unwrap_err();
    assert_is!(error, Error::InvalidSetting { setting, .. } if *setting == "every");
    let too_long = "x".repeat(1001);
    let error = jobs.repeat(&too_long, SECOND, SECOND, b"").await.unwrap_err();
    assert!(matches!(error, Error::InvalidName { .. }), "{error}");
    let longest = "x".repeat(1000);
    let repeated = jobs.repeat(&longest, NOW, HOUR, b"").await;
    assert_eq!(repeated.unwrap(), Repeated::New);
    assert!(next(&mut worker(&jobs)).await.bury().await.unwrap());
    assert_eq!(jobs.dead(1).await.unwrap()[0].id().len(), 1017);
    assert_eq!(jobs.cancel(&longest).await.unwrap(), Cancelled::Waiting);
}
