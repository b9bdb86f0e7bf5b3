//! How much of its time a timer has left, with as few readings of the clock as can be.
//!
//! A shard that ticks has a clock of its own, which costs nothing to read: the tick that its visits have come to. By that clock a
//! timer's time is known to two ticks. A shard that dozes has none: there the real one is read.

use tokio::time::Instant;

use super::{Generation, Timer, claim::Progress, status::Status};
use crate::{
    clock::{Epoch, Moment, Source},
    sync::{Ordering, lock},
    timing_wheel::{Nanos, Tick},
};

impl Timer {
    /// The delay of a timer that counts from its registration, as far as is known; zero of one that has a deadline.
    #[inline]
    pub(crate) fn delay(&self) -> Nanos {
        self.claim.incoming_delay()
    }

    /// Whether no tick has passed since the registration, as far as can be told at once.
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.claim.progress == Progress::Counting && self.claim.until.outlasts(self.shard.reuse.generation())
    }

    /// How many tenths of `total`, its time, a pending timer has left; `None` where it was pending at a shutdown.
    #[inline]
    pub(crate) fn tenths_left(&self, total: Nanos) -> Option<usize> {
        let shard = &*self.shard;
        let now = match shard.status() {
            Status::Driven(epoch, source)
                if epoch == self.claim.epoch
                    && self.claim.progress == Progress::Waiting
                    && !shard.ticks.load(Ordering::Relaxed) =>
            {
                match source {
                    Source::Pausable => Moment::of(Instant::now()),
                    Source::Machine => Moment::of(std::time::Instant::now().into()),
                    Source::Test => return self.tenths_left_slowly(total),
                }
            }
            _ => return self.tenths_left_slowly(total),
        };
        Some(tenths(now.nanos_until(Moment(self.claim.nanos)), total))
    }

    #[inline(never)]
    fn tenths_left_slowly(&self, total: Nanos) -> Option<usize> {
        if self.shard.is_shutdown() {
            return None;
        }
        let left = match self.claim.progress {
            Progress::Counting => total.saturating_sub(self.since_registration()),
            _ => self.until_deadline(),
        };
        Some(tenths(left, total))
    }

    /// How long ago a timer was registered that has no deadline yet.
    fn since_registration(&self) -> Nanos {
        match self.claim.until {
            Generation::UNKNOWN => Nanos::ZERO,
            // It was registered in the generation before.
            until => {
                let registered = Tick(until.tick().0.saturating_sub(1));
                self.begin_of(registered).nanos_until(self.glance().0)
            }
        }
    }

    /// How long it is until the deadline.
    #[inline(never)]
    pub(crate) fn until_deadline(&self) -> Nanos {
        let due = Moment(self.claim.nanos);
        let (now, epoch) = self.glance();
        if epoch == self.claim.epoch {
            return now.nanos_until(due);
        }
        // Of the clock of another driver.
        let state = lock(&self.shard.state);
        let due = self.shard.tick.start_of(state.tick_of(due, self.claim.epoch));
        due.saturating_sub(state.clock.nanos_at(now))
    }

    /// The moment by the shard's own clock, and by a reading while it has none.
    fn glance(&self) -> (Moment, Epoch) {
        let shard = &self.shard;
        match (shard.status(), shard.reuse.generation()) {
            (Status::Driven(epoch, _), generation)
                if shard.ticks.load(Ordering::Relaxed) && generation != Generation::ENDED =>
            {
                (self.begin_of(generation.tick()), epoch)
            }
            _ => {
                let now = shard.glance_at_clock();
                (Moment::of(now.instant), now.epoch)
            }
        }
    }

    fn begin_of(&self, tick: Tick) -> Moment {
        Moment(self.shard.origin.load(Ordering::Relaxed)).after(self.shard.tick.start_of(tick))
    }
}

/// How many tenths of `total` are `left`: 9 also of all.
#[inline]
fn tenths(left: Nanos, total: Nanos) -> usize {
    // Mostly, next to nothing of it has passed.
    match total.saturating_sub(left).0.checked_mul(10) {
        Some(passed) if passed <= total.0 && total.0 > 0 => 9,
        _ => tenths_by_division(left, total),
    }
}

#[inline(never)]
fn tenths_by_division(left: Nanos, total: Nanos) -> usize {
    match (total.0, left.0.checked_mul(10)) {
        (0, _) => 0,
        (total, Some(left)) => (left / total).min(9) as usize,
        // Centuries.
        (total, None) => (left.0 / total.div_ceil(10)).min(9) as usize,
    }
}
