//! The wheel's part in delayed jobs: which jobs wait on it, and which requests it saves.

mod support;

use support::prelude::*;
use tokio::sync::{broadcast, mpsc::unbounded_channel};

/// The commands that a server is sent from now on.
struct Sent<'a> {
    server: &'a Server,
    before: u64,
    began: Instant,
}

impl Sent<'_> {
    fn to(server: &Server) -> Sent<'_> {
        Sent {
            server,
            before: server.scripts_run(),
            began: Instant::now(),
        }
    }

    fn count(&self) -> u64 {
        self.server.scripts_run() - self.before
    }

    /// The sweeps there may have been meanwhile, one in five seconds, and one at the edge of that time.
    fn sweeps(&self) -> u64 {
        (self.began.elapsed().as_secs_f64() / 4.9) as u64 + 1
    }

    /// Fails if there were more than so many and the sweeps.
    fn at_most(&self, most: u64) {
        let (sent, sweeps) = (self.count(), self.sweeps());
        println!("{sent} commands, {sweeps} sweeps");
        assert!(sent <= most + sweeps, "more than {most} commands and sweeps");
    }
}

#[tokio::test]
async fn an_idle_worker_sends_less_than_a_command_a_second() {
    let (server, jobs) = Server::with_queue().await;
    // Something to wait for makes no difference.
    put(&jobs, ["later"], HOUR).await;
    let mut worker = jobs.worker().look_ahead(SECOND).start();
    assert!(worker.next().now_or_never().is_none());
    // The queue is opened, the subscription made, and the first look had.
    sleep(SECOND).await;
    let sent = Sent::to(&server);
    sleep(7 * SECOND).await;
    sent.at_most(0);
    assert!(sent.count() >= 1, "no sweep");
    assert!(worker.next().now_or_never().is_none());
}

#[tokio::test]
async fn what_is_claimed_ahead_waits_on_the_wheel_and_costs_one_command_when_it_is_due() {
    let (server, wheel, jobs) = Server::with_wheel().await;
    let mut worker = jobs.worker().lease(HOUR).look_ahead(HOUR).start();
    assert!(worker.next().now_or_never().is_none());
    // It has looked, and waits for its next sweep.
    until(|| async { server.scripts_run() >= 2 && wheel.pending() == 1 }).await;
    put(&jobs, ["a"], 8 * SECOND).await;
    put(&jobs, ["b"], HOUR / 2).await;
    // One timer for all that is held, and one for whatever the worker does next.
    until(|| async { entries(&server, "claimed") == 2 && wheel.pending() == 2 }).await;
    let sent = Sent::to(&server);
    let job = next(&mut worker).await;
    assert_eq!(job.id(), "a");
    // The start; and a look that the message of "b" still brought.
    sent.at_most(2);

    // What is held counts as waiting, and can be taken away.
    assert_eq!(jobs.counts().await.unwrap().waiting, 1);
    assert!(jobs.reschedule("b", NOW).await.unwrap());
    assert_eq!(next(&mut worker).await.id(), "b");
}

#[tokio::test]
async fn what_is_due_at_one_tick_is_started_by_one_command() {
    const JOBS: usize = 40;
    let server = Server::start();
    let jobs = &server.queue().await;
    let worker = jobs.worker().lease(HOUR).concurrency(JOBS).look_ahead(HOUR);
    let mut worker = worker.start();
    // The server has the scripts after this.
    put(jobs, ["first"], NOW).await;
    do_next(&mut worker).await;
    let due = server.time() + 4 * SECOND;
    let schedule = |n: usize| async move { jobs.schedule_at(&n.to_string(), due, b"").await.unwrap() };
    join_all((0..JOBS).map(schedule)).await;
    assert!(worker.next().now_or_never().is_none());
    claimed(&server, JOBS as u64).await;
    let sent = Sent::to(&server);
    let _held = next_jobs::<JOBS>(&mut worker).await;
    // One, where the wheel wakes all before the first goes; a second, where not.
    sent.at_most(2);
}

/// Jobs that are due later wait in Redis for whichever worker has a place for them.
#[tokio::test]
async fn no_more_is_claimed_ahead_than_the_worker_has_places_free() {
    let (server, jobs) = Server::with_queue().await;
    let worker = jobs.worker().lease(HOUR).concurrency(4).look_ahead(HOUR / 2);
    let worker = worker.start();
    let (started, mut starts) = unbounded_channel();
    let (go_on, _) = broadcast::channel(4);
    let consumer = tokio::spawn(worker.for_each_concurrent(4, {
        let go_on = go_on.clone();
        move |job| {
            started.send(()).unwrap();
            let mut ends = go_on.subscribe();
            async move {
                ends.recv().await.unwrap();
                done(job.unwrap()).await;
            }
        }
    }));
    let mut start = async |id: String| {
        put(&jobs, [id], NOW).await;
        soon(starts.recv()).await.unwrap();
    };
    for round in 0..4 {
        for n in 0..4 {
            start(format!("{round}-{n}")).await;
        }
        go_on.send(()).unwrap();
        counts_become(&jobs, [0, 0, 0]).await;
    }
    for n in 0..2 {
        start(format!("long-{n}")).await;
    }
    // It starts nothing soon.
    sleep(SECOND).await;
    put(&jobs, 0..20, HOUR / 4).await;
    until(|| async { entries(&server, "claimed") > 0 }).await;
    // A sweep later, and whatever it was told of.
    sleep(6 * SECOND).await;
    assert_eq!(entries(&server, "claimed"), 2, "two of its four places are free");
    drop(consumer);
}

