//! `MetricsReporter`: what it reports to a recorder, and that the table in its documentation is complete.

use crate::support;

use std::{collections::BTreeMap, future::pending};

use metrics_util::{
    MetricKind,
    debugging::{DebugValue, DebuggingRecorder, Snapshotter},
};
use tickwheel::{MetricsReporter, Wheel};
use tokio_test::{assert_pending, task};

use support::{SECOND, advance, full_wheel, ms, settle};

/// What was recorded since the last look, by name and labels.
fn recorded(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let recorded = snapshotter.snapshot().into_vec();
    recorded
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key
                .key()
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            (format!("{}{{{}}}", key.key().name(), labels.join(",")), value)
        })
        .collect()
}

fn counter(recorded: &BTreeMap<String, DebugValue>, name: &str) -> u64 {
    match recorded.get(name) {
        Some(DebugValue::Counter(value)) => *value,
        other => panic!("{name} is {other:?} in {recorded:#?}"),
    }
}

fn gauge(recorded: &BTreeMap<String, DebugValue>, name: &str) -> f64 {
    match recorded.get(name) {
        Some(DebugValue::Gauge(value)) => value.into_inner(),
        other => panic!("{name} is {other:?} in {recorded:#?}"),
    }
}

fn histogram(recorded: &BTreeMap<String, DebugValue>, name: &str) -> Vec<f64> {
    match recorded.get(name) {
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| value.into_inner()).collect(),
        other => panic!("{name} is {other:?} in {recorded:#?}"),
    }
}

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

    fn report(&self, reporter: &mut MetricsReporter) -> BTreeMap<String, DebugValue> {
        assert!(metrics::with_local_recorder(&self.recorder, || reporter.report()));
        recorded(&self.snapshotter)
    }
}

#[tokio::test(start_paused = true)]
async fn a_report_says_what_metrics_and_snapshot_say() {
    let wheel = Wheel::builder().name("w").shards(1).build().unwrap();
    let recording = Recording::new();
    let mut reporter = wheel.metrics_reporter();
    let report = recording.report(&mut reporter);
    assert_eq!(gauge(&report, "tickwheel_pending{wheel=w}"), 0.0);
    assert_eq!(gauge(&report, "tickwheel_shards{wheel=w,mode=driverless}"), 1.0);
    assert_eq!(gauge(&report, "tickwheel_tick_seconds{wheel=w}"), 0.001);
    assert_eq!(gauge(&report, "tickwheel_lag_max_seconds{wheel=w}"), 0.0);

    let labelled = wheel.labelled("l");
    let mut pends = task::spawn(labelled.timeout(SECOND * 5, pending::<()>()));
    assert_pending!(pends.poll());
    let mut sleep = task::spawn(wheel.sleep(ms(50)));
    assert_pending!(sleep.poll());
    labelled.timeout(SECOND, wheel.sleep(ms(450))).await.unwrap();
    labelled.timeout(SECOND, async {}).await.unwrap();
    labelled.timeout(SECOND, pending::<()>()).await.unwrap_err();

    let report = recording.report(&mut reporter);
    assert_eq!(gauge(&report, "tickwheel_pending{wheel=w}"), 1.0);
    assert_eq!(gauge(&report, "tickwheel_due{wheel=w,within=10s}"), 1.0);
    assert_eq!(gauge(&report, "tickwheel_due{wheel=w,within=later}"), 0.0);
    assert_eq!(gauge(&report, "tickwheel_shards{wheel=w,mode=driverless}"), 0.0);
    assert_eq!(gauge(&report, "tickwheel_shards{wheel=w,mode=dozing}"), 1.0);
    let metrics = wheel.metrics();
    for (name, value) in [
        ("registered_total{wheel=w}", metrics.registered),
        ("expired_total{wheel=w}", metrics.expired),
        ("cancelled_total{wheel=w}", metrics.cancelled),
        ("ticks_total{wheel=w}", metrics.ticks),
        ("wakeups_total{wheel=w}", metrics.wakeups),
        ("timeouts_started_total{wheel=w,label=l}", 4),
        ("timeouts_total{wheel=w,label=l,outcome=completed}", 2),
        ("timeouts_total{wheel=w,label=l,outcome=elapsed}", 1),
    ] {
        assert_eq!(counter(&report, &format!("tickwheel_{name}")), value, "{name}");
    }
    assert_eq!(
        gauge(&report, "tickwheel_arena_bytes{wheel=w}"),
        metrics.arena_bytes as f64
    );
    assert_eq!(
        histogram(&report, "tickwheel_lag_seconds{wheel=w}").len() as u64,
        wheel.snapshot().lag.count()
    );
    assert_eq!(gauge(&report, "tickwheel_timeouts_pending{wheel=w,label=l}"), 1.0);
    let headroom = "tickwheel_timeouts_headroom_ratio{wheel=w,label=l}";
    assert_eq!(histogram(&report, headroom), [0.55, 0.95]);

    labelled.timeout(SECOND, async {}).await.unwrap();
    let report = recording.report(&mut reporter);
    assert_eq!(histogram(&report, headroom), [0.95], "only what is new");
    assert!(histogram(&report, "tickwheel_lag_seconds{wheel=w}").is_empty());
    assert_eq!(gauge(&report, "tickwheel_lag_max_seconds{wheel=w}"), 0.0);
}

