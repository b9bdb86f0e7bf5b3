//! `Driver`: a turn visits the shards and wakes the tasks whose timers are due.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant as MachineInstant},
};

use tokio::time::Instant;

use super::{alarm::NextWake, stats::Stats, waking::wake_all};
use crate::{
    clock::{Clock, Source},
    shard::{NEVER, Reading, Shard, Wakers},
};

/// The number of timers handled under one lock.
const BATCH: usize = 256;

/// How long the driver works before it lets other tasks run. Only a burst, a cascade or a storm lasts this long. Tokio's own
/// timer makes no such pause.
const SLICE: Duration = Duration::from_millis(5);

/// [`SLICE`] on a test's clock, in wake-ups, because no time passes there.
const WAKES: usize = 1024;

/// The work of the driver since it last let other tasks run.
pub(super) struct Slice {
    began: MachineInstant,
    wakes: usize,
}

impl Slice {
    pub(super) fn begin() -> Slice {
        Slice {
            began: MachineInstant::now(),
            wakes: 0,
        }
    }

    fn is_over(&self, source: Source) -> bool {
        match source.is_real() {
            true => self.began.elapsed() >= SLICE,
            // Only wake-ups count, because a test's `advance` must find everything else done.
            false => self.wakes >= WAKES,
        }
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

    pub(super) fn is_exhausted(&self, slice: &Slice) -> bool {
        slice.is_over(self.clock.source)
    }

    /// Visits every shard and wakes the tasks whose timers are due, until the slice is over. `planned` is the instant that the
    /// turn was planned for.
    ///
    /// A turn is bounded, because it uses one reading of the clock and transfers only timers that were incoming when it began.
    /// Shards take turns by the batch, so that none waits for the storm of another.
    pub(super) fn turn(
        &mut self,
        planned: Option<Instant>,
        slice: &mut Slice,
        stats: &Stats,
    ) -> NextWake<Instant> {
        let reading = self.read_clock(planned, stats);
        let mut begins = self.shards.len();
        self.unfinished.clear();
        self.unfinished.extend(0..begins);
        while let Some(index) = self.unfinished.pop_front() {
            let more = self.shards[index].visit(reading, begins > 0, BATCH, &mut self.wakers);
            begins = begins.saturating_sub(1);
            if more {
                self.unfinished.push_back(index);
            }
            slice.wakes += self.wakers.due.len();
            wake_all(&mut self.wakers, stats);
            if !self.unfinished.is_empty() && self.is_exhausted(slice) {
                return NextWake::Soon;
            }
        }
        match self.shards.iter().map(|shard| shard.wake_at()).min() {
            None | Some(NEVER) => NextWake::Never,
            Some(tick) => NextWake::At(self.clock.instant_of(tick)),
        }
    }

    /// Reads the clock for the whole turn, and counts the driver's lateness.
    fn read_clock(&mut self, planned: Option<Instant>, stats: &Stats) -> Reading {
        if self.has_turned {
            stats.driver_woke();
        }
        self.has_turned = true;
        self.clock.source = self.clock.source.recheck();
        let instant = Instant::now();
        if let Some(lag) = planned.and_then(|planned| instant.checked_duration_since(planned)) {
            stats.driver_was_late(lag, &self.clock);
        }
        let now = self.clock.wheel_time(instant);
        stats.turned_to(now, &self.clock);
        Reading {
            now,
            source: self.clock.source,
            driver: self.number,
        }
    }

}
