//! `MetricsReporter`: exports a wheel's metrics through the `metrics` facade.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tokio::time::MissedTickBehavior;

use crate::{
    labels::LabelStats,
    lag::LagHistogram,
    metrics::Metrics,
    snapshot::{Mode, Snapshot},
    wheel::{Parts, Wheel},
};

/// The values of the label `within`, one for each element of a snapshot's horizon.
const WITHIN: [&str; 9] = ["tick", "10ms", "100ms", "1s", "10s", "1m", "10m", "1h", "later"];

type Value = fn(&Metrics) -> u64;

/// The counters of [`Metrics`]: the name and description of each, and its value.
const COUNTERS: [(&str, &str, Value); 11] = [
    ("tickwheel_registered_total", "Timers registered.", |metrics| {
        metrics.registered
    }),
    (
        "tickwheel_expired_total",
        "Timers that reached their deadline while pending.",
        |metrics| metrics.expired,
    ),
    (
        "tickwheel_cancelled_total",
        "Timers cancelled before their deadline.",
        |metrics| metrics.cancelled,
    ),
    (
        "tickwheel_rejected_total",
        "Timers refused because the wheel was full.",
        |metrics| metrics.rejected,
    ),
    (
        "tickwheel_cascaded_total",
        "Moves of a timer to a finer level.",
        |metrics| metrics.cascaded,
    ),
    (
        "tickwheel_ticks_total",
        "Turns of the driver at a later tick than the turn before.",
        |metrics| metrics.ticks,
    ),
    ("tickwheel_wakeups_total", "Wake-ups of the driver.", |metrics| {
        metrics.wakeups
    }),
    (
        "tickwheel_full_visits_total",
        "Visits to a shard that gave deadlines to its new timeouts.",
        |metrics| metrics.full_visits,
    ),
    (
        "tickwheel_light_visits_total",
        "Visits to a shard that only expired and moved timers.",
        |metrics| metrics.light_visits,
    ),
    (
        "tickwheel_dozes_total",
        "Times that a shard began to doze.",
        |metrics| metrics.dozes,
    ),
    ("tickwheel_panics_total", "Panics caught in wakers.", |metrics| {
        metrics.panics
    }),
];

impl Wheel {
    /// Returns a reporter, which exports the wheel's metrics to the recorder of the `metrics` facade.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::builder().name("requests").build().unwrap();
    /// tokio::spawn(wheel.metrics_reporter().run(Duration::from_secs(10)));
    /// # }
    /// ```
    pub fn metrics_reporter(&self) -> MetricsReporter {
        MetricsReporter {
            wheel: Arc::downgrade(&self.parts),
            lag: LagHistogram::default(),
            headroom: HashMap::new(),
        }
    }
}

