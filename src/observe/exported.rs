//! The metrics that a wheel exports, listed once for the `metrics` facade and for Prometheus.

use std::{
    mem,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    engine::{labels::LabelStats, lag::LagHistogram, shard::Mode},
    observe::{metrics::Metrics, snapshot::Snapshot},
    wheel::{Parts, Wheel},
};

/// A metric. Its name ends with `_total` if it is a counter, and otherwise with its unit, unless it counts.
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    values: fn(&Report) -> Vec<(Labels, Value)>,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The keys and values of labels.
pub(crate) type Labels = Vec<(&'static str, String)>;

#[derive(Clone)]
pub(crate) enum Value {
    Count(u64),
    Seconds(Duration),
    /// All counts since the creation of the wheel, each with a value that stands for those counted.
    Histogram(Vec<(f64, u64)>),
}

/// A wheel that is reported on as long as it is alive.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) wheel: Weak<Parts>,
    /// The lag at the previous report.
    lag: LagHistogram,
}

impl Subject {
    pub(crate) fn new(wheel: &Wheel) -> Subject {
        Subject {
            wheel: Arc::downgrade(&wheel.parts),
            lag: LagHistogram::default(),
        }
    }

    /// Reports on the wheel, unless it is gone.
    pub(crate) fn report(&mut self) -> Option<Report> {
        let parts = self.wheel.upgrade()?;
        let wheel = Wheel { parts };
        // The metrics are read first, so that the report is final if they tell of a shutdown.
        let metrics = wheel.metrics();
        let snapshot = wheel.snapshot();
        let previous = mem::replace(&mut self.lag, snapshot.lag.clone());
        Some(Report {
            max_lag: snapshot.lag.since(&previous).max(),
            wheel,
            metrics,
            snapshot,
        })
    }
}

/// What is exported of a wheel at one time.
pub(crate) struct Report {
    wheel: Wheel,
    pub(crate) metrics: Metrics,
    snapshot: Snapshot,
    /// The maximum lag since the previous report.
    max_lag: Duration,
}

