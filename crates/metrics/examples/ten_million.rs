//! Measures one report of ten million labelled timeouts to metrics-exporter-prometheus, and the same by a
//! histogram of the facade.

use std::{fs, time::Duration};

use metrics::{histogram, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use tickwheel::Wheel;
use tickwheel_exported::{ExportedValue, exported};
use tickwheel_metrics::Reporter;
use tokio::time::Instant;

const TIMEOUTS: usize = 10_000_000;

fn resident() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: f64 = statm
        .split(' ')
        .nth(1)
        .expect("the second field")
        .parse()
        .expect("a number");
    pages * 4096.0 / f64::from(1 << 20)
}

fn measure(title: &str, recorder: &PrometheusRecorder, report: impl FnOnce()) {
    let (before, start) = (resident(), Instant::now());
    with_local_recorder(recorder, report);
    let (took, added) = (start.elapsed(), resident() - before);
    let start = Instant::now();
    let lines = recorder.handle().render().lines().count();
    println!(
        "{title}: {took:.1?} and {added:.1} MiB; the next scrape {:.1?}, {lines} lines",
        start.elapsed()
    );
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let wheel = Wheel::new();
    let labelled = wheel.labelled("ready");
    for _ in 0..TIMEOUTS {
        labelled
            .timeout(Duration::from_secs(1), async {})
            .await
            .expect("it is ready");
    }

    let recorder = PrometheusBuilder::new().build_recorder();
    measure("tickwheel-metrics", &recorder, || {
        assert!(Reporter::new(&wheel).report())
    });

    let recorder = PrometheusBuilder::new().build_recorder();
    measure("record_many for each bucket", &recorder, || {
        for exported in exported(&wheel) {
            if let ExportedValue::Histogram { buckets, .. } = &exported.value {
                for (limit, count) in buckets {
                    histogram!(exported.name).record_many(*limit, *count as usize);
                }
            }
        }
    });
}
