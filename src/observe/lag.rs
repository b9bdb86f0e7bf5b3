//! The histogram of the lateness of a wheel's turns.

use std::{sync::atomic::Ordering, time::Duration};

use crate::engine::{
    lag::{BUCKETS, end_of},
    shared::Stats,
};

/// A histogram of how late a wheel's turns came, in all runtimes: how long after its time Tokio let a driver
/// run.
///
/// Lateness is counted in buckets. Up to 16 microseconds a bucket is one microsecond wide, and from there on
/// an eighth as wide as the power of two in which it lies. The last bucket begins beyond an hour. Counts go
/// back to the creation of the wheel; [`since`](LagHistogram::since) returns the counts between two
/// snapshots.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let before = wheel.snapshot();
/// wheel.sleep(Duration::from_millis(20)).await;
///
/// let lag = wheel.snapshot().lag.since(&before.lag);
/// assert!(lag.count() >= 1);
/// assert!(lag.quantile(0.5) <= lag.max());
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LagHistogram {
    /// The counts up to the last bucket in use.
    counts: Vec<u64>,
    max: Duration,
}

impl LagHistogram {
    /// Reads the histogram of a wheel.
    pub(crate) fn of_wheel(stats: &Stats) -> LagHistogram {
        let max = stats.max_lag.load(Ordering::Relaxed);
        LagHistogram::of(stats.lags.counts(), Duration::from_nanos(max))
    }

    /// Returns the number of turns.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().snapshot().lag.count(), 0);
    /// ```
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the lateness at a quantile, where a `quantile` of 0.99 is the 99th percentile.
    ///
    /// The result is the end of a bucket, but no more than the maximum, and zero if there was no turn yet. A
    /// `quantile` below 0 counts as 0, and one above 1 as 1.
    ///
    /// # Examples
    ///
    /// ```
    /// let lag = tickwheel::Wheel::new().snapshot().lag;
    /// assert!(lag.quantile(0.99).is_zero());
    /// ```
    pub fn quantile(&self, quantile: f64) -> Duration {
        let rank = (self.count() as f64 * quantile.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut passed = 0;
        let bucket = self.counts.iter().position(|count| {
            passed += count;
            passed >= rank
        });
        bucket.map_or(Duration::ZERO, |bucket| end_of(bucket).min(self.max))
    }

    /// Returns the greatest lateness.
    ///
    /// In a histogram that [`since`](LagHistogram::since) returned, this is rounded up to the end of a
    /// bucket.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::new();
    /// assert_eq!(wheel.snapshot().lag.max(), wheel.metrics().max_lag);
    /// ```
    pub fn max(&self) -> Duration {
        self.max
    }

    /// Returns the buckets in use, in order, each as the lateness at which it ends and its count.
    ///
    /// The end of a bucket never changes, so counts of several histograms can be compared. The last bucket of
    /// all, beyond an hour, has no end and is given as its beginning.
    ///
    /// # Examples
    ///
    /// ```
    /// let lag = tickwheel::Wheel::new().snapshot().lag;
    /// assert_eq!(lag.buckets().map(|(_, count)| count).sum::<u64>(), lag.count());
    /// ```
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let used = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        used.map(|(bucket, count)| (end_of(bucket.min(BUCKETS - 2)), *count))
    }

    /// Returns the counts added after `earlier`, a histogram of the same wheel.
    ///
    /// # Examples
    ///
    /// ```
    /// let lag = tickwheel::Wheel::new().snapshot().lag;
    /// assert_eq!(lag.since(&lag).count(), 0);
    /// ```
    #[must_use]
    pub fn since(&self, earlier: &LagHistogram) -> LagHistogram {
        let earlier = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(earlier);
        LagHistogram::of(counts.map(|(now, then)| now.saturating_sub(then)), self.max)
    }

    fn of(counts: impl Iterator<Item = u64>, max: Duration) -> LagHistogram {
        let mut counts: Vec<u64> = counts.collect();
        let used = counts.iter().rposition(|count| *count > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        LagHistogram {
            max: used.map_or(Duration::ZERO, |last| end_of(last).min(max)),
            counts,
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for LagHistogram {
    /// Serializes the histogram as a struct of `count`, `p50`, `p99`, `max` and `buckets`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut histogram = serializer.serialize_struct("LagHistogram", 5)?;
        histogram.serialize_field("count", &self.count())?;
        histogram.serialize_field("p50", &self.quantile(0.5))?;
        histogram.serialize_field("p99", &self.quantile(0.99))?;
        histogram.serialize_field("max", &self.max)?;
        histogram.serialize_field("buckets", &self.buckets().collect::<Vec<_>>())?;
        histogram.end()
    }
}

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::lag::UNIT;

    fn histogram(lags: &[u64]) -> LagHistogram {
        let stats = Stats::default();
        for nanos in lags {
            stats.lags.record(*nanos);
            stats.max_lag.fetch_max(*nanos, Ordering::Relaxed);
        }
        LagHistogram::of_wheel(&stats)
    }

    proptest! {
        #[test]
        fn a_quantile_is_that_of_the_sorted_lags_to_an_eighth_and_a_microsecond(
            mut lags in prop::collection::vec(0..10_000_000_000_u64, 1..200),
            quantile in 0.0..=1.0_f64,
        ) {
            let found = histogram(&lags).quantile(quantile).as_nanos() as u64;
            lags.sort_unstable();
            let rank = ((lags.len() as f64 * quantile).ceil() as usize).max(1);
            let exact = lags[rank - 1];
            prop_assert!(found >= exact, "{found} for {exact}");
            prop_assert!(found <= exact + exact / 8 + UNIT, "{found} for {exact}");
        }
    }

    #[test]
    fn since_leaves_what_was_added() {
        let before = histogram(&[5_000, 9_000_000]);
        let after = histogram(&[5_000, 9_000_000, 5_000, 40_000]);
        let added = after.since(&before);
        assert_eq!(added.counts, histogram(&[5_000, 40_000]).counts);
        assert_eq!(added.count(), 2);
        assert!(added.max() >= Duration::from_micros(40) && added.max() < Duration::from_micros(46));
        assert_eq!(after.max(), Duration::from_millis(9));
    }

    #[test]
    fn a_quantile_beyond_the_ends_is_that_of_the_end() {
        let lags = histogram(&[5_000, 9_000_000]);
        assert_eq!(lags.quantile(2.0), lags.quantile(1.0));
        assert_eq!(lags.quantile(-1.0), lags.quantile(0.0));
    }

    #[test]
    fn of_nothing_everything_is_zero() {
        let none = histogram(&[]);
        assert_eq!(none, LagHistogram::default());
        assert_eq!(
            (none.count(), none.max(), none.quantile(1.0)),
            (0, Duration::ZERO, Duration::ZERO)
        );
    }
}
