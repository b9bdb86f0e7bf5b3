//! What a wheel exports: one list for all exporters, which knows none of them.

use std::time::Duration;

use crate::{
    engine::{labels::LabelStats, lag::LagHistogram},
    observe::{metrics::Metrics, snapshot::Snapshot},
    wheel::Wheel,
};

/// One value that a wheel exports, with its name and labels.
///
/// [`Wheel::exported`] lists them. Values of one `name` have the same `help`, `unit` and `kind`, and differ in their `labels`.
///
/// # Examples
///
/// An exporter that writes the lines of StatsD:
///
/// ```
/// use tickwheel::{ExportedValue, Wheel};
///
/// fn statsd(wheel: &Wheel) -> Vec<String> {
///     let mut lines = Vec::new();
///     for exported in wheel.exported() {
///         let tags: Vec<_> = exported.labels.iter().map(|(key, word)| format!("{key}:{word}")).collect();
///         let mut line = |value: f64, suffix: &str| {
///             lines.push(format!("{}{suffix}:{value}|g|#{}", exported.name, tags.join(",")));
///         };
///         match &exported.value {
///             ExportedValue::Count(count) => line(*count as f64, ""),
///             ExportedValue::Number(number) => line(*number, ""),
///             ExportedValue::Histogram(counts) => {
///                 line(counts.iter().map(|(_, count)| *count as f64).sum(), ".count");
///             }
///             _ => {}
///         }
///     }
///     lines
/// }
///
/// let wheel = Wheel::builder().name("requests").build()?;
/// assert!(statsd(&wheel).contains(&"tickwheel_pending:0|g|#wheel:requests".to_owned()));
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Exported {
    /// The name, which ends with `_total` for a counter and with the unit for seconds, bytes and ratios.
    pub name: &'static str,
    /// What the value is, in one sentence.
    pub help: &'static str,
    /// The unit of the value, or of what a histogram counts.
    pub unit: ExportedUnit,
    /// How the value changes.
    pub kind: ExportedKind,
    /// The labels, of which the first is the name of the wheel.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: ExportedValue,
}

/// The unit of an [`Exported`] value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportedUnit {
    /// A number of things.
    Count,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A part of 1.
    Ratio,
}

/// How an [`Exported`] value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportedKind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It is a histogram whose counts only grow.
    Histogram,
}

/// An [`Exported`] value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ExportedValue {
    /// A whole number.
    Count(u64),
    /// Any number.
    Number(f64),
    /// How often each value was seen, in order. The values of a bucket are represented by its end or its middle, which never changes, and buckets are
    /// added at the end.
    Histogram(Vec<(f64, u64)>),
}

impl Wheel {
    /// Lists what this wheel exports: its counters and gauges, the lateness of its turns, and the outcomes of labelled timeouts.
    ///
    /// Like a [`snapshot`](Wheel::snapshot), it walks all pending timers with bounded work under each lock. Call it about once a second.
    ///
    /// # Examples
    ///
    /// ```
    /// let exported = tickwheel::Wheel::global().exported();
    /// assert!(exported.iter().any(|exported| exported.name == "tickwheel_pending"));
    /// ```
    pub fn exported(&self) -> Vec<Exported> {
        let mut list = List {
            wheel: self.name().unwrap_or_default(),
            exported: Vec::new(),
        };
        let snapshot = self.snapshot();
        list.timers(self, &self.metrics(), &snapshot);
        list.lag(&snapshot.lag);
        snapshot.labels.iter().for_each(|stats| list.label(stats));
        list.exported.sort_by_key(|exported| exported.name);
        list.exported
    }
}

/// The words for the elements of [`Snapshot::due_within`].
const WITHIN: [&str; 9] = ["tick", "10ms", "100ms", "1s", "10s", "1m", "10m", "1h", "later"];

struct List<'a> {
    wheel: &'a str,
    exported: Vec<Exported>,
}

