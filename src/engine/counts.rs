//! What has become of the timers of a wheel. At quiet points the numbers are exact, and no two workers share a counter.
//!
//! A shard counts under its lock. What a thread does without a lock it counts in a `SpareCounts` of its own, by plain stores: until when it keeps a
//! spare, and how many timers have taken one over. A reader adds them all up:
//!
//! - a take-over is a timer that was cancelled, and one that was registered;
//! - a kept spare was cancelled. Beyond its shard's horizon it is an entry that is not pending; by it, it has expired without being a timer;
//! - what is neither cancelled nor pending has expired, so nothing is counted as timers expire.

/// What is counted under a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) registered: u64,
    pub(crate) cancelled: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.registered += other.registered;
        self.cancelled += other.cancelled;
    }
}

/// How many timers there have been. `registered` is the sum of the others.
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