impl Metric {
    const fn new(
        name: &'static str,
        description: &'static str,
        values: fn(&Report) -> Vec<(Labels, Value)>,
    ) -> Metric {
        Metric {
            name,
            description,
            values,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.name {
            "tickwheel_lag_seconds" | "tickwheel_timeouts_headroom_ratio" => Kind::Histogram,
            name if name.ends_with("_total") => Kind::Counter,
            _ => Kind::Gauge,
        }
    }

    /// Returns the values of this metric, each with its labels.
    pub(crate) fn values(&self, report: &Report) -> Vec<(Labels, Value)> {
        under(
            "wheel",
            &report.wheel.parts.driver.stats.name,
            (self.values)(report),
        )
    }
}

pub(crate) const METRICS: [Metric; 22] = [
    Metric::new("tickwheel_pending", "Timers pending in the wheel.", |report| {
        count(report.snapshot.pending as u64)
    }),
    Metric::new(
        "tickwheel_due",
        "Pending timers, by the time until their deadline.",
        |report| {
            let due = report.snapshot.horizon.map(|due| due as u64);
            by("within", WITHIN.into_iter().zip(due))
        },
    ),
    Metric::new("tickwheel_registered_total", "Timers registered.", |report| {
        count(report.metrics.registered)
    }),
    Metric::new(
        "tickwheel_expired_total",
        "Timers that reached their deadline while pending.",
        |report| count(report.metrics.expired),
    ),
    Metric::new(
        "tickwheel_cancelled_total",
        "Timers cancelled before their deadline.",
        |report| count(report.metrics.cancelled),
    ),
    Metric::new(
        "tickwheel_rejected_total",
        "Timers refused because the wheel was full.",
        |report| count(report.metrics.rejected),
    ),
    Metric::new(
        "tickwheel_cascaded_total",
        "Moves of a timer to a finer level.",
        |report| count(report.metrics.cascaded),
    ),
    Metric::new(
        "tickwheel_ticks_total",
        "Turns of the driver at a later tick than the turn before.",
        |report| count(report.metrics.ticks),
    ),
    Metric::new("tickwheel_wakeups_total", "Wake-ups of the driver.", |report| {
        count(report.metrics.wakeups)
    }),
    Metric::new(
        "tickwheel_full_visits_total",
        "Visits to a shard that gave deadlines to its new timeouts.",
        |report| count(report.metrics.full_visits),
    ),
    Metric::new(
        "tickwheel_light_visits_total",
        "Visits to a shard that only expired and moved timers.",
        |report| count(report.metrics.light_visits),
    ),
    Metric::new(
        "tickwheel_dozes_total",
        "Times that a shard began to doze.",
        |report| count(report.metrics.dozes),
    ),
    Metric::new("tickwheel_panics_total", "Panics caught in wakers.", |report| {
        count(report.metrics.panics)
    }),
    Metric::new("tickwheel_shards", "Shards, by how they are driven.", |report| {
        let modes = report.snapshot.shards.iter().map(|shard| shard.mode);
        let shards = |mode| modes.clone().filter(|of_shard| *of_shard == mode).count();
        by("mode", MODES.map(|(word, mode)| (word, shards(mode) as u64)))
    }),
    Metric::new(
        "tickwheel_arena_bytes",
        "Bytes held by the arenas, used or not.",
        |report| count(report.metrics.arena_bytes as u64),
    ),
    Metric::new("tickwheel_tick_seconds", "Length of a tick.", |report| {
        one(Value::Seconds(report.wheel.tick_duration()))
    }),
    Metric::new("tickwheel_lag_seconds", "Lateness of the driver.", |report| {
        let lags = report.snapshot.lag.ends();
        let lags = lags.map(|(end, count)| (end.as_secs_f64(), count));
        one(Value::Histogram(lags.collect()))
    }),
    Metric::new(
        "tickwheel_lag_max_seconds",
        "Maximum lateness of the driver since the last report.",
        |report| one(Value::Seconds(report.max_lag)),
    ),
    Metric::new(
        "tickwheel_timeouts_started_total",
        "Labelled timeouts polled for the first time.",
        |report| by_label(report, |stats| count(stats.started)),
    ),
    Metric::new(
        "tickwheel_timeouts_total",
        "Labelled timeouts that ended, by outcome.",
        |report| {
            by_label(report, |stats| {
                let outcomes = [
                    ("completed", stats.completed),
                    ("elapsed", stats.elapsed),
                    ("refused", stats.refused),
                    ("cancelled", stats.cancelled),
                ];
                by("outcome", outcomes)
            })
        },
    ),
    Metric::new(
        "tickwheel_timeouts_pending",
        "Labelled timeouts pending.",
        |report| by_label(report, |stats| count(stats.pending)),
    ),
    Metric::new(
        "tickwheel_timeouts_headroom_ratio",
        "Fraction of its time that a completed timeout had left.",
        |report| {
            by_label(report, |stats| {
                let middles = (0..10).map(|tenths| f64::from(2 * tenths + 1) / 20.0);
                one(Value::Histogram(middles.zip(stats.headroom).collect()))
            })
        },
    ),
];

/// The values of the label `within`, one for each element of a snapshot's horizon.
const WITHIN: [&str; 9] = ["tick", "10ms", "100ms", "1s", "10s", "1m", "10m", "1h", "later"];

const MODES: [(&str, Mode); 4] = [
    ("driverless", Mode::Driverless),
    ("dozing", Mode::Dozing),
    ("ticking", Mode::Ticking),
    ("shutdown", Mode::Shutdown),
];

fn one(value: Value) -> Vec<(Labels, Value)> {
    vec![(Vec::new(), value)]
}

fn count(count: u64) -> Vec<(Labels, Value)> {
    one(Value::Count(count))
}

/// Counts by the values of another label.
fn by(label: &'static str, counts: impl IntoIterator<Item = (&'static str, u64)>) -> Vec<(Labels, Value)> {
    let value = |(word, counted)| under(label, word, count(counted));
    counts.into_iter().flat_map(value).collect()
}

/// The values of each label of timeouts.
fn by_label(report: &Report, values: fn(&LabelStats) -> Vec<(Labels, Value)>) -> Vec<(Labels, Value)> {
    let values = |stats: &LabelStats| under("label", &stats.name, values(stats));
    report.snapshot.labels.iter().flat_map(values).collect()
}

/// Puts one more label before the others of each value.
fn under(label: &'static str, word: &str, mut values: Vec<(Labels, Value)>) -> Vec<(Labels, Value)> {
    for (labels, _) in &mut values {
        labels.insert(0, (label, word.to_owned()));
    }
    values
}
