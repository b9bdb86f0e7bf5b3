//! `Settings`: the settings of a worker and their allowed values.

use std::time::Duration;

use tickwheel::Wheel;

use crate::error::{Error, shortest_lease};

#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) lease: Duration,
    pub(super) attempts: u32,
    pub(super) prefetch: usize,
    pub(super) look_ahead: Duration,
    pub(super) time_limit: Option<Duration>,
}

/// The longest lease.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The longest look-ahead, because no other worker can take the jobs that one holds.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// The largest prefetch, because every prefetched job has to be renewed.
const MAX_PREFETCH: usize = 10_000;

impl Settings {
    pub(super) fn check(&self, wheel: &Wheel) -> Result<(), Error> {
        let shortest = shortest_lease(wheel.tick_duration());
        if !(shortest..=DAY).contains(&self.lease) {
            return Err(Error::InvalidTtl {
                ttl: self.lease,
                min: shortest,
                max: DAY,
            });
        }
        let wrong = |setting, value, allowed| {
            Err(Error::InvalidSetting {
                setting,
                value,
                allowed,
            })
        };
        if self.attempts == 0 {
            return wrong("attempts", "0".to_owned(), "1 or more");
        }
        if !(1..=MAX_PREFETCH).contains(&self.prefetch) {
            return wrong("prefetch", self.prefetch.to_string(), "1 to 10,000");
        }
        if self.look_ahead > HOUR {
            return wrong("look_ahead", format!("{:?}", self.look_ahead), "up to an hour");
        }
        if let Some(limit) = self.time_limit.filter(Duration::is_zero) {
            return wrong("time_limit", format!("{limit:?}"), "more than zero");
        }
        Ok(())
    }
}
