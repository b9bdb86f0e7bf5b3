//! Entries, the lists that they form in buckets, rings of buckets, and the bitmap of those in use. A list is
//! linked by indices into the slab.

use std::{mem, num::NonZeroU32};

use slab::Slab;

use super::Tick;

/// The index of no entry, which marks the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// The only claim on an entry, which is neither `Copy` nor `Clone`. It is void once the entry has expired,
/// because its cell may then belong to another entry.
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

    /// Takes the claim. What is left is void: it names a cell that no arena has.
    pub(crate) fn take(&mut self) -> Key {
        mem::replace(self, Key(NonZeroU32::MAX))
    }

    pub(super) fn index(&self) -> u32 {
        self.0.get() - 1
    }
}

/// The list that an entry is in: `overdue` or a bucket, by its ordinal. Buckets are numbered across all
/// levels, the finest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place(pub(super) u32);

impl Place {
    pub(super) const OVERDUE: Place = Place(u32::MAX);
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

    /// Appends an entry. Returns the preceding one, which the caller stores in the entry.
    pub(super) fn append<T>(&mut self, entries: &mut Slab<Entry<T>>, index: u32) -> u32 {
        let prev = mem::replace(&mut self.tail, index);
        match prev {
            NIL => self.head = index,
            prev => entries[prev as usize].next = index,
        }
        prev
    }

    /// Puts an entry at the front.
    fn push_front<T>(&mut self, entries: &mut Slab<Entry<T>>, index: u32, place: Place) {
        let next = mem::replace(&mut self.head, index);
        match next {
            NIL => self.tail = index,
            next => entries[next as usize].prev = index,
        }
        let entry = &mut entries[index as usize];
        (entry.place, entry.prev, entry.next) = (place, NIL, next);
    }

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
    /// The ordinal of the first bucket, for its [`Place`].
    first: u32,
}

impl Level {
    /// Creates level `level` of a wheel whose rings have `len` buckets, a power of two.
    pub(super) fn new(level: usize, len: usize, shift: u32) -> Level {
        Level {
            buckets: Box::default(),
            len,
            used: Bitmap::default(),
            shift,
            last_tick: Tick::MAX,
            first: (level * len) as u32,
        }
    }

    /// Returns the number of the bucket of a tick.
    pub(super) fn number(&self, tick: Tick) -> u64 {
        tick.0 >> self.shift
    }

    /// Returns the tick at which a bucket begins.
    pub(super) fn begin(&self, number: u64) -> Tick {
        Tick(number << self.shift)
    }

    pub(super) fn index(&self, number: u64) -> usize {
        number as usize & (self.len - 1)
    }

    pub(super) fn bucket(&self, number: u64) -> Bucket {
        let bucket = self.buckets.get(self.index(number));
        bucket.copied().unwrap_or(Bucket::EMPTY)
    }

    /// Returns the place of a tick that belongs on this level.
    pub(super) fn place(&self, due: Tick) -> Place {
        Place(self.first + self.index(self.number(due)) as u32)
    }

    pub(super) fn push_front<T>(&mut self, entries: &mut Slab<Entry<T>>, index: u32, due: Tick) {
        let (bucket, place) = self.bucket_for(due);
        bucket.push_front(entries, index, place);
    }

    /// Returns the bucket of a tick, and its place, for an entry that the caller puts there.
    #[inline]
    pub(super) fn bucket_for(&mut self, due: Tick) -> (&mut Bucket, Place) {
        if self.buckets.is_empty() {
            self.allocate();
        }
        let (place, at) = (self.place(due), self.index(self.number(due)));
        let bucket = &mut self.buckets[at];
        if bucket.is_empty() {
            self.used.insert(at);
        }
        (bucket, place)
    }

    #[cold]
    fn allocate(&mut self) {
        self.buckets = vec![Bucket::EMPTY; self.len].into_boxed_slice();
        self.used = Bitmap::new(self.len);
    }

    /// Unlinks an entry from the bucket at `at`.
    #[inline]
    pub(super) fn unlink<T>(&mut self, entries: &mut Slab<Entry<T>>, at: usize, prev: u32, next: u32) {
        self.buckets[at].unlink(entries, prev, next);
        if self.buckets[at].is_empty() {
            self.used.remove(at);
        }
    }

    /// Empties the bucket at `at`.
    pub(super) fn clear(&mut self, at: usize) {
        self.buckets[at] = Bucket::EMPTY;
        self.used.remove(at);
    }

    /// Returns the number of the first used bucket after number `after`. A timer of a later round is reported
    /// in the next round's bucket.
    pub(super) fn next_used(&self, after: u64) -> Option<u64> {
        let first = self.index(after.wrapping_add(1));
        let used = self.used.next(first).or_else(|| self.used.next(0))?;
        let distance = used.wrapping_sub(first) & (self.len - 1);
        Some(after.wrapping_add(1 + distance as u64))
    }
}

/// A set of small integers in two layers: a bit for each member, and above it a bit for each word that is not
/// empty.
#[derive(Default)]
pub(super) struct Bitmap {
    words: Box<[u64]>,
    summary: Box<[u64]>,
}

impl Bitmap {
    pub(super) fn new(len: usize) -> Bitmap {
        let words = len.div_ceil(64);
        Bitmap {
            words: vec![0; words].into_boxed_slice(),
            summary: vec![0; words.div_ceil(64)].into_boxed_slice(),
        }
    }

    pub(super) fn insert(&mut self, member: usize) {
        self.words[member / 64] |= 1 << (member % 64);
        self.summary[member / 4096] |= 1 << (member / 64 % 64);
    }

    pub(super) fn remove(&mut self, member: usize) {
        let word = &mut self.words[member / 64];
        *word &= !(1 << (member % 64));
        if *word == 0 {
            self.summary[member / 4096] &= !(1 << (member / 64 % 64));
        }
    }

    /// Returns the smallest member that is at least `from`. There may be none.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let bits = self.words.get(from / 64)? & (u64::MAX << (from % 64));
        if bits != 0 {
            return Some(from / 64 * 64 + bits.trailing_zeros() as usize);
        }
        let after = from / 64 + 1;
        let mut keep = u64::MAX << (after % 64);
        for index in after / 64..self.summary.len() {
            let bits = self.summary[index] & keep;
            if bits != 0 {
                let word = index * 64 + bits.trailing_zeros() as usize;
                return Some(word * 64 + self.words[word].trailing_zeros() as usize);
            }
            keep = u64::MAX;
        }
        None
    }
}
