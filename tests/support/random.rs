//! Numbers at random, the same in every run.

use std::time::Duration;

/// Marsaglia's xorshift: tests want variety, not quality.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn within(&mut self, duration: Duration) -> Duration {
        Duration::from_micros(self.below(duration.as_micros() as u64 + 1))
    }
}
