//! Random durations that cost next to nothing, the same in every run.

use std::time::Duration;

/// A xorshift generator.
pub struct Random(u64);

impl Default for Random {
    fn default() -> Random {
        Random(0x9E37_79B9_7F4A_7C15)
    }
}

impl Random {
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, without a division.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(end)) >> 64) as u64
    }

    /// A whole number of milliseconds between two bounds.
    #[inline]
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let least = least.as_millis() as u64;
        let most = most.as_millis() as u64;
        Duration::from_millis(least + self.below(most - least + 1))
    }
}

/// How long the timers of a benchmark run. None comes due while one is measured, and none is longer than the quarter of
/// an hour past which pingora-timeout falls back on Tokio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durations {
    /// Ten minutes, all of them.
    Equal,
    /// Between three and fourteen minutes.
    Random,
}

impl Durations {
    #[inline]
    pub fn draw(self, random: &mut Random) -> Duration {
        match self {
            Durations::Equal => Duration::from_secs(600),
            Durations::Random => random.between(Duration::from_secs(180), Duration::from_secs(840)),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Durations::Equal => "equal",
            Durations::Random => "random",
        }
    }
}
