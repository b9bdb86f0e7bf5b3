//! What a queue, leases and notifications report to exporters, on a real server.

mod support;

use std::{fs, future::pending};

use metrics::with_local_recorder;
use metrics_exporter_prometheus::PrometheusBuilder;
use prometheus_client::{encoding::text::encode, registry::Registry};
use support::prelude::*;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source, Sources};
use tickwheel_metrics::Reporter;
use tickwheel_prometheus::WheelCollector;

const FIRST: &str = "jobs_deliveries_total{attempt=first}";
const LATER: &str = "jobs_deliveries_total{attempt=later}";
const LATE: &str = "jobs_lateness_seconds_sum";

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
        let own: String = own.map(|(key, word)| format!("{{{key}={word}}}")).collect();
        let mut put = |end: &str, value| {
            let former = values.insert(format!("{name}{end}{own}"), value);
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
    let value = values.get(name).copied();
    value.unwrap_or_else(|| panic!("{name} in {values:#?}"))
}

fn value_of(source: impl Source, name: &str) -> f64 {
    value(&source.exported().unwrap(), name)
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
    let (_server, jobs) = Server::with_queue().await;
    let count = |name| value_of(jobs.source(), name);
    put(&jobs, 0..3, NOW).await;
    assert_eq!(count("jobs_lateness_seconds_count"), 0.0);
    sleep(300 * MS).await;
    let mut worker = jobs.worker().start();
    for n in 1..=3 {
        let job = next(&mut worker).await;
        assert_eq!(count(FIRST), f64::from(n));
        assert!(count(LATE) >= 0.3 * f64::from(n));
        done(job).await;
    }
    let later_than = |limit: f64| -> u64 {
        let exported = jobs.source().exported().unwrap();
        let mut exported = exported.iter();
        let lateness = exported.find(|exported| exported.name.ends_with("lateness_seconds"));
        let ExportedValue::Histogram { buckets, .. } = &lateness.unwrap().value else {
            panic!("a histogram")
        };
        assert!(buckets.len() <= 12 && buckets.last().unwrap().0 == f64::INFINITY);
        let late = buckets.iter().filter(|(to, _)| *to > limit);
        late.map(|(_, count)| count).sum()
    };
    assert_eq!(later_than(0.1), 3, "all are later than the bucket of 0.1 s");

    // From its new due time on, and as a later delivery, also if its attempt was put off.
    put(&jobs, ["again"], NOW).await;
    assert!(next(&mut worker).await.snooze(NOW).await.unwrap());
    assert!(next(&mut worker).await.retry_after(NOW).await.unwrap());
    do_next(&mut worker).await;
    assert_eq!((count(FIRST), count(LATER)), (4.0, 2.0));
    assert_eq!(count("jobs_lateness_seconds_count"), 6.0);

    // One that was due long ago counts as a day late.
    let before = count(LATE);
    assert!(jobs.schedule_at("old", UNIX_EPOCH, b"").await.unwrap());
    do_next(&mut worker).await;
    let day = count(LATE) - before;
    assert!((day - 86_400.0).abs() < 0.01, "{day}");
    assert_eq!(later_than(3600.0), 1);

    // A job that waits on the wheel is late from its due time on, not from when it was claimed.
    drop(worker);
    let mut worker = jobs.worker().look_ahead(MINUTE).start();
    put(&jobs, ["ahead"], 600 * MS).await;
    let before = count(LATE);
    do_next(&mut worker).await;
    assert!(count(LATE) >= before);
    assert_eq!(count("jobs_lost_total"), 0.0);
}

