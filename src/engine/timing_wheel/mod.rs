//! A hierarchical timing wheel: starting, moving or cancelling a timer is O(1), and a due timer never waits
//! for others to be sorted.
//!
//! **The idea** (Varghese and Lauck, 1987). Think of a clock face with `n` buckets, one for each of the next
//! `n` ticks. A timer that is due in `d` ticks goes into the bucket `d` places ahead of the hand. At each
//! tick the hand moves on by one bucket, and the timers in that bucket are due. Nothing is ever sorted.
//!
//! A timer can be more than one round of the hand away. Netty leaves it in its bucket for a later round
//! (scheme 6). Kafka puts it on a coarser level, where a bucket spans many ticks, and moves it down when its
//! bucket begins (scheme 7). If there are many timers in that bucket, the ones that are due first wait until
//! the last one has been moved. Here a ring of `n` buckets covers *two* buckets of the coarser level: the one
//! that the hand is in, and the next. The next one can therefore be spread over the finer ring ahead of time,
//! a few timers in each tick, and is empty when it begins. The coarsest level works in rounds, as Netty's
//! does. With one level, the wheel is Netty's.
//!
//! **The picture**, with 8 ticks per wheel and 3 levels, at tick 6.
//!
//! ```text
//!   level 0, a bucket spans  1 tick   now 6 [7]  8  [9]  10 11           holds deadlines up to 11, the end of bucket [8..11] of level 1
//!   level 1, a bucket spans  4 ticks  now [4..7] [8..11] .. [20..23] ..  up to 31, the end of bucket [16..31] of level 2
//!   level 2, a bucket spans 16 ticks  now [0..15] [16..31] .. [64..79]   all others; with those of [192..207] in a later round
//! ```
//!
//! **A worked example.** Timers for 7, 9, 21, 21' and 70 are started at 6.
//!
//! ```text
//!   advance to   because                                                       expires
//!   7, 9         it is occupied on level 0                                     7, 9
//!   18           the hand is halfway to [20..23], with 21 and 21', which is
//!                spread over level 0, the youngest first, if no visit has done so
//!   21           it is occupied on level 0                                     21, 21' (first in, first out)
//!   56, 66       the hand is halfway to [64..79], and then to [68..71]
//!   70           it is occupied on level 0                                     70
//! ```
//!
//! If the clock jumps from 6 to a million, the wheel makes the same steps and no others, because the bitmap
//! of each level tells where the next used bucket is. A timer that is cancelled before its bucket is spread
//! is never moved.
//!
//! **Invariants.** `assert_consistent` checks each of them after every step of the model test, except number
//! 8, which `check_order` checks.
//!
//! 1. Every list is linked both ways, from its head to its tail, and each entry names the list that it is in.
//! 2. A bucket's bit is set exactly if an entry is in the bucket.
//! 3. On a level, an entry is in the bucket of the tick at which it is due, which is no later than the
//!    level's last tick: the end of the bucket after the hand's on the next coarser level. The coarsest level
//!    takes every tick. Entries of later rounds share its buckets.
//! 4. Entries on a level are due after now, except those in the current bucket of a single level, which are
//!    due now. Entries that were due when they were inserted, or became due many rounds ago in one jump, are
//!    in `overdue`.
//! 5. With several levels, every entry's bucket begins after now, because the hand moves on to a bucket, or
//!    past it, once that is empty.
//! 6. In a bucket with later rounds, the cursor separates the entries that have been looked at from those
//!    that have not. Entries that have been looked at stay.
//! 7. Every entry is in one list. When it expires or is removed, its cell is free and its key is void.
//! 8. Of two entries due at one tick, the older is on the coarser level or, in one list, nearer to the head.
//! 9. `next_visit` is the first tick at which a timer is due, or, if that is earlier, half a bucket before a
//!    coarse bucket begins that has to be spread.
//!
//! **Costs.** `insert`, `bring_forward` and `remove` are O(1). `advance` is O(expired +
//! cascaded + used buckets passed), whatever the distance. A timer cascades at most once per level. *Rounds*
//! cost one look per round at each timer beyond the reach of the top level, in a visit for each of its
//! buckets; a jump of more than a round sorts the due timers instead. The top level reaches `n` times `(n /
//! 2)` to the power of the levels below it, in ticks. Each entry takes a cell, and each bucket 9 bytes and a
//! bit.

mod advance;
#[cfg(any(all(test, not(tickwheel_loom)), tickwheel_fuzzing))]
mod invariants;
mod level;
#[cfg(any(all(test, not(tickwheel_loom)), tickwheel_fuzzing))]
pub(crate) mod model;
#[cfg(all(test, not(tickwheel_loom)))]
mod tests;

use std::{iter, mem, ops::Range};

use slab::Slab;

use level::{Bucket, Entry, Level, NIL, Place};

