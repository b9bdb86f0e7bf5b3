//! What a scrape says, and of which wheels.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{pending, poll_fn},
    pin::pin,
    task::Poll,
    thread,
    time::Duration,
};

use prometheus_client::{encoding::text::encode, registry::Registry};
use tickwheel::Wheel;
use tickwheel_exported::{ExportedKind, exported};
use tickwheel_prometheus::WheelCollector;

const SECOND: Duration = Duration::from_secs(1);

fn text(collector: &WheelCollector) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

/// The samples of a scrape, by name and labels. No two have the same.
fn scrape(collector: &WheelCollector) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    for line in text(collector).lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let former = samples.insert(series.to_owned(), value.parse().unwrap());
        assert_eq!(former, None, "{series} stands twice");
    }
    samples
}

async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    assert!(poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await);
}

#[tokio::test(start_paused = true)]
async fn a_scrape_says_what_metrics_and_snapshot_say() {
    let wheel = Wheel::builder().name("w").shards(1).build().unwrap();
    let collector = WheelCollector::new(&wheel);
    let labelled = wheel.labelled("l");
    let mut pends = pin!(labelled.timeout(SECOND * 5, pending::<()>()));
    poll_once(pends.as_mut()).await;
    let answer = tokio::time::sleep(SECOND * 9 / 20);
    labelled.timeout(SECOND, answer).await.unwrap();
    labelled.timeout(SECOND, async {}).await.unwrap();
    labelled.timeout(SECOND, pending::<()>()).await.unwrap_err();

    let samples = scrape(&collector);
    let metrics = wheel.metrics();
    for (series, value) in [
        ("pending{wheel=\"w\"}", 1.0),
        ("due{wheel=\"w\",within=\"10s\"}", 1.0),
        ("due{wheel=\"w\",within=\"later\"}", 0.0),
        ("engines{wheel=\"w\"}", 1.0),
        ("registered_total{wheel=\"w\"}", metrics.registered as f64),
        ("expired_total{wheel=\"w\"}", metrics.expired as f64),
        ("turns_total{wheel=\"w\"}", metrics.turns as f64),
        ("arena_bytes{wheel=\"w\"}", metrics.arena_bytes as f64),
        ("tick_seconds{wheel=\"w\"}", 0.001),
        ("timeouts_started_total{wheel=\"w\",label=\"l\"}", 4.0),
        ("timeouts_pending{wheel=\"w\",label=\"l\"}", 1.0),
        (
            "timeouts_total{wheel=\"w\",label=\"l\",outcome=\"completed\"}",
            2.0,
        ),
        ("timeouts_total{wheel=\"w\",label=\"l\",outcome=\"elapsed\"}", 1.0),
        (
            "timeouts_headroom_ratio_bucket{le=\"0.5\",wheel=\"w\",label=\"l\"}",
            0.0,
        ),
        (
            "timeouts_headroom_ratio_bucket{le=\"0.6\",wheel=\"w\",label=\"l\"}",
            1.0,
        ),
        (
            "timeouts_headroom_ratio_bucket{le=\"0.9\",wheel=\"w\",label=\"l\"}",
            1.0,
        ),
        (
            "timeouts_headroom_ratio_bucket{le=\"+Inf\",wheel=\"w\",label=\"l\"}",
            2.0,
        ),
        ("timeouts_headroom_ratio_count{wheel=\"w\",label=\"l\"}", 2.0),
        ("timeouts_headroom_ratio_sum{wheel=\"w\",label=\"l\"}", 1.5),
    ] {
        let sample = samples.get(&format!("tickwheel_{series}"));
        assert_eq!(sample, Some(&value), "{series} in {samples:#?}");
    }
    let turns = wheel.snapshot().lag.count() as f64;
    assert_eq!(samples["tickwheel_lag_seconds_count{wheel=\"w\"}"], turns);
    assert_eq!(
        samples["tickwheel_lag_seconds_bucket{le=\"+Inf\",wheel=\"w\"}"],
        turns
    );
}

#[tokio::test]
async fn lag_is_a_histogram_whose_counts_only_grow() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let collector = WheelCollector::new(&wheel);
    let mut former = BTreeMap::new();
    for stall in [0, 3, 0, 30] {
        let mut timeout = pin!(wheel.timeout(Duration::from_millis(1), pending::<()>()));
        poll_once(timeout.as_mut()).await;
        thread::sleep(Duration::from_millis(stall));
        timeout.await.unwrap_err();
        let samples = scrape(&collector);
        for (series, count) in samples
            .iter()
            .filter(|(series, _)| series.contains("lag_seconds_"))
        {
            assert!(count >= former.get(series).unwrap_or(&0.0), "{series} went back");
        }
        // The driver was that late, counted from its own deadline.
        let max = samples["tickwheel_lag_max_seconds{wheel=\"\"}"];
        assert!(
            max >= stall.saturating_sub(2) as f64 / 1000.0,
            "{max} after {stall} ms"
        );
        former = samples;
    }
    let late = former["tickwheel_lag_seconds_count{wheel=\"\"}"]
        - former["tickwheel_lag_seconds_bucket{le=\"0.02\",wheel=\"\"}"];
    assert!(late >= 1.0, "{former:#?}");
    assert!(former["tickwheel_lag_seconds_sum{wheel=\"\"}"] >= 0.028);
}

