//! The list of each entry: which it is, and how the entry comes into it and out of it.

use super::{
    TimingWheel,
    bucket::{Entry, NIL, Place},
    tick::Tick,
};

impl<T> TimingWheel<T> {
    /// The level of `deadline`, seen from `now`.
    #[inline]
    pub(super) fn level_of(&self, deadline: Tick, now: Tick) -> usize {
        let highest_bit = ((deadline.0 ^ now.0) | 1).ilog2();
        ((highest_bit / self.bits_per_level) as usize).min(self.levels.len() - 1)
    }

    #[inline]
    pub(super) fn place(&self, level: usize, digit: usize) -> Place {
        Place::bucket(((level << self.bits_per_level) | digit) as u32)
    }

    /// The bucket of a deadline that is not before `now`: its level, its digit there, and both in one.
    #[inline]
    pub(super) fn bucket_of(&self, deadline: Tick, now: Tick) -> (usize, usize, Place) {
        let level = self.level_of(deadline, now);
        let digit =
            (deadline.0 >> (level as u32 * self.bits_per_level)) as usize & ((1 << self.bits_per_level) - 1);
        (level, digit, self.place(level, digit))
    }

    /// Puts an entry that is in no list at the end of the list of its deadline, seen from `now`.
    #[inline]
    pub(super) fn link(&mut self, index: u32, now: Tick) {
        let deadline = self.entries[index as usize].deadline();
        if deadline <= now {
            return self.overdue.push_back(&mut self.entries, index, Place::OVERDUE);
        }
        let (level, digit, place) = self.bucket_of(deadline, now);
        let ring = &mut self.levels[level];
        ring.used.insert(digit);
        ring.buckets[digit].push_back(&mut self.entries, index, place);
        if let Some(sweep) = &mut self.unfinished {
            if sweep.place == place && sweep.cursor == NIL {
                sweep.cursor = index;
            }
        }
    }

    /// Takes an entry out of its list.
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
                    // The entries before it are still to be transferred.
                    self.marked = prev;
                }
            }
            Place::OVERDUE => self.overdue.unlink(&mut self.entries, prev, next),
            bucket => {
                let ordinal = bucket.ordinal() as usize;
                let digit = ordinal & ((1 << self.bits_per_level) - 1);
                let ring = &mut self.levels[ordinal >> self.bits_per_level];
                ring.buckets[digit].unlink(&mut self.entries, prev, next);
                if ring.buckets[digit].is_empty() {
                    ring.used.remove(digit);
                }
                if let Some(sweep) = &mut self.unfinished {
                    if sweep.cursor == index {
                        sweep.cursor = next;
                    }
                }
            }
        }
    }

    /// Takes an entry out of its list, and its value. The cell stays for the key.
    pub(super) fn expire(&mut self, index: u32, expired: &mut Vec<T>) {
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        entry.place = Place::EXPIRED;
        expired.extend(entry.value.take());
        self.len -= 1;
    }
}