/// Each is attempt 1 again, or a later attempt of a job that was never delivered.
#[tokio::test]
async fn only_the_first_attempt_that_was_delivered_counts_as_first() {
    let (server, jobs) = Server::with_queue().await;
    let count = || [FIRST, LATER].map(|name| value_of(jobs.source(), name));
    let running = || entries(&server, "running");

    // Put off, and then started and not received.
    put(&jobs, ["put off"], NOW).await;
    let mut worker = self::worker(&jobs);
    assert!(next(&mut worker).await.snooze(NOW).await.unwrap());
    drop(worker);
    put(&jobs, ["unseen"], NOW).await;
    let mut worker = jobs.worker().lease(MINUTE).concurrency(2).start();
    assert!(worker.next().now_or_never().is_none());
    until(async || running() == 2).await;
    soon(worker.close()).await;
    assert_eq!(running(), 0);
    let mut worker = self::worker(&jobs);
    for counted in [[1.0, 1.0], [2.0, 1.0]] {
        assert_eq!(do_next(&mut worker).await.1, 1);
        assert_eq!(count(), counted);
    }
    drop(worker);

    // Given back when the grace had passed.
    put(&jobs, ["stopped"], NOW).await;
    let hangs = async |_| pending::<Result<(), Error>>().await;
    let run = Running::start(self::worker(&jobs).run(1, hangs).grace(NOW));
    until(async || count()[0] == 3.0).await;
    ended(run.end()).await;
    let mut worker = self::worker(&jobs);
    assert_eq!((do_next(&mut worker).await.1, count()), (1, [3.0, 2.0]));
    drop(worker);

    // Not to be delivered at first.
    assert!(jobs.schedule("large", NOW, &[0; 100]).await.unwrap());
    let mut small = server.queue().await.max_payload(10).worker().start();
    let error = next_error(&mut small).await;
    assert!(matches!(error, Error::Undeliverable { .. }), "{error}");
    drop(small);
    let mut worker = self::worker(&jobs);
    assert_eq!((do_next(&mut worker).await.1, count()), (2, [3.0, 3.0]));
}

#[tokio::test]
async fn renewals_and_losses_of_jobs_are_counted() {
    let (server, proxy) = Server::with_proxy().await;
    let jobs = unnotified(connect(&proxy.url()).await);
    let mut worker = jobs.worker().lease(3 * SECOND).attempts(100).start();
    let count = |name: &str| value_of(jobs.source(), name);
    let failed = || count("jobs_renewals_total{outcome=failed}");
    let lost = || count("jobs_lost_total");
    put(&jobs, ["done"], NOW).await;
    let job = next(&mut worker).await;
    until(|| async { count("jobs_renewals_total{outcome=renewed}") >= 2.0 }).await;
    done(job).await;
    assert_eq!((lost(), failed()), (0.0, 0.0));

    // Redis says so.
    let forget = || server.delete(&[&key("running"), &key("state"), &key("payload")]);
    put(&jobs, ["x"], NOW).await;
    let job = next(&mut worker).await;
    forget();
    soon(job.lost()).await;
    until(|| async { lost() == 1.0 }).await;
    assert!(!job.done().await.unwrap());

    // The answer to `done` says so.
    put(&jobs, ["y"], NOW).await;
    let job = next(&mut worker).await;
    forget();
    assert!(!job.done().await.unwrap());
    assert_eq!(lost(), 2.0);

    // Redis is away for longer than the lease.
    put(&jobs, ["z"], NOW).await;
    let job = next(&mut worker).await;
    proxy.set(Network::Down);
    soon(job.lost()).await;
    drop(job);
    until(|| async { lost() == 3.0 && failed() >= 1.0 }).await;
    proxy.set(Network::Up);
    let job = next_after_errors(&mut worker).await;
    assert_eq!(job.attempt(), 2);
    done(job).await;
    assert_eq!((count(LATER), lost()), (1.0, 3.0));
}

#[tokio::test]
async fn a_time_limit_and_a_shutdown_are_losses() {
    let (_server, wheel, jobs) = Server::with_wheel().await;
    let mut worker = jobs.worker().time_limit(100 * MS).start();
    put(&jobs, ["a", "b"], NOW).await;
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
    let (server, jobs) = Server::with_partitions(3).await;
    let count = |name: &str| value_of(jobs.source(), &format!("jobs_{name}"));
    let known = values(&jobs.source().exported().unwrap());
    assert!(!known.contains_key("jobs_waiting"), "nothing is known");
    let sample = jobs.sample().await.unwrap();
    assert_eq!((sample.counts.waiting, sample.oldest_due), (0, None));
    put(&jobs, 100..120, MINUTE).await;
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
    assert!(next(&mut worker).await.bury().await.unwrap());
    let running = next_jobs::<2>(&mut worker).await;
    let before = commands(&server);
    assert_eq!(count("waiting"), 23.0, "as it was at the sample");
    assert_eq!(commands(&server), before, "nothing is asked");
    jobs.sample().await.unwrap();
    for (name, number) in [
        ("waiting", 20.0),
        ("running", 2.0),
        ("dead", 1.0),
        ("oldest_due_seconds", 0.0),
    ] {
        assert_eq!(count(name), number, "{name}");
    }
    let age = count("sample_age_seconds");
    sleep(100 * MS).await;
    assert!(count("sample_age_seconds") >= age + 0.1);
    drop(running);
}