/// A reporter that exports a wheel's metrics to the recorder of the `metrics` facade, once or periodically.
///
/// Each metric has the label `wheel`, whose value is the [name](crate::Builder::name) of the wheel. The metrics of
/// [labelled](Wheel::labelled) timeouts also have the label `label`.
///
/// | metric | kind | unit | meaning |
/// | --- | --- | --- | --- |
/// | `tickwheel_pending` | gauge | timers | pending timers |
/// | `tickwheel_due` | gauge | timers | pending timers by the label `within`, the shortest of these that they are due within: `tick`, `10ms`, `100ms`, `1s`, `10s`, `1m`, `10m`, `1h`, `later` |
/// | `tickwheel_registered_total` | counter | timers | timers that entered the wheel |
/// | `tickwheel_expired_total` | counter | timers | timers whose deadline came while they were pending |
/// | `tickwheel_cancelled_total` | counter | timers | timers that left the wheel before their deadline |
/// | `tickwheel_rejected_total` | counter | timers | timers refused because the wheel was full |
/// | `tickwheel_cascaded_total` | counter | timers | moves of a timer from a coarser level to a finer one |
/// | `tickwheel_ticks_total` | counter | turns | turns of the driver that found a later tick than the turn before |
/// | `tickwheel_wakeups_total` | counter | times | times the driver woke |
/// | `tickwheel_full_visits_total` | counter | visits | visits to a busy shard that gave its new timeouts their deadlines |
/// | `tickwheel_light_visits_total` | counter | visits | visits to a shard that only expired timers and moved them to finer levels |
/// | `tickwheel_dozes_total` | counter | times | times a shard began to doze |
/// | `tickwheel_panics_total` | counter | panics | panics caught in wakers |
/// | `tickwheel_shards` | gauge | shards | shards by the label `mode`: `driverless`, `dozing`, `ticking`, `shutdown` |
/// | `tickwheel_arena_bytes` | gauge | bytes | size of the arenas |
/// | `tickwheel_tick_seconds` | gauge | seconds | duration of a tick |
/// | `tickwheel_lag_seconds` | histogram | seconds | lateness of the driver |
/// | `tickwheel_lag_max_seconds` | gauge | seconds | maximum lateness of the driver since the previous report |
/// | `tickwheel_timeouts_started_total` | counter | timeouts | timeouts of the label `label` that were polled |
/// | `tickwheel_timeouts_total` | counter | timeouts | timeouts that ended, by the label `outcome`: `completed`, `elapsed`, `refused`, `cancelled` |
/// | `tickwheel_timeouts_pending` | gauge | timeouts | pending timeouts |
/// | `tickwheel_timeouts_headroom_ratio` | histogram | fraction of 1 | fraction of its time that a completed timeout had left, reported as the middle of a tenth |
///
/// Each report takes a [snapshot](Wheel::snapshot). The reporter does not keep the wheel alive.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
///
/// let wheel = Wheel::new();
/// let mut reporter = wheel.metrics_reporter();
/// // At any time once a recorder is installed:
/// assert!(reporter.report());
/// ```
#[derive(Debug)]
pub struct MetricsReporter {
    wheel: Weak<Parts>,
    /// The previous report's histogram, because only the difference is recorded.
    lag: LagHistogram,
    headroom: HashMap<Arc<str>, [u64; 10]>,
}

impl MetricsReporter {
    /// Describes the metrics to the recorder.
    ///
    /// [`run`](MetricsReporter::run) does this first.
    ///
    /// # Examples
    ///
    /// ```
    /// tickwheel::Wheel::new().metrics_reporter().describe();
    /// ```
    pub fn describe(&self) {
        for (name, description, _) in COUNTERS {
            describe_counter!(name, Unit::Count, description);
        }
        describe_gauge!("tickwheel_pending", Unit::Count, "Timers pending in the wheel.");
        describe_gauge!(
            "tickwheel_due",
            Unit::Count,
            "Pending timers, by the time until their deadline."
        );
        describe_gauge!("tickwheel_shards", Unit::Count, "Shards, by how they are driven.");
        describe_gauge!(
            "tickwheel_arena_bytes",
            Unit::Bytes,
            "Bytes held by the arenas, used or not."
        );
        describe_gauge!("tickwheel_tick_seconds", Unit::Seconds, "Length of a tick.");
        describe_histogram!("tickwheel_lag_seconds", Unit::Seconds, "Lateness of the driver.");
        describe_gauge!(
            "tickwheel_lag_max_seconds",
            Unit::Seconds,
            "Maximum lateness of the driver since the last report."
        );
        describe_counter!(
            "tickwheel_timeouts_started_total",
            Unit::Count,
            "Labelled timeouts polled for the first time."
        );
        describe_counter!(
            "tickwheel_timeouts_total",
            Unit::Count,
            "Labelled timeouts that ended, by outcome."
        );
        describe_gauge!(
            "tickwheel_timeouts_pending",
            Unit::Count,
            "Labelled timeouts pending."
        );
        describe_histogram!(
            "tickwheel_timeouts_headroom_ratio",
            Unit::Count,
            "Fraction of its time that a completed timeout had left."
        );
    }

    /// Reports once and returns `true`, or returns `false` if the wheel has been dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// let mut reporter = tickwheel::Wheel::new().metrics_reporter();
    /// assert!(!reporter.report(), "nobody has kept the wheel");
    /// ```
    pub fn report(&mut self) -> bool {
        let wheel = self.upgrade();
        wheel.inspect(|wheel| self.report_on(wheel)).is_some()
    }

