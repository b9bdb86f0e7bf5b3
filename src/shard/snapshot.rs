//! What a snapshot reads of a shard.

use super::{Mode, Shard, State};
use crate::{
    snapshot::{self, Census, ShardSnapshot},
    sync::lock,
    timing_wheel::{Nanos, Site, Tick},
};

/// Cells that are looked at under one lock.
const BATCH: usize = 256;

/// A walk through a shard's arena, a batch of cells at a time.
struct Walk {
    /// The first cell that has not been looked at.
    cell: usize,
    now: Nanos,
    sites: Vec<Site>,
}

impl Shard {
    /// Counts every timer that waits here, and tells the tick in progress. A registration waits for one batch at most.
    pub(crate) fn take_census(&self, census: &mut Census) -> (ShardSnapshot, Tick) {
        let mut walk = self.begin_walk();
        let mut pending = 0;
        let mut mode = snapshot::Mode::Driverless;
        while self.walk_on(&mut walk, &mut mode) {
            // The lock is released, so that others come in between.
            for site in &walk.sites {
                census.count(site, walk.now);
            }
            pending += walk.sites.len();
        }
        (ShardSnapshot { pending, mode }, self.tick.tick_at(walk.now))
    }

    fn begin_walk(&self) -> Walk {
        let now = self.read_clock();
        let state = lock(&self.state);
        let driven = matches!(state.mode, Mode::Dozing { .. } | Mode::Ticking { .. });
        Walk {
            cell: 0,
            now: match driven {
                true => state.clock.wheel_time(now),
                // Its time stands still.
                false => self.tick.start_of(state.wheel.now()),
            },
            sites: Vec::with_capacity(BATCH),
        }
    }

    /// Looks at the next batch of cells. Returns `false` after the last.
    fn walk_on(&self, walk: &mut Walk, mode: &mut snapshot::Mode) -> bool {
        walk.sites.clear();
        let mut kept = Vec::with_capacity(8);
        {
            let state = lock(&self.state);
            let State { wheel, clock, .. } = &*state;
            *mode = match state.mode {
                Mode::Driverless => snapshot::Mode::Driverless,
                Mode::Dozing { .. } => snapshot::Mode::Dozing,
                Mode::Ticking { .. } => snapshot::Mode::Ticking,
                Mode::Shutdown => snapshot::Mode::Shutdown,
            };
            if walk.cell >= wheel.cells() || wheel.is_vacant() {
                return false;
            }
            let cells = walk.cell..walk.cell + BATCH;
            let deadline_of = |delay| clock.tick().deadline_tick(walk.now.saturating_add(delay));
            walk.sites.extend(wheel.sites(cells, deadline_of));
            walk.cell += BATCH;
            state.ledger.kept(&mut kept);
        }
        // What is kept for reuse has been cancelled.
        walk.sites.retain(|site| !kept.contains(&site.number));
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::{Wheel, timing_wheel::Tick};

    /// A registration waits for the lock no longer than a batch takes, and finds it free before the next.
    #[test]
    fn a_walk_looks_at_no_more_than_a_batch_of_cells_under_one_lock() {
        const TIMERS: usize = 100_000;
        let wheel = Wheel::builder().shards(1).build().unwrap();
        let shard = wheel.shard();
        let deadline = |timer: usize| Tick(1 + timer as u64);
        for timer in 0..TIMERS {
            // Its key is forgotten: nobody removes it.
            let _ = lock(&shard.state)
                .wheel
                .insert(deadline(timer), Waker::noop().clone());
        }
        let (mut walk, mut mode) = (shard.begin_walk(), snapshot::Mode::Driverless);
        let (mut locks, mut seen) = (0, 0);
        while shard.walk_on(&mut walk, &mut mode) {
            locks += 1;
            assert!(walk.sites.len() <= BATCH);
            seen += walk.sites.len();
            assert_eq!(walk.cell, locks * BATCH);
            // Here the lock is free.
            assert!(crate::sync::try_lock(&shard.state).is_some());
        }
        assert_eq!(seen, TIMERS);
        assert!(locks >= TIMERS / BATCH);
    }
}