pub(crate) use advance::Advanced;
pub(crate) use level::Key;

/// One tick. The owner of the wheel knows when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(pub(crate) u64);

impl Tick {
    pub(crate) const ZERO: Tick = Tick(0);
    pub(crate) const MAX: Tick = Tick(u64::MAX);
}

/// Where a pending entry is, and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    pub(crate) due: Tick,
    pub(crate) level: usize,
    pub(crate) bucket: usize,
}

/// Values of type `T`, each with a tick at which it is due. The wheel has no clock: its owner tells it the
/// current tick.
pub(crate) struct TimingWheel<T> {
    /// The current tick. Entries due before it have expired or are in `overdue`, and those of this tick are
    /// due.
    now: Tick,
    /// The arena. A key is an index into it.
    entries: Slab<Entry<T>>,
    /// Entries that are due.
    overdue: Bucket,
    /// The levels, the finest first.
    levels: Box<[Level]>,
    /// A ring has `1 << ring_bits` buckets, which is as many as two buckets of the next coarser level span.
    ring_bits: u32,
    /// The next entry to be looked at in a bucket that also has timers of later rounds. With one level, that
    /// is the current bucket; otherwise it is bucket `walked` of the top level, which is walked from the tail
    /// to the head. [`NIL`] at the end.
    cursor: u32,
    /// The number of the last bucket of the top level whose spreading has begun.
    walked: u64,
    /// The tick at which timers were last spread ahead of time.
    spread_at: Tick,
    /// The number of timers that have been looked at in that tick.
    looked_at: usize,
    /// The number of ticks whose share is spread in that tick: more than one if no visit had come for some
    /// time.
    steps: usize,
}