    /// Describes the metrics, reports at once, and then reports every `period`.
    ///
    /// The future completes when the wheel has been dropped. If the wheel is shut down, it reports a last time and completes.
    ///
    /// The period is kept by Tokio's own timer, so that a wheel that stands still is reported on too.
    ///
    /// # Cancellation
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
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let reports = tokio::spawn(wheel.metrics_reporter().run(Duration::from_secs(10)));
    /// wheel.shutdown();
    /// reports.await.unwrap();
    /// # }
    /// ```
    pub async fn run(mut self, period: Duration) {
        self.describe();
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Some(wheel) = self.upgrade() else { return };
            // This is read before the report, so that the last report is final.
            let last = wheel.is_shutdown();
            self.report_on(&wheel);
            if last {
                return;
            }
        }
    }

    fn upgrade(&self) -> Option<Wheel> {
        let parts = self.wheel.upgrade()?;
        Some(Wheel { parts })
    }

    fn report_on(&mut self, wheel: &Wheel) {
        let snapshot = wheel.snapshot();
        let name = Label::new("wheel", wheel.parts.driver.stats.name.clone());
        gauge!("tickwheel_tick_seconds", vec![name.clone()]).set(wheel.tick_duration());
        report_metrics(&wheel.metrics(), &name);
        report_pending(&snapshot, &name);
        self.report_lag(snapshot.lag, &name);
        for stats in snapshot.labels {
            self.report_label(stats, &name);
        }
    }

    fn report_lag(&mut self, lag: LagHistogram, name: &Label) {
        let new = lag.since(&self.lag);
        gauge!("tickwheel_lag_max_seconds", vec![name.clone()]).set(new.max());
        let histogram = histogram!("tickwheel_lag_seconds", vec![name.clone()]);
        for (lag, count) in new.buckets() {
            histogram.record_many(lag, count as usize);
        }
        self.lag = lag;
    }

    fn report_label(&mut self, stats: LabelStats, name: &Label) {
        let labels = || vec![name.clone(), Label::new("label", stats.name.to_string())];
        counter!("tickwheel_timeouts_started_total", labels()).absolute(stats.started);
        gauge!("tickwheel_timeouts_pending", labels()).set(stats.pending as f64);
        for (outcome, count) in [
            ("completed", stats.completed),
            ("elapsed", stats.elapsed),
            ("refused", stats.refused),
            ("cancelled", stats.cancelled),
        ] {
            let mut labels = labels();
            labels.push(Label::from_static_parts("outcome", outcome));
            counter!("tickwheel_timeouts_total", labels).absolute(count);
        }
        let histogram = histogram!("tickwheel_timeouts_headroom_ratio", labels());
        let reported = self.headroom.entry(stats.name.clone()).or_default();
        for (tenths, (now, before)) in stats.headroom.iter().zip(reported.iter()).enumerate() {
            let new = now.saturating_sub(*before) as usize;
            histogram.record_many((2 * tenths + 1) as f64 / 20.0, new);
        }
        *reported = stats.headroom;
    }
}

fn report_metrics(metrics: &Metrics, name: &Label) {
    for (counter, _, value) in COUNTERS {
        counter!(counter, vec![name.clone()]).absolute(value(metrics));
    }
    gauge!("tickwheel_arena_bytes", vec![name.clone()]).set(metrics.arena_bytes as f64);
}

fn report_pending(snapshot: &Snapshot, name: &Label) {
    gauge!("tickwheel_pending", vec![name.clone()]).set(snapshot.pending as f64);
    for (within, due) in WITHIN.into_iter().zip(snapshot.horizon) {
        let within = Label::from_static_parts("within", within);
        gauge!("tickwheel_due", vec![name.clone(), within]).set(due as f64);
    }
    for (mode, word) in [
        (Mode::Driverless, "driverless"),
        (Mode::Dozing, "dozing"),
        (Mode::Ticking, "ticking"),
        (Mode::Shutdown, "shutdown"),
    ] {
        let shards = snapshot.shards.iter().filter(|shard| shard.mode == mode);
        let mode = Label::from_static_parts("mode", word);
        gauge!("tickwheel_shards", vec![name.clone(), mode]).set(shards.count() as f64);
    }
}
