//! The list of what a wheel exports, which knows no exporter. The packages `tickwheel-metrics` and
//! `tickwheel-prometheus` are two.

use crate::{
    engine::labels::LabelStats,
    observe::{metrics::Metrics, snapshot::Snapshot},
    wheel::Wheel,
};

/// One value that a wheel exports, with its name and labels.
///
/// [`Wheel::exported`] lists them. All values of one `name` have the same `help`, `unit` and `kind`, and
/// differ in their `labels`. Names, units and labels are the same in every exporter:
///
/// | name | kind | labels | |
/// | --- | --- | --- | --- |
/// | `tickwheel_pending` | gauge | | pending timers |
/// | `tickwheel_due` | gauge | `within` | pending timers, by the first of `tick`, `10ms`, `100ms`, `1s`, `10s`, `1m`, `10m`, `1h` and `later` that their deadline is within |
/// | `tickwheel_registered_total` | counter | | timers that entered the wheel |
/// | `tickwheel_expired_total` | counter | | timers whose deadline came while they were pending |
/// | `tickwheel_cancelled_total` | counter | | timers that left the wheel before their deadline |
/// | `tickwheel_rejected_total` | counter | | timers refused because the wheel was full |
/// | `tickwheel_cascaded_total` | counter | | moves of a timer from a coarser level to a finer one |
/// | `tickwheel_turns_total` | counter | | turns of the drivers |
/// | `tickwheel_panics_total` | counter | | panics caught in wakers |
/// | `tickwheel_engines` | gauge | | runtimes in which the wheel has a part |
/// | `tickwheel_arena_bytes` | gauge | | memory held by the arenas, used or not |
/// | `tickwheel_tick_seconds` | gauge | | duration of a tick |
/// | `tickwheel_lag_seconds` | histogram | | lateness of the turns |
/// | `tickwheel_lag_max_seconds` | gauge | | greatest lateness of a turn since the wheel was created |
/// | `tickwheel_timeouts_started_total` | counter | `label` | [labelled](Wheel::labelled) timeouts that were polled |
/// | `tickwheel_timeouts_total` | counter | `label`, `outcome` | labelled timeouts that ended: `completed`, `elapsed`, `refused`, `cancelled` |
/// | `tickwheel_timeouts_pending` | gauge | `label` | pending labelled timeouts |
/// | `tickwheel_timeouts_headroom_ratio` | histogram | `label` | part of its time that a completed timeout had left, each tenth as its middle |
///
/// Each also has the label `wheel`, the [name](crate::Builder::name) of the wheel, which is empty for one
/// without a name.
///
/// Exporters also take values from sources other than a wheel, which are created by [`Exported::new`]. The
/// queues and leases of the package `tickwheel-redis` are such sources.
///
/// # Examples
///
/// ```
/// use tickwheel::{ExportedKind, ExportedValue, Wheel};
///
/// let wheel = Wheel::builder().name("requests").build()?;
/// let exported = wheel.exported();
/// let pending = exported.iter().find(|exported| exported.name == "tickwheel_pending").unwrap();
/// assert_eq!(pending.kind, ExportedKind::Gauge);
/// assert_eq!(pending.labels, [("wheel", "requests".to_owned())]);
/// assert_eq!(pending.value, ExportedValue::Count(0));
/// # Ok::<(), tickwheel::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Exported {
    /// The name, which ends in `_total` for a counter, and in the unit if that is not
    /// [`Count`](ExportedUnit::Count).
    pub name: &'static str,
    /// A description of the value in one sentence.
    pub help: &'static str,
    /// The unit of the value, or of the values that a histogram counts.
    pub unit: ExportedUnit,
    /// How the value changes.
    pub kind: ExportedKind,
    /// The keys and values of the labels. Of the values that a wheel exports, the first is the name of the
    /// wheel.
    pub labels: Vec<(&'static str, String)>,
    /// The value.
    pub value: ExportedValue,
}

/// The unit of an [`Exported`] value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportedUnit {
    /// A number of things, such as timers or turns.
    Count,
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A fraction of 1.
    Ratio,
}

/// The kind of an [`Exported`] value, which says how it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExportedKind {
    /// A number that only grows.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A histogram, whose counts only grow.
    Histogram,
}

