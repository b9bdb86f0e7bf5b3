//! A walk through the arena of a wheel, a range of cells at a time.

use std::ops::Range;

use super::{Place, Tick, TimingWheel};

/// Where a pending entry is, and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) due: Tick,
    pub(crate) level: usize,
    pub(crate) bucket: usize,
}

impl<T> TimingWheel<T> {
    /// Returns the number of cells, used or not.
    pub(crate) fn cells(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the entries in a range of cells. An overdue entry is reported in the current bucket of the finest level.
    pub(crate) fn sites(&self, cells: Range<usize>) -> impl Iterator<Item = Site> {
        cells.filter_map(move |cell| {
            let entry = self.entries.get(cell)?;
            let place = if entry.place == Place::OVERDUE {
                self.levels[0].place(self.now)
            } else {
                entry.place
            };
            Some(Site {
                due: entry.due,
                level: place.ordinal() >> self.ring_bits,
                bucket: place.ordinal() & ((1 << self.ring_bits) - 1),
            })
        })
    }
}
