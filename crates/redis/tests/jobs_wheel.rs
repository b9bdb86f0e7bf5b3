//! The wheel's part in delayed jobs: which jobs are held on it, and which requests it saves.

use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt, future::join_all};
use support::{
    connect,
    jobs::{entries, next, queue, queue_on},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_redis::DelayedJobs;
use tokio::{
    runtime::Handle,
    sync::{broadcast, mpsc::unbounded_channel},
    time::sleep,
};

mod support;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn an_idle_worker_sends_less_than_a_command_a_second() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = queue_on(&wheel, &server, "q").await;
    // Something to wait for makes no difference.
    jobs.schedule("later", HOUR, b"").await.unwrap();
    let mut worker = jobs.worker().look_ahead(SECOND).start();
    assert!(worker.next().now_or_never().is_none());
    // The queue is opened, the subscription made, and the first look had.
    sleep(SECOND).await;
    let (before, began) = (server.scripts_run(), Instant::now());
    sleep(7 * SECOND).await;
    let (sent, passed) = (server.scripts_run() - before, began.elapsed().as_secs_f64());
    // One in five seconds, and one at the edge of the time that was watched.
    assert!(sent as f64 <= passed / 4.9 + 1.0, "{sent} commands in {passed} s");
    assert!(sent >= 1, "no sweep: {sent} commands in {passed} s");
    assert!(worker.next().now_or_never().is_none());
}

#[tokio::test]
async fn what_is_claimed_ahead_is_held_on_the_wheel_and_costs_one_command_when_it_is_due() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = queue_on(&wheel, &server, "q").await;
    let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
    assert!(worker.next().now_or_never().is_none());
    // It has looked, and waits for its next sweep.
    until(|| async { server.scripts_run() >= 2 && wheel.pending() == 1 }).await;
    jobs.schedule("a", 8 * SECOND, b"").await.unwrap();
    jobs.schedule("b", HOUR / 2, b"").await.unwrap();
    // One timer for all that is held, and one for whatever the worker does next.
    until(|| async { entries(&server, "claimed") == 2 && wheel.pending() == 2 }).await;
    let before = server.scripts_run();
    let began = Instant::now();
    let job = next(&mut worker).await;
    assert_eq!(job.id(), "a");
    // The start, and sweeps; and a look that the message of "b" still brought.
    let sweeps = (began.elapsed().as_secs_f64() / 4.9) as u64 + 1;
    let sent = server.scripts_run() - before;
    assert!(sent <= 1 + sweeps + 1, "{sent} commands");

    // What is held counts as waiting, and can be taken away.
    assert_eq!(jobs.counts().await.unwrap().waiting, 1);
    assert!(jobs.reschedule("b", Duration::ZERO).await.unwrap());
    assert_eq!(next(&mut worker).await.id(), "b");
}

#[tokio::test]
async fn what_is_due_at_one_tick_is_started_by_one_command() {
    const JOBS: u64 = 40;
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let places = JOBS as usize;
    let mut worker = jobs
        .worker()
        .lease(HOUR)
        .concurrency(places)
        .look_ahead(HOUR)
        .start();
    // The server has the scripts after this.
    jobs.schedule("first", Duration::ZERO, b"").await.unwrap();
    assert!(next(&mut worker).await.done().await.unwrap());
    let mut held = Vec::new();
    let due = server.time() + 4 * SECOND;
    join_all((0..JOBS).map(|n| {
        let jobs = jobs.clone();
        async move { jobs.schedule_at(&format!("second-{n}"), due, b"").await.unwrap() }
    }))
    .await;
    assert!(worker.next().now_or_never().is_none());
    until(|| async { entries(&server, "claimed") == JOBS }).await;
    let (before, began) = (server.scripts_run(), Instant::now());
    while held.len() < JOBS as usize {
        held.push(next(&mut worker).await);
    }
    // One, where the wheel wakes all before the first goes; a second, where not; and sweeps.
    let sweeps = (began.elapsed().as_secs_f64() / 4.9) as u64 + 1;
    let sent = server.scripts_run() - before;
    assert!(sent <= 2 + sweeps, "{sent} commands to start {JOBS} jobs");
}

/// Jobs that are due later wait in Redis for whichever worker has a place for them.
#[tokio::test]
async fn no_more_is_claimed_ahead_than_the_worker_has_places_free() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let worker = jobs
        .worker()
        .lease(HOUR)
        .concurrency(4)
        .look_ahead(HOUR / 2)
        .start();
    let (started, mut starts) = unbounded_channel();
    let (go_on, _) = broadcast::channel(4);
    let consumer = tokio::spawn(worker.for_each_concurrent(4, {
        let go_on = go_on.clone();
        move |job| {
            started.send(()).unwrap();
            let mut ends = go_on.subscribe();
            async move {
                ends.recv().await.unwrap();
                assert!(job.unwrap().done().await.unwrap());
            }
        }
    }));
    for round in 0..4 {
        for n in 0..4 {
            jobs.schedule(&format!("{round}-{n}"), Duration::ZERO, b"")
                .await
                .unwrap();
            soon(starts.recv()).await.unwrap();
        }
        go_on.send(()).unwrap();
        until(|| async { jobs.counts().await.unwrap().running == 0 }).await;
    }
    for n in 0..2 {
        jobs.schedule(&format!("long-{n}"), Duration::ZERO, b"")
            .await
            .unwrap();
        soon(starts.recv()).await.unwrap();
    }
    // It starts nothing soon.
    sleep(SECOND).await;
    for n in 0..20 {
        jobs.schedule(&format!("later-{n}"), HOUR / 4, b"").await.unwrap();
    }
    until(|| async { entries(&server, "claimed") > 0 }).await;
    // A sweep later, and whatever it was told of.
    sleep(6 * SECOND).await;
    assert_eq!(entries(&server, "claimed"), 2, "two of its four places are free");
    drop(consumer);
}

