//! A hierarchical timing wheel: starting, moving or cancelling a timer is O(1), and a due timer never waits
//! for others to be sorted.
//!
//! **The idea** (Varghese and Lauck, 1987). Think of a clock face with `n` buckets, one for each of the next
//! `n` ticks. A timer that is due in `d` ticks goes into the bucket `d` places ahead of the hand. At each
//! tick the hand moves on by one bucket, and the timers in that bucket are due. Nothing is ever sorted.
//!
//! A timer can be more than one round of the hand away. Kafka puts it on a coarser level, where a bucket spans
//! many ticks, and moves it down when its bucket begins (scheme 7). If that bucket has many timers, the ones
//! that are due first wait until the last one has been moved. Here a ring of `n` buckets covers *two* buckets
//! of the coarser level: the one that the hand is in, and the next. So the next one can be spread over the
//! finer ring ahead of time, a few timers in each tick, and is empty when it begins.
//!
//! Beyond the coarsest level, timers hang in a ring by the bucket that they would have in that level, as in
//! Netty's wheel (scheme 6), and stay there for a round or more: half a round before the hand gets to a
//! bucket, those whose round it is are moved into the level. With one level, the wheel is Netty's.
//!
//! **A worked example**, with 8 ticks per wheel and 2 levels. At tick 6, timers are started for 7, 9, 21, 21' and
//! 40. Level 0 reaches to the end of the next bucket of level 1, and level 1 to the end of the next half of its
//! ring.
//!
//! | ring | a bucket spans | at 6 it reaches to | buckets in use |
//! | --- | --- | --- | --- |
//! | level 0 | 1 tick | 11 | 7: 7; 9: 9 |
//! | level 1 | 4 ticks | 31 | \[20..23]: 21 21' |
//! | later rounds | 4 ticks | any tick | \[40..43], which shares its place with \[8..11]: 40 |
//!
//! At 7 and 9 these two expire. At 18, which is half a bucket before 20, \[20..23] is spread, the youngest
//! first, if no visit has done so before:
//!
//! | ring | at 18 it reaches to | buckets in use |
//! | --- | --- | --- |
//! | level 0 | 23 | 21: 21 21' |
//! | level 1 | 47 | |
//! | later rounds | any tick | \[40..43]: 40 |
//!
//! At 21 both expire, first in, first out. At 24, which is half a ring before \[40..43], that bucket comes
//! within reach:
//!
//! | ring | at 24 it reaches to | buckets in use |
//! | --- | --- | --- |
//! | level 0 | 31 | |
//! | level 1 | 47 | \[40..43]: 40 |
//! | later rounds | any tick | |
//!
//! At 38 it is spread, and at 40 the last timer expires:
//!
//! | ring | at 38 it reaches to | buckets in use |
//! | --- | --- | --- |
//! | level 0 | 43 | 40: 40 |
//! | level 1 | 63 | |
//! | later rounds | any tick | |
//!
//! If the clock jumps from 6 to a million, the wheel makes the same steps and no others, because the bitmap
//! of each ring tells where the next used bucket is. A timer that is cancelled before its bucket is spread
//! is never moved.
//!
//! **Invariants.** `assert_consistent` checks each of them after every step of the model test, except number
//! 6, which `check_order` checks.
//!
//! 1. Every list is linked both ways, from its head to its tail, and each entry names the list that it is in.
//! 2. A bucket's bit is set exactly if an entry is in the bucket.
//! 3. In a ring, an entry is in the bucket of the tick at which it is due. On a level, that is no later than
//!    the level's last tick: the end of the bucket after the hand's on the next coarser level or, on the
//!    coarsest, of the next half of its ring. So all timers of a bucket are of one round, except those of later
//!    rounds.
//! 4. The bucket of an entry on a level begins after now, and that of one of later rounds is more than half a
//!    ring ahead of the hand. Entries that were due when they were inserted are an exception: they are in the
//!    finest level's bucket of now, and the hand stays there until they have expired.
//! 5. Every entry is in one list. When it expires or is removed, its cell is free and its key is void.
//! 6. Of two entries due at one tick, the older is in the coarser ring or, in one list, nearer to the head.
//! 7. `next_visit` is the first tick at which a timer is due or a bucket of later rounds is looked at, or, if
//!    that is earlier, half a bucket before a coarse bucket begins that has to be spread. If the clock jumps, it
//!    is the first tick at which a timer is due.
//!
//! **Costs.** `insert`, `bring_forward` and `remove` are O(1). `advance` is O(expired + cascaded + used buckets
//! passed), whatever the distance. A timer cascades at most once per level. Beyond the reach of the coarsest
//! level it costs one look per round, in jumps too, but a jump over rounds in which nothing is due costs one.
//! That level reaches `n` times `(n / 2)` to the power of the levels below it, in ticks. Each entry takes a
//! cell, and each bucket 8 bytes and a bit. To find the next used bucket takes one step for each 64 buckets:
//! eight by default, and in rings of 2^20, the largest, some microseconds if that bucket is a round away.

