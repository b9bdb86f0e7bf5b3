//! `Driver`: a turn visits the shards and wakes the tasks whose timers are due.

use std::{collections::VecDeque, mem, sync::Arc};

use tokio::time::Instant;

use super::{alarm::NextWake, stats::Stats, waking::wake_all};
use crate::engine::{
    clock::{Clock, Moment, Source},
    shard::{NEVER, Reading, Shard, Wakers},
};

/// The number of timers handled under one lock.
const BATCH: usize = 256;

/// The number of wake-ups after which the driver lets other tasks run, which takes some 5 ms. Only a burst, a cascade or a storm takes
/// so many. A pause lasts as long as other tasks block the workers, and Tokio's own timer makes none, so the slice is long.
const SLICE: usize = 8192;

/// [`SLICE`] on a test's clock, where a pause takes no time and other tasks should soon have their turn.
const TEST_SLICE: usize = 1024;

/// The number of timers that are transferred or cascaded in the time of a wake-up.
const MOVES: usize = 4;

/// The moves that are left to the driver before it lets other tasks run.
pub(super) struct Slice(usize);

impl Slice {
    /// Begins a slice on a clock of this source.
    pub(super) fn begin(source: Source) -> Slice {
        let wakes = if source.is_real() { SLICE } else { TEST_SLICE };
        Slice(wakes * MOVES)
    }

    fn spend(&mut self, wakers: &mut Wakers) {
        let moves = wakers.due.len() * MOVES + mem::take(&mut wakers.moved);
        self.0 = self.0.saturating_sub(moves);
    }

    fn is_over(&self) -> bool {
        self.0 == 0
    }
}

/// The driver.
pub(super) struct Driver {
    number: u64,
    shards: Box<[Arc<Shard>]>,
    pub(super) clock: Clock,
    /// Whether the driver has made a turn.
    has_turned: bool,
    wakers: Wakers,
}

impl Driver {
    pub(super) fn new(number: u64, shards: Box<[Arc<Shard>]>, clock: Clock) -> Driver {
        Driver {
            number,
            shards,
            clock,
            has_turned: false,
            wakers: Wakers::default(),
        }
    }

    /// Visits the shards that are due and wakes the tasks whose timers are, until the slice is over. `planned` is the instant that
    /// the turn was planned for.
    ///
    /// A turn is bounded, because it uses one reading of the clock and transfers only timers that were incoming when it began.
    /// Shards take turns by the batch, so that none waits for the storm of another.
    pub(super) fn turn(
        &mut self,
        planned: Option<Instant>,
        (now, source): (Instant, Source),
        slice: &mut Slice,
        stats: &Stats,
    ) -> NextWake<Instant> {
        if self.has_turned {
            stats.driver_woke();
        }
        self.has_turned = true;
        self.clock.source = source;
        let now = Moment::of(now);
        let planned = planned.map(Moment::of);
        if let Some(planned) = planned.filter(|planned| now >= *planned) {
            stats.driver_was_late(now.since(planned), &self.clock);
        }
        let time = self.clock.shift.to_wheel(now).wheel_time();
        let reading = Reading::new(&self.clock, time, self.number);
        stats.turned_to(time, self.clock.tick.start_of(reading.tick));
        let mut due = self.shards.iter().filter(|shard| shard.is_due(reading));
        let mut unfinished = VecDeque::new();
        loop {
            let begins = due.next();
            let Some(shard) = begins.or_else(|| unfinished.pop_front()) else {
                break;
            };
            if slice.is_over() {
                return NextWake::Soon;
            }
            if shard.visit(reading, begins.is_some(), BATCH, &mut self.wakers) {
                unfinished.push_back(shard);
            }
            slice.spend(&mut self.wakers);
            wake_all(&mut self.wakers, stats);
        }
        let next = match self.shards.iter().map(|shard| shard.wake_at()).min() {
            None | Some(NEVER) => return NextWake::Never,
            Some(next) => next,
        };
        let after = self.shards.iter().map(|shard| shard.wake_after(next)).min();
        // On a test's clock Tokio would advance to that instant, even if its timers have been cancelled by then.
        let after = after.filter(|after| *after != NEVER && source.is_real());
        NextWake::At {
            at: self.clock.instant_of(next),
            ahead: after.map(|after| self.clock.instant_of(after)),
        }
    }
}
