//! Exports [`Wheel`]s to a registry of the Prometheus client library, [`prometheus_client`].
//!
//! [`WheelCollector`] does so at each scrape, under the names, units and labels that [`tickwheel_exported`]
//! lists. The text is valid OpenMetrics.
//!
//! ```
//! use prometheus_client::{encoding::text::encode, registry::Registry};
//! use tickwheel::Wheel;
//! use tickwheel_prometheus::WheelCollector;
//!
//! let requests = Wheel::builder().name("requests").build().unwrap();
//! let collector = WheelCollector::new(&Wheel::global()).and(&requests);
//! let mut registry = Registry::default();
//! registry.register_collector(Box::new(collector));
//!
//! let mut text = String::new();
//! encode(&mut text, &registry).unwrap(); // for each scrape
//! assert!(text.contains("tickwheel_pending{wheel=\"requests\"} 0\n"));
//! ```
//!
//! [`WheelCollector::and_source`] reports something else beside a wheel, such as a queue of `tickwheel-redis`.
//! The package contains a dashboard for Grafana and three alerts, which the README describes.
#![forbid(unsafe_code)]

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};
use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source, Sources};

/// A collector that exports wheels to a registry of `prometheus-client` at each scrape.
///
/// It exports what [`exported`](tickwheel_exported::exported) lists of each wheel, and what [further
/// sources](WheelCollector::and_source) return. Wheels of the same name are one series, as
/// [`Sources::exported`] describes. A scrape takes a [snapshot](Wheel::snapshot) of each wheel. The collector
/// does not keep a wheel alive.
///
/// Register one collector, and add further wheels with [`and`](WheelCollector::and): a second collector would
/// describe the same metrics again, which OpenMetrics forbids.
///
/// # Examples
///
/// ```
/// use prometheus_client::{encoding::text::encode, registry::Registry};
/// use tickwheel::Wheel;
/// use tickwheel_prometheus::WheelCollector;
///
/// let wheel = Wheel::new();
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(WheelCollector::new(&wheel)));
///
/// let mut text = String::new();
/// encode(&mut text, &registry)?; // for each scrape
/// assert!(text.contains("tickwheel_pending{wheel=\"\"} 0\n"));
/// # Ok::<(), std::fmt::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WheelCollector {
    sources: Sources,
}

impl WheelCollector {
    /// Creates a collector that reports on `wheel`.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use tickwheel::Wheel;
    /// use tickwheel_prometheus::WheelCollector;
    ///
    /// Registry::default().register_collector(Box::new(WheelCollector::new(&Wheel::global())));
    /// ```
    pub fn new(wheel: &Wheel) -> WheelCollector {
        let mut sources = Sources::default();
        sources.add_wheel(wheel);
        WheelCollector { sources }
    }

    /// Returns a collector that reports on `wheel` too.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::registry::Registry;
    /// use tickwheel::Wheel;
    /// use tickwheel_prometheus::WheelCollector;
    ///
    /// let wheel = Wheel::builder().name("requests").build()?;
    /// let collector = WheelCollector::new(&Wheel::global()).and(&wheel);
    /// Registry::default().register_collector(Box::new(collector));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    #[must_use]
    pub fn and(mut self, wheel: &Wheel) -> WheelCollector {
        self.sources.add_wheel(wheel);
        self
    }

    /// Returns a collector that reports what `source` returns too.
    ///
    /// The queues, leases and notifications of `tickwheel-redis` have such a source each. A closure is one. A
    /// source that is gone ends its series.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::{encoding::text::encode, registry::Registry};
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue};
    /// use tickwheel_prometheus::WheelCollector;
    ///
    /// let tasks = || {
    ///     let (unit, kind) = (ExportedUnit::Count, ExportedKind::Gauge);
    ///     let region = vec![("region", "north".to_owned())];
    ///     Some(vec![Exported::new("shop_tasks", "Tasks.", unit, kind, region, ExportedValue::Count(17))])
    /// };
    /// let mut registry = Registry::default();
    /// registry.register_collector(Box::new(WheelCollector::new(&Wheel::global()).and_source(tasks)));
    ///
    /// let mut text = String::new();
    /// encode(&mut text, &registry)?;
    /// assert!(text.contains("shop_tasks{region=\"north\"} 17\n"));
    /// # Ok::<(), std::fmt::Error>(())
    /// ```
    #[must_use]
    pub fn and_source(mut self, source: impl Source + 'static) -> WheelCollector {
        self.sources.add(source);
        self
    }
}

impl Collector for WheelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let exported = self.sources.exported();
        exported
            .chunk_by(|one, next| one.name == next.name)
            .try_for_each(|family| encode_family(&mut encoder, family))
    }
}

/// Writes all values of one name.
fn encode_family(encoder: &mut DescriptorEncoder<'_>, exported: &[Exported]) -> fmt::Result {
    let Some(first) = exported.first() else {
        return Ok(());
    };
    let mut family = describe(encoder, first)?;
    for Exported { labels, value, .. } in exported {
        encode_value(family.encode_family(labels)?, first.kind, value)?;
    }
    Ok(())
}

/// Writes the description of a metric. The library appends units to the names of families, and `_total` to
/// the samples of counters: OpenMetrics describes a counter without it.
fn describe<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    exported: &Exported,
) -> Result<MetricEncoder<'e>, fmt::Error> {
    let Exported { name, help, .. } = *exported;
    let kind = match exported.kind {
        ExportedKind::Counter => MetricType::Counter,
        ExportedKind::Histogram => MetricType::Histogram,
        _ => MetricType::Gauge,
    };
    let (end, unit) = match exported.unit {
        _ if exported.kind == ExportedKind::Counter => ("_total", None),
        ExportedUnit::Seconds => ("_seconds", Some(&Unit::Seconds)),
        ExportedUnit::Bytes => ("_bytes", Some(&Unit::Bytes)),
        // The library's word for a ratio is the plural.
        _ => ("", None),
    };
    let family = name.strip_suffix(end).unwrap_or(name);
    encoder.encode_descriptor(family, help, unit, kind)
}

fn encode_value(mut encoder: MetricEncoder<'_>, kind: ExportedKind, value: &ExportedValue) -> fmt::Result {
    match value {
        ExportedValue::Count(count) if kind == ExportedKind::Counter => {
            encoder.encode_counter::<NoLabelSet, _, f64>(count, None)
        }
        ExportedValue::Count(number) => encoder.encode_gauge(number),
        ExportedValue::Number(number) => encoder.encode_gauge(number),
        ExportedValue::Histogram { buckets, sum } => {
            let count = buckets.iter().map(|(_, count)| count).sum();
            encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        }
        // A later version of the wheel may have values that this one cannot export.
        _ => Ok(()),
    }
}

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
