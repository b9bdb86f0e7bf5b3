//! What a queue, leases and notifications report to exporters, on a real server.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::pending};
use metrics::with_local_recorder;
use metrics_exporter_prometheus::PrometheusBuilder;
use prometheus_client::{encoding::text::encode, registry::Registry};
use support::{
    connect,
    jobs::{Jobs, next, queue, queue_on},
    proxy::{Network, Proxy},
    server::Server,
    soon, until,
};
use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source, Sources};
use tickwheel_metrics::Reporter;
use tickwheel_prometheus::WheelCollector;
use tickwheel_redis::{DelayedJobs, Error, Leases, Notifications};
use tokio::{runtime::Builder, sync::oneshot, time::sleep};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// The values by name and labels, with the count of a histogram and its sum as values of their own.
fn values(exported: &[Exported]) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    for Exported {
        name, labels, value, ..
    } in exported
    {
        let name = name.strip_prefix("tickwheel_redis_").unwrap();
        // Of labels that each value of a queue or of leases has, a test knows the value.
        let own = labels
            .iter()
            .filter(|(key, _)| ["attempt", "outcome"].contains(key));
        let own: Vec<_> = own.map(|(key, word)| format!("{{{key}={word}}}")).collect();
        let mut put = |end: &str, value| {
            let former = values.insert(format!("{name}{end}{}", own.concat()), value);
            assert_eq!(former, None, "{name} stands twice");
        };
        match value {
            ExportedValue::Count(count) => put("", *count as f64),
            ExportedValue::Number(number) => put("", *number),
            ExportedValue::Histogram { buckets, sum } => {
                put("_count", buckets.iter().map(|(_, count)| *count as f64).sum());
                put("_sum", *sum);
            }
            other => panic!("{other:?}"),
        }
    }
    values
}

fn value(exported: &[Exported], name: &str) -> f64 {
    let values = values(exported);
    *values
        .get(name)
        .unwrap_or_else(|| panic!("{name} in {values:#?}"))
}

fn value_of(source: impl Source, name: &str) -> f64 {
    value(&source.exported().unwrap(), name)
}

fn key(name: &str) -> String {
    format!("tickwheel:jobs:{{q:0}}:{name}")
}

/// How many commands the server has carried out, those of scripts included, and without those that ask it
/// that.
fn commands(server: &Server) -> u64 {
    let stats: String = server.command(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let counts = !["info", "client|setinfo", "hello"].contains(&command);
        counts.then(|| rest.split(',').next().unwrap().parse::<u64>().unwrap())
    });
    calls.sum()
}

#[tokio::test]
async fn deliveries_and_their_lateness_are_counted() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for n in 0..3 {
        assert!(jobs.schedule(&n.to_string(), Duration::ZERO, b"").await.unwrap());
    }
    assert_eq!(value_of(jobs.source(), "jobs_lateness_seconds_count"), 0.0);
    sleep(300 * MS).await;
    let mut worker = jobs.worker().start();
    for n in 1..=3 {
        let job = next(&mut worker).await;
        let exported = jobs.source().exported().unwrap();
        assert_eq!(
            value(&exported, "jobs_deliveries_total{attempt=first}"),
            f64::from(n)
        );
        assert!(value(&exported, "jobs_lateness_seconds_sum") >= 0.3 * f64::from(n));
        job.done().await.unwrap();
    }
    let late = |exported: &[Exported], limit: f64| -> u64 {
        let found = exported
            .iter()
            .find(|exported| exported.name.ends_with("lateness_seconds"));
        let ExportedValue::Histogram { buckets, .. } = &found.unwrap().value else {
            panic!("a histogram")
        };
        assert!(buckets.len() <= 12 && buckets.last().unwrap().0 == f64::INFINITY);
        buckets
            .iter()
            .filter(|(to, _)| *to > limit)
            .map(|(_, count)| count)
            .sum()
    };
    assert_eq!(
        late(&jobs.source().exported().unwrap(), 0.1),
        3,
        "all are later than the bucket of 0.1 s"
    );

    // From its new due time on, and as a later delivery, also if its attempt was put off.
    assert!(jobs.schedule("again", Duration::ZERO, b"").await.unwrap());
    assert!(next(&mut worker).await.snooze(Duration::ZERO).await.unwrap());
    assert!(next(&mut worker).await.retry_after(Duration::ZERO).await.unwrap());
    next(&mut worker).await.done().await.unwrap();
    let exported = jobs.source().exported().unwrap();
    assert_eq!(value(&exported, "jobs_deliveries_total{attempt=first}"), 4.0);
    assert_eq!(value(&exported, "jobs_deliveries_total{attempt=later}"), 2.0);
    assert_eq!(value(&exported, "jobs_lateness_seconds_count"), 6.0);

    // One that was due long ago counts as a day late.
    let before = value(&exported, "jobs_lateness_seconds_sum");
    assert!(jobs.schedule_at("old", std::time::UNIX_EPOCH, b"").await.unwrap());
    next(&mut worker).await.done().await.unwrap();
    let exported = jobs.source().exported().unwrap();
    let day = value(&exported, "jobs_lateness_seconds_sum") - before;
    assert!((day - 86_400.0).abs() < 0.01, "{day}");
    assert_eq!(late(&exported, 3600.0), 1);

    // A job that is held on the wheel is late from its due time on, not from when it was claimed.
    drop(worker);
    let mut worker = jobs.worker().look_ahead(MINUTE).start();
    assert!(jobs.schedule("ahead", 600 * MS, b"").await.unwrap());
    let before = value_of(jobs.source(), "jobs_lateness_seconds_sum");
    next(&mut worker).await.done().await.unwrap();
    let late = value_of(jobs.source(), "jobs_lateness_seconds_sum") - before;
    assert!(late >= 0.0, "{late}");
    assert_eq!(value_of(jobs.source(), "jobs_lost_total"), 0.0);
}

