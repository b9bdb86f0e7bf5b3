//! Reports a [`Wheel`] to the recorder of the [`metrics`] facade.
//!
//! [`Reporter`] does so once or periodically, under the names, units and labels that [`Exported`] lists.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    fmt,
    panic::{RefUnwindSafe, UnwindSafe},
    sync::Arc,
    time::Duration,
};

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, gauge};
use tickwheel::{Exported, ExportedKind, ExportedUnit, ExportedValue, WeakWheel, Wheel};
use tokio::time::{MissedTickBehavior, interval};

/// A reporter of a wheel to the recorder of the `metrics` facade, once or periodically.
///
/// It reports what [`Exported`] lists, and does not keep the wheel alive. A histogram `h` becomes the
/// counters `h_bucket`, with the label `le` and cumulative as those of Prometheus, the counter `h_count` and
/// the gauge `h_sum`. A report takes a [snapshot](Wheel::snapshot) of the wheel; its further work depends on
/// the number of labels, and not on the number of timers that there were.
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
    wheel: WeakWheel,
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
        Reporter {
            wheel: wheel.downgrade(),
            sources: Vec::new(),
        }
    }

    /// Returns a reporter that reports what `source` returns, too, for as long as there is the wheel.
    ///
    /// It is called for each report, so it must not block. The queues, leases and notifications of
    /// `tickwheel-redis` have such a source each.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Exported, ExportedKind, ExportedUnit, ExportedValue, Wheel};
    /// use tickwheel_metrics::Reporter;
    ///
    /// let tasks = || {
    ///     let value = ExportedValue::Count(17);
    ///     vec![Exported::new("shop_tasks", "Tasks.", ExportedUnit::Count, ExportedKind::Gauge, Vec::new(), value)]
    /// };
    /// let reporter = Reporter::new(&Wheel::global()).and_source(tasks);
    /// assert!(reporter.report());
    /// ```
    #[must_use]
    pub fn and_source(mut self, source: impl Fn() -> Vec<Exported> + Send + Sync + 'static) -> Reporter {
        self.sources.push(Source(Arc::new(source)));
        self
    }

    /// Describes all metrics of a wheel to the recorder, and those that the sources return at the moment.
    ///
    /// [`run`](Reporter::run) does this first, and describes what a source returns later when it first does.
    ///
    /// # Examples
    ///
    /// ```
    /// tickwheel_metrics::Reporter::new(&tickwheel::Wheel::new()).describe();
    /// ```
    pub fn describe(&self) {
        // A wheel with a label exports everything that there is.
        let example = Wheel::new();
        example.labelled("");
        example.exported().iter().for_each(describe);
        self.of_sources().for_each(|exported| describe(&exported));
    }

    fn of_sources(&self) -> impl Iterator<Item = Exported> {
        self.sources.iter().flat_map(|source| (source.0)())
    }

    /// Describes what the sources return and is not `described` yet.
    fn describe_new(&self, described: &mut BTreeSet<&'static str>) {
        for exported in self.of_sources() {
            if described.insert(exported.name) {
                describe(&exported);
            }
        }
    }

    /// Reports once and returns `true`, or returns `false` if the wheel has been dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// let reporter = tickwheel_metrics::Reporter::new(&tickwheel::Wheel::new());
    /// assert!(!reporter.report(), "the wheel has no handle left");
    /// ```
    pub fn report(&self) -> bool {
        if let Some(wheel) = self.wheel.upgrade() {
            wheel.exported().iter().for_each(record);
            self.of_sources().for_each(|exported| record(&exported));
            true
        } else {
            false
        }
    }

    /// Describes the metrics, reports at once, and then reports every `period`.
    ///
    /// The future completes when the wheel has been dropped. If the wheel is shut down, it reports a last
    /// time and completes.
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
        self.describe();
        let mut described = BTreeSet::new();
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            // Asked before the report, so that the last one has what the shutdown ended.
            let is_last = self.wheel.upgrade().is_none_or(|wheel| wheel.is_shutdown());
            self.describe_new(&mut described);
            self.report();
            if is_last {
                return;
            }
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
