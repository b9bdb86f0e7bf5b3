//! How much of its time a timer has left, with as few readings of the clock as can be.
//!
//! A shard that ticks has a clock of its own, which costs nothing to read: the tick that its visits have come to. By that clock a
//! timer's time is known to two ticks. A shard that dozes has none, but there a registration reads the real one anyway.

use super::{Generation, Timer, claim::Progress, status::Status};
use crate::{
    clock::Moment,
    sync::{Ordering, lock},
    timing_wheel::Nanos,
};

/// A timer's time, and since when it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headroom {
    total: Nanos,
    /// The generation in which it began, of a shard that ticked; otherwise [`Generation::UNKNOWN`].
    since: Generation,
}

impl Headroom {
    /// That of a timer whose time has not begun.
    pub(crate) const NONE: Headroom = Headroom {
        total: Nanos::ZERO,
        since: Generation::UNKNOWN,
    };

    fn tenths(self, left: Nanos) -> usize {
        match (self.total.0, left.0.checked_mul(10)) {
            (0, _) => 0,
            (total, Some(left)) => (left / total).min(9) as usize,
            // Centuries.
            (total, None) => (left.0 / total.div_ceil(10)).min(9) as usize,
        }
    }
}

impl Timer {
    /// The delay of a timer that counts from its registration and has not been registered; zero of one that has a deadline.
    #[inline]
    pub(crate) fn delay(&self) -> Nanos {
        self.claim.incoming_delay()
    }

    /// Begins the time of a timer that has just been polled for the first time: its `delay`, or until its deadline.
    #[inline]
    pub(crate) fn begin_headroom(&self, delay: Nanos) -> Headroom {
        let since = match self.shard.ticks.load(Ordering::Relaxed) {
            true => self.shard.reuse.generation().known(),
            false => Generation::UNKNOWN,
        };
        let total = match delay {
            Nanos::ZERO => self.until_deadline(since),
            delay => delay,
        };
        Headroom { total, since }
    }

    /// How many tenths of its time a pending timer has left; `None` where it was pending at a shutdown.
    #[inline]
    pub(crate) fn tenths_left(&self, headroom: &Headroom) -> Option<usize> {
        let shard = &self.shard;
        // A generation that has not ended since, of a shard that still ticks: no tick has passed.
        if headroom.since == shard.reuse.generation() && shard.ticks.load(Ordering::Relaxed) {
            return Some(9);
        }
        self.tenths_left_by_clock(headroom)
    }

    #[inline(never)]
    fn tenths_left_by_clock(&self, headroom: &Headroom) -> Option<usize> {
        let shard = &self.shard;
        if shard.is_shutdown() {
            return None;
        }
        let now = shard.reuse.generation();
        let left = if shard.ticks.load(Ordering::Relaxed) && headroom.since.is_of_driver(now) {
            let passed = now.tick().0.saturating_sub(headroom.since.tick().0);
            headroom
                .total
                .saturating_sub(Nanos(passed.saturating_mul(shard.tick.nanos().0)))
        } else if self.claim.progress != Progress::Counting {
            self.until_deadline(Generation::UNKNOWN)
        } else if headroom.since != Generation::UNKNOWN {
            // It began while the shard ticked, which it does no more.
            let now = Moment::of(shard.glance_at_clock().instant);
            headroom
                .total
                .saturating_sub(self.begin_of(headroom.since).nanos_until(now))
        } else {
            headroom.total
        };
        Some(headroom.tenths(left))
    }

    /// How long it is until the deadline: by the shard's own clock where it has come to `generation`, else by a reading.
    fn until_deadline(&self, generation: Generation) -> Nanos {
        let shard = &self.shard;
        let due = Moment(self.claim.nanos);
        if let (Status::Driven(epoch, _), true) = (shard.status(), generation != Generation::UNKNOWN) {
            if epoch == self.claim.epoch {
                return self.begin_of(generation).nanos_until(due);
            }
        }
        let now = shard.glance_at_clock();
        if now.epoch == self.claim.epoch {
            return Moment::of(now.instant).nanos_until(due);
        }
        // Of the clock of another driver.
        let state = lock(&shard.state);
        let due = shard.tick.start_of(state.tick_of(due, self.claim.epoch));
        due.saturating_sub(state.clock.nanos_of(now.instant))
    }

    /// When the tick of a generation began.
    fn begin_of(&self, generation: Generation) -> Moment {
        let origin = Moment(self.shard.origin.load(Ordering::Relaxed));
        origin.after(self.shard.tick.start_of(generation.tick()))
    }
}