/// Each is attempt 1 again, or a later attempt of a job that was never delivered.
#[tokio::test]
async fn only_the_first_attempt_that_was_delivered_counts_as_first() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let count = |name: &str| {
        let exported = jobs.source().exported().unwrap();
        value(&exported, &format!("jobs_deliveries_total{{attempt={name}}}"))
    };
    let running = || -> u64 { server.command(&["ZCARD", &key("running")]) };

    // Put off, and then started and not fetched.
    assert!(jobs.schedule("put off", Duration::ZERO, b"").await.unwrap());
    let mut worker = jobs.worker().lease(MINUTE).start();
    assert!(next(&mut worker).await.snooze(Duration::ZERO).await.unwrap());
    drop(worker);
    assert!(jobs.schedule("unseen", Duration::ZERO, b"").await.unwrap());
    let mut worker = jobs.worker().lease(MINUTE).concurrency(2).start();
    assert!(worker.next().now_or_never().is_none());
    until(async || running() == 2).await;
    soon(worker.close()).await;
    assert_eq!(running(), 0);
    let mut worker = jobs.worker().lease(MINUTE).start();
    for counted in [(1.0, 1.0), (2.0, 1.0)] {
        let job = next(&mut worker).await;
        assert_eq!(job.attempt(), 1);
        assert!(job.done().await.unwrap());
        assert_eq!((count("first"), count("later")), counted);
    }
    drop(worker);

    // Given back when the grace had passed.
    assert!(jobs.schedule("stopped", Duration::ZERO, b"").await.unwrap());
    let (end, ended) = oneshot::channel::<()>();
    let worker = jobs.worker().lease(MINUTE).start();
    let run = worker
        .run(1, async |_| pending::<Result<(), Error>>().await)
        .until(ended.map(|_| ()))
        .grace(Duration::ZERO);
    let run = tokio::spawn(run);
    until(async || count("first") == 3.0).await;
    drop(end);
    soon(run).await.unwrap().unwrap();
    let mut worker = jobs.worker().lease(MINUTE).start();
    let job = next(&mut worker).await;
    assert_eq!((job.attempt(), count("later")), (1, 2.0));
    assert!(job.done().await.unwrap());
    drop(worker);

    // Not to be delivered at first.
    assert!(jobs.schedule("large", Duration::ZERO, &[0; 100]).await.unwrap());
    let mut worker = queue(&server, "q").await.max_payload(10).worker().start();
    let error = soon(worker.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Undeliverable { .. }), "{error}");
    drop(worker);
    let mut worker = jobs.worker().lease(MINUTE).start();
    let job = next(&mut worker).await;
    assert_eq!((job.attempt(), count("later")), (2, 3.0));
    assert_eq!(count("first"), 3.0);
}

