//! Entries, the lists that they form in buckets, rings of buckets, and the bitmap of those in use. A list is
//! linked by indices into the arena.

use std::{mem, num::NonZeroU32};

use super::{Tick, arena::Arena};

/// The index of no entry, which marks the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// What names an entry, once, and is neither `Copy` nor `Clone`. It is void once the entry has expired,
/// because its cell may then belong to another entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Key(NonZeroU32);

impl Key {
    /// The arena gives no entry the index [`NIL`].
    pub(super) fn new(index: u32) -> Key {
        Key(NonZeroU32::MIN.saturating_add(index))
    }

    pub(super) fn index(&self) -> u32 {
        self.0.get() - 1
    }
}

/// The bucket that an entry is in, by its level and, in the lower [`Place::BITS`], its index in that level's
/// ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    /// More than the 20 of the longest ring that a builder allows; the 64 rings that there can be take 7. A
    /// constant, because to shift by a variable takes three times as long.
    const BITS: u32 = 25;

    #[inline]
    pub(super) fn new(level: usize, index: usize) -> Place {
        Place(((level << Place::BITS) + index) as u32)
    }

    /// Returns the level and the index.
    #[inline]
    pub(super) fn bucket(self) -> (usize, usize) {
        let place = self.0 as usize;
        (place >> Place::BITS, place & ((1 << Place::BITS) - 1))
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

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Appends an entry whose `prev` is the tail.
    #[inline]
    pub(super) fn append<T>(&mut self, entries: &mut Arena<Entry<T>>, index: u32) {
        // Only the former tail is touched besides the bucket. The new entry knows its neighbours already.
        match mem::replace(&mut self.tail, index) {
            NIL => self.head = index,
            prev => entries[prev].next = index,
        }
    }

    /// Puts an entry at the front.
    pub(super) fn push_front<T>(&mut self, entries: &mut Arena<Entry<T>>, index: u32, place: Place) {
        let next = mem::replace(&mut self.head, index);
        match next {
            NIL => self.tail = index,
            next => entries[next].prev = index,
        }
        let entry = &mut entries[index];
        (entry.place, entry.prev, entry.next) = (place, NIL, next);
    }

    #[inline(always)]
    pub(super) fn unlink<T>(&mut self, entries: &mut Arena<Entry<T>>, prev: u32, next: u32) {
        // At either end of the list, the bucket takes the place of the neighbour.
        match prev {
            NIL => self.head = next,
            prev => entries[prev].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => entries[next].prev = prev,
        }
    }
}

/// A ring of buckets, each of which spans `1 << shift` ticks. Buckets are numbered from tick zero, and bucket
/// number `n` is in the ring at `n` modulo its length. The bitmap records which buckets are in use, so that
/// empty ones need not be looked at.
pub(super) struct Level {
    /// Allocated with the first timer of the level, as `used` is, because most shards use only the finer
    /// levels.
    pub(super) buckets: Box<[Bucket]>,
    /// The number of buckets, a power of two.
    pub(super) len: usize,
    pub(super) used: Bitmap,
    pub(super) shift: u32,
    /// The last tick whose timers belong on this level, if they belong on no finer level.
    pub(super) last_tick: Tick,
    /// How many buckets ahead of the hand a bucket is emptied: none but on the ring of later rounds.
    lead: u64,
    /// The place of the first bucket.
    first: Place,
}

impl Level {
    /// Creates ring `level` of a wheel whose rings have `len` buckets, a power of two.
    pub(super) fn new(level: usize, len: usize, shift: u32, lead: u64) -> Level {
        Level {
            buckets: Box::default(),
            len,
            used: Bitmap::default(),
            shift,
            last_tick: Tick::MAX,
            lead,
            first: Place::new(level, 0),
        }
    }

    /// Returns the number of the bucket of a tick.
    pub(super) fn number(&self, tick: Tick) -> u64 {
        tick.0 >> self.shift
    }

