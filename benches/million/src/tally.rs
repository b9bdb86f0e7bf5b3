//! What is counted and measured, and the rows of the table that it makes.

use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::time::Instant;

use crate::{machine::grouped, options::Options, traffic::REQUEST_TIMEOUT};

/// What a task has to tell of its timers when it ends.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) registered: u64,
    pub(crate) cancelled: u64,
    pub(crate) expired: u64,
    pub(crate) pushed_back: u64,
    pub(crate) early: u64,
    pub(crate) sleeps_late: Vec<Duration>,
    pub(crate) timeouts_late: Vec<Duration>,
}

impl Tally {
    pub(crate) fn sleep_expired(&mut self, deadline: Instant) {
        self.expired += 1;
        match Instant::now().checked_duration_since(deadline) {
            Some(late) => self.sleeps_late.push(late),
            None => self.early += 1,
        }
    }

    pub(crate) fn timeout_elapsed(&mut self, started: Instant) {
        self.expired += 1;
        match started.elapsed().checked_sub(REQUEST_TIMEOUT) {
            Some(late) => self.timeouts_late.push(late),
            None => self.early += 1,
        }
    }

    pub(crate) fn add(&mut self, other: Tally) {
        self.registered += other.registered;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.pushed_back += other.pushed_back;
        self.early += other.early;
        self.sleeps_late.extend(other.sleeps_late);
        self.timeouts_late.extend(other.timeouts_late);
    }
}

/// What a run on one clock has measured.
pub(crate) struct Report {
    pub(crate) armed_in: Duration,
    pub(crate) bytes: Option<u64>,
    pub(crate) requests: u64,
    pub(crate) took: Duration,
    pub(crate) cpu: Option<Duration>,
    pub(crate) tally: Tally,
    pub(crate) remark: String,
}

impl Report {
    /// A row of the table on each line, its name and value apart by a tab; then, after an empty line, the remark.
    pub(crate) fn report(self, options: Options) -> String {
        let Report { tally, .. } = &self;
        let per_second = self.requests as f64 / self.took.as_secs_f64();
        let (cpu, cpu_each) = match self.cpu {
            Some(cpu) => (
                format!("{:.2}", cpu.as_secs_f64()),
                format!("{:.2} µs", cpu.as_secs_f64() * 1e6 / self.requests.max(1) as f64),
            ),
            None => ("not known here".into(), "not known here".into()),
        };
        let bytes = match self.bytes {
            // Below this, pages and what else the process did outweigh the timers.
            Some(_) if options.timers < 100_000 => "too few to tell".into(),
            Some(bytes) => format!("{:.0}", bytes as f64 / options.timers as f64),
            None => "not known here".into(),
        };
        let rows = [
            ("requests per second", grouped(per_second as u64)),
            ("CPU seconds, of the traffic", cpu),
            ("  for each request", cpu_each),
            (
                "further deadlines armed in",
                format!("{} ms", self.armed_in.as_millis()),
            ),
            ("resident bytes per timer", bytes),
            (
                "late, sleep or heartbeat: p50 / p99 / max",
                lateness(&tally.sleeps_late),
            ),
            ("late, timeout: p50 / p99 / max", lateness(&tally.timeouts_late)),
            ("early", grouped(tally.early)),
            ("timers registered", grouped(tally.registered)),
            ("  cancelled", grouped(tally.cancelled)),
            ("  expired", grouped(tally.expired)),
            ("deadlines pushed back", grouped(tally.pushed_back)),
        ];
        let rows: String = rows
            .iter()
            .map(|(name, value)| format!("{name}\t{value}\n"))
            .collect();
        format!("{rows}\n{}\n", self.remark)
    }
}

fn lateness(late: &[Duration]) -> String {
    let mut histogram = Histogram::<u64>::new(3).expect("3 digits are within its limits");
    for late in late {
        histogram
            .record(late.as_micros() as u64)
            .expect("it grows as it needs to");
    }
    if histogram.is_empty() {
        return "none".into();
    }
    let ms = |micros: u64| format!("{:.1}", micros as f64 / 1000.0);
    let (p50, p99) = (
        histogram.value_at_quantile(0.5),
        histogram.value_at_quantile(0.99),
    );
    format!("{} / {} / {} ms", ms(p50), ms(p99), ms(histogram.max()))
}
