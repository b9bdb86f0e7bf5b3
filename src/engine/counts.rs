//! How many timers of a wheel are pending, have expired or were cancelled. The numbers are exact while no
//! timer changes, and no two workers share a counter.
//!
//! A shard counts under its lock, but for its spare, which `shard.rs` counts without it. A timer that is
//! neither cancelled nor pending has expired, so nothing has to be counted when timers expire.

use super::shared::Tally;

/// The numbers of a wheel's timers. `registered` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) registered: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) pending: usize,
}

impl Counts {
    pub(crate) fn new(tally: Tally, pending: usize) -> Counts {
        Counts {
            registered: tally.registered,
            expired: tally.registered.saturating_sub(tally.cancelled + pending as u64),
            cancelled: tally.cancelled,
            pending,
        }
    }
}