    /// Returns the tick at which a bucket has to be emptied.
    pub(super) fn begin_of(&self, number: u64) -> Tick {
        Tick((number - self.lead) << self.shift)
    }

    /// Returns how long before that tick a visit is requested: half a bucket, if timers have to be spread.
    pub(super) fn notice(&self) -> u64 {
        if self.lead == 0 { (1 << self.shift) / 2 } else { 0 }
    }

    /// Returns the number of the bucket that has to be emptied as the bucket of a tick begins.
    pub(super) fn emptied_at(&self, tick: Tick) -> u64 {
        self.number(tick).wrapping_add(self.lead)
    }

    /// Returns the tick by which the next bucket in use has to be emptied, or later rounds passed over in it.
    pub(super) fn next_begin(&self, now: Tick) -> Option<Tick> {
        Some(self.begin_of(self.next_used(self.emptied_at(now))?))
    }

    pub(super) fn index(&self, number: u64) -> usize {
        // The higher bits may be cut off on a 32-bit machine, because the mask cuts off more.
        number as usize & (self.len - 1)
    }

    /// Returns the bucket with this number.
    pub(super) fn bucket(&self, number: u64) -> Bucket {
        // A level that never had a timer has no buckets yet.
        let bucket = self.buckets.get(self.index(number));
        bucket.copied().unwrap_or(Bucket::EMPTY)
    }

    /// Returns the bucket of a tick, and its place, for an entry that the caller puts there.
    #[inline]
    pub(super) fn bucket_for(&mut self, due: Tick) -> (&mut Bucket, Place) {
        let at = self.index(self.number(due));
        // A level that never had a timer has no buckets yet.
        if at >= self.buckets.len() {
            self.allocate();
            return self.bucket_for(due);
        }
        let place = Place(self.first.0 + at as u32);
        let bucket = &mut self.buckets[at];
        // Tested first, because in a bucket that is in use the bitmap need not be fetched.
        if bucket.is_empty() {
            self.used.insert(at);
        }
        (bucket, place)
    }

    #[cold]
    fn allocate(&mut self) {
        // Both at once, so that no bucket lacks its bit.
        self.buckets = vec![Bucket::EMPTY; self.len].into_boxed_slice();
        self.used = Bitmap::new(self.len);
    }

    /// Unlinks an entry from the bucket at `at`.
    #[inline(always)]
    pub(super) fn unlink<T>(&mut self, entries: &mut Arena<Entry<T>>, at: usize, prev: u32, next: u32) {
        let bucket = &mut self.buckets[at];
        bucket.unlink(entries, prev, next);
        if bucket.is_empty() {
            self.used.remove(at);
        }
    }

    /// Returns the number of the first used bucket after number `after`. On the ring of later rounds, its
    /// timers may all be of a round after that.
    pub(super) fn next_used(&self, after: u64) -> Option<u64> {
        // From the bucket after that one to the end of the ring, and then from its beginning.
        let first = self.index(after.wrapping_add(1));
        let used = self.used.next(first).or_else(|| self.used.next(0))?;
        // Modulo the ring's length, a bucket before `first` is one of the next round.
        let distance = used.wrapping_sub(first) & (self.len - 1);
        Some(after.wrapping_add(1 + distance as u64))
    }
}

/// A set of small integers, a bit for each.
#[derive(Default)]
pub(super) struct Bitmap {
    words: Box<[u64]>,
}

impl Bitmap {
    pub(super) fn new(len: usize) -> Bitmap {
        Bitmap {
            words: vec![0; len.div_ceil(64)].into_boxed_slice(),
        }
    }

    pub(super) fn insert(&mut self, member: usize) {
        self.words[member / 64] |= 1 << (member % 64);
    }

    pub(super) fn remove(&mut self, member: usize) {
        self.words[member / 64] &= !(1 << (member % 64));
    }

    /// Returns the smallest member that is at least `from`. There may be none.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        // The bits below `from` in its word do not count.
        let mut word = from / 64;
        let mut bits = self.words.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        Some(word * 64 + bits.trailing_zeros() as usize)
    }
}