impl<T> TimingWheel<T> {
    /// Creates a wheel at tick 0. `ticks_per_wheel` is rounded up to a power of two, and to at least 2, or 4
    /// with several levels. Levels that no 64-bit deadline could reach are left out.
    pub(crate) fn new(ticks_per_wheel: usize, levels: usize) -> TimingWheel<T> {
        let least = if levels > 1 { 4 } else { 2 };
        let len = ticks_per_wheel.max(least).next_power_of_two();
        let ring_bits = len.trailing_zeros();
        let reachable = (u64::BITS - 1).div_ceil(ring_bits.max(2) - 1);
        let mut wheel = TimingWheel {
            now: Tick::ZERO,
            entries: Slab::new(),
            overdue: Bucket::EMPTY,
            levels: (0..levels.clamp(1, reachable as usize))
                .map(|level| Level::new(level, len, level as u32 * (ring_bits - 1)))
                .collect(),
            ring_bits,
            cursor: NIL,
            walked: 0,
            spread_at: Tick::ZERO,
            looked_at: 0,
            steps: 1,
        };
        wheel.set_last_ticks();
        wheel
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the first tick at which a timer is due. Unlike [`TimingWheel::next_visit`], which looks at no
    /// entry, this looks at the entries of one bucket of each level, and at all entries of the last level,
    /// because it works in rounds.
    pub(crate) fn earliest(&self) -> Option<Tick> {
        let (last, finer) = self.levels.split_last()?;
        let first_used = |ring: &Level| Some(ring.bucket(ring.next_used(ring.number(self.now))?));
        let lists = finer.iter().filter_map(first_used);
        let lists = lists.chain(last.buckets.iter().copied()).chain([self.overdue]);
        lists
            .flat_map(|list| self.entries_of(list))
            .map(|entry| entry.due)
            .min()
    }

    fn entries_of(&self, list: Bucket) -> impl Iterator<Item = &Entry<T>> {
        let entry = |index: u32| self.entries.get(index as usize);
        iter::successors(entry(list.head), move |last| entry(last.next))
    }

    /// Starts a timer. If it is not due after now, it expires in the next `advance`.
    #[inline]
    pub(crate) fn insert(&mut self, due: Tick, value: T) -> Key {
        // This comes first, because it panics if there are too many entries.
        let key = Key::new(self.entries.vacant_key());
        let (place, prev) = self.append(key.index(), due);
        self.entries.insert(Entry {
            due,
            value,
            prev,
            next: NIL,
            place,
        });
        key
    }

    /// Gives a timer another value. Returns the former one.
    pub(crate) fn replace(&mut self, key: &Key, value: T) -> T {
        mem::replace(&mut self.entries[key.index() as usize].value, value)
    }

    /// Returns the value of a timer.
    pub(crate) fn value(&self, key: &Key) -> &T {
        &self.entries[key.index() as usize].value
    }

    /// Moves a timer to an earlier tick.
    ///
    /// If the bucket stays the same, so does the timer's place in the list, because unlinking it would touch
    /// four other entries anywhere in memory.
    pub(crate) fn bring_forward(&mut self, key: &Key, due: Tick) {
        let index = key.index();
        let place = self.entries[index as usize].place;
        let level = level_of(&mut self.levels, self.now, due);
        if level.is_some_and(|level| level.place(due) == place) {
            self.entries[index as usize].due = due;
            return;
        }
        self.unlink(index);
        self.link(index, due);
    }

    /// Ends a timer and returns its value.
    #[inline(always)]
    pub(crate) fn remove(&mut self, key: Key) -> T {
        self.take(key.index())
    }

    /// Appends an entry that is in no list to the list for the tick `due`.
    fn link(&mut self, index: u32, due: Tick) {
        let (place, prev) = self.append(index, due);
        let entry = &mut self.entries[index as usize];
        (entry.due, entry.place, entry.prev, entry.next) = (due, place, prev, NIL);
    }

    /// Appends an entry to the list for the tick `due`. Returns the list and the preceding entry, which the
    /// caller stores in the entry.
    #[inline]
    fn append(&mut self, index: u32, due: Tick) -> (Place, u32) {
        let (bucket, place) = match level_of(&mut self.levels, self.now, due) {
            Some(level) => level.bucket_for(due),
            None => (&mut self.overdue, Place::OVERDUE),
        };
        (place, bucket.append(&mut self.entries, index))
    }

    /// Returns the level and the index in its ring of a place that is a bucket.
    fn bucket_at(&self, place: Place) -> (usize, usize) {
        let ordinal = place.0 as usize;
        (ordinal >> self.ring_bits, ordinal & ((1 << self.ring_bits) - 1))
    }

    /// Unlinks an entry from its list.
    fn unlink(&mut self, index: u32) {
        let Entry {
            prev, next, place, ..
        } = self.entries[index as usize];
        self.close_gap(index, place, prev, next);
    }

    /// Links the neighbours of an entry that leaves the list `place`.
    #[inline(always)]
    fn close_gap(&mut self, index: u32, place: Place, prev: u32, next: u32) {
        if place == Place::OVERDUE {
            return self.overdue.unlink(&mut self.entries, prev, next);
        }
        let (level, at) = self.bucket_at(place);
        self.levels[level].unlink(&mut self.entries, at, prev, next);
        if self.cursor == index {
            // The bucket of a single level is walked from its head, and that of several from its tail.
            self.cursor = if self.levels.len() == 1 { next } else { prev };
        }
    }

    /// Unlinks an entry, frees its cell and returns its value.
    #[inline(always)]
    fn take(&mut self, index: u32) -> T {
        let Entry {
            value,
            prev,
            next,
            place,
            ..
        } = self.entries.remove(index as usize);
        self.close_gap(index, place, prev, next);
        value
    }

    /// Returns the number of entries that are due by `tick`. This looks at every entry.
    pub(crate) fn due_by(&self, tick: Tick) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.due <= tick).count()
    }

    /// Ends every timer and returns its value, in no particular order.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.entries.into_iter().map(|(_, entry)| entry.value)
    }

    /// Reserves memory for `capacity` timers in all.
    pub(crate) fn reserve(&mut self, capacity: usize) {
        self.entries.reserve(capacity.saturating_sub(self.entries.len()));
    }

    /// Returns the size of the arena in bytes, used or not.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.entries.capacity() * Self::CELL
    }

    /// The size of a cell of the arena: an entry, and slab's tag where the entry has no niche for it.
    pub(crate) const CELL: usize = mem::size_of::<Option<Entry<T>>>();

    /// Takes out the arena if it is empty and has more than `retain` cells. The caller drops it where no
    /// thread has to wait for the drop.
    #[cold]
    pub(crate) fn release_arena(&mut self, retain: usize) -> Option<Slab<Entry<T>>> {
        let release = self.entries.is_empty() && self.entries.capacity() > retain;
        release.then(|| mem::replace(&mut self.entries, Slab::with_capacity(retain)))
    }

    /// Returns the number of cells, used or not.
    pub(crate) fn cells(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the entries in a range of cells. An overdue entry is reported in the current bucket of the
    /// finest level.
    pub(crate) fn sites(&self, cells: Range<usize>) -> impl Iterator<Item = Site> {
        cells.filter_map(move |cell| {
            let entry = self.entries.get(cell)?;
            let place = if entry.place == Place::OVERDUE {
                self.levels[0].place(self.now)
            } else {
                entry.place
            };
            let (level, bucket) = self.bucket_at(place);
            Some(Site {
                due: entry.due,
                level,
                bucket,
            })
        })
    }
}

/// Returns the level for the tick `due`: the finest whose last tick is not before it. There is none if the
/// tick has come.
fn level_of(levels: &mut [Level], now: Tick, due: Tick) -> Option<&mut Level> {
    let level = levels.iter_mut().find(|level| due <= level.last_tick);
    level.filter(|_| due > now)
}
