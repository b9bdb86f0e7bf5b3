//! Random numbers, the same in every run.

use std::time::Duration;

pub(crate) struct Random(fastrand::Rng);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn within(&mut self, duration: Duration) -> Duration {
        Duration::from_micros(self.below(duration.as_micros() as u64 + 1))
    }
}
