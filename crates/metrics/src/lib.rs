//! Reports [`Wheel`]s to the recorder of the [`metrics`] facade.
//!
//! [`Reporter`] does so once or periodically, under the names, units and labels that [`tickwheel_exported`]
//! lists.
//!
//! ```
//! use std::time::Duration;
//! use tickwheel::Wheel;
//! use tickwheel_metrics::Reporter;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let requests = Wheel::builder().name("requests").build().unwrap();
//! // Once a recorder is installed, such as that of metrics-exporter-prometheus:
//! let reporter = Reporter::new(&Wheel::global()).and(&requests);
//! tokio::spawn(reporter.run(Duration::from_secs(10)));
//! # }
//! ```
//!
//! [`Reporter::and_source`] reports something else beside a wheel, such as a queue of `tickwheel-redis`. The
//! README has a whole program, and says why histograms are reported as counters. The Grafana dashboard of
//! `tickwheel-prometheus` serves this package too.
#![forbid(unsafe_code)]

use std::{collections::BTreeSet, time::Duration};

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, gauge};
use tickwheel::Wheel;
use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue, Source, Sources, exported};
use tokio::time::{MissedTickBehavior, interval};

/// A reporter of wheels to the recorder of the `metrics` facade, once or periodically.
///
/// It reports what [`exported`] lists of each wheel, and what [further sources](Reporter::and_source) return.
/// Wheels of the same name are reported as one, as [`Sources::exported`] describes. The reporter keeps no wheel
/// alive. A histogram `h` becomes the counters `h_bucket`, with the label `le` and cumulative as those of
/// Prometheus, the counter `h_count` and the gauge `h_sum`. A report takes a [snapshot](Wheel::snapshot) of each
/// wheel; its further work depends on the number of labels, and not on the number of timers that there were.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use tickwheel_metrics::Reporter;
///
/// let wheel = Wheel::new();
/// let reporter = Reporter::new(&wheel);
/// // At any time once a recorder is installed:
/// assert!(reporter.report());
/// ```
#[derive(Clone, Debug)]
pub struct Reporter {
    sources: Sources,
}

impl Reporter {
    /// Creates a reporter of `wheel`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_metrics::Reporter;
    ///
    /// let reporter = Reporter::new(&Wheel::global());
    /// ```
    pub fn new(wheel: &Wheel) -> Reporter {
        let mut sources = Sources::default();
        sources.add_wheel(wheel);
        Reporter { sources }
    }

    /// Returns a reporter that reports `wheel` too.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_metrics::Reporter;
    ///
    /// let wheel = Wheel::builder().name("requests").build()?;
    /// let reporter = Reporter::new(&Wheel::global()).and(&wheel);
    /// assert!(reporter.report());
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    #[must_use]
    pub fn and(mut self, wheel: &Wheel) -> Reporter {
        self.sources.add_wheel(wheel);
        self
    }

    /// Returns a reporter that reports what `source` returns too, for as long as there is one of the wheels.
    ///
    /// The queues, leases and notifications of `tickwheel-redis` have such a source each. A closure is one.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tickwheel_exported::{Exported, ExportedKind, ExportedUnit, ExportedValue};
    /// use tickwheel_metrics::Reporter;
    ///
    /// let tasks = || {
    ///     let value = ExportedValue::Count(17);
    ///     let (unit, kind) = (ExportedUnit::Count, ExportedKind::Gauge);
    ///     Some(vec![Exported::new("shop_tasks", "Tasks.", unit, kind, Vec::new(), value)])
    /// };
    /// let reporter = Reporter::new(&Wheel::global()).and_source(tasks);
    /// assert!(reporter.report());
    /// ```
    #[must_use]
    pub fn and_source(mut self, source: impl Source + 'static) -> Reporter {
        self.sources.add(source);
        self
    }

    /// Describes all metrics of a wheel to the recorder, and those that the sources return at the moment.
    ///
    /// [`run`](Reporter::run) describes each metric before its first report.
    ///
    /// # Examples
    ///
    /// ```
    /// tickwheel_metrics::Reporter::new(&tickwheel::Wheel::new()).describe();
    /// ```
    pub fn describe(&self) {
        let mut described = BTreeSet::new();
        describe_new(&of_any_wheel(), &mut described);
        describe_new(&self.sources.exported(), &mut described);
    }