#[tokio::test]
async fn renewals_and_losses_of_jobs_are_counted() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let jobs = DelayedJobs::new(&Wheel::new(), connect(&proxy.url()).await, "q");
    let mut worker = jobs.worker().lease(3 * SECOND).attempts(100).start();
    let count = |name: &str| value_of(jobs.source(), name);
    assert!(jobs.schedule("done", Duration::ZERO, b"").await.unwrap());
    let job = next(&mut worker).await;
    until(|| async { count("jobs_renewals_total{outcome=renewed}") >= 2.0 }).await;
    assert!(job.done().await.unwrap());
    assert_eq!(
        (
            count("jobs_lost_total"),
            count("jobs_renewals_total{outcome=failed}")
        ),
        (0.0, 0.0)
    );

    // Redis says so.
    assert!(jobs.schedule("x", Duration::ZERO, b"").await.unwrap());
    let job = next(&mut worker).await;
    let _: i64 = server.command(&["DEL", &key("running"), &key("state"), &key("payload")]);
    soon(job.lost()).await;
    until(|| async { count("jobs_lost_total") == 1.0 }).await;
    assert!(!job.done().await.unwrap());

    // The answer to `done` says so.
    assert!(jobs.schedule("y", Duration::ZERO, b"").await.unwrap());
    let job = next(&mut worker).await;
    let _: i64 = server.command(&["DEL", &key("running"), &key("state"), &key("payload")]);
    assert!(!job.done().await.unwrap());
    assert_eq!(count("jobs_lost_total"), 2.0);

    // Redis is away for longer than the lease.
    assert!(jobs.schedule("z", Duration::ZERO, b"").await.unwrap());
    let job = next(&mut worker).await;
    proxy.set(Network::Down);
    soon(job.lost()).await;
    drop(job);
    until(|| async { count("jobs_lost_total") == 3.0 }).await;
    until(|| async { count("jobs_renewals_total{outcome=failed}") >= 1.0 }).await;
    proxy.set(Network::Up);
    let job = support::jobs::next_after_errors(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    assert!(job.done().await.unwrap());
    assert_eq!(count("jobs_deliveries_total{attempt=later}"), 1.0);
    assert_eq!(count("jobs_lost_total"), 3.0);
}

