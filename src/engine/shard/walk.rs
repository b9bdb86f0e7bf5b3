//! A walk through a shard's arena, for snapshots.

use super::{Mode, Shard, State};
use crate::engine::{
    sync::lock,
    timing_wheel::{Nanos, Site},
};

/// The number of cells that are looked at under one lock.
const BATCH: usize = 256;

/// A walk through a shard's arena, a batch of cells at a time, so that a registration waits for one batch at most.
pub(crate) struct Walk<'a> {
    shard: &'a Shard,
    /// The first cell that has not been looked at.
    cell: usize,
    /// Wheel time when the walk began.
    pub(crate) now: Nanos,
    /// The mode of the shard at the last look.
    pub(crate) mode: Mode,
}

impl Shard {
    pub(crate) fn walk(&self) -> Walk<'_> {
        let now = self.read_clock();
        let state = lock(&self.state);
        Walk {
            shard: self,
            cell: 0,
            now: match state.mode.is_driven() {
                true => state.clock.wheel_time(now),
                // The time of a shard without a driver stands still.
                false => self.tick.start_of(state.wheel.now()),
            },
            mode: state.mode,
        }
    }
}

/// Yields the pending timers of each batch of cells. The lock is released between two batches.
impl Iterator for Walk<'_> {
    type Item = Vec<Site>;

    fn next(&mut self) -> Option<Vec<Site>> {
        let kept;
        let mut sites = Vec::with_capacity(BATCH);
        {
            let mut guard = lock(&self.shard.state);
            let State {
                wheel,
                clock,
                ledger,
                counters,
                mode,
                ..
            } = &mut *guard;
            self.mode = *mode;
            if self.cell >= wheel.cells() || wheel.is_vacant() {
                return None;
            }
            let cells = self.cell..self.cell + BATCH;
            let deadline_of = |delay| clock.deadline_after(delay, self.now);
            sites.extend(wheel.sites(cells, deadline_of));
            self.cell += BATCH;
            kept = ledger.look(self.shard.reuse.generation().tick(), wheel, counters);
        }
        // Timers that are kept for reuse have been cancelled.
        sites.retain(|site| !kept.contains(&site.number));
        Some(sites)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::engine::{shard::drive::fixture::driverless_shard, timing_wheel::Tick};

    /// A registration waits for the lock no longer than a batch takes, and finds it free before the next.
    #[test]
    fn a_walk_looks_at_no_more_than_a_batch_of_cells_under_one_lock() {
        const TIMERS: usize = 100_000;
        let (shard, _) = driverless_shard(512, 4);
        let deadline = |timer: usize| Tick(1 + timer as u64);
        for timer in 0..TIMERS {
            // The key is dropped, so that the timer is never removed.
            let _ = lock(&shard.state)
                .wheel
                .insert(deadline(timer), Waker::noop().clone());
        }
        let mut walk = shard.walk();
        let (mut locks, mut seen) = (0, 0);
        while let Some(sites) = walk.next() {
            locks += 1;
            assert!(sites.len() <= BATCH);
            seen += sites.len();
            assert_eq!(walk.cell, locks * BATCH);
            // The lock is free here.
            assert!(crate::engine::sync::try_lock(&shard.state).is_some());
        }
        assert_eq!(seen, TIMERS);
        assert!(locks >= TIMERS / BATCH);
    }
}