#[tokio::test(start_paused = true)]
async fn refusals_and_a_shutdown_are_reported() {
    let (wheel, _occupant) = full_wheel();
    let recording = Recording::new();
    let mut reporter = wheel.metrics_reporter();
    wheel
        .labelled("l")
        .try_timeout(SECOND, pending::<()>())
        .await
        .unwrap_err();
    wheel.shutdown();
    let report = recording.report(&mut reporter);
    assert_eq!(counter(&report, "tickwheel_rejected_total{wheel=}"), 1);
    assert_eq!(
        counter(
            &report,
            "tickwheel_timeouts_total{wheel=,label=l,outcome=refused}"
        ),
        1
    );
    assert_eq!(
        gauge(&report, "tickwheel_shards{wheel=,mode=shutdown}"),
        wheel.shards() as f64
    );
}

#[tokio::test(start_paused = true)]
async fn it_reports_at_once_and_every_period_until_after_a_shutdown() {
    let recording = Recording::new();
    let _guard = metrics::set_default_local_recorder(&recording.recorder);
    let wheel = Wheel::new();
    let reports = tokio::spawn(wheel.metrics_reporter().run(SECOND));
    settle().await;
    assert!(!recorded(&recording.snapshotter).is_empty());
    let mut sleep = wheel.sleep(SECOND * 60);
    support::register(&mut sleep);
    advance(ms(999)).await;
    assert_eq!(
        gauge(&recorded(&recording.snapshotter), "tickwheel_pending{wheel=}"),
        0.0
    );
    advance(ms(2)).await;
    assert_eq!(
        gauge(&recorded(&recording.snapshotter), "tickwheel_pending{wheel=}"),
        1.0
    );
    wheel.shutdown();
    reports.await.unwrap();
    let last = recorded(&recording.snapshotter);
    assert_eq!(counter(&last, "tickwheel_cancelled_total{wheel=}"), 1);
}

#[tokio::test(start_paused = true)]
async fn it_ends_with_the_wheel_which_it_does_not_keep() {
    let wheel = Wheel::new();
    let mut reporter = wheel.metrics_reporter();
    let reports = tokio::spawn(wheel.metrics_reporter().run(SECOND));
    settle().await;
    assert!(reporter.report());
    drop(wheel);
    assert!(!reporter.report());
    reports.await.unwrap();
}

/// The rows of the table in the documentation: name and kind.
pub(crate) fn documented() -> BTreeMap<String, String> {
    let source = include_str!("../../src/observe/reporter.rs");
    let rows = source
        .lines()
        .filter_map(|line| line.strip_prefix("/// | `tickwheel_"));
    rows.map(|row| {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap().trim_end_matches('`');
        (format!("tickwheel_{name}"), cells.next().unwrap().to_owned())
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn the_table_in_the_documentation_is_all_of_it_and_all_is_described() {
    let recording = Recording::new();
    let wheel = Wheel::new();
    wheel.labelled("l").timeout(SECOND, async {}).await.unwrap();
    let reported: BTreeMap<_, _> = metrics::with_local_recorder(&recording.recorder, || {
        let mut reporter = wheel.metrics_reporter();
        reporter.describe();
        assert!(reporter.report());
        let reported = recording.snapshotter.snapshot().into_vec();
        let described = reported.into_iter().map(|(key, unit, description, _)| {
            let name = key.key().name().to_owned();
            assert!(unit.is_some() && description.is_some(), "{name} is not described");
            let kind = match key.kind() {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            (name, kind.to_owned())
        });
        described.collect()
    });
    assert_eq!(reported, documented());
    assert!(reported.len() >= 20);
}