#[tokio::test]
async fn without_look_ahead_the_next_due_time_is_waited_for_on_the_wheel() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = queue_on(&wheel, &server, "q").await;
    let mut worker = jobs.worker().lease(HOUR).start();
    for n in 0..5 {
        jobs.schedule(&format!("{n}"), 300 * MS * (n + 1), b"")
            .await
            .unwrap();
    }
    let before = server.scripts_run();
    let mut polls = 0;
    let began = Instant::now();
    for n in 0..5 {
        let job = next(&mut worker).await;
        assert_eq!(job.id(), format!("{n}"));
        job.done().await.unwrap();
        polls += 3;
    }
    // A take, a start and a done for each; the first look, the subscription's, and sweeps.
    let sweeps = (began.elapsed().as_secs_f64() / 4.9) as u64 + 1;
    let sent = server.scripts_run() - before;
    assert!(sent <= polls + 4 + sweeps, "{sent} commands");
}

#[tokio::test]
async fn running_jobs_are_renewed_in_batches_by_one_timer_and_no_task_each() {
    const JOBS: u64 = 300;
    let lease = 3 * SECOND;
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = queue_on(&wheel, &server, "q").await;
    join_all((0..JOBS).map(|n| {
        let jobs = jobs.clone();
        async move { jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap() }
    }))
    .await;
    let mut worker = jobs.worker().lease(lease).start();
    let mut held = Vec::new();
    while held.len() < JOBS as usize {
        held.push(next(&mut worker).await);
    }
    assert_eq!(jobs.counts().await.unwrap().running, JOBS);
    let (before, began) = (server.scripts_run(), Instant::now());
    sleep(2 * lease).await;
    let sent = server.scripts_run() - before;
    // Three rounds in a lease, a quarter sooner at most, of a command for each hundred jobs.
    let rounds = began.elapsed().as_secs_f64() / (lease.as_secs_f64() / 3.0 * 0.75) + 1.0;
    let most = rounds * (JOBS as f64 / 100.0 + 1.0) + began.elapsed().as_secs_f64();
    assert!(sent as f64 <= most, "{sent} commands, at most {most}");
    assert!(wheel.pending() < 10, "{} timers", wheel.pending());
    let tasks = Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 20, "{tasks} tasks");
    for job in held {
        assert!(job.lost().now_or_never().is_none());
        assert!(job.done().await.unwrap());
    }
}

#[tokio::test]
async fn many_jobs_at_once_cost_less_than_a_command_each() {
    const JOBS: u64 = 1000;
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    // It is open. On a slow machine each of the calls would look for itself.
    jobs.counts().await.unwrap();
    let before = server.scripts_run();
    join_all((0..JOBS).map(|n| {
        let jobs = jobs.clone();
        async move { jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap() }
    }))
    .await;
    let worker = jobs.worker().lease(HOUR).concurrency(64).start();
    soon(
        worker
            .take(JOBS as usize)
            .for_each_concurrent(64, async |job| assert!(job.unwrap().done().await.unwrap())),
    )
    .await;
    // A schedule, a start and a done for each, and takes.
    let sent = server.scripts_run() - before;
    println!("{sent} commands for {JOBS} jobs");
    assert!(sent < JOBS / 2, "{sent} commands for {JOBS} jobs");
}

/// The next jobs are started by the command that finishes those before.
#[tokio::test]
async fn a_busy_worker_sends_one_command_for_as_many_jobs_as_it_has_places() {
    const JOBS: u64 = 800;
    const PLACES: u64 = 8;
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    join_all((0..JOBS).map(|n| {
        let jobs = jobs.clone();
        async move { jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap() }
    }))
    .await;
    let before = server.scripts_run();
    let worker = jobs.worker().lease(HOUR).concurrency(PLACES as usize).start();
    soon(
        worker
            .take(JOBS as usize)
            .for_each_concurrent(PLACES as usize, async |job| {
                assert!(job.unwrap().done().await.unwrap());
            }),
    )
    .await;
    let sent = server.scripts_run() - before;
    println!("{sent} commands for {JOBS} jobs");
    // And takes of 16 jobs or more.
    assert!(sent < JOBS / PLACES * 7 / 4, "{sent} commands for {JOBS} jobs");
}

#[tokio::test]
async fn a_lost_notification_delays_by_no_more_than_the_sweep() {
    let server = Server::start();
    let wheel = Wheel::new();
    // Nobody listens.
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "q").partitions(3);
    let mut worker = jobs.worker().lease(HOUR).start();
    assert!(worker.next().now_or_never().is_none());
    sleep(200 * MS).await;
    for n in 0..6 {
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
    }
    let began = Instant::now();
    for _ in 0..6 {
        assert!(next(&mut worker).await.done().await.unwrap());
    }
    // Five seconds, and what a loaded machine adds.
    assert!(began.elapsed() < 15 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_notification_is_not_waited_for() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = queue_on(&wheel, &server, "q").await;
    let mut worker = jobs.worker().lease(HOUR).start();
    assert!(worker.next().now_or_never().is_none());
    sleep(SECOND).await;
    for n in 0..20 {
        // While the subscription is cut again and again.
        let _: u64 = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        jobs.schedule(&format!("{n}"), Duration::ZERO, b"").await.unwrap();
        let job = next(&mut worker).await;
        assert_eq!(job.id(), format!("{n}"));
        job.done().await.unwrap();
    }
}