#[tokio::test]
async fn without_look_ahead_the_next_due_time_is_waited_for_on_the_wheel() {
    let (server, jobs) = Server::with_queue().await;
    let mut worker = worker(&jobs);
    for n in 0..5 {
        put(&jobs, [n], 300 * MS * (n + 1)).await;
    }
    let sent = Sent::to(&server);
    for n in 0..5 {
        assert_eq!(do_next(&mut worker).await.0, n.to_string());
    }
    // A take, a start and a done for each; the first look, and the subscription's.
    sent.at_most(5 * 3 + 4);
}

#[tokio::test]
async fn running_jobs_are_renewed_in_batches_by_one_timer_and_no_task_each() {
    const JOBS: usize = 300;
    let lease = 3 * SECOND;
    let (server, wheel, jobs) = Server::with_wheel().await;
    put_together(&jobs, 0..JOBS, NOW).await;
    let mut worker = jobs.worker().lease(lease).start();
    let held = next_jobs::<JOBS>(&mut worker).await;
    assert_eq!(counts(&jobs).await, [0, JOBS as u64, 0]);
    let sent = Sent::to(&server);
    sleep(2 * lease).await;
    // Three rounds in a lease, a quarter sooner at most, of a command for each hundred jobs.
    let passed = sent.began.elapsed().as_secs_f64();
    let rounds = passed / (lease.as_secs_f64() / 3.0 * 0.75) + 1.0;
    let most = rounds * (JOBS as f64 / 100.0 + 1.0) + passed;
    let sent = sent.count();
    assert!(sent as f64 <= most, "{sent} commands, at most {most}");
    assert!(wheel.pending() < 10, "{} timers", wheel.pending());
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 20, "{tasks} tasks");
    for job in held {
        assert!(job.lost().now_or_never().is_none());
        done(job).await;
    }
}

/// Does so many jobs, as many at once as there are places.
async fn work<C: Connection>(jobs: &DelayedJobs<C>, count: usize, places: usize) {
    let worker = jobs.worker().lease(HOUR).concurrency(places).start();
    let doing = worker
        .take(count)
        .for_each_concurrent(places, |job| done(job.unwrap()));
    soon(doing).await;
}

#[tokio::test]
async fn many_jobs_at_once_cost_less_than_a_command_each() {
    const JOBS: usize = 1000;
    let (server, jobs) = Server::with_queue().await;
    // It is open. On a slow machine each of the calls would look for itself.
    jobs.counts().await.unwrap();
    let sent = Sent::to(&server);
    put_together(&jobs, 0..JOBS, NOW).await;
    work(&jobs, JOBS, 64).await;
    // A schedule, a start and a done for each, and takes.
    let sent = sent.count();
    println!("{sent} commands for {JOBS} jobs");
    assert!(sent < JOBS as u64 / 2, "{sent} commands for {JOBS} jobs");
}

/// The next jobs are started by the command that finishes those before. What is claimed too late, as on a machine that
/// has stood still for a moment, is started by one of its own.
#[tokio::test]
async fn a_busy_worker_sends_one_command_for_as_many_jobs_as_it_has_places() {
    const JOBS: usize = 800;
    const PLACES: usize = 8;
    let server = Server::start();
    static FINISHED_STARTED_TAKEN: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    let connection = Faulty::new(server.connect().await, |request| {
        let kind = ["done", "start"].iter().position(|change| says(request, change));
        // No other is sent while the jobs are done.
        FINISHED_STARTED_TAKEN[kind.unwrap_or(2)].fetch_add(1, SeqCst);
        Fault::None
    });
    let jobs = unnotified(connection).notifications(&Notifications::of(server.client()));
    let mut fewest = usize::MAX;
    for _ in 0..5 {
        put_together(&jobs, 0..JOBS, NOW).await;
        let sent = || FINISHED_STARTED_TAKEN.each_ref().map(|sent| sent.swap(0, SeqCst));
        sent();
        work(&jobs, JOBS, PLACES).await;
        let [finished, started, taken] = sent();
        println!("{finished} finish jobs, {started} only start some, {taken} take some");
        // Only what a take has brought is started alone, however slow the machine is.
        assert!(started <= taken, "{started} start jobs alone, {taken} take some");
        fewest = fewest.min(finished + started + taken);
        // And takes of 16 jobs or more.
        if fewest < JOBS / PLACES * 7 / 4 {
            return;
        }
    }
    panic!("{fewest} commands");
}

#[tokio::test]
async fn a_lost_notification_delays_by_no_more_than_the_sweep() {
    let server = Server::start();
    // Nobody listens, and the jobs are those of another handle.
    let [jobs, other] = [(); 2].map(|()| async { unnotified(server.connect().await).partitions(3) });
    let mut worker = worker(&jobs.await);
    idle_until(&mut worker, sleep(200 * MS)).await;
    put(&other.await, 0..6, NOW).await;
    let began = Instant::now();
    do_next_jobs(&mut worker, 6).await;
    // Five seconds, and what a loaded machine adds.
    assert!(began.elapsed() < 15 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_notification_is_not_waited_for() {
    let (server, jobs) = Server::with_queue().await;
    let mut worker = worker(&jobs);
    assert!(worker.next().now_or_never().is_none());
    sleep(SECOND).await;
    for n in 0..20 {
        // While the subscription is cut again and again.
        let _: u64 = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        put(&jobs, [n], NOW).await;
        assert_eq!(do_next(&mut worker).await.0, n.to_string());
    }
}
