//! How long the timers of a benchmark run.

use std::time::Duration;

use fastrand::Rng;

/// How long the timers of a benchmark run. None comes due while one is measured, and none is longer than the
/// quarter of an hour past which pingora-timeout falls back on Tokio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durations {
    /// 30 seconds, all of them, as a server's timeouts are.
    Equal,
    /// Between three and fourteen minutes.
    Random,
}

impl Durations {
    #[inline]
    pub fn draw(self, random: &mut Rng) -> Duration {
        match self {
            Durations::Equal => Duration::from_secs(30),
            Durations::Random => between(random, Duration::from_secs(180), Duration::from_secs(840)),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Durations::Equal => "equal",
            Durations::Random => "random",
        }
    }
}

/// Draws a whole number of milliseconds between two bounds.
#[inline]
pub fn between(random: &mut Rng, least: Duration, most: Duration) -> Duration {
    Duration::from_millis(random.u64(least.as_millis() as u64..=most.as_millis() as u64))
}
