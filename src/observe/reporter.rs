//! `MetricsReporter`: exports a wheel's metrics through the `metrics` facade.

use std::{collections::HashMap, iter, time::Duration};

use metrics::{Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use tokio::time::MissedTickBehavior;

use crate::{
    observe::exported::{Kind, Labels, METRICS, Report, Subject, Value},
    wheel::Wheel,
};

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
            subject: Subject::new(self),
            recorded: HashMap::new(),
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
/// | `tickwheel_due` | gauge | timers | pending timers by the label `within`, the first of these that their deadlines, rounded up to a tick, are within: `tick`, `10ms`, `100ms`, `1s`, `10s`, `1m`, `10m`, `1h`, `later` |
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
    subject: Subject,
    /// The previous report's counts of each histogram, because only the difference is recorded.
    recorded: HashMap<(&'static str, Labels), Vec<(f64, u64)>>,
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
        for metric in METRICS {
            let unit = match metric.name.rsplit('_').next() {
                Some("seconds") => Unit::Seconds,
                Some("bytes") => Unit::Bytes,
                _ => Unit::Count,
            };
            match metric.kind() {
                Kind::Counter => describe_counter!(metric.name, unit, metric.description),
                Kind::Gauge => describe_gauge!(metric.name, unit, metric.description),
                Kind::Histogram => describe_histogram!(metric.name, unit, metric.description),
            }
        }
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
        self.record().is_some()
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
            let report = self.record();
            if report.is_none_or(|report| report.metrics.shutdown) {
                return;
            }
        }
    }

    /// Records a report, unless the wheel is gone.
    fn record(&mut self) -> Option<Report> {
        let report = self.subject.report()?;
        for metric in METRICS {
            for (labels, value) in metric.values(&report) {
                let label = |(key, word): &(_, String)| Label::new(*key, word.clone());
                let keys: Vec<_> = labels.iter().map(label).collect();
                match (metric.kind(), value) {
                    (Kind::Counter, Value::Count(count)) => counter!(metric.name, keys).absolute(count),
                    (_, Value::Count(count)) => gauge!(metric.name, keys).set(count as f64),
                    (_, Value::Seconds(seconds)) => gauge!(metric.name, keys).set(seconds),
                    (_, Value::Histogram(counts)) => {
                        let histogram = histogram!(metric.name, keys);
                        let recorded = self.recorded.entry((metric.name, labels)).or_default();
                        let before = recorded.iter().map(|(_, count)| *count).chain(iter::repeat(0));
                        for ((value, count), before) in counts.iter().zip(before) {
                            histogram.record_many(*value, count.saturating_sub(before) as usize);
                        }
                        *recorded = counts;
                    }
                }
            }
        }
        Some(report)
    }
}