mod advance;
mod arena;
mod dues;
#[cfg(any(all(test, not(tickwheel_loom)), tickwheel_fuzzing))]
mod invariants;
mod level;
#[cfg(any(all(test, not(tickwheel_loom)), tickwheel_fuzzing))]
pub(crate) mod model;
#[cfg(all(test, not(tickwheel_loom)))]
mod tests;

use std::{mem, ops::Range};

use slab::Slab;

use arena::Arena;
use dues::Dues;
use level::{Bucket, Entry, Level, NIL, Place};

pub(crate) use advance::Turn;
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
    /// The current tick. Entries due by then have expired, or are in the bucket of this tick.
    now: Tick,
    /// The arena. A key is an index into it.
    entries: Arena<Entry<T>>,
    /// The rings of the levels, the finest first, and last the ring of later rounds, whose buckets span as much
    /// as those of the coarsest level.
    levels: Box<[Level]>,
    /// A ring has `1 << ring_bits` buckets, which is as many as two buckets of the next coarser level span.
    ring_bits: u32,
    /// How many timers are due at each tick, if the clock jumps.
    dues: Dues,
    /// The tick at which timers were last spread ahead of time.
    spread_at: Tick,
    /// How many timers are still to be spread in that tick.
    to_spread: usize,
}

impl<T> TimingWheel<T> {
    /// Creates a wheel at tick 0. `ticks_per_wheel` is rounded up to a power of two, and to at least 2, or 4
    /// with several levels. Levels that no 64-bit deadline could reach are left out.
    pub(crate) fn new(ticks_per_wheel: usize, levels: usize) -> TimingWheel<T> {
        // Half of a ring is a bucket of the next level, and has to be coarser than a bucket of its own.
        let least = if levels > 1 { 4 } else { 2 };
        let len = ticks_per_wheel.max(least).next_power_of_two();
        let ring_bits = len.trailing_zeros();
        let reachable = (u64::BITS - 1).div_ceil(ring_bits.max(2) - 1);
        let levels = levels.clamp(1, reachable as usize);
        let shift = |level: usize| level as u32 * (ring_bits - 1);
        let rings = (0..levels).map(|level| Level::new(level, len, shift(level), 0));
        let later = Level::new(levels, len, shift(levels - 1), len as u64 / 2);
        let mut wheel = TimingWheel {
            now: Tick::ZERO,
            entries: Arena::new(),
            levels: rings.chain([later]).collect(),
            ring_bits,
            dues: Dues::default(),
            spread_at: Tick::ZERO,
            to_spread: 0,
        };
        wheel.set_last_ticks();
        wheel
    }

    /// Makes a new wheel ask for a visit only when a timer is due, because its clock jumps from visit to visit.
    /// It knows that tick in O(log n), and buckets are spread when the hand gets to them.
    pub(crate) fn for_jumps(mut self) -> TimingWheel<T> {
        self.dues = Dues::of_jumps();
        self
    }