#[tokio::test]
async fn a_time_limit_and_a_shutdown_are_losses() {
    let server = Server::start();
    let wheel = Wheel::new();
    let jobs = queue_on(&wheel, &server, "q").await;
    let mut worker = jobs.worker().time_limit(100 * MS).start();
    for id in ["a", "b"] {
        assert!(jobs.schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    let overdue = next(&mut worker).await;
    soon(overdue.lost()).await;
    drop(overdue);
    let lost = || value_of(jobs.source(), "jobs_lost_total");
    assert_eq!(lost(), 1.0);
    let held = next(&mut worker).await;
    wheel.shutdown();
    assert!(soon(worker.next()).await.is_none());
    drop(held);
    assert_eq!(lost(), 2.0);
}

#[tokio::test]
async fn a_sample_says_how_long_the_queue_is_and_how_late() {
    let server = Server::start();
    let jobs = queue(&server, "q").await.partitions(3);
    assert!(
        !values(&jobs.source().exported().unwrap()).contains_key("jobs_waiting"),
        "nothing is known yet"
    );
    let sample = jobs.sample().await.unwrap();
    assert_eq!((sample.counts.waiting, sample.oldest_due), (0, None));
    for n in 0..20 {
        assert!(jobs.schedule(&format!("later-{n}"), MINUTE, b"").await.unwrap());
    }
    assert_eq!(jobs.sample().await.unwrap().oldest_due, None, "none is due");
    let ages = [3, 70, 20].map(Duration::from_secs);
    for (n, age) in ages.iter().enumerate() {
        let due = server.time() - *age;
        assert!(jobs.schedule_at(&n.to_string(), due, b"").await.unwrap());
    }
    let sample = jobs.sample().await.unwrap();
    assert_eq!(sample.counts.waiting, 23);
    let oldest = sample.oldest_due.unwrap();
    assert!(oldest >= ages[1] && oldest < ages[1] + MINUTE, "{oldest:?}");

    let mut worker = jobs.worker().attempts(1).start();
    let buried = next(&mut worker).await;
    buried.bury().await.unwrap();
    let running = [next(&mut worker).await, next(&mut worker).await];
    let before = commands(&server);
    let exported = jobs.source().exported().unwrap();
    assert_eq!(value(&exported, "jobs_waiting"), 23.0, "as it was at the sample");
    assert_eq!(commands(&server), before, "nothing is asked");
    jobs.sample().await.unwrap();
    let exported = jobs.source().exported().unwrap();
    for (name, number) in [
        ("waiting", 20.0),
        ("running", 2.0),
        ("dead", 1.0),
        ("oldest_due_seconds", 0.0),
    ] {
        assert_eq!(value(&exported, &format!("jobs_{name}")), number, "{name}");
    }
    let age = value(&exported, "jobs_sample_age_seconds");
    sleep(100 * MS).await;
    assert!(value_of(jobs.source(), "jobs_sample_age_seconds") >= age + 0.1);
    drop(running);
}

#[tokio::test]
async fn a_sample_costs_the_same_however_long_the_queue_is() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let mut costs = Vec::new();
    for jobs_more in [10, 20_000] {
        let scheduled = (0..jobs_more).map(|n| {
            let (jobs, id) = (jobs.clone(), format!("{jobs_more}-{n}"));
            async move { jobs.schedule(&id, MINUTE, b"").await.unwrap() }
        });
        let scheduled: Vec<bool> = futures::stream::iter(scheduled)
            .buffer_unordered(500)
            .collect()
            .await;
        assert_eq!(scheduled.len(), jobs_more);
        // The scripts are sent by their text the first time.
        jobs.sample().await.unwrap();
        let (sent, carried_out) = (server.scripts_run(), commands(&server));
        jobs.sample().await.unwrap();
        assert_eq!(server.scripts_run() - sent, 2, "commands of one partition");
        costs.push(commands(&server) - carried_out);
    }
    assert_eq!(costs[0], costs[1]);
}

#[tokio::test]
async fn samples_go_on_through_outages_and_end_with_the_queue() {
    let mut server = Server::start_aof();
    let jobs = DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "q").answer_within(200 * MS);
    assert!(jobs.schedule("x", MINUTE, b"").await.unwrap());
    let (source, samples) = (jobs.source(), tokio::spawn(jobs.sample_every(50 * MS)));
    let age = || {
        values(&source.exported().unwrap())
            .get("jobs_sample_age_seconds")
            .copied()
    };
    until(|| async { age().is_some() }).await;
    server.kill();
    until(|| async { age().unwrap() > 1.0 }).await;
    assert_eq!(
        value(&source.exported().unwrap(), "jobs_waiting"),
        1.0,
        "the last that is known"
    );
    server.restart();
    until(|| async { age().unwrap() < 1.0 }).await;

    let worker = jobs.worker().start();
    drop(jobs);
    assert!(source.exported().is_some(), "the worker has it");
    drop(worker);
    soon(samples).await.unwrap();
    until(|| async { source.exported().is_none() }).await;

    let wheel = Wheel::new();
    let jobs = DelayedJobs::new(&wheel, connect(&server.url()).await, "q");
    let samples = tokio::spawn(jobs.sample_every(50 * MS));
    wheel.shutdown();
    soon(samples).await.unwrap();
}

#[tokio::test]
async fn the_longest_period_samples_once() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    let samples = tokio::spawn(jobs.sample_every(Duration::MAX));
    until(|| async { values(&jobs.source().exported().unwrap()).contains_key("jobs_waiting") }).await;
    assert!(!samples.is_finished());
}

#[tokio::test]
async fn damage_is_an_error_or_counted_as_due() {
    let server = Server::start();
    let jobs = queue(&server, "q").await;
    for (score, oldest) in [
        ("+inf", None),
        ("-inf", Some(9e15)),
        ("1e300", None),
        ("-1e300", Some(9e15)),
    ] {
        let _: i64 = server.command(&["ZADD", &key("due"), score, "damaged"]);
        let sample = jobs.sample().await.unwrap();
        assert_eq!(sample.counts.waiting, 1);
        assert_eq!(
            sample.oldest_due.map(|due| due.as_micros() as f64),
            oldest,
            "{score}"
        );
    }
    let _: i64 = server.command(&["DEL", &key("due")]);
    let _: () = server.command(&["SET", &key("due"), "a string"]);
    let error = jobs.sample().await.unwrap_err();
    assert!(matches!(error, Error::WrongType { .. }), "{error}");
    assert_eq!(
        value_of(jobs.source(), "jobs_waiting"),
        1.0,
        "the last sample that succeeded"
    );
}

