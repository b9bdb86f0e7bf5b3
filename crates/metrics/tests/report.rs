//! What a reporter tells a recorder, and that it is what a scrape of `tickwheel-prometheus` says.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{pending, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use metrics::with_local_recorder;
use metrics_exporter_prometheus::PrometheusBuilder;
use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue};
use tickwheel_metrics::Reporter;
use tickwheel_prometheus::WheelCollector;

const SECOND: Duration = Duration::from_secs(1);

struct Recording {
    recorder: DebuggingRecorder,
    snapshotter: Snapshotter,
}

impl Recording {
    fn new() -> Recording {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        Recording {
            recorder,
            snapshotter,
        }
    }

    /// The values recorded since the last look, by name and labels. A counter is one that was set, not added
    /// to.
    fn recorded(&self) -> BTreeMap<String, f64> {
        let recorded = self.snapshotter.snapshot().into_vec().into_iter();
        let values = recorded.map(|(key, _, _, value)| {
            let labels = key.key().labels();
            let labels: Vec<_> = labels
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            let value = match value {
                DebugValue::Counter(count) => count as f64,
                DebugValue::Gauge(value) => value.into_inner(),
                DebugValue::Histogram(values) => panic!("{} values of a histogram", values.len()),
            };
            (format!("{}{{{}}}", key.key().name(), labels.join(",")), value)
        });
        values.collect()
    }

    fn report(&self, reporter: &Reporter) -> BTreeMap<String, f64> {
        assert!(with_local_recorder(&self.recorder, || reporter.report()));
        self.recorded()
    }
}

async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    assert!(poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await);
}

#[tokio::test(start_paused = true)]
async fn a_report_says_what_metrics_and_snapshot_say() {
    let wheel = Wheel::builder().name("w").shards(1).build().unwrap();
    let recording = Recording::new();
    let reporter = Reporter::new(&wheel);
    let report = recording.report(&reporter);
    assert_eq!(report["tickwheel_pending{wheel=w}"], 0.0);
    assert_eq!(report["tickwheel_engines{wheel=w}"], 0.0);
    assert_eq!(report["tickwheel_tick_seconds{wheel=w}"], 0.001);

    let labelled = wheel.labelled("l");
    let mut pends = pin!(labelled.timeout(SECOND * 5, pending::<()>()));
    poll_once(pends.as_mut()).await;
    labelled
        .timeout(SECOND, wheel.sleep(SECOND * 9 / 20))
        .await
        .unwrap();
    labelled.timeout(SECOND, async {}).await.unwrap();
    labelled.timeout(SECOND, pending::<()>()).await.unwrap_err();

    let report = recording.report(&reporter);
    let metrics = wheel.metrics();
    for (name, value) in [
        ("pending{wheel=w}", 1.0),
        ("due{wheel=w,within=10s}", 1.0),
        ("due{wheel=w,within=later}", 0.0),
        ("engines{wheel=w}", 1.0),
        ("registered_total{wheel=w}", metrics.registered as f64),
        ("expired_total{wheel=w}", metrics.expired as f64),
        ("cancelled_total{wheel=w}", metrics.cancelled as f64),
        ("turns_total{wheel=w}", metrics.turns as f64),
        ("arena_bytes{wheel=w}", metrics.arena_bytes as f64),
        ("timeouts_started_total{wheel=w,label=l}", 4.0),
        ("timeouts_pending{wheel=w,label=l}", 1.0),
        ("timeouts_total{wheel=w,label=l,outcome=completed}", 2.0),
        ("timeouts_total{wheel=w,label=l,outcome=elapsed}", 1.0),
        ("timeouts_headroom_ratio_bucket{wheel=w,label=l,le=0.5}", 0.0),
        ("timeouts_headroom_ratio_bucket{wheel=w,label=l,le=0.6}", 1.0),
        ("timeouts_headroom_ratio_bucket{wheel=w,label=l,le=+Inf}", 2.0),
        ("timeouts_headroom_ratio_count{wheel=w,label=l}", 2.0),
        ("timeouts_headroom_ratio_sum{wheel=w,label=l}", 1.5),
        ("lag_seconds_count{wheel=w}", wheel.snapshot().lag.count() as f64),
    ] {
        assert_eq!(
            report.get(&format!("tickwheel_{name}")),
            Some(&value),
            "{name} in {report:#?}"
        );
    }
}