impl List<'_> {
    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: ExportedKind,
        labels: &[(&'static str, &str)],
        value: ExportedValue,
    ) {
        let unit = match name.rsplit('_').next() {
            Some("seconds") => ExportedUnit::Seconds,
            Some("bytes") => ExportedUnit::Bytes,
            Some("ratio") => ExportedUnit::Ratio,
            _ => ExportedUnit::Count,
        };
        let wheel = ("wheel", self.wheel);
        let labels = std::iter::once(&wheel).chain(labels);
        self.exported.push(Exported {
            name,
            help,
            unit,
            kind,
            labels: labels.map(|(key, word)| (*key, (*word).to_owned())).collect(),
            value,
        });
    }

    fn counter(&mut self, name: &'static str, help: &'static str, count: u64) {
        self.add(
            name,
            help,
            ExportedKind::Counter,
            &[],
            ExportedValue::Count(count),
        );
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, count: usize) {
        self.add(
            name,
            help,
            ExportedKind::Gauge,
            &[],
            ExportedValue::Count(count as u64),
        );
    }

    fn seconds(&mut self, name: &'static str, help: &'static str, seconds: Duration) {
        let value = ExportedValue::Number(seconds.as_secs_f64());
        self.add(name, help, ExportedKind::Gauge, &[], value);
    }

    fn timers(&mut self, wheel: &Wheel, metrics: &Metrics, snapshot: &Snapshot) {
        self.gauge(
            "tickwheel_pending",
            "Timers pending in the wheel.",
            snapshot.pending,
        );
        for (within, due) in WITHIN.into_iter().zip(snapshot.due_within) {
            self.add(
                "tickwheel_due",
                "Pending timers, by the time until they are due.",
                ExportedKind::Gauge,
                &[("within", within)],
                ExportedValue::Count(due as u64),
            );
        }
        self.counter(
            "tickwheel_registered_total",
            "Timers registered.",
            metrics.registered,
        );
        self.counter(
            "tickwheel_expired_total",
            "Timers that reached their deadline while pending.",
            metrics.expired,
        );
        self.counter(
            "tickwheel_cancelled_total",
            "Timers cancelled before their deadline.",
            metrics.cancelled,
        );
        self.counter(
            "tickwheel_rejected_total",
            "Timers refused because the wheel was full.",
            metrics.rejected,
        );
        self.counter(
            "tickwheel_cascaded_total",
            "Moves of a timer to a finer level.",
            metrics.cascaded,
        );
        self.counter("tickwheel_turns_total", "Turns of the drivers.", metrics.turns);
        self.counter(
            "tickwheel_panics_total",
            "Panics caught in wakers.",
            metrics.panics,
        );
        self.gauge(
            "tickwheel_engines",
            "Runtimes in which the wheel has a part.",
            metrics.engines,
        );
        self.gauge(
            "tickwheel_arena_bytes",
            "Bytes held by the arenas, used or not.",
            metrics.arena_bytes,
        );
        self.seconds(
            "tickwheel_tick_seconds",
            "Length of a tick.",
            wheel.tick_duration(),
        );
        self.seconds(
            "tickwheel_lag_max_seconds",
            "Maximum lateness of a turn since the wheel was created.",
            metrics.max_lag,
        );
    }

    fn lag(&mut self, lag: &LagHistogram) {
        let ends = lag.ends().map(|(end, count)| (end.as_secs_f64(), count));
        self.add(
            "tickwheel_lag_seconds",
            "Lateness of the turns.",
            ExportedKind::Histogram,
            &[],
            ExportedValue::Histogram(ends.collect()),
        );
    }

    fn label(&mut self, stats: &LabelStats) {
        let label = [("label", &*stats.name)];
        self.add(
            "tickwheel_timeouts_started_total",
            "Labelled timeouts polled for the first time.",
            ExportedKind::Counter,
            &label,
            ExportedValue::Count(stats.started),
        );
        for (outcome, count) in [
            ("completed", stats.completed),
            ("elapsed", stats.elapsed),
            ("refused", stats.refused),
            ("cancelled", stats.cancelled),
        ] {
            self.add(
                "tickwheel_timeouts_total",
                "Labelled timeouts that ended, by outcome.",
                ExportedKind::Counter,
                &[label[0], ("outcome", outcome)],
                ExportedValue::Count(count),
            );
        }
        self.add(
            "tickwheel_timeouts_pending",
            "Labelled timeouts pending.",
            ExportedKind::Gauge,
            &label,
            ExportedValue::Count(stats.pending),
        );
        let middles = (0..10).map(|tenths| f64::from(2 * tenths + 1) / 20.0);
        self.add(
            "tickwheel_timeouts_headroom_ratio",
            "Part of its time that a completed timeout had left.",
            ExportedKind::Histogram,
            &label,
            ExportedValue::Histogram(middles.zip(stats.headroom).collect()),
        );
    }
}
