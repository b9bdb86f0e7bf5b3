//! How late a timer may be so that it expires in company. On a test's clock it may not be late at all.

use super::{Mode, Shard, State};
use crate::engine::{
    clock::{self, Source},
    timing_wheel::{Deadline, Tick},
};

impl Shard {
    /// Returns the deadline of a timer that begins to wait for `tick`, with the slack that this wait allows, or more if the timer
    /// has waited before and may be rounded to `power`.
    #[inline]
    pub(super) fn with_slack(&self, state: &State, tick: Tick, power: u8) -> Deadline {
        match self.tick.has_slack() {
            true => self.slack_from_now(state, tick, power),
            false => tick.into(),
        }
    }

    #[cold]
    fn slack_from_now(&self, state: &State, tick: Tick, power: u8) -> Deadline {
        let is_real = match state.clock.source {
            Source::Machine => true,
            // A test may have paused the clock without the driver knowing yet.
            Source::Pausable => clock::is_real(|| self.driver.now()),
            Source::Test => false,
        };
        if !is_real {
            return tick.into();
        }
        if power == self.tick.most_power() {
            return Deadline::rounded(tick, power);
        }
        let now = match state.mode {
            Mode::Ticking => self.tick.start_of(state.wheel.now()),
            _ => state.clock.wheel_time(self.read_clock()),
        };
        let wait = self.tick.slack_until(tick, now);
        Deadline::rounded(tick, wait.power.max(power))
    }
}