#[tokio::test]
async fn a_sample_costs_the_same_however_long_the_queue_is() {
    let server = Server::start();
    let jobs = &server.queue().await;
    let mut costs = Vec::new();
    for ids in [0..10, 10..20_010] {
        let schedule = ids.map(|id| put(jobs, [id], MINUTE));
        futures::stream::iter(schedule)
            .buffer_unordered(500)
            .collect::<()>()
            .await;
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
    let jobs = unnotified(server.connect().await).answer_within(200 * MS);
    put(&jobs, ["x"], MINUTE).await;
    let (source, samples) = (jobs.source(), tokio::spawn(jobs.sample_every(50 * MS)));
    let known = |name: &str| values(&source.exported().unwrap()).get(name).copied();
    let age = || known("jobs_sample_age_seconds");
    until(|| async { age().is_some() }).await;
    server.kill();
    until(|| async { age().unwrap() > 1.0 }).await;
    assert_eq!(known("jobs_waiting"), Some(1.0), "the last that is known");
    server.restart();
    until(|| async { age().unwrap() < 1.0 }).await;

    let worker = jobs.worker().start();
    drop(jobs);
    assert!(source.exported().is_some(), "the worker has it");
    drop(worker);
    soon(samples).await.unwrap();
    until(|| async { source.exported().is_none() }).await;

    let wheel = Wheel::new();
    let jobs = server.queue_on(&wheel).await;
    let samples = tokio::spawn(jobs.sample_every(50 * MS));
    wheel.shutdown();
    soon(samples).await.unwrap();
}

#[tokio::test]
async fn the_longest_period_samples_once() {
    let (_server, jobs) = Server::with_queue().await;
    let samples = tokio::spawn(jobs.sample_every(Duration::MAX));
    until(|| async { values(&jobs.source().exported().unwrap()).contains_key("jobs_waiting") }).await;
    assert!(!samples.is_finished());
}

#[tokio::test]
async fn damage_is_an_error_or_counted_as_due() {
    let (server, jobs) = Server::with_queue().await;
    for (score, oldest) in [
        ("+inf", None),
        ("-inf", Some(9e15)),
        ("1e300", None),
        ("-1e300", Some(9e15)),
    ] {
        let _: i64 = server.command(&["ZADD", &key("due"), score, "damaged"]);
        let sample = jobs.sample().await.unwrap();
        assert_eq!(sample.counts.waiting, 1);
        let late = sample.oldest_due.map(|due| due.as_micros() as f64);
        assert_eq!(late, oldest, "{score}");
    }
    server.delete(&[&key("due")]);
    let _: () = server.command(&["SET", &key("due"), "a string"]);
    let error = jobs.sample().await.unwrap_err();
    assert!(matches!(error, Error::WrongType { .. }), "{error}");
    // As at the last sample that succeeded.
    assert_eq!(value_of(jobs.source(), "jobs_waiting"), 1.0);
}

#[tokio::test]
async fn leases_are_counted() {
    let (server, proxy) = Server::with_proxy().await;
    let leases = leases(&proxy.url()).await;
    let count = |name: &str| value_of(leases.source(), &format!("leases_{name}"));
    let [acquired, held, lost] = ["acquired_total", "held", "lost_total"].map(|name| move || count(name));
    let lease = acquire(&leases, "x").await;
    assert!(try_acquire(&leases, "x").await.is_none());
    assert_eq!((acquired(), held()), (1.0, 1.0));
    release(lease).await;
    drop(acquire(&leases, "x").await);
    until(|| async { held() == 0.0 }).await;
    assert_eq!((acquired(), lost()), (2.0, 0.0), "given up is not lost");

    let ttl = 2 * SECOND;
    let lease = leases.acquire("y", ttl).await.unwrap();
    until(|| async { count("renewals_total{outcome=renewed}") >= 2.0 }).await;
    server.delete(&[&holder("y")]);
    soon(lease.lost()).await;
    until(|| async { lost() == 1.0 }).await;
    assert!(!is_held(&server, "y"), "it was made again");
    assert_eq!(held(), 0.0);
    assert!(!lease.release().await.unwrap());

    let lease = leases.acquire("z", ttl).await.unwrap();
    proxy.set(Network::Down);
    soon(lease.lost()).await;
    drop(lease);
    until(|| async { lost() == 2.0 }).await;
    assert!(count("renewals_total{outcome=failed}") >= 1.0);
    proxy.set(Network::Up);

    let other = leases.clone().prefix("other");
    let lease = acquire(&other, "x").await;
    assert_eq!(value_of(other.source(), "leases_acquired_total"), 1.0);
    assert_eq!(acquired(), 4.0);
    let source = other.source();
    drop(other);
    let exported = source.exported().expect("the lease counts");
    assert_eq!(value(&exported, "leases_held"), 1.0);
    release(lease).await;
    until(|| async { source.exported().is_none() }).await;
}

#[tokio::test]
async fn a_lease_is_lost_of_which_its_holder_hears_first() {
    let (server, leases) = Server::with_leases().await;
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
    let (connecting, ending) = (background(), background());
    let leases = connecting.block_on(leases(&server.url()));
    let lease = ending.block_on(leases.acquire("x", MINUTE)).unwrap();
    drop(ending);
    assert_eq!(value_of(leases.source(), "leases_lost_total"), 1.0);
    assert_eq!(value_of(leases.source(), "leases_held"), 0.0);
    drop(lease);
}

#[tokio::test]
async fn reconnects_of_notifications_are_counted() {
    let mut server = Server::start();
    let notifications = Notifications::of(server.client());
    let count = |name: &str| value_of(notifications.source(), &format!("notifications_{name}_total"));
    let jobs = unnotified(server.connect().await).notifications(&notifications);
    let mut worker = jobs.worker().start();
    put(&jobs, ["x"], NOW).await;
    do_next(&mut worker).await;
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

type Series = (String, BTreeSet<String>);

/// The samples of our crate in a text in Prometheus' format, by name and labels.
fn scraped(text: &str) -> BTreeMap<Series, f64> {
    // The age of a sample differs between two scrapes.
    let ours = |line: &&str| line.starts_with("tickwheel_redis_") && !line.contains("sample_age_seconds");
    let samples = text.lines().filter(ours).map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split(',');
        let labels = labels.filter(|label| !label.is_empty());
        (
            (name.to_owned(), labels.map(str::to_owned).collect()),
            value.parse().unwrap(),
        )
    });
    samples.collect()
}

