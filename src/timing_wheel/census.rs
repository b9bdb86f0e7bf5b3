//! What one sees of a wheel by walking its arena, a stretch of cells at a time.

use std::{num::NonZeroU32, ops::Range};

use super::{Key, Nanos, Place, Tick, TimingWheel};

/// Where a pending entry hangs, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// The number of its key.
    pub(crate) number: NonZeroU32,
    pub(crate) deadline: Tick,
    pub(crate) level: usize,
    pub(crate) bucket: usize,
}

impl<T> TimingWheel<T> {
    /// How many cells there are, used or not. An entry is in none beyond.
    pub(crate) fn cells(&self) -> usize {
        self.entries.capacity()
    }

    /// The pending entries in a stretch of cells. One that is incoming is shown where it would hang if it were settled now by
    /// `deadline_of`, one that is overdue where the hand of the finest level stands.
    pub(crate) fn sites(
        &self,
        cells: Range<usize>,
        deadline_of: impl Fn(Nanos) -> Tick,
    ) -> impl Iterator<Item = Site> {
        cells.filter_map(move |cell| {
            let entry = self.entries.get(cell)?;
            entry.value.as_ref()?;
            let (deadline, place) = match entry.place {
                Place::INCOMING => {
                    let deadline = deadline_of(Nanos(entry.deadline.0));
                    (deadline, self.place_of(deadline.max(self.now)))
                }
                Place::OVERDUE => (entry.deadline, self.place_of(self.now)),
                place => (entry.deadline, place),
            };
            let ordinal = place.ordinal() as usize;
            Some(Site {
                number: Key::new(cell).into_number(),
                deadline,
                level: ordinal >> self.bits_per_level,
                bucket: ordinal & ((1 << self.bits_per_level) - 1),
            })
        })
    }

    /// Where an entry for `deadline` hangs.
    fn place_of(&self, deadline: Tick) -> Place {
        let level = self.level_of(deadline, self.now);
        let digit = deadline.0 >> (level as u32 * self.bits_per_level);
        self.place(level, digit as usize & ((1 << self.bits_per_level) - 1))
    }
}
