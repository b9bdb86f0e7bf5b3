//! Entries, and the lists that they form in buckets. A list is linked by indices into the slab.

use std::num::NonZeroU32;

use slab::Slab;

use super::tick::{Deadline, Nanos, Tick};

/// The index of no entry, which marks the end of a list.
pub(in crate::engine) const NIL: u32 = u32::MAX;

/// The only claim on an entry. It is neither `Copy` nor `Clone`. The entry is removed when its key is returned, and until then
/// its cell is not reused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(NonZeroU32);

impl Key {
    /// # Panics
    ///
    /// Panics if there are more than four billion entries in one arena.
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

    /// Converts the key into its number, to be stored in an atomic.
    #[inline]
    pub(in crate::engine) fn into_number(self) -> NonZeroU32 {
        self.0
    }

    /// Recreates the key of a number. The caller must be the only one to have that number.
    #[inline]
    pub(in crate::engine) fn from_number(number: NonZeroU32) -> Key {
        Key(number)
    }
}

/// Where an entry is. The number is never zero, which is the niche for slab's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Place(NonZeroU32);

impl Place {
    /// In no list. The value has been taken, and the cell waits for its key.
    pub(super) const EXPIRED: Place = Place(NonZeroU32::new(1).unwrap());
    /// The deadline has passed, and the entry expires at the next `advance`.
    pub(super) const OVERDUE: Place = Place(NonZeroU32::new(2).unwrap());
    /// The deadline is not known yet. The entry has a delay, which counts from its transfer.
    pub(super) const INCOMING: Place = Place(NonZeroU32::new(3).unwrap());
    /// In no list, like an expired entry, but the deadline was never reached.
    pub(super) const CANCELLED: Place = Place(NonZeroU32::new(4).unwrap());

    /// Returns the place of bucket `ordinal`. Buckets are counted through all levels, the finest first.
    #[inline]
    pub(super) fn bucket(ordinal: u32) -> Place {
        Place(NonZeroU32::MIN.saturating_add(ordinal + 4))
    }

    /// The inverse of [`Place::bucket`], for a place that is a bucket.
    #[inline]
    pub(super) fn ordinal(self) -> u32 {
        self.0.get() - 5
    }
}

/// The arena's entry for one timer.
pub(in crate::engine) struct Entry<T> {
    /// The tick of the deadline or, while the entry is [`Place::INCOMING`], the nanoseconds of its delay.
    time: u64,
    /// `None` once the entry has expired.
    pub(super) value: Option<T>,
    pub(super) prev: u32,
    pub(super) next: u32,
    pub(super) place: Place,
    /// The power of the deadline, zero while the entry is incoming.
    pub(super) power: u8,
}

impl<T> Entry<T> {
    pub(super) const BLANK: Entry<T> = Entry {
        time: 0,
        value: None,
        prev: NIL,
        next: NIL,
        place: Place::INCOMING,
        power: 0,
    };

    /// Returns the deadline of an entry that is not incoming.
    #[inline]
    pub(super) fn deadline(&self) -> Tick {
        Tick(self.time)
    }

    /// Returns the tick at which an entry that is not incoming expires: its deadline, rounded up by its slack.
    #[inline]
    pub(super) fn due(&self) -> Tick {
        let (tick, power) = (self.deadline(), self.power);
        Deadline { tick, power }.due()
    }

    #[inline]
    pub(super) fn set_deadline(&mut self, deadline: impl Into<Deadline>) {
        let deadline = deadline.into();
        self.time = deadline.tick.0;
        self.power = deadline.power;
    }

    /// Returns the delay of an entry that is incoming.
    #[inline]
    pub(super) fn delay(&self) -> Nanos {
        Nanos(self.time)
    }

    #[inline]
    pub(super) fn set_delay(&mut self, delay: Nanos) {
        self.time = delay.0;
        self.power = 0;
    }
}

/// A list of entries, oldest first.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Bucket {
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