/// A queue, leases and notifications that have something to report, and all of what they do.
async fn watched(server: &Server, wheel: &Wheel) -> (Jobs, Leases<ConnectionManager>, Notifications) {
    let notifications = Notifications::of(server.client());
    let connection = server.connect().await;
    let jobs = DelayedJobs::new(wheel, connection.clone(), "q").notifications(&notifications);
    let leases = Leases::new(wheel, connection);
    put(&jobs, ["x"], NOW).await;
    let mut worker = jobs.worker().start();
    next(&mut worker).await.retry_after(MINUTE).await.unwrap();
    jobs.sample().await.unwrap();
    drop(acquire(&leases, "x").await);
    until(|| async { value_of(leases.source(), "leases_held") == 0.0 }).await;
    (jobs, leases, notifications)
}

#[tokio::test]
async fn both_exporters_show_a_queue_beside_its_wheel() {
    let server = Server::start();
    let wheel = Wheel::builder().name("w").build().unwrap();
    let (jobs, leases, notifications) = watched(&server, &wheel).await;
    let mut registry = Registry::default();
    let collector = WheelCollector::new(&wheel).and_source(jobs.source());
    let collector = collector
        .and_source(leases.source())
        .and_source(notifications.source());
    registry.register_collector(Box::new(collector));
    let reporter = Reporter::new(&wheel).and_source(jobs.source());
    let reporter = reporter
        .and_source(leases.source())
        .and_source(notifications.source());
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || reporter.describe());
    assert!(with_local_recorder(&recorder, || reporter.report()));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let scrape = scraped(&text);
    assert_eq!(scrape, scraped(&recorder.handle().render()));
    let expected = scraped(
        r#"
tickwheel_redis_jobs_waiting{wheel="w",queue="q"} 1
tickwheel_redis_jobs_deliveries_total{wheel="w",queue="q",attempt="first"} 1
tickwheel_redis_jobs_lateness_seconds_count{wheel="w",queue="q"} 1
tickwheel_redis_jobs_lateness_seconds_bucket{wheel="w",queue="q",le="+Inf"} 1
tickwheel_redis_leases_acquired_total{wheel="w",prefix="tickwheel:lease"} 1
tickwheel_redis_notifications_reconnects_total 0
"#,
    );
    assert_eq!(expected.len(), 6);
    for (series, value) in expected {
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
    let handles = [server.queue_on(&wheel).await, server.queue_on(&wheel).await];
    put(&handles[0], ["x", "y", "z"], NOW).await;
    for jobs in &handles {
        do_next(&mut jobs.worker().start()).await;
    }
    let mut sources = Sources::default();
    for jobs in &handles {
        jobs.sample().await.unwrap();
        sources.add(jobs.source());
        sources.add(jobs.clone().source());
    }
    let exported = sources.exported();
    assert_eq!(value(&exported, "jobs_waiting"), 1.0, "both see the same job");
    assert_eq!(value(&exported, FIRST), 2.0, "each counted one");

    let mut sources = Sources::default();
    let notifications = [(); 2].map(|()| Notifications::of(server.client()));
    for (notifications, server) in notifications.iter().zip(["north", "south"]) {
        sources.add(notifications.source().with_label("server", server));
    }
    assert_eq!(sources.exported().len(), 4, "a label tells them apart");
}

