//! Entries, and the lists of them that hang in buckets, linked by index through the slab.

use std::num::NonZeroU32;

use slab::Slab;

use super::tick::Tick;

/// No entry: the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// The only claim on an entry, neither `Copy` nor `Clone`: whoever holds it gives it back to remove the entry, and until
/// then nobody else can be given the same cell.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(NonZeroU32);

impl Key {
    /// # Panics
    ///
    /// Past four billion entries in one arena.
    #[inline]
    pub(super) fn new(index: usize) -> Key {
        let ordinal = u32::try_from(index)
            .ok()
            .and_then(|index| NonZeroU32::new(index.wrapping_add(1)));
        Key(ordinal.expect("a timing wheel holds at most u32::MAX timers"))
    }

    #[inline]
    pub(super) fn index(&self) -> u32 {
        self.0.get() - 1
    }

    /// The number to put this key away by; never zero.
    #[inline]
    pub(crate) fn into_number(self) -> NonZeroU32 {
        self.0
    }

    /// The key that was put away, for whoever alone has its number.
    #[inline]
    pub(crate) fn from_number(number: NonZeroU32) -> Key {
        Key(number)
    }
}

/// Where an entry is. One number, never zero, so that it lends slab's tag a niche.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(NonZeroU32);

impl Place {
    /// In no list: its value has been handed out and its cell waits for the key.
    pub(super) const EXPIRED: Place = Place(NonZeroU32::new(1).unwrap());
    /// Its deadline has passed: due at the next advance.
    pub(super) const OVERDUE: Place = Place(NonZeroU32::new(2).unwrap());
    /// Its deadline is not known yet: it holds a delay, counted from when it is transferred.
    pub(super) const INCOMING: Place = Place(NonZeroU32::new(3).unwrap());

    /// The same, but its deadline never came.
    pub(super) const CANCELLED: Place = Place(NonZeroU32::new(4).unwrap());

    /// Bucket `ordinal`, counted through all levels, the finest first.
    #[inline]
    pub(super) fn bucket(ordinal: u32) -> Place {
        Place(NonZeroU32::MIN.saturating_add(ordinal + 4))
    }

    /// The inverse of [`Place::bucket`], for a place that is one.
    #[inline]
    pub(super) fn ordinal(self) -> u32 {
        self.0.get() - 5
    }
}

/// What the arena holds for one timer.
pub(super) struct Entry<T> {
    /// The deadline; while [`Place::INCOMING`], a delay in nanoseconds.
    pub(super) deadline: Tick,
    /// Taken when the entry expires.
    pub(super) value: Option<T>,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) place: Place,
}

impl<T> Entry<T> {
    pub(super) const BLANK: Entry<T> = Entry {
        deadline: Tick::ZERO,
        value: None,
        prev: NIL,
        next: NIL,
        place: Place::INCOMING,
    };
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
        let tail = std::mem::replace(&mut self.tail, index);
        match tail {
            NIL => self.head = index,
            tail => entries[tail as usize].next = index,
        }
        let entry = &mut entries[index as usize];
        entry.prev = tail;
        entry.next = NIL;
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
