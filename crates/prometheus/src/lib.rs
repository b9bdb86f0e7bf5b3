//! Exports [`Wheel`]s to a registry of the Prometheus client library, [`prometheus_client`].
//!
//! [`WheelCollector`] does so at each scrape, under the names, units and labels that [`Exported`] lists.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};
use tickwheel::{Exported, ExportedKind, ExportedUnit, ExportedValue, WeakWheel, Wheel};

/// A collector that exports wheels to a registry of `prometheus-client` at each scrape.
///
/// It exports what [`Exported`] lists, and what [further sources](WheelCollector::and_source) return. Wheels
/// of the same name are reported as one, with their counts added up, and of durations the greatest. A scrape
/// takes a [snapshot](Wheel::snapshot) of each wheel. The collector does not keep a wheel alive.
///
/// Register one collector, and add further wheels with [`and`](WheelCollector::and), because a second
/// collector would describe the same metrics again, which promtool and others refuse.
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
    /// Each wheel once.
    wheels: Vec<WeakWheel>,
    sources: Vec<Source>,
}

/// What returns further values for a report.
#[derive(Clone)]
struct Source(Arc<dyn Fn() -> Vec<Exported> + Send + Sync>);

// A panic of it interrupts a report, of which nothing is kept here.
impl UnwindSafe for Source {}
impl RefUnwindSafe for Source {}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").finish_non_exhaustive()
    }
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
        WheelCollector {
            wheels: vec![wheel.downgrade()],
            sources: Vec::new(),
        }
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
        let wheel = wheel.downgrade();
        if !self.wheels.iter().any(|other| other.ptr_eq(&wheel)) {
            self.wheels.push(wheel);
        }
        self
    }

    /// Returns a collector that reports what `source` returns, too.
    ///
    /// It is called at each scrape, so it must not block. The queues, leases and notifications of
    /// `tickwheel-redis` have such a source each. Values of the same name and labels are added up as those of
    /// wheels are, so add each source once.
    ///
    /// # Examples
    ///
    /// ```
    /// use prometheus_client::{encoding::text::encode, registry::Registry};
    /// use tickwheel::{Exported, ExportedKind, ExportedUnit, ExportedValue, Wheel};
    /// use tickwheel_prometheus::WheelCollector;
    ///
    /// let tasks = || {
    ///     let value = ExportedValue::Count(17);
    ///     let region = vec![("region", "north".to_owned())];
    ///     vec![Exported::new("shop_tasks", "Tasks.", ExportedUnit::Count, ExportedKind::Gauge, region, value)]
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
    pub fn and_source(
        mut self,
        source: impl Fn() -> Vec<Exported> + Send + Sync + 'static,
    ) -> WheelCollector {
        self.sources.push(Source(Arc::new(source)));
        self
    }
}

impl Collector for WheelCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let wheels = self.wheels.iter().filter_map(WeakWheel::upgrade);
        let of_wheels = wheels.flat_map(|wheel| wheel.exported());
        let of_sources = self.sources.iter().flat_map(|source| (source.0)());
        let mut families: BTreeMap<&str, Vec<Exported>> = BTreeMap::new();
        for exported in of_wheels.chain(of_sources) {
            families.entry(exported.name).or_default().push(exported);
        }
        families
            .values()
            .try_for_each(|family| encode_family(&mut encoder, family))
    }
}

/// Writes all values of one name.
fn encode_family(encoder: &mut DescriptorEncoder<'_>, exported: &[Exported]) -> fmt::Result {
    let Some(first) = exported.first() else {
        return Ok(());
    };
    let mut series = BTreeMap::new();
    for Exported { labels, value, .. } in exported {
        let sum = series.entry(labels).and_modify(|sum| add(sum, value));
        sum.or_insert_with(|| value.clone());
    }
    let mut family = describe(encoder, first)?;
    for (labels, value) in &series {
        encode_value(family.encode_family(*labels)?, first.kind, value)?;
    }
    Ok(())
}

/// Adds up what wheels of the same name report. Only durations have a fraction, and of these the greatest is
/// reported.
fn add(sum: &mut ExportedValue, value: &ExportedValue) {
    match (sum, value) {
        (ExportedValue::Count(sum), ExportedValue::Count(count)) => *sum += count,
        (ExportedValue::Number(greatest), ExportedValue::Number(number)) => *greatest = greatest.max(*number),
        (
            ExportedValue::Histogram { buckets, sum },
            ExportedValue::Histogram {
                buckets: more,
                sum: further,
            },
        ) => {
            *sum += further;
            buckets
                .iter_mut()
                .zip(more)
                .for_each(|(bucket, (_, count))| bucket.1 += count);
        }
        _ => {}
    }
}

/// Writes the description of a metric. The library adds the ends of names: units, and `_total`.
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
    if let Some(family) = name.strip_suffix("_total") {
        // OpenMetrics describes a counter without `_total`. Readers of Prometheus' own format look for the
        // name of the samples.
        encoder.encode_descriptor(name, help, None, kind)?;
        return encoder.encode_descriptor(family, help, None, kind);
    }
    let (family, unit) = match exported.unit {
        ExportedUnit::Seconds => (name.strip_suffix("_seconds"), Some(&Unit::Seconds)),
        ExportedUnit::Bytes => (name.strip_suffix("_bytes"), Some(&Unit::Bytes)),
        // The library's word for a ratio is the plural.
        _ => (None, None),
    };
    encoder.encode_descriptor(family.unwrap_or(name), help, unit, kind)
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
