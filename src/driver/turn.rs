//! `Driver`: a turn visits the shards and wakes the tasks whose timers are due.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant as MachineInstant},
};

use tokio::time::Instant;

use super::{alarm::NextWake, stats::Stats, waking::wake_all};
use crate::{
    clock::{Clock, ROUNDING, Source},
    shard::{NEVER, Reading, Shard, Wakers},
    timing_wheel::Tick,
};

/// Timers that are dealt with under one lock.
const BATCH: usize = 256;

/// How long the driver works before it lets other tasks run. Only a burst, a cascade or a storm lasts so long. Tokio's own timer makes no
/// pause at all.
const SLICE: Duration = Duration::from_millis(5);

/// [`SLICE`] on a test's clock, in wake-ups: time does not pass there.
const WAKES: usize = 1024;

/// What the driver has done since it last let other tasks run.
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
            // Only wake-ups count: a test's `advance` must find everything else done.
            false => self.wakes >= WAKES,
        }
    }
}

/// The driver.
pub(super) struct Driver {
    number: u64,
    shards: Box<[Arc<Shard>]>,
    clock: Clock,
    /// It has made a turn.
    has_turned: bool,
    /// The tick that the driver has come before: see [`Clock::approach`].
    approached: Option<Tick>,
    /// The shards that the turn has not done with, by index. Between turns it is empty.
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
            approached: None,
            wakers: Wakers::default(),
        }
    }

    pub(super) fn is_exhausted(&self, slice: &Slice) -> bool {
        slice.is_over(self.clock.source)
    }

    /// Visits every shard and wakes what is due, until the slice is over. `planned` is the instant for which the driver comes.
    ///
    /// A turn is bounded: it goes by one reading of the clock and transfers what was incoming when it began. Shards take turns by
    /// the batch, so that none waits for another's storm.
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
        let next = self.shards.iter().map(|shard| shard.wake_at()).min();
        self.next_wake(next.unwrap_or(NEVER))
    }

    /// Reads the clock, for the whole turn, and counts how late the driver comes.
    fn read_clock(&mut self, planned: Option<Instant>, stats: &Stats) -> Reading {
        if self.has_turned {
            stats.driver_woke();
        }
        self.has_turned = true;
        self.clock.source = self.clock.source.recheck();
        let instant = Instant::now();
        let rounding = match self.clock.source.is_real() {
            true => Duration::ZERO,
            false => ROUNDING,
        };
        if let Some(lag) = planned.and_then(|planned| instant.checked_duration_since(planned + rounding)) {
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

    /// For which instant to set Tokio's timer, to come at `tick`.
    fn next_wake(&mut self, tick: Tick) -> NextWake<Instant> {
        match tick {
            NEVER => NextWake::Never,
            _ if self.approached.replace(tick) == Some(tick) => NextWake::At(self.clock.instant_of(tick)),
            _ => NextWake::At(self.clock.approach(tick)),
        }
    }
}
