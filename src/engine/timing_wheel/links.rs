//! The list that each entry belongs to, and how the entry is linked into it and unlinked from it.

use super::{
    TimingWheel,
    bucket::{Entry, Place},
    tick::{Deadline, Tick},
};

impl<T> TimingWheel<T> {
    /// Returns the finest level whose horizon is not before `due`. There is always one, because the last level has no horizon.
    #[inline]
    pub(super) fn level_of(&self, due: Tick) -> usize {
        let mut horizons = self.levels.iter().map(|level| level.horizon);
        horizons.position(|horizon| due <= horizon).unwrap_or(0)
    }

    /// Gives an entry that is in no list a deadline, and appends it to the list of the tick at which it is due.
    #[inline]
    pub(super) fn link(&mut self, index: u32, deadline: impl Into<Deadline>) {
        let deadline = deadline.into();
        self.entries[index as usize].set_deadline(deadline);
        let due = deadline.due();
        if due <= self.now {
            return self.overdue.push_back(&mut self.entries, index, Place::OVERDUE);
        }
        let level = self.level_of(due);
        self.levels[level].push_back(&mut self.entries, index, due);
    }

    /// Unlinks an entry from its list.
    #[inline]
    pub(super) fn unlink(&mut self, index: u32) {
        let Entry {
            prev, next, place, ..
        } = self.entries[index as usize];
        match place {
            Place::EXPIRED | Place::CANCELLED => {}
            Place::INCOMING => {
                self.incoming.unlink(&mut self.entries, prev, next);
                if self.marked == index {
                    // The entries before this one are still to be transferred.
                    self.marked = prev;
                }
            }
            Place::OVERDUE => self.overdue.unlink(&mut self.entries, prev, next),
            bucket => {
                let ordinal = bucket.ordinal() as usize;
                let (level, at) = (ordinal >> self.ring_bits, ordinal & ((1 << self.ring_bits) - 1));
                self.levels[level].unlink(&mut self.entries, at, prev, next);
                if self.cursor == index {
                    self.cursor = match self.levels.len() {
                        1 => next,
                        _ => prev,
                    };
                }
            }
        }
    }

    /// Unlinks an entry from its list and takes its value. The cell stays for the key.
    pub(super) fn expire(&mut self, index: u32, expired: &mut Vec<T>) {
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        entry.place = Place::EXPIRED;
        if let Some(value) = entry.value.take() {
            expired.push(value);
        }
        self.len -= 1;
    }
}