#[tokio::test]
async fn leases_are_counted() {
    let server = Server::start();
    let proxy = Proxy::start(server.port()).await;
    let leases = Leases::new(&Wheel::new(), connect(&proxy.url()).await);
    let count = |name: &str| value_of(leases.source(), &format!("leases_{name}"));
    let lease = leases.acquire("x", MINUTE).await.unwrap();
    assert!(leases.try_acquire("x", MINUTE).await.unwrap().is_none());
    assert_eq!((count("acquired_total"), count("held")), (1.0, 1.0));
    assert!(lease.release().await.unwrap());
    drop(leases.acquire("x", MINUTE).await.unwrap());
    until(|| async { count("held") == 0.0 }).await;
    assert_eq!(
        (count("acquired_total"), count("lost_total")),
        (2.0, 0.0),
        "given up is not lost"
    );

    let ttl = 2 * SECOND;
    let lease = leases.acquire("y", ttl).await.unwrap();
    until(|| async { count("renewals_total{outcome=renewed}") >= 2.0 }).await;
    let _: i64 = server.command(&["DEL", "tickwheel:lease:{y}:holder"]);
    soon(lease.lost()).await;
    until(|| async { count("lost_total") == 1.0 }).await;
    assert_eq!(count("held"), 0.0);
    assert!(!lease.release().await.unwrap());

    let lease = leases.acquire("z", ttl).await.unwrap();
    proxy.set(Network::Down);
    soon(lease.lost()).await;
    drop(lease);
    until(|| async { count("lost_total") == 2.0 }).await;
    assert!(count("renewals_total{outcome=failed}") >= 1.0);
    proxy.set(Network::Up);

    let other = leases.clone().prefix("other");
    let lease = soon(other.acquire("x", MINUTE)).await.unwrap();
    assert_eq!(value_of(other.source(), "leases_acquired_total"), 1.0);
    assert_eq!(count("acquired_total"), 4.0);
    let source = other.source();
    drop(other);
    assert_eq!(
        value(&source.exported().unwrap(), "leases_held"),
        1.0,
        "the lease counts"
    );
    assert!(lease.release().await.unwrap());
    until(|| async { source.exported().is_none() }).await;
}

#[tokio::test]
async fn a_lease_is_lost_of_which_its_holder_hears_first() {
    let server = Server::start();
    let leases = Leases::new(&Wheel::new(), connect(&server.url()).await);
    let lease = leases.acquire("x", SECOND).await.unwrap();
    server.stop();
    // Asked all the time, it answers a millisecond before the wheel does.
    let mut lost = lease.lost();
    while (&mut lost).now_or_never().is_none() {
        tokio::task::yield_now().await;
    }
    drop(lease);
    until(|| async { value_of(leases.source(), "leases_held") == 0.0 }).await;
    assert_eq!(value_of(leases.source(), "leases_lost_total"), 1.0);
    server.cont();
}

#[test]
fn a_lease_whose_runtime_ends_is_lost() {
    let server = Server::start();
    let runtime = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let (connecting, acquiring) = (runtime(), runtime());
    let connection = connecting.block_on(connect(&server.url()));
    let leases = Leases::new(&Wheel::new(), connection);
    let lease = acquiring.block_on(leases.acquire("x", MINUTE)).unwrap();
    drop(acquiring);
    let exported = leases.source().exported().unwrap();
    assert_eq!(value(&exported, "leases_lost_total"), 1.0);
    assert_eq!(value(&exported, "leases_held"), 0.0);
    drop(lease);
}

