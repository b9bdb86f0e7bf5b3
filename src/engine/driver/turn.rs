//! `Driver`: a turn visits the shards and wakes the tasks whose timers are due.

use std::{collections::VecDeque, mem, sync::Arc};

use tokio::time::Instant;

use super::{alarm::NextWake, stats::Stats, waking::wake_all};
use crate::engine::{
    clock::{Clock, Source},
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

/// The work of the driver since it last let other tasks run.
pub(super) struct Slice {
    wakes: usize,
    moves: usize,
    length: usize,
}

impl Slice {
    /// Begins a slice on a clock of this source.
    pub(super) fn begin(source: Source) -> Slice {
        Slice {
            wakes: 0,
            moves: 0,
            length: if source.is_real() { SLICE } else { TEST_SLICE },
        }
    }

    fn add(&mut self, wakers: &mut Wakers) {
        self.wakes += wakers.due.len();
        self.moves += mem::take(&mut wakers.moved);
    }

    pub(super) fn is_over(&self) -> bool {
        self.wakes + self.moves / MOVES >= self.length
    }
}

/// The driver.
pub(super) struct Driver {
    number: u64,
    shards: Box<[Arc<Shard>]>,
    clock: Clock,
    /// Whether the driver has made a turn.
    has_turned: bool,
    /// The indices of the shards that the turn has not finished. Between turns it is empty.
    unfinished: VecDeque<usize>,
    wakers: Wakers,
}

impl Driver {
    pub(super) fn new(number: u64, shards: Box<[Arc<Shard>]>, clock: Clock) -> Driver {
        Driver {
            number,
            unfinished: VecDeque::with_capacity(shards.len()),
            shards,
            clock,
            has_turned: false,
            wakers: Wakers::default(),
        }
    }

    /// Continues by another clock.
    pub(super) fn follow(&mut self, clock: Clock) {
        self.clock = clock;
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
        if let Some(lag) = planned.and_then(|planned| now.checked_duration_since(planned)) {
            stats.driver_was_late(lag, &self.clock);
        }
        let reading = Reading {
            now: self.clock.wheel_time(now),
            source,
            driver: self.number,
        };
        stats.turned_to(reading.now, &self.clock);
        let due = (0..self.shards.len()).filter(|index| self.shards[*index].is_due(reading));
        self.unfinished.clear();
        self.unfinished.extend(due);
        let mut begins = self.unfinished.len();
        while let Some(index) = self.unfinished.pop_front() {
            let more = self.shards[index].visit(reading, begins > 0, BATCH, &mut self.wakers);
            begins = begins.saturating_sub(1);
            if more {
                self.unfinished.push_back(index);
            }
            slice.add(&mut self.wakers);
            wake_all(&mut self.wakers, stats);
            if !self.unfinished.is_empty() && slice.is_over() {
                return NextWake::Soon;
            }
        }
        match self.shards.iter().map(|shard| shard.wake_at()).min() {
            None | Some(NEVER) => NextWake::Never,
            Some(tick) => NextWake::At(self.clock.instant_of(tick)),
        }
    }
}