    /// Reports once and returns `true`, or returns `false` if all wheels have been dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// let reporter = tickwheel_metrics::Reporter::new(&tickwheel::Wheel::new());
    /// assert!(!reporter.report(), "the wheel has no handle left");
    /// ```
    pub fn report(&self) -> bool {
        let has_a_wheel = self.sources.wheels().next().is_some();
        if has_a_wheel {
            self.sources.exported().iter().for_each(record);
        }
        has_a_wheel
    }

    /// Describes the metrics, reports at once, and then reports every `period`.
    ///
    /// Once every wheel has been shut down or dropped, it reports a last time, if there is one left, and
    /// completes.
    ///
    /// The period is kept by Tokio's own timer, so that a wheel whose driver stands still is reported on too.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the reports.
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero, or outside a Tokio runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tickwheel::Wheel;
    /// use tickwheel_metrics::Reporter;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let reports = tokio::spawn(Reporter::new(&wheel).run(Duration::from_millis(20)));
    /// drop(wheel);
    /// reports.await.unwrap();
    /// # }
    /// ```
    pub async fn run(self, period: Duration) {
        let mut described = BTreeSet::new();
        describe_new(&of_any_wheel(), &mut described);
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Asked before the report, so that the last one has what the shutdown ended.
            let is_last = self.sources.wheels().all(|wheel| wheel.is_shutdown());
            if self.sources.wheels().next().is_some() {
                let list = self.sources.exported();
                // A source may return later what it had not before.
                describe_new(&list, &mut described);
                list.iter().for_each(record);
            }
            if is_last {
                return;
            }
        }
    }
}

/// Returns everything that there is to describe of a wheel, which takes one with a label.
fn of_any_wheel() -> Vec<Exported> {
    let example = Wheel::new();
    example.labelled("");
    exported(&example)
}

/// Describes what is not `described` yet.
fn describe_new(list: &[Exported], described: &mut BTreeSet<&'static str>) {
    for exported in list {
        if described.insert(exported.name) {
            describe(exported);
        }
    }
}

fn describe(exported: &Exported) {
    let Exported { name, help, .. } = *exported;
    let unit = match exported.unit {
        ExportedUnit::Seconds => Unit::Seconds,
        ExportedUnit::Bytes => Unit::Bytes,
        // The facade has none for a fraction.
        _ => Unit::Count,
    };
    match exported.kind {
        ExportedKind::Counter => describe_counter!(name, unit, help),
        ExportedKind::Histogram => {
            describe_counter!(format!("{name}_bucket"), Unit::Count, help);
            describe_counter!(format!("{name}_count"), Unit::Count, help);
            describe_gauge!(format!("{name}_sum"), unit, help);
        }
        _ => describe_gauge!(name, unit, help),
    }
}

fn record(exported: &Exported) {
    let name = exported.name;
    let labels = || -> Vec<Label> {
        let labels = exported.labels.iter();
        labels.map(|(key, word)| Label::new(*key, word.clone())).collect()
    };
    match &exported.value {
        ExportedValue::Count(count) if exported.kind == ExportedKind::Counter => {
            counter!(name, labels()).absolute(*count);
        }
        ExportedValue::Count(number) => gauge!(name, labels()).set(*number as f64),
        ExportedValue::Number(number) => gauge!(name, labels()).set(*number),
        ExportedValue::Histogram { buckets, sum } => {
            let mut total = 0;
            for (limit, count) in buckets {
                total += count;
                let mut labels = labels();
                labels.push(Label::new("le", limit_text(*limit)));
                counter!(format!("{name}_bucket"), labels).absolute(total);
            }
            counter!(format!("{name}_count"), labels()).absolute(total);
            gauge!(format!("{name}_sum"), labels()).set(*sum);
        }
        // A later version of the wheel may have values that this one cannot report.
        _ => {}
    }
}

/// Writes the limit of a bucket as Prometheus does.
fn limit_text(limit: f64) -> String {
    if limit == f64::INFINITY {
        "+Inf".to_owned()
    } else {
        format!("{limit:?}")
    }
}

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