#[tokio::test]
async fn reconnects_of_notifications_are_counted() {
    let mut server = Server::start();
    let notifications = Notifications::of(server.client());
    let count = |name: &str| value_of(notifications.source(), &format!("notifications_{name}_total"));
    let jobs =
        DelayedJobs::new(&Wheel::new(), connect(&server.url()).await, "q").notifications(&notifications);
    let mut worker = jobs.worker().start();
    assert!(jobs.schedule("x", Duration::ZERO, b"").await.unwrap());
    next(&mut worker).await.done().await.unwrap();
    let kill = || server.command::<i64>(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    until(|| async { kill() == 1 }).await;
    until(|| async { count("reconnects") == 1.0 }).await;
    assert_eq!(count("failures"), 1.0);
    server.kill();
    until(|| async { count("failures") >= 3.0 }).await;
    assert_eq!(count("reconnects"), 1.0);
    server.restart();
    until(|| async { count("reconnects") == 2.0 }).await;
    let source = notifications.source();
    drop((worker, jobs, notifications));
    until(|| async { source.exported().is_none() }).await;
}

/// The samples of a text in Prometheus' format, by name and labels.
fn scraped(text: &str) -> BTreeMap<(String, BTreeSet<String>), f64> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter(|label| !label.is_empty());
        (
            (name.to_owned(), labels.map(str::to_owned).collect()),
            value.parse().unwrap(),
        )
    });
    samples.collect()
}

/// A queue, leases and notifications that have something to report, and all of what they do.
async fn watched(
    server: &Server,
    wheel: &Wheel,
) -> (Jobs, Leases<redis::aio::ConnectionManager>, Notifications) {
    let notifications = Notifications::of(server.client());
    let connection = connect(&server.url()).await;
    let jobs = DelayedJobs::new(wheel, connection.clone(), "q").notifications(&notifications);
    let leases = Leases::new(wheel, connection);
    assert!(jobs.schedule("x", Duration::ZERO, b"").await.unwrap());
    let mut worker = jobs.worker().start();
    next(&mut worker).await.retry_after(MINUTE).await.unwrap();
    jobs.sample().await.unwrap();
    drop(leases.acquire("x", MINUTE).await.unwrap());
    until(|| async { value_of(leases.source(), "leases_held") == 0.0 }).await;
    (jobs, leases, notifications)
}

#[tokio::test]
async fn both_exporters_show_a_queue_beside_its_wheel() {
    let server = Server::start();
    let wheel = Wheel::builder().name("w").build().unwrap();
    let (jobs, leases, notifications) = watched(&server, &wheel).await;
    let mut registry = Registry::default();
    let collector = WheelCollector::new(&wheel)
        .and_source(jobs.source())
        .and_source(leases.source())
        .and_source(notifications.source());
    registry.register_collector(Box::new(collector));
    let reporter = Reporter::new(&wheel)
        .and_source(jobs.source())
        .and_source(leases.source())
        .and_source(notifications.source());
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || reporter.describe());
    assert!(with_local_recorder(&recorder, || reporter.report()));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let ours = |text: &str| {
        let mut samples = scraped(text);
        samples.retain(|(name, _), _| name.starts_with("tickwheel_redis_"));
        // It differs between two scrapes.
        samples.retain(|(name, _), _| !name.ends_with("sample_age_seconds"));
        samples
    };
    let (scrape, report) = (ours(&text), ours(&recorder.handle().render()));
    assert_eq!(scrape, report);
    let labels = |words: &[&str]| {
        words
            .iter()
            .map(|word| (*word).to_owned())
            .collect::<BTreeSet<_>>()
    };
    for (name, words, value) in [
        ("jobs_waiting", &["wheel=\"w\"", "queue=\"q\""][..], 1.0),
        (
            "jobs_deliveries_total",
            &["wheel=\"w\"", "queue=\"q\"", "attempt=\"first\""],
            1.0,
        ),
        (
            "jobs_lateness_seconds_count",
            &["wheel=\"w\"", "queue=\"q\""],
            1.0,
        ),
        (
            "jobs_lateness_seconds_bucket",
            &["wheel=\"w\"", "queue=\"q\"", "le=\"+Inf\""],
            1.0,
        ),
        (
            "leases_acquired_total",
            &["wheel=\"w\"", "prefix=\"tickwheel:lease\""],
            1.0,
        ),
        ("notifications_reconnects_total", &[], 0.0),
    ] {
        let series = (format!("tickwheel_redis_{name}"), labels(words));
        assert_eq!(scrape.get(&series), Some(&value), "{series:?} in {scrape:#?}");
    }
    assert!(text.contains("tickwheel_redis_jobs_sample_age_seconds{"));
    assert!(text.contains("tickwheel_pending{wheel=\"w\"}"));
    // Each is described in both, and once.
    for text in [&text, &recorder.handle().render()] {
        for name in ["jobs_running", "leases_held"] {
            let described = text.matches(&format!("# TYPE tickwheel_redis_{name} ")).count();
            assert_eq!(described, 1, "{name} in {text}");
        }
    }
}

