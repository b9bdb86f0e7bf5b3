//! How late a wheel's turns come, counted in the buckets of a histogram.

use std::{
    array,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The number of buckets for each power of two. This is an [H2
/// histogram](https://iop.systems/blog/h2-histogram/).
const PER_POWER: u64 = 8;
/// The unit of the finest buckets, in nanoseconds.
pub(crate) const UNIT: u64 = 1_000;
/// The number of buckets. Together they reach beyond an hour, and a longer lag counts in the last one.
pub(crate) const BUCKETS: usize = 240;

/// Records the lag of turns.
pub(crate) struct LagRecorder {
    counts: [AtomicU64; BUCKETS],
}

impl Default for LagRecorder {
    fn default() -> LagRecorder {
        LagRecorder {
            counts: array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl LagRecorder {
    pub(crate) fn record(&self, nanos: u64) {
        // Only drivers count here, one at a time in each runtime.
        self.counts[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the count of each bucket.
    pub(crate) fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed))
    }
}

fn bucket_of(nanos: u64) -> usize {
    let units = nanos / UNIT;
    // The buckets here are `1 << power` units wide.
    let power = units.max(PER_POWER).ilog2() - PER_POWER.ilog2();
    let bucket = u64::from(power) * PER_POWER + (units >> power);
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the exclusive end of a bucket. The last bucket has no end.
pub(crate) fn end_of(bucket: usize) -> Duration {
    // It holds all that is longer.
    if bucket == BUCKETS - 1 {
        return Duration::MAX;
    }
    // A bucket ends where the next one begins.
    let next = bucket as u64 + 1;
    let power = (next / PER_POWER).saturating_sub(1);
    Duration::from_nanos(((next - power * PER_POWER) << power) * UNIT)
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_one_another_and_the_last_is_open() {
        for bucket in 0..BUCKETS - 1 {
            let end = end_of(bucket).as_nanos() as u64;
            assert_eq!(bucket_of(end - 1), bucket);
            assert_eq!(bucket_of(end), bucket + 1);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert!(end_of(BUCKETS - 2) > Duration::from_secs(3600));
    }
}