#[tokio::test]
async fn the_timers_of_all_runtimes_are_counted_also_of_ended_ones() {
    let wheel = Wheel::new();
    let collector = WheelCollector::new(&wheel);
    for runtime in 1..=3 {
        let wheel = wheel.clone();
        let in_a_runtime = async move || wheel.labelled("l").timeout(SECOND, async {}).await.unwrap();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            runtime.unwrap().block_on(in_a_runtime());
        });
        thread.join().unwrap();
        let samples = scrape(&collector);
        let started = samples["tickwheel_timeouts_started_total{wheel=\"\",label=\"l\"}"];
        assert_eq!(started, f64::from(runtime));
    }
}

#[tokio::test]
async fn a_collector_reports_on_several_wheels_and_on_each_once() {
    let named = |name: &str| Wheel::builder().name(name).build().unwrap();
    let (first, second) = (named("first"), named("second"));
    for wheel in [&first, &second] {
        let labelled = wheel.labelled("of several");
        labelled.timeout(SECOND, async {}).await.unwrap();
    }
    let collector = WheelCollector::new(&first)
        .and(&second)
        .and(&first)
        .and(&Wheel::global());
    let samples = scrape(&collector);
    for name in ["first", "second"] {
        let series = format!("tickwheel_timeouts_started_total{{wheel=\"{name}\",label=\"of several\"}}");
        assert_eq!(samples[&series], 1.0);
    }
    let pending = samples
        .keys()
        .filter(|series| series.starts_with("tickwheel_pending"));
    assert_eq!(pending.count(), 3);
}

#[tokio::test]
async fn wheels_of_one_name_are_added_up() {
    let wheels = [Wheel::new(), Wheel::new()];
    for wheel in &wheels {
        wheel.labelled("l").timeout(SECOND, async {}).await.unwrap();
    }
    let collector = WheelCollector::new(&wheels[0]).and(&wheels[1]);
    let samples = scrape(&collector);
    assert_eq!(
        samples["tickwheel_timeouts_started_total{wheel=\"\",label=\"l\"}"],
        2.0
    );
    assert_eq!(
        samples["tickwheel_timeouts_headroom_ratio_count{wheel=\"\",label=\"l\"}"],
        2.0
    );
    assert_eq!(samples["tickwheel_tick_seconds{wheel=\"\"}"], 0.001);
}

#[test]
fn a_wheel_is_not_kept_and_ends_its_series() {
    let wheel = Wheel::new();
    let collector = WheelCollector::new(&wheel);
    assert!(!scrape(&collector).is_empty());
    drop(wheel);
    assert_eq!(text(&collector), "# EOF\n");
}

#[tokio::test]
async fn names_may_hold_anything() {
    let wheel = Wheel::builder().name("a \"b\" \\ c\nd").build().unwrap();
    let labelled = wheel.labelled("{x=\"1\"} 2");
    labelled.timeout(SECOND, async {}).await.unwrap();
    let samples = scrape(&WheelCollector::new(&wheel));
    let series = r#"tickwheel_timeouts_started_total{wheel="a \"b\" \\ c\nd",label="{x=\"1\"} 2"}"#;
    assert_eq!(samples[series], 1.0);
}

#[test]
fn its_metrics_are_what_the_wheel_exports_and_each_is_described_once() {
    let wheel = Wheel::new();
    wheel.labelled("l");
    let collector = WheelCollector::new(&wheel);
    let text = text(&collector);
    let words = |start: &str| -> BTreeMap<String, String> {
        let mut words = BTreeMap::new();
        for line in text.lines().filter_map(|line| line.strip_prefix(start)) {
            let (name, rest) = line.split_once(' ').unwrap();
            let former = words.insert(name.to_owned(), rest.to_owned());
            assert_eq!(former, None, "{start}{name} stands twice");
        }
        words
    };
    let (kinds, helps, units) = (words("# TYPE "), words("# HELP "), words("# UNIT "));
    // OpenMetrics has no room for a family that only describes the samples of another.
    assert_eq!(kinds.len(), 18);
    let samples = scrape(&collector);
    let families: BTreeSet<_> = samples
        .keys()
        .map(|series| {
            let name = series.split('{').next().unwrap();
            let ends = ["_bucket", "_sum", "_count", "_total"];
            let family = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let unit = units.get(family).cloned();
            (
                family.to_owned(),
                kinds[family].clone(),
                helps[family].clone(),
                unit,
            )
        })
        .collect();
    let exported = exported(&wheel);
    let exported: BTreeSet<_> = exported
        .iter()
        .map(|exported| {
            let kind = match exported.kind {
                ExportedKind::Counter => "counter",
                ExportedKind::Gauge => "gauge",
                _ => "histogram",
            };
            let end = exported.name.rsplit('_').next().unwrap();
            let unit = ["seconds", "bytes"].contains(&end).then(|| end.to_owned());
            (
                exported.name.trim_end_matches("_total").to_owned(),
                kind.to_owned(),
                exported.help.to_owned(),
                unit,
            )
        })
        .collect();
    assert_eq!(families, exported);
    assert_eq!(exported.len(), 18);
}