#[tokio::test]
async fn what_is_added_twice_and_what_two_handles_share_is_not_summed() {
    let server = Server::start();
    let wheel = Wheel::new();
    let handles = [
        queue_on(&wheel, &server, "q").await,
        queue_on(&wheel, &server, "q").await,
    ];
    for id in ["x", "y", "z"] {
        assert!(handles[0].schedule(id, Duration::ZERO, b"").await.unwrap());
    }
    for jobs in &handles {
        let mut worker = jobs.worker().start();
        assert!(next(&mut worker).await.done().await.unwrap());
        drop(worker);
    }
    let mut sources = Sources::default();
    for jobs in &handles {
        jobs.sample().await.unwrap();
        sources.add(jobs.source());
        sources.add(jobs.clone().source());
    }
    let exported = sources.exported();
    assert_eq!(value(&exported, "jobs_waiting"), 1.0, "both see the same job");
    assert_eq!(
        value(&exported, "jobs_deliveries_total{attempt=first}"),
        2.0,
        "each counted one"
    );

    let notifications = [
        Notifications::of(server.client()),
        Notifications::of(server.client()),
    ];
    let mut sources = Sources::default();
    for (notifications, server) in notifications.iter().zip(["north", "south"]) {
        sources.add(notifications.source().with_label("server", server));
    }
    assert_eq!(sources.exported().len(), 4, "a label tells them apart");
}

#[tokio::test]
async fn names_say_kind_and_unit_and_are_documented_and_on_the_dashboard() {
    let server = Server::start();
    let (jobs, leases, notifications) = watched(&server, &Wheel::new()).await;
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let read = |file: &str| fs::read_to_string(format!("{package}/{file}")).unwrap();
    let (documentation, dashboard) = (read("src/lib.rs"), read("../prometheus/grafana.json"));
    let mut names = BTreeSet::new();
    for exported in [
        jobs.source().exported().unwrap(),
        leases.source().exported().unwrap(),
        notifications.source().exported().unwrap(),
    ]
    .concat()
    {
        let name = exported.name;
        assert_eq!(
            name.ends_with("_total"),
            exported.kind == ExportedKind::Counter,
            "{name}"
        );
        assert_eq!(
            name.ends_with("_seconds"),
            exported.unit == ExportedUnit::Seconds,
            "{name}"
        );
        assert!(
            documentation.contains(&format!("| `{name}` |")),
            "{name} is not documented"
        );
        assert!(dashboard.contains(name), "{name} is not on the dashboard");
        names.insert(name);
    }
    assert_eq!(documentation.matches("| `tickwheel_redis_").count(), names.len());

    // What the dashboard asks for is there, with the labels that it asks for.
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let exported = [
        jobs.source().exported().unwrap(),
        leases.source().exported().unwrap(),
        notifications.source().exported().unwrap(),
    ]
    .concat();
    let mut queries = 0;
    for query in targets.filter_map(|target| target["expr"].as_str()) {
        for part in query.split("tickwheel_redis_").skip(1) {
            queries += 1;
            let end = part
                .find(|char: char| char != '_' && !char.is_ascii_alphanumeric())
                .unwrap_or(part.len());
            let family = part[..end].trim_end_matches("_bucket");
            let name = format!("tickwheel_redis_{family}");
            let found: Vec<_> = exported.iter().filter(|exported| exported.name == name).collect();
            assert!(!found.is_empty(), "{query} asks for {name}");
            let matchers = part[end..]
                .strip_prefix('{')
                .and_then(|rest| rest.split_once('}'));
            for matcher in matchers.into_iter().flat_map(|(matchers, _)| matchers.split(',')) {
                let (key, word) = matcher.split_once('=').unwrap();
                let word = word.trim_matches(['~', '"']);
                let has = |exported: &&Exported| {
                    let mut labels = exported.labels.iter();
                    labels.any(|(its, value)| *its == key && (word.starts_with('$') || value == word))
                };
                assert!(found.iter().any(has), "{query}: {matcher}");
            }
        }
    }
    assert!(queries >= 12, "{queries}");
}
