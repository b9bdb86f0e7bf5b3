//! Entries, and the lists that they form in buckets. A list is linked by indices into the slab.

use std::num::NonZeroU32;

use slab::Slab;

use super::Tick;

/// The index of no entry, which marks the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// The only claim on an entry, which is neither `Copy` nor `Clone`. It is void once the entry has expired, because its cell may then
/// belong to another entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(NonZeroU32);

impl Key {
    /// # Panics
    ///
    /// Panics if there are more than four billion entries in one arena.
    pub(super) fn new(index: usize) -> Key {
        let ordinal = u32::try_from(index)
            .ok()
            .and_then(|index| NonZeroU32::new(index.wrapping_add(1)));
        Key(ordinal.expect("a timing wheel holds at most u32::MAX timers"))
    }

    pub(super) fn index(&self) -> u32 {
        self.0.get() - 1
    }
}

/// The list that an entry is in: a bucket or `overdue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    pub(super) const OVERDUE: Place = Place(u32::MAX);

    /// Returns the place of bucket `ordinal`. Buckets are counted through all levels, the finest first.
    #[inline]
    pub(super) fn bucket(ordinal: u32) -> Place {
        Place(ordinal)
    }

    /// The inverse of [`Place::bucket`], for a place that is a bucket.
    #[inline]
    pub(super) fn ordinal(self) -> usize {
        self.0 as usize
    }
}

/// The arena's entry for one timer.
pub(crate) struct Entry<T> {
    pub(super) due: Tick,
    pub(super) value: T,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) place: Place,
}

/// A list of entries, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl Bucket {
    pub(super) const EMPTY: Bucket = Bucket { head: NIL, tail: NIL };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    pub(super) fn push_back<T>(&mut self, entries: &mut Slab<Entry<T>>, index: u32, place: Place) {
        self.link(entries, index, place, self.tail, NIL);
    }

    pub(super) fn push_front<T>(&mut self, entries: &mut Slab<Entry<T>>, index: u32, place: Place) {
        self.link(entries, index, place, NIL, self.head);
    }

    #[inline]
    fn link<T>(&mut self, entries: &mut Slab<Entry<T>>, index: u32, place: Place, prev: u32, next: u32) {
        match prev {
            NIL => self.head = index,
            prev => entries[prev as usize].next = index,
        }
        match next {
            NIL => self.tail = index,
            next => entries[next as usize].prev = index,
        }
        let entry = &mut entries[index as usize];
        entry.prev = prev;
        entry.next = next;
        entry.place = place;
    }

    #[inline]
    pub(super) fn unlink<T>(&mut self, entries: &mut Slab<Entry<T>>, prev: u32, next: u32) {
        match prev {
            NIL => self.head = next,
            prev => entries[prev as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => entries[next as usize].prev = prev,
        }
    }
}