/// What a queue, leases and notifications export, the dashboard, and the documentation.
async fn exported_and_read() -> (Vec<Exported>, String, String) {
    let server = Server::start();
    let (jobs, leases, notifications) = watched(&server, &Wheel::new()).await;
    let jobs_and_leases = [jobs.source().exported(), leases.source().exported()];
    let all = [&jobs_and_leases[..], &[notifications.source().exported()]].concat();
    let package = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where the package is");
    let read = |file: &str| fs::read_to_string(format!("{package}/{file}")).unwrap();
    let exported = all.into_iter().flat_map(Option::unwrap).collect();
    (exported, read("../prometheus/grafana.json"), read("src/lib.rs"))
}

#[tokio::test]
async fn names_say_kind_and_unit_and_are_documented_and_on_the_dashboard() {
    let (exported, dashboard, documentation) = exported_and_read().await;
    let mut names = BTreeSet::new();
    for Exported { name, kind, unit, .. } in exported {
        assert_eq!(name.ends_with("_total"), kind == ExportedKind::Counter, "{name}");
        let is_time = unit == ExportedUnit::Seconds;
        assert_eq!(name.ends_with("_seconds"), is_time, "{name}");
        let row = format!("| `{name}` |");
        assert!(documentation.contains(&row), "{name} is not documented");
        assert!(dashboard.contains(name), "{name} is not on the dashboard");
        names.insert(name);
    }
    assert_eq!(documentation.matches("| `tickwheel_redis_").count(), names.len());
}

#[tokio::test]
async fn what_the_dashboard_asks_for_is_there_with_its_labels() {
    let (exported, dashboard, _) = exported_and_read().await;
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.filter_map(|target| target["expr"].as_str());
    let parts: Vec<&str> = queries
        .flat_map(|query| query.split("tickwheel_redis_").skip(1))
        .collect();
    assert!(parts.len() >= 12, "{parts:?}");
    for part in parts {
        let is_of_name = |char: char| char == '_' || char.is_ascii_alphanumeric();
        let (family, rest) = part.split_at(part.find(|char| !is_of_name(char)).unwrap_or(part.len()));
        let name = format!("tickwheel_redis_{}", family.trim_end_matches("_bucket"));
        let found: Vec<_> = exported.iter().filter(|exported| exported.name == name).collect();
        assert!(!found.is_empty(), "{part}: there is no {name}");
        let matchers = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        for matcher in matchers.into_iter().flat_map(|(matchers, _)| matchers.split(',')) {
            let (key, word) = matcher.split_once('=').unwrap();
            let word = word.trim_matches(['~', '"']);
            let has = |exported: &&Exported| {
                let mut labels = exported.labels.iter();
                labels.any(|(its, value)| *its == key && (word.starts_with('$') || value == word))
            };
            assert!(found.iter().any(has), "{part}: {matcher}");
        }
    }
}
