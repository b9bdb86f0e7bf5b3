//! Timers whose deadline is not known yet. Each has a delay, which counts from the transfer of the timer.

use super::{
    TimingWheel,
    bucket::{Key, NIL, Place},
    tick::{Deadline, Nanos},
};

impl<T> TimingWheel<T> {
    /// Starts a timer whose deadline is not known yet. It keeps its delay until it is transferred.
    #[inline]
    pub(in crate::engine) fn insert_incoming(&mut self, delay: Nanos, value: T) -> Key {
        let (key, entry) = self.occupy(value);
        entry.set_delay(delay);
        self.incoming
            .push_back(&mut self.entries, key.index(), Place::INCOMING);
        key
    }

    /// Gives a pending timer a delay, in place of its deadline or its former delay.
    #[inline]
    pub(in crate::engine) fn reinsert_incoming(&mut self, key: &Key, delay: Nanos) {
        let index = key.index();
        if self.entries[index as usize].place != Place::INCOMING {
            self.unlink(index);
            self.incoming.push_back(&mut self.entries, index, Place::INCOMING);
        }
        self.entries[index as usize].set_delay(delay);
    }

    /// Returns whether a timer has no deadline yet.
    #[inline]
    pub(in crate::engine) fn is_incoming(&self, key: &Key) -> bool {
        self.entries[key.index() as usize].place == Place::INCOMING
    }

    /// Returns whether any timer has no deadline yet.
    #[inline]
    pub(in crate::engine) fn has_incoming(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Marks the timers that are incoming now. [`TimingWheel::transfer_incoming`] transfers only these.
    pub(in crate::engine) fn mark_incoming(&mut self) {
        self.marked = self.incoming.tail;
    }

    /// Transfers up to `limit` of the marked timers, oldest first. Each gets the deadline that `deadline_of` returns for its
    /// delay. Returns `true` if none is left.
    pub(in crate::engine) fn transfer_incoming<D: Into<Deadline>>(
        &mut self,
        limit: usize,
        mut deadline_of: impl FnMut(Nanos) -> D,
    ) -> bool {
        for _ in 0..limit {
            if self.marked == NIL {
                break;
            }
            let index = self.incoming.head;
            self.unlink(index);
            let delay = self.entries[index as usize].delay();
            self.link(index, deadline_of(delay));
        }
        self.marked == NIL
    }
}
