//! `exported`: what a wheel reports.

use tickwheel::{LabelStats, Metrics, Snapshot, Wheel};

use crate::{Exported, ExportedKind, ExportedUnit, ExportedValue};

/// Returns everything that an exporter reports of a wheel, sorted by name: its counters and gauges, the lateness
/// of its turns, and the outcomes of labelled timeouts.
///
/// The [crate documentation](crate#what-a-wheel-reports) lists the names.
///
/// Like a [`snapshot`](Wheel::snapshot), this walks all pending timers with bounded work under each lock. Call
/// it about once a second at most.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use tickwheel_exported::exported;
///
/// for exported in exported(&Wheel::global()) {
///     println!("{} {:?} {:?}", exported.name, exported.labels, exported.value);
/// }
/// ```
pub fn exported(wheel: &Wheel) -> Vec<Exported> {
    let mut list = List {
        wheel: wheel.name().unwrap_or_default(),
        exported: Vec::new(),
    };
    let snapshot = wheel.snapshot();
    list.timers(wheel, &wheel.metrics(), &snapshot);
    snapshot.labels.iter().for_each(|stats| list.label(stats));
    list.exported.sort_by_key(|exported| exported.name);
    list.exported
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
        let lags = snapshot.lag.buckets();
        let lags = lags.map(|(end, count)| (end.as_secs_f64(), count));
        self.add("tickwheel_lag_seconds", &[], histogram(&SECONDS, lags));
    }

    fn label(&mut self, stats: &LabelStats) {
        let label = ("label", &*stats.name);
        self.count("tickwheel_timeouts_started_total", &[label], stats.started);
        self.count("tickwheel_timeouts_pending", &[label], stats.pending);
        for (outcome, count) in [
            ("completed", stats.completed),
            ("elapsed", stats.elapsed),
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
        "tickwheel_rejected_total" => "Timers rejected because the wheel was full.",
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