    /// Returns the current tick. Entries that are due by then expire in the next `advance`.
    pub(crate) fn hand(&self) -> Tick {
        self.now
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Starts a timer. If it is not due after now, it expires in the next `advance`.
    #[inline(always)]
    pub(crate) fn insert(&mut self, due: Tick, value: T) -> Key {
        let (bucket, place) = bucket_for(&mut self.levels, self.now, due);
        // The entry is complete as it is written to its cell, which is then not touched again.
        let index = self.entries.insert(Entry {
            due,
            value,
            prev: bucket.tail,
            next: NIL,
            place,
        });
        bucket.append(&mut self.entries, index);
        self.dues.add(due);
        Key::new(index)
    }

    /// Gives a timer another value. Returns the former one.
    pub(crate) fn replace(&mut self, key: &Key, value: T) -> T {
        mem::replace(&mut self.entries[key.index()].value, value)
    }

    /// Returns the value of a timer.
    pub(crate) fn value(&self, key: &Key) -> &T {
        &self.entries[key.index()].value
    }

    /// Moves a timer to an earlier tick, behind the timers that are due then. This is a removal and an insertion
    /// that keep the cell, and so the key.
    pub(crate) fn bring_forward(&mut self, key: &Key, due: Tick) {
        let index = key.index();
        let Entry {
            due: former,
            place,
            prev,
            next,
            ..
        } = self.entries[index];
        self.dues.remove(former);
        self.dues.add(due);
        self.close_gap(place, prev, next);
        let (bucket, place) = bucket_for(&mut self.levels, self.now, due);
        let entry = &mut self.entries[index];
        (entry.due, entry.place, entry.prev, entry.next) = (due, place, bucket.tail, NIL);
        bucket.append(&mut self.entries, index);
    }

    /// Ends a timer and returns its value.
    #[inline(always)]
    pub(crate) fn remove(&mut self, key: Key) -> T {
        let Entry {
            due,
            value,
            prev,
            next,
            place,
        } = self.entries.remove(key.index());
        self.close_gap(place, prev, next);
        self.dues.remove(due);
        value
    }

    /// Returns the index of the ring of later rounds, which is the number of levels.
    fn later(&self) -> usize {
        self.levels.len() - 1
    }

    /// Links the neighbours of an entry that leaves the list `place`.
    #[inline(always)]
    fn close_gap(&mut self, place: Place, prev: u32, next: u32) {
        let (level, at) = place.bucket();
        self.levels[level].unlink(&mut self.entries, at, prev, next);
    }

    /// Returns the number of entries that are due by `tick`. This looks at every entry.
    pub(crate) fn due_by(&self, tick: Tick) -> usize {
        self.entries.iter().filter(|(_, entry)| entry.due <= tick).count()
    }

    /// Ends every timer and returns its value, in no particular order.
    pub(crate) fn into_values(self) -> impl Iterator<Item = T> {
        self.entries.into_values().map(|entry| entry.value)
    }

    /// Reserves memory for `capacity` timers in all.
    pub(crate) fn reserve(&mut self, capacity: usize) {
        self.entries.reserve(capacity);
    }

    /// Returns the size of the arena in bytes, used or not.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.entries.capacity() * Self::CELL
    }

    /// The size of a cell of the arena: an entry, and slab's tag where the entry has no niche for it.
    pub(crate) const CELL: usize = mem::size_of::<Option<Entry<T>>>();

    /// Takes out the memory beyond `retain` cells if the wheel is empty. The caller drops it where no thread has
    /// to wait for the drop.
    pub(crate) fn release_arena(&mut self, retain: usize) -> Option<Vec<Slab<Entry<T>>>> {
        self.entries.release(retain)
    }

    /// Returns the number of cells, used or not.
    pub(crate) fn cells(&self) -> usize {
        self.entries.capacity()
    }

    /// Returns the entries in a range of cells.
    pub(crate) fn sites(&self, cells: Range<usize>) -> impl Iterator<Item = Site> {
        cells.filter_map(move |cell| {
            let entry = self.entries.get(u32::try_from(cell).ok()?)?;
            let (level, bucket) = entry.place.bucket();
            // Later rounds are a ring of ours. A reader knows the levels that the builder was given.
            Some(Site {
                due: entry.due,
                level: level.min(self.later() - 1),
                bucket,
            })
        })
    }
}

/// Returns the bucket for the tick `due` and its place, on the finest level whose last tick is not before it. If the
/// tick has come, that is the bucket of `now`.
#[inline]
fn bucket_for(levels: &mut [Level], now: Tick, due: Tick) -> (&mut Bucket, Place) {
    let due = due.max(now);
    // Most timers end the search at level 0 or 1.
    let level = levels.iter_mut().find(|level| due <= level.last_tick);
    level.expect("the last ring takes every tick").bucket_for(due)
}
