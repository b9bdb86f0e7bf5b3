//! How much of its time a timer has left, with as few readings of the clock as possible.
//!
//! A ticking shard has a clock of its own that costs nothing to read: the tick that its visits have reached. By that clock, a timer's time
//! is known to two cadences. A dozing shard has no such clock, so the real one is read.

use super::{Generation, Timer, claim::Due};
use crate::engine::{clock::Moment, timing_wheel::Nanos};

impl Timer {
    /// Returns the delay of a timer that counts from its registration, as far as is known, and zero for a timer with a deadline.
    #[inline]
    pub(crate) fn delay(&self) -> Nanos {
        self.claim.incoming_delay()
    }

    /// Returns whether the timer was registered since the last full visit, as far as is known without the lock.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        matches!(self.claim.due(), Due::In(_)) && self.claim.until.outlasts(self.shard.reuse.generation())
    }

    /// Returns how many tenths of `total`, its time, a pending timer has left, or `None` if it was pending at a shutdown.
    #[inline(never)]
    pub(crate) fn tenths_left(&self, total: Nanos) -> Option<usize> {
        if self.shard.is_shutdown() {
            return None;
        }
        let left = match self.claim.due() {
            Due::In(_) => total.saturating_sub(self.since_registration()),
            Due::At(_) => self.until_deadline(),
        };
        Some(tenths(left, total))
    }

    /// Returns the time since the registration of a timer that has no deadline yet.
    fn since_registration(&self) -> Nanos {
        match self.claim.until {
            Generation::UNKNOWN => Nanos::ZERO,
            // The timer was registered since the previous full visit.
            until => {
                let registered = self.shard.tick.cadence_before(until.tick());
                let registered = Moment::of_wheel(self.shard.tick.start_of(registered));
                self.shard.roughly_now().since(registered)
            }
        }
    }

    /// Returns the time until the deadline.
    pub(crate) fn until_deadline(&self) -> Nanos {
        self.shard.to_wheel(self.due()).since(self.shard.roughly_now())
    }
}

/// Returns how many tenths of `total` are `left`. All of it counts as 9.
fn tenths(left: Nanos, total: Nanos) -> usize {
    match (total.0, left.0.checked_mul(10)) {
        (0, _) => 0,
        (total, Some(left)) => (left / total).min(9) as usize,
        // The multiplication overflows only if centuries are left.
        (total, None) => (left.0 / total.div_ceil(10)).min(9) as usize,
    }
}