/// An [`Exported`] value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ExportedValue {
    /// The value of a counter or a gauge that is a whole number.
    Count(u64),
    /// The value of a gauge that may have a fraction.
    Number(f64),
    /// The counts of a histogram.
    Histogram {
        /// The buckets in order, each as its upper bound, which is included, and the number of values above
        /// the bound before. There are at most twelve of them, always the same ones, and the last bound is
        /// infinite.
        buckets: Vec<(f64, u64)>,
        /// The sum of all values.
        sum: f64,
    },
}

impl Exported {
    /// Creates a value of a source other than a wheel, which an exporter is to report beside its wheels.
    ///
    /// Choose a `name` as the [field](Exported::name) describes, and give all values of one name the same
    /// `help`, `unit` and `kind`. The buckets of a histogram are to be the same ones each time, and the last
    /// bound infinite.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::{Exported, ExportedKind, ExportedUnit, ExportedValue};
    ///
    /// let waiting = Exported::new(
    ///     "shop_orders_waiting",
    ///     "Orders that wait.",
    ///     ExportedUnit::Count,
    ///     ExportedKind::Gauge,
    ///     vec![("region", "north".to_owned())],
    ///     ExportedValue::Count(17),
    /// );
    /// assert_eq!(waiting.name, "shop_orders_waiting");
    /// ```
    pub fn new(
        name: &'static str,
        help: &'static str,
        unit: ExportedUnit,
        kind: ExportedKind,
        labels: Vec<(&'static str, String)>,
        value: ExportedValue,
    ) -> Exported {
        Exported {
            name,
            help,
            unit,
            kind,
            labels,
            value,
        }
    }
}

impl Wheel {
    /// Returns everything that an exporter reports of this wheel, sorted by name: its counters and gauges,
    /// the lateness of its turns, and the outcomes of labelled timeouts.
    ///
    /// Exporters for the Prometheus client library and for the `metrics` facade are the packages
    /// `tickwheel-prometheus` and `tickwheel-metrics`. For another library, write one: `examples/statsd.rs`
    /// in the repository does it in thirty lines.
    ///
    /// Like a [`snapshot`](Wheel::snapshot), this walks all pending timers with bounded work under each lock.
    /// Call it about once a second at most.
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
        snapshot.labels.iter().for_each(|stats| list.label(stats));
        list.exported.sort_by_key(|exported| exported.name);
        list.exported
    }
}

/// The upper bounds of the buckets of histograms, in seconds and in fractions. A last bucket without a bound
/// follows.
const SECONDS: [f64; 11] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 10.0];
const TENTHS: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// Sorts counted values, which are in order, into buckets.
fn histogram(bounds: &[f64], counts: impl Iterator<Item = (f64, u64)>) -> ExportedValue {
    let bounds = bounds.iter().copied().chain([f64::INFINITY]);
    let mut buckets: Vec<_> = bounds.map(|bound| (bound, 0)).collect();
    let (mut bucket, mut sum) = (0, 0.0);
    for (value, count) in counts {
        while value > buckets[bucket].0 {
            bucket += 1;
        }
        buckets[bucket].1 += count;
        sum += value * count as f64;
    }
    ExportedValue::Histogram { buckets, sum }
}

/// The words for the elements of [`Snapshot::due_within`].
const WITHIN: [&str; 9] = ["tick", "10ms", "100ms", "1s", "10s", "1m", "10m", "1h", "later"];

struct List<'a> {
    wheel: &'a str,
    exported: Vec<Exported>,
}

