//! `WheelCollector`: what a scrape says, that it says it in the names of `MetricsReporter`, and of which wheels.

use crate::support;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    thread,
};

use prometheus_client::{collector::Collector, encoding::text::encode, registry::Registry};
use tickwheel::{Wheel, prometheus::WheelCollector};
use tokio_test::{assert_pending, task};

use support::{SECOND, ms};

struct Scraped {
    registry: Registry,
}

impl Scraped {
    fn new(collector: impl Collector) -> Scraped {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(collector));
        Scraped { registry }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    /// The samples of a scrape, by name and labels. No two are of the same.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let text = self.text();
        let mut samples = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let former = samples.insert(series.to_owned(), value.parse().unwrap());
            assert_eq!(former, None, "{series} stands twice");
        }
        samples
    }
}

#[tokio::test(start_paused = true)]
async fn a_scrape_says_what_metrics_and_snapshot_say() {
    let wheel = Wheel::builder().name("w").shards(1).build().unwrap();
    let scraped = Scraped::new(WheelCollector::of(&wheel));
    assert_eq!(
        scraped.scrape()["tickwheel_shards{wheel=\"w\",mode=\"driverless\"}"],
        1.0
    );

    let labelled = wheel.labelled("l");
    let mut pends = task::spawn(labelled.timeout(SECOND * 5, pending::<()>()));
    assert_pending!(pends.poll());
    let answer = tokio::time::sleep(ms(450));
    labelled.timeout(SECOND, answer).await.unwrap();
    labelled.timeout(SECOND, async {}).await.unwrap();
    labelled.timeout(SECOND, pending::<()>()).await.unwrap_err();

    let samples = scraped.scrape();
    let metrics = wheel.metrics();
    for (series, value) in [
        ("pending{wheel=\"w\"}", 1.0),
        ("due{wheel=\"w\",within=\"10s\"}", 1.0),
        ("due{wheel=\"w\",within=\"later\"}", 0.0),
        ("shards{wheel=\"w\",mode=\"dozing\"}", 1.0),
        ("registered_total{wheel=\"w\"}", metrics.registered as f64),
        ("expired_total{wheel=\"w\"}", metrics.expired as f64),
        ("wakeups_total{wheel=\"w\"}", metrics.wakeups as f64),
        ("arena_bytes{wheel=\"w\"}", metrics.arena_bytes as f64),
        ("tick_seconds{wheel=\"w\"}", 0.001),
        ("lag_max_seconds{wheel=\"w\"}", 0.0),
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
        assert_eq!(
            samples.get(&format!("tickwheel_{series}")),
            Some(&value),
            "{series} in {samples:#?}"
        );
    }
    let lags = wheel.snapshot().lag.count() as f64;
    assert_eq!(samples["tickwheel_lag_seconds_count{wheel=\"w\"}"], lags);
    assert_eq!(
        samples["tickwheel_lag_seconds_bucket{le=\"+Inf\",wheel=\"w\"}"],
        lags
    );
}

#[tokio::test]
async fn lag_is_a_histogram_whose_counts_only_grow() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let scraped = Scraped::new(WheelCollector::of(&wheel));
    let mut former = BTreeMap::new();
    for stall in [0, 3, 0, 30] {
        let mut timeout = task::spawn(wheel.timeout(ms(1), pending::<()>()));
        assert_pending!(timeout.poll());
        thread::sleep(ms(stall));
        timeout.await.unwrap_err();
        let samples = scraped.scrape();
        let buckets = samples
            .iter()
            .filter(|(series, _)| series.contains("lag_seconds_"));
        for (series, count) in buckets {
            assert!(count >= former.get(series).unwrap_or(&0.0), "{series} went back");
        }
        // The driver was that late, as seen from its own deadline.
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
    let idle = scraped.scrape();
    assert_eq!(
        idle["tickwheel_lag_max_seconds{wheel=\"\"}"], 0.0,
        "since the scrape before"
    );
}

#[test]
fn the_current_wheels_of_all_runtimes_are_one() {
    let scraped = Scraped::new(WheelCollector::current());
    let registered = || {
        let samples = scraped.scrape();
        samples
            .get("tickwheel_timeouts_started_total{wheel=\"\",label=\"every runtime's\"}")
            .copied()
    };
    let runtimes = [(); 3].map(|()| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let labelled = Wheel::current().labelled("every runtime's");
            labelled.timeout(SECOND, async {}).await.unwrap();
        });
        runtime
    });
    assert_eq!(registered(), Some(3.0));
    let [first, ..] = runtimes;
    drop(first);
    assert_eq!(registered(), Some(2.0));
}

#[tokio::test]
async fn a_collector_reports_on_several_wheels_and_on_each_once() {
    let named = |name: &str| Wheel::builder().name(name).build().unwrap();
    let (first, second) = (named("first"), named("second"));
    for wheel in [&first, &second, &Wheel::current()] {
        wheel
            .labelled("of several")
            .timeout(SECOND, async {})
            .await
            .unwrap();
    }
    let collector = WheelCollector::of(&first)
        .and(&second)
        .and(&first)
        .and(&Wheel::current());
    let samples = Scraped::new(collector).scrape();
    for name in ["first", "second", ""] {
        let series = format!("tickwheel_timeouts_started_total{{wheel=\"{name}\",label=\"of several\"}}");
        assert_eq!(samples[&series], 1.0);
    }
    assert_eq!(
        samples
            .keys()
            .filter(|series| series.starts_with("tickwheel_pending"))
            .count(),
        3
    );
}

#[test]
fn a_wheel_is_not_kept() {
    let wheel = Wheel::new();
    let scraped = Scraped::new(WheelCollector::of(&wheel));
    assert!(!scraped.scrape().is_empty());
    drop(wheel);
    assert_eq!(scraped.text(), "# EOF\n");
}

#[tokio::test]
async fn names_may_hold_anything() {
    let wheel = Wheel::builder().name("a \"b\" \\ c\nd").build().unwrap();
    wheel
        .labelled("{x=\"1\"} 2")
        .timeout(SECOND, async {})
        .await
        .unwrap();
    let samples = Scraped::new(WheelCollector::of(&wheel)).scrape();
    let series = r#"tickwheel_timeouts_started_total{wheel="a \"b\" \\ c\nd",label="{x=\"1\"} 2"}"#;
    assert_eq!(samples[series], 1.0);
}

#[tokio::test]
async fn its_metrics_are_those_of_the_reporter_and_all_are_described() {
    let wheel = Wheel::new();
    wheel.labelled("l").timeout(SECOND, async {}).await.unwrap();
    let scraped = Scraped::new(WheelCollector::of(&wheel));
    let text = scraped.text();
    let words = |start: &str| -> BTreeMap<String, String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(start));
        lines
            .map(|line| line.split_once(' ').unwrap())
            .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
            .collect()
    };
    let (kinds, helps) = (words("# TYPE "), words("# HELP "));
    let samples = scraped.scrape();
    let families: BTreeSet<_> = samples
        .keys()
        .map(|series| {
            let name = series.split('{').next().unwrap();
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            let family = family.unwrap_or(name).to_owned();
            assert!(helps.contains_key(&family), "{family} is not described");
            let kind = kinds[&family].clone();
            (family, kind)
        })
        .collect();
    let documented = crate::metrics_reporter::documented();
    assert_eq!(families, documented.into_iter().collect());
}