/// The samples of a text in Prometheus' format, with the labels of each in order, but for those that differ
/// from scrape to scrape.
fn samples(text: &str) -> BTreeMap<(String, BTreeSet<String>), f64> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let samples = lines.map(|line| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .map(str::to_owned)
            .collect();
        ((name.to_owned(), labels), value.parse().unwrap())
    });
    samples.collect()
}

#[tokio::test(start_paused = true)]
async fn both_exporters_give_prometheus_the_same_series() {
    let wheel = Wheel::builder().name("w").build().unwrap();
    let labelled = wheel.labelled("l");
    labelled.timeout(SECOND, wheel.sleep(SECOND / 2)).await.unwrap();
    labelled.timeout(SECOND, pending::<()>()).await.unwrap_err();
    settle().await;

    let recorder = PrometheusBuilder::new().build_recorder();
    assert!(with_local_recorder(&recorder, || Reporter::new(&wheel).report()));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(WheelCollector::new(&wheel)));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let reported = samples(&recorder.handle().render());
    assert_eq!(reported, samples(&text));
    assert!(reported.len() > 50, "{reported:#?}");
}

#[tokio::test]
async fn refusals_and_a_shutdown_are_reported() {
    let wheel = Wheel::builder().max_pending(1).build().unwrap();
    let mut occupant = pin!(wheel.try_sleep(SECOND * 60));
    poll_once(occupant.as_mut()).await;
    wheel.try_sleep(SECOND).await.unwrap_err();
    drop(wheel.shutdown());
    occupant.await.unwrap_err();
    let report = Recording::new().report(&Reporter::new(&wheel));
    assert_eq!(report["tickwheel_rejected_total{wheel=}"], 1.0);
    assert_eq!(report["tickwheel_cancelled_total{wheel=}"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn it_reports_at_once_and_every_period_until_after_a_shutdown() {
    let recording = Recording::new();
    let _guard = metrics::set_default_local_recorder(&recording.recorder);
    let wheel = Wheel::new();
    let reports = tokio::spawn(Reporter::new(&wheel).run(SECOND));
    settle().await;
    assert!(!recording.recorded().is_empty());
    let mut sleep = pin!(wheel.try_sleep(SECOND * 60));
    poll_once(sleep.as_mut()).await;
    tokio::time::advance(SECOND * 9 / 10).await;
    settle().await;
    assert_eq!(recording.recorded()["tickwheel_pending{wheel=}"], 0.0);
    tokio::time::advance(SECOND / 5).await;
    settle().await;
    assert_eq!(recording.recorded()["tickwheel_pending{wheel=}"], 1.0);
    drop(wheel.shutdown());
    reports.await.unwrap();
    assert_eq!(recording.recorded()["tickwheel_registered_total{wheel=}"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_the_wheel_which_it_does_not_keep() {
    let wheel = Wheel::new();
    let reporter = Reporter::new(&wheel);
    let reports = tokio::spawn(Reporter::new(&wheel).run(SECOND));
    settle().await;
    assert!(reporter.report());
    drop(wheel);
    assert!(!reporter.report());
    reports.await.unwrap();
}

#[test]
fn everything_reported_is_described() {
    let recording = Recording::new();
    let wheel = Wheel::new();
    with_local_recorder(&recording.recorder, || {
        let reporter = Reporter::new(&wheel);
        reporter.describe();
        wheel.labelled("l");
        assert!(reporter.report());
    });
    let reported = recording.snapshotter.snapshot().into_vec();
    for (key, unit, description, _) in &reported {
        let name = key.key().name();
        assert!(unit.is_some() && description.is_some(), "{name} is not described");
        let is_counter = ["_total", "_bucket", "_count"]
            .iter()
            .any(|end| name.ends_with(end));
        assert_eq!(key.kind() == MetricKind::Counter, is_counter, "{name}");
        assert_ne!(key.kind(), MetricKind::Histogram, "{name}");
    }
    assert!(reported.len() > 50);
}

#[test]
fn a_report_records_no_more_however_many_timeouts_there_were() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let wheel = Wheel::new();
    let labelled = wheel.labelled("l");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let lines = [1, 10_000].map(|timeouts| {
        runtime.block_on(async {
            for _ in 0..timeouts {
                labelled.timeout(SECOND, async {}).await.unwrap();
            }
        });
        assert!(with_local_recorder(&recorder, || Reporter::new(&wheel).report()));
        recorder.handle().render().lines().count()
    });
    assert_eq!(lines[0], lines[1]);
    let count = "tickwheel_timeouts_headroom_ratio_count{wheel=\"\",label=\"l\"} 10001\n";
    let text = recorder.handle().render();
    assert!(text.contains(count), "{text}");
}

fn orders(count: u64) -> Vec<Exported> {
    let region = |name: &str| vec![("region", name.to_owned())];
    let waiting = |name, count| {
        Exported::new(
            "shop_waiting",
            "Orders that wait.",
            ExportedUnit::Count,
            ExportedKind::Gauge,
            region(name),
            ExportedValue::Count(count),
        )
    };
    let late = Exported::new(
        "shop_late_seconds",
        "Lateness of orders.",
        ExportedUnit::Seconds,
        ExportedKind::Histogram,
        Vec::new(),
        ExportedValue::Histogram {
            buckets: vec![(0.5, count), (f64::INFINITY, 1)],
            sum: 2.5,
        },
    );
    vec![waiting("north", count), waiting("south", 3), late]
}

#[test]
fn further_sources_are_reported_and_described_by_both_exporters() {
    let wheel = Wheel::new();
    let count = Arc::new(AtomicU64::new(1));
    let source = {
        let count = count.clone();
        move || Some(orders(count.load(Ordering::Relaxed)))
    };
    let reporter = Reporter::new(&wheel).and_source(source.clone());
    let recorder = PrometheusBuilder::new().build_recorder();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(WheelCollector::new(&wheel).and_source(source)));
    with_local_recorder(&recorder, || reporter.describe());
    for orders in [1, 17] {
        count.store(orders, Ordering::Relaxed);
        assert!(with_local_recorder(&recorder, || reporter.report()));
        let rendered = recorder.handle().render();
        assert!(
            rendered.contains("# HELP shop_waiting Orders that wait.\n"),
            "{rendered}"
        );
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let (reported, scraped) = (samples(&rendered), samples(&text));
        assert_eq!(reported, scraped);
        for (name, labels, value) in [
            ("shop_waiting", "region=\"north\"", orders as f64),
            ("shop_waiting", "region=\"south\"", 3.0),
            ("shop_late_seconds_bucket", "le=\"0.5\"", orders as f64),
            ("shop_late_seconds_bucket", "le=\"+Inf\"", orders as f64 + 1.0),
            ("shop_late_seconds_count", "", orders as f64 + 1.0),
            ("shop_late_seconds_sum", "", 2.5),
        ] {
            let key = (name.to_owned(), BTreeSet::from([labels.to_owned()]));
            assert_eq!(reported[&key], value, "{name}{{{labels}}}");
        }
    }
    drop(wheel);
    assert!(
        !with_local_recorder(&recorder, || reporter.report()),
        "it ends with its wheel"
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_source_returns_later_is_described_then() {
    let recording = Recording::new();
    let _guard = metrics::set_default_local_recorder(&recording.recorder);
    let wheel = Wheel::new();
    let ready = Arc::new(AtomicU64::new(0));
    let source = {
        let ready = ready.clone();
        move || Some(orders(1).split_off(3 - ready.load(Ordering::Relaxed) as usize))
    };
    let reports = tokio::spawn(Reporter::new(&wheel).and_source(source).run(SECOND));
    settle().await;
    ready.store(3, Ordering::Relaxed);
    tokio::time::advance(SECOND * 3 / 2).await;
    settle().await;
    let reported = recording.snapshotter.snapshot().into_vec();
    let of_shop = reported
        .iter()
        .filter(|(key, ..)| key.key().name().starts_with("shop_"));
    let described = of_shop.map(|(_, unit, text, _)| unit.is_some() && text.is_some());
    assert_eq!(described.collect::<Vec<_>>(), [true; 6]);
    drop(wheel);
    reports.await.unwrap();
}