impl List<'_> {
    fn add(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: ExportedValue) {
        let unit = match name.rsplit('_').next() {
            Some("seconds") => ExportedUnit::Seconds,
            Some("bytes") => ExportedUnit::Bytes,
            Some("ratio") => ExportedUnit::Ratio,
            _ => ExportedUnit::Count,
        };
        let kind = match value {
            ExportedValue::Histogram { .. } => ExportedKind::Histogram,
            _ if name.ends_with("_total") => ExportedKind::Counter,
            _ => ExportedKind::Gauge,
        };
        let wheel = ("wheel", self.wheel);
        let labels = std::iter::once(&wheel).chain(labels);
        self.exported.push(Exported {
            name,
            help: help(name),
            unit,
            kind,
            labels: labels.map(|(key, word)| (*key, (*word).to_owned())).collect(),
            value,
        });
    }

    fn count(&mut self, name: &'static str, labels: &[(&'static str, &str)], count: u64) {
        self.add(name, labels, ExportedValue::Count(count));
    }

    fn timers(&mut self, wheel: &Wheel, metrics: &Metrics, snapshot: &Snapshot) {
        for (name, count) in [
            ("tickwheel_pending", snapshot.pending as u64),
            ("tickwheel_registered_total", metrics.registered),
            ("tickwheel_expired_total", metrics.expired),
            ("tickwheel_cancelled_total", metrics.cancelled),
            ("tickwheel_rejected_total", metrics.rejected),
            ("tickwheel_cascaded_total", metrics.cascaded),
            ("tickwheel_turns_total", metrics.turns),
            ("tickwheel_panics_total", metrics.panics),
            ("tickwheel_engines", metrics.engines as u64),
            ("tickwheel_arena_bytes", metrics.arena_bytes as u64),
        ] {
            self.count(name, &[], count);
        }
        for (within, due) in WITHIN.into_iter().zip(snapshot.due_within) {
            self.count("tickwheel_due", &[("within", within)], due as u64);
        }
        for (name, duration) in [
            ("tickwheel_tick_seconds", wheel.tick_duration()),
            ("tickwheel_lag_max_seconds", metrics.max_lag),
        ] {
            self.add(name, &[], ExportedValue::Number(duration.as_secs_f64()));
        }
        let ends = snapshot.lag.ends();
        let lags = ends.map(|(end, count)| (end.as_secs_f64(), count));
        self.add("tickwheel_lag_seconds", &[], histogram(&SECONDS, lags));
    }

    fn label(&mut self, stats: &LabelStats) {
        let label = ("label", &*stats.name);
        self.count("tickwheel_timeouts_started_total", &[label], stats.started);
        self.count("tickwheel_timeouts_pending", &[label], stats.pending);
        for (outcome, count) in [
            ("completed", stats.completed),
            ("elapsed", stats.elapsed),
            ("refused", stats.refused),
            ("cancelled", stats.cancelled),
        ] {
            let labels = [label, ("outcome", outcome)];
            self.count("tickwheel_timeouts_total", &labels, count);
        }
        let middles = (0..10).map(|tenths| f64::from(2 * tenths + 1) / 20.0);
        let headroom = histogram(&TENTHS, middles.zip(stats.headroom));
        self.add("tickwheel_timeouts_headroom_ratio", &[label], headroom);
    }
}

/// Returns the description of the values of this name.
fn help(name: &str) -> &'static str {
    match name {
        "tickwheel_pending" => "Timers pending in the wheel.",
        "tickwheel_due" => "Pending timers, by the time until they are due.",
        "tickwheel_registered_total" => "Timers registered.",
        "tickwheel_expired_total" => "Timers that reached their deadline while pending.",
        "tickwheel_cancelled_total" => "Timers cancelled before their deadline.",
        "tickwheel_rejected_total" => "Timers refused because the wheel was full.",
        "tickwheel_cascaded_total" => "Moves of a timer from a coarser level to a finer one.",
        "tickwheel_turns_total" => "Turns of the drivers.",
        "tickwheel_panics_total" => "Panics caught in wakers.",
        "tickwheel_engines" => "Runtimes in which the wheel has a part.",
        "tickwheel_arena_bytes" => "Bytes held by the arenas, used or not.",
        "tickwheel_tick_seconds" => "Length of a tick.",
        "tickwheel_lag_seconds" => "Lateness of the turns.",
        "tickwheel_lag_max_seconds" => "Greatest lateness of a turn since the wheel was created.",
        "tickwheel_timeouts_started_total" => "Labelled timeouts polled for the first time.",
        "tickwheel_timeouts_total" => "Labelled timeouts that ended, by outcome.",
        "tickwheel_timeouts_pending" => "Labelled timeouts pending.",
        "tickwheel_timeouts_headroom_ratio" => "Part of its time that a completed timeout had left.",
        _ => unreachable!("{name} has no description"),
    }
}
