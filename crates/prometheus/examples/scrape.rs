//! Prints a scrape of two wheels with labelled timeouts and of a further source, as a server would answer it.
//! `openmetrics` in this package has it read by other readers of the format.

use std::{error::Error, future::pending, time::Duration};

use prometheus_client::{encoding::text::encode, registry::Registry};
use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source as _};
use tickwheel_prometheus::WheelCollector;

/// One value of each kind and unit, as a queue on Redis has them.
fn queue() -> Option<Vec<Exported>> {
    let lateness = ExportedValue::Histogram {
        buckets: vec![(0.002, 3), (1.0, 0), (f64::INFINITY, 1)],
        sum: 7.5,
    };
    let value = |name, unit, kind, value| {
        let labels = vec![("queue", "a \"b\" \\ c\nd".to_owned())];
        Exported::new(name, "It is of a queue.", unit, kind, labels, value)
    };
    Some(vec![
        value(
            "jobs_waiting",
            ExportedUnit::Count,
            ExportedKind::Gauge,
            ExportedValue::Number(17.0),
        ),
        value(
            "jobs_lost_total",
            ExportedUnit::Count,
            ExportedKind::Counter,
            ExportedValue::Count(1),
        ),
        value(
            "jobs_sent_bytes_total",
            ExportedUnit::Bytes,
            ExportedKind::Counter,
            ExportedValue::Count(9),
        ),
        value(
            "jobs_busy_ratio",
            ExportedUnit::Ratio,
            ExportedKind::Gauge,
            ExportedValue::Number(0.25),
        ),
        value(
            "jobs_age_seconds",
            ExportedUnit::Seconds,
            ExportedKind::Gauge,
            ExportedValue::Number(1.5),
        ),
        value(
            "jobs_lateness_seconds",
            ExportedUnit::Seconds,
            ExportedKind::Histogram,
            lateness,
        ),
    ])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let requests = Wheel::builder().name("requests").build()?;
    for label in ["search", "\"orders\""] {
        let labelled = requests.labelled(label);
        labelled.timeout(Duration::from_secs(1), async {}).await?;
        let elapsed = labelled.timeout(Duration::from_millis(2), pending::<()>()).await;
        assert!(elapsed.is_err());
    }
    let collector = WheelCollector::new(&requests)
        .and(&Wheel::global())
        .and_source(queue.with_label("server", "north"))
        .and_source(queue.with_label("server", "south"));
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    print!("{text}");
    Ok(())
}
