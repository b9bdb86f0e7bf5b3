//! Metrics for the Prometheus client library, `prometheus-client`.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use crate::{
    engine::sync::lock,
    observe::exported::{Kind, METRICS, Metric, Report, Subject, Value},
    wheel::Wheel,
};

/// Exports the metrics of wheels to a registry of `prometheus-client`, at each scrape.
///
/// Metrics have the names, units and labels of the [`MetricsReporter`](crate::MetricsReporter), whose documentation lists them. The
/// label `wheel` is the [name](crate::Builder::name) of the wheel, and the label `label` that of a [labelled](Wheel::labelled)
/// timeout. Wheels of the same name are reported as one, with their counts added up. `tickwheel_lag_max_seconds` is the maximum
/// since the previous scrape.
///
/// The text can be served as `application/openmetrics-text; version=1.0.0; charset=utf-8` to Prometheus, and as `text/plain;
/// version=0.0.4` to anything else that reads Prometheus' format.
///
/// Register one collector, and add further wheels with [`and`](WheelCollector::and): a second collector would describe the same
/// metrics again, which promtool and others refuse. The collector does not keep a wheel alive.
///
/// # Examples
///
/// ```
/// use prometheus_client::{encoding::text::encode, registry::Registry};
/// use std::time::Duration;
/// use tickwheel::{Wheel, prometheus::WheelCollector};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), std::fmt::Error> {
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(WheelCollector::current()));
///
/// tickwheel::time::sleep(Duration::from_millis(20)).await;
///
/// let mut text = String::new();
/// encode(&mut text, &registry)?; // for each scrape
/// assert!(text.contains("tickwheel_expired_total{wheel=\"\"} 1\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WheelCollector {
    /// Whether the current wheels are reported on too.
    current: bool,
    /// Each wheel once, and whether it was given, so that it is reported on even if it is not current.
    subjects: Mutex<Vec<(Subject, bool)>>,
}

impl WheelCollector {
    /// Creates a collector for one wheel.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use tickwheel::{Wheel, prometheus::WheelCollector};
    ///
    /// let wheel = Wheel::builder().name("requests").build().unwrap();
    /// Registry::default().register_collector(Box::new(WheelCollector::of(&wheel)));
    /// ```
    pub fn of(wheel: &Wheel) -> WheelCollector {
        WheelCollector::new(false).and(wheel)
    }

    /// Creates a collector for the [current wheels](Wheel::current_all) that the runtimes of the process have at each scrape.
    ///
    /// The counts of a wheel disappear together with its runtime, which looks to Prometheus like a restart of the process.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use tickwheel::prometheus::WheelCollector;
    ///
    /// Registry::default().register_collector(Box::new(WheelCollector::current()));
    /// ```
    pub fn current() -> WheelCollector {
        WheelCollector::new(true)
    }

    fn new(current: bool) -> WheelCollector {
        WheelCollector {
            current,
            subjects: Mutex::default(),
        }
    }

    /// Returns a collector that reports on `wheel` too.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use tickwheel::{Wheel, prometheus::WheelCollector};
    ///
    /// let wheel = Wheel::builder().name("requests").build().unwrap();
    /// Registry::default().register_collector(Box::new(WheelCollector::current().and(&wheel)));
    /// ```
    #[must_use]
    pub fn and(self, wheel: &Wheel) -> WheelCollector {
        include(&mut lock(&self.subjects), wheel, true);
        self
    }

    fn reports(&self) -> Vec<Report> {
        let current = self.current.then(Wheel::current_all).unwrap_or_default();
        let mut subjects = lock(&self.subjects);
        subjects.retain(|(subject, given)| *given || current.iter().any(|wheel| subject.is(wheel)));
        for wheel in &current {
            include(&mut subjects, wheel, false);
        }
        subjects
            .iter_mut()
            .filter_map(|(subject, _)| subject.report())
            .collect()
    }
}

fn include(subjects: &mut Vec<(Subject, bool)>, wheel: &Wheel, given: bool) {
    match subjects.iter_mut().find(|(subject, _)| subject.is(wheel)) {
        Some((_, was_given)) => *was_given |= given,
        None => subjects.push((Subject::new(wheel), given)),
    }
}

impl Subject {
    fn is(&self, wheel: &Wheel) -> bool {
        self.wheel.as_ptr() == Arc::as_ptr(&wheel.parts)
    }
}

impl Collector for WheelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let reports = self.reports();
        for metric in METRICS {
            let mut series = BTreeMap::new();
            for (labels, value) in reports.iter().flat_map(|report| metric.values(report)) {
                series
                    .entry(labels)
                    .and_modify(|sum| add(sum, &value))
                    .or_insert(value);
            }
            if series.is_empty() {
                continue;
            }
            let mut family = describe(&mut encoder, &metric)?;
            for (labels, value) in &series {
                encode_value(family.encode_family(labels)?, &metric, value)?;
            }
        }
        Ok(())
    }
}

/// Adds up what wheels of the same name report. Of durations, the maximum is reported.
fn add(sum: &mut Value, value: &Value) {
    match (sum, value) {
        (Value::Count(sum), Value::Count(count)) => *sum += count,
        (Value::Seconds(sum), Value::Seconds(seconds)) => *sum = (*sum).max(*seconds),
        (Value::Histogram(sum), Value::Histogram(counts)) => {
            for (sum, (_, count)) in sum.iter_mut().zip(counts) {
                sum.1 += count;
            }
            let longer = counts.iter().skip(sum.len());
            sum.extend(longer);
        }
        _ => unreachable!("a metric has values of one kind"),
    }
}

/// The upper limits of the buckets of histograms, in seconds and in fractions. The last bucket has none.
const SECONDS_LIMITS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
const RATIO_LIMITS: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// Writes the description of a metric. The library adds the ends of names: units, and `_total`.
fn describe<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    metric: &Metric,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    let kind = match metric.kind() {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    if let Some(name) = metric.name.strip_suffix("_total") {
        // OpenMetrics describes a counter without `_total`. What reads Prometheus' own format looks for the name of the samples.
        encoder.encode_descriptor(metric.name, metric.description, None, kind)?;
        return encoder.encode_descriptor(name, metric.description, None, kind);
    }
    let (name, unit) = match metric.name.rsplit_once('_') {
        Some((name, "seconds")) => (name, Some(&Unit::Seconds)),
        Some((name, "bytes")) => (name, Some(&Unit::Bytes)),
        _ => (metric.name, None),
    };
    encoder.encode_descriptor(name, metric.description, unit, kind)
}

fn encode_value(mut encoder: MetricEncoder<'_>, metric: &Metric, value: &Value) -> fmt::Result {
    match (metric.kind(), value) {
        (Kind::Counter, Value::Count(count)) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
        (_, Value::Count(count)) => encoder.encode_gauge(count),
        (_, Value::Seconds(seconds)) => encoder.encode_gauge(&seconds.as_secs_f64()),
        (_, Value::Histogram(counts)) => {
            let limits: &[f64] = match metric.name.ends_with("_seconds") {
                true => &SECONDS_LIMITS,
                false => &RATIO_LIMITS,
            };
            let limits = limits.iter().copied().chain([f64::INFINITY]);
            let mut buckets: Vec<_> = limits.map(|limit| (limit, 0)).collect();
            for (value, count) in counts {
                let bucket = buckets.iter_mut().find(|(limit, _)| value <= limit);
                bucket.expect("the last has no limit").1 += count;
            }
            let sum = counts.iter().map(|(value, count)| value * *count as f64).sum();
            let count = counts.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}
