//! `QueueStats`: what this process counts of a queue, and when it last asked Redis how long the queue is.

use std::time::Duration;

use tickwheel_exported::Exported;
use tokio::time::Instant;

use super::report::QueueSample;
use crate::{
    exported::{Counter, List, Renewals},
    mutex::Mutex,
};

/// The upper bounds of the buckets of the lateness in microseconds. A last bucket without a bound follows.
const BOUNDS: [u64; BUCKETS - 1] = [
    2_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    60_000_000,
    300_000_000,
    3_600_000_000,
];
const BUCKETS: usize = 12;

/// The longest lateness that is counted as such, so that times long ago do not overflow the sum.
const LATEST: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Default)]
pub(crate) struct QueueStats {
    /// Deliveries by lateness: first attempts, and later ones.
    deliveries: [[Counter; BUCKETS]; 2],
    /// The lateness of all deliveries in microseconds.
    lateness: Counter,
    pub(crate) renewals: Renewals,
    pub(crate) lost: Counter,
    sampled: Mutex<Option<(Instant, QueueSample)>>,
}

impl QueueStats {
    /// Counts a delivery of a job.
    pub(crate) fn delivered(&self, lateness: Duration, was_tried: bool) {
        let micros = lateness.min(LATEST).as_micros() as u64;
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.deliveries[usize::from(was_tried)][bucket].increment();
        self.lateness.add(micros);
    }

    pub(crate) fn sampled(&self, asked: Instant, sample: QueueSample) {
        let mut sampled = self.sampled.lock();
        // An answer that was overtaken is older than what is known.
        if sampled.is_none_or(|(known, _)| known <= asked) {
            *sampled = Some((asked, sample));
        }
    }

    /// Returns everything that is counted of the queue, sorted by name.
    pub(crate) fn exported(&self, labels: Vec<(&'static str, String)>) -> Vec<Exported> {
        let mut list = List::new(labels);
        for (attempt, counts) in ["first", "later"].into_iter().zip(&self.deliveries) {
            list.counter(
                "tickwheel_redis_jobs_deliveries_total",
                "Jobs that this process's workers yielded, by attempt.",
                Some(("attempt", attempt)),
                counts.iter().map(Counter::get).sum(),
            );
        }
        let [first, later] = &self.deliveries;
        let bounds = BOUNDS.iter().map(|bound| *bound as f64 / 1e6);
        let counts = first
            .iter()
            .zip(later)
            .map(|(first, later)| first.get() + later.get());
        list.histogram(
            "tickwheel_redis_jobs_lateness_seconds",
            "Time from when a job was due to its delivery by this process.",
            bounds.chain([f64::INFINITY]).zip(counts).collect(),
            self.lateness.get() as f64 / 1e6,
        );
        self.renewals.list(
            &mut list,
            "tickwheel_redis_jobs_renewals_total",
            "Renewals of the leases of jobs that this process has claimed, by outcome.",
        );
        list.counter(
            "tickwheel_redis_jobs_lost_total",
            "Jobs whose lease this process lost before it was done with them.",
            None,
            self.lost.get(),
        );
        let sampled = *self.sampled.lock();
        if let Some((asked, sample)) = sampled {
            list_sample(&mut list, asked, sample);
        }
        list.sorted()
    }
}

fn list_sample(list: &mut List, asked: Instant, QueueSample { counts, oldest_due }: QueueSample) {
    list.measured(
        "tickwheel_redis_jobs_waiting",
        "Jobs in the queue that wait, at the last sample.",
        counts.waiting as f64,
    );
    list.measured(
        "tickwheel_redis_jobs_running",
        "Jobs in the queue that were delivered and are not finished, at the last sample.",
        counts.running as f64,
    );
    list.measured(
        "tickwheel_redis_jobs_dead",
        "Jobs in the queue that are dead, at the last sample.",
        counts.dead as f64,
    );
    list.measured(
        "tickwheel_redis_jobs_paused",
        "1 if the queue was paused at the last sample, else 0.",
        f64::from(u8::from(counts.paused)),
    );
    list.measured(
        "tickwheel_redis_jobs_oldest_due_seconds",
        "For how long the oldest due job had been due that no worker had claimed, at the last sample.",
        oldest_due.unwrap_or_default().as_secs_f64(),
    );
    list.measured(
        "tickwheel_redis_jobs_sample_age_seconds",
        "Time since the last sample of the queue.",
        asked.elapsed().as_secs_f64(),
    );
}
