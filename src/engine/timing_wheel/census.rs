//! A walk through the arena of a wheel, a range of cells at a time.

use std::{num::NonZeroU32, ops::Range};

use super::{Deadline, Key, Nanos, Place, Tick, TimingWheel};

/// Where a pending entry is, and its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The number of the entry's key.
    pub(in crate::engine) number: NonZeroU32,
    pub(crate) deadline: Tick,
    pub(crate) level: usize,
    pub(crate) bucket: usize,
}

impl<T> TimingWheel<T> {
    /// Returns the number of cells, used or not.
    pub(in crate::engine) fn cells(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the pending entries in a range of cells. An incoming entry is reported where it would be if it were transferred
    /// now, and an overdue entry in the current bucket of the finest level.
    pub(in crate::engine) fn sites(
        &self,
        cells: Range<usize>,
        deadline_of: impl Fn(Nanos) -> Deadline,
    ) -> impl Iterator<Item = Site> {
        cells.filter_map(move |cell| {
            let entry = self.entries.get(cell)?;
            entry.value.as_ref()?;
            let (deadline, place) = match entry.place {
                Place::INCOMING => {
                    let deadline = deadline_of(entry.delay());
                    let due = deadline.due().max(self.now);
                    (deadline.tick, self.levels[self.level_of(due)].place(due))
                }
                Place::OVERDUE => (entry.deadline(), self.levels[0].place(self.now)),
                place => (entry.deadline(), place),
            };
            let ordinal = place.ordinal() as usize;
            Some(Site {
                number: Key::new(cell).into_number(),
                deadline,
                level: ordinal >> self.ring_bits,
                bucket: ordinal & ((1 << self.ring_bits) - 1),
            })
        })
    }
}
