//! A hierarchical timing wheel: starting, moving or cancelling a timer is O(1), and a due timer never waits for others to be sorted.
//!
//! **The idea** (Varghese and Lauck, 1987). Think of a clock face with `n` buckets, one for each of the next `n` ticks. A timer that
//! is due in `d` ticks goes into the bucket `d` places ahead of the hand. At each tick the hand moves on by one bucket, and the timers
//! in that bucket are due. Nothing is ever sorted.
//!
//! A timer can be more than one round of the hand away. Netty leaves it in its bucket for a later round (scheme 6). Kafka puts it on a
//! coarser level, where a bucket spans many ticks, and moves it down when its bucket begins (scheme 7). If there are many timers in that
//! bucket, those due first wait until the last has been moved. Here a ring of `n` buckets covers *two* buckets of the coarser level: the
//! one that the hand is in, and the next. The next one can therefore be spread over the finer ring ahead of time, a few timers in each
//! tick, and is empty when it begins. The coarsest level works in rounds, as Netty's does. With one level, the wheel is Netty's.
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
//!   18           the hand is halfway to [20..23], with 21 and 21': that is
//!                spread over level 0, the youngest first, if no visit has done so
//!   21           it is occupied on level 0                                     21, 21' (first in, first out)
//!   56, 66       the hand is halfway to [64..79], and then to [68..71]
//!   70           it is occupied on level 0                                     70
//! ```
//!
//! If the clock jumps from 6 to a million, the wheel makes the same steps and no others, because the bitmap of each level tells where the
//! next used bucket is. A timer that is cancelled before its bucket is spread is never moved.
//!
//! **Slack.** A [`Deadline`] may be rounded up, to a multiple of a power of two ticks, so that timers expire in company. A timer is *due* at
//! that tick, which decides where it hangs and when it expires. Timers due at one tick expire in the order in which they were inserted. A
//! coarse bucket is *whole* if all its timers are due as it begins. It is not spread, but expires as it is when it begins.
//!
//! **Invariants.** `assert_consistent` checks each of them after every step of the model test, except number 8, which `check_order` checks.
//!
//! 1. Every list is linked both ways, from its head to its tail, and each entry names the list that it is in.
//! 2. A bucket's bit is set exactly if an entry is in the bucket. Below the top level, a bucket that is not marked as mixed is whole.
//! 3. On a level, an entry is in the bucket of the tick at which it is due, which is no later than the level's horizon: the end of the bucket after the
//!    hand's on the next coarser level. The coarsest level has no horizon. Entries of later rounds share its buckets.
//! 4. Entries on a level are due after now, except those in the current bucket on level 0, which are due now. Entries that were due when
//!    their deadline was set, or became due many rounds ago in one jump, are in `overdue`. Entries whose deadline is not known yet are in
//!    `incoming`.
//! 5. No due timer hangs in a coarse bucket: on a coarse level, every entry's bucket begins after now.
//! 6. In a bucket with later rounds, the cursor separates the entries that have been looked at from those that have not. Entries that have
//!    been looked at stay.
//! 7. An entry without a value is in no list, and its cell stays until its key is returned. `len` counts the other entries.
//! 8. Of two entries due at one tick, the older is on the coarser level or, in one list, nearer to the head.
//! 9. The mark is at an incoming entry, the last one to be transferred, or nowhere.
//! 10. `next_deadline` is the first tick at which a timer is due, or half a bucket before a coarse one begins that has to be spread.
//!
//! **Costs.** `insert`, `reinsert` and `remove` are O(1). `advance` is O(expired + cascaded + used buckets passed), whatever the distance.
//! A timer cascades at most once per level. *Rounds* cost a look at each timer beyond the reach of the top level once per round, by a visit
//! for each of its buckets; a jump of more than a round sorts the due timers instead. The top level reaches `n` times `(n / 2)` to the
//! power of the levels below it, in ticks. Each entry takes a cell, and each bucket 8 bytes.

mod advance;
mod bucket;
mod census;
mod incoming;
#[cfg(any(all(test, not(loom)), fuzzing))]
mod invariants;
mod level;
mod links;
#[cfg(any(all(test, not(loom)), fuzzing))]
pub(crate) mod model;
mod spread;
#[cfg(all(test, not(loom)))]
mod tests;
mod tick;

use std::mem;

use slab::Slab;

pub(in crate::engine) use bucket::{Bucket, Entry, Key, NIL, Place};
pub(crate) use census::Site;
pub(in crate::engine) use level::Level;
pub(in crate::engine) use tick::Deadline;
pub(crate) use tick::{Nanos, Tick, TickDuration};

/// Values of type `T`, each with a deadline. The wheel has no clock: its owner tells it the current tick.
pub(crate) struct TimingWheel<T> {
    /// The current tick. Entries due before it have expired or are in `overdue`, and those of this tick are due.
    now: Tick,
    /// The arena. A key is an index into it.
    entries: Slab<Entry<T>>,
    /// The number of entries that have a value.
    len: usize,
    /// Entries whose deadline is not known yet.
    incoming: Bucket,
    /// The last incoming entry to be transferred, or [`NIL`] if there is none.
    marked: u32,
    /// Entries that are due.
    overdue: Bucket,
    /// The levels, the finest first.
    levels: Box<[Level]>,
    /// A ring has `1 << ring_bits` buckets, which is as many as two buckets of the next coarser level span.
    ring_bits: u32,
    /// The next entry to be looked at in a bucket that also has timers of later rounds. With one level, that is the current
    /// bucket; otherwise it is bucket `walked` of the top level, which is walked from the tail to the head. [`NIL`] at the end.
    cursor: u32,
    /// The number of the last bucket of the top level whose spreading has begun.
    walked: u64,
    /// The number of timers that have been spread ahead of time at tick `spread_at`, which made up for `steps` ticks.
    spread: usize,
    spread_at: Tick,
    steps: usize,
}

impl<T> TimingWheel<T> {
    /// Creates a wheel at tick 0. `ticks_per_wheel` is rounded up to a power of two, and to at least 2, or 4 with several levels. Levels
    /// that no 64-bit deadline could reach are left out.
    pub(crate) fn new(ticks_per_wheel: usize, levels: usize) -> TimingWheel<T> {
        let (len, levels) = TimingWheel::<T>::shape(ticks_per_wheel, levels);
        let ring_bits = len.trailing_zeros();
        let mut wheel = TimingWheel {
            now: Tick::ZERO,
            entries: Slab::new(),
            len: 0,
            incoming: Bucket::EMPTY,
            marked: NIL,
            overdue: Bucket::EMPTY,
            levels: (0..levels)
                .map(|level| Level::new(level, len, level as u32 * (ring_bits - 1)))
                .collect(),
            ring_bits,
            cursor: NIL,
            walked: 0,
            spread: 0,
            spread_at: Tick::ZERO,
            steps: 1,
        };
        wheel.set_horizons();
        wheel
    }

    /// Returns the number of buckets of a ring, and the number of levels.
    fn shape(ticks_per_wheel: usize, levels: usize) -> (usize, usize) {
        let least = if levels > 1 { 4 } else { 2 };
        let len = ticks_per_wheel.max(least).next_power_of_two();
        let reachable = (u64::BITS - 1).div_ceil(len.trailing_zeros().max(2) - 1);
        (len, levels.clamp(1, reachable as usize))
    }

    /// Returns the size in bytes of such a wheel with memory for `capacity` entries.
    pub(crate) fn bytes(ticks_per_wheel: usize, levels: usize, capacity: usize) -> usize {
        let (len, levels) = TimingWheel::<T>::shape(ticks_per_wheel, levels);
        let cells = capacity.saturating_mul(mem::size_of::<Entry<T>>());
        cells.saturating_add(levels * len * mem::size_of::<Bucket>())
    }

    /// Returns the tick that the hand is at. Timers that are due by then have expired, or expire in the next `advance`.
    #[inline]
    pub(in crate::engine) fn now(&self) -> Tick {
        self.now
    }

    /// Returns the number of entries that have neither expired nor been removed.
    #[inline]
    pub(in crate::engine) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no entry, not even an expired one.
    #[inline]
    pub(in crate::engine) fn is_vacant(&self) -> bool {
        self.entries.is_empty()
    }

    /// Reserves memory for `additional` more entries.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional);
    }

    /// Returns the size of the arena in bytes, used or not.
    pub(in crate::engine) fn arena_bytes(&self) -> usize {
        // A cell is slab's enum around an entry, which has a niche for the tag.
        self.entries.capacity() * mem::size_of::<Entry<T>>()
    }

    /// Starts a timer. If it is not due after now, it expires in the next `advance`.
    #[inline]
    pub(in crate::engine) fn insert(&mut self, deadline: impl Into<Deadline>, value: T) -> Key {
        let (key, _) = self.occupy(value);
        self.link(key.index(), deadline);
        key
    }

    #[inline]
    fn occupy(&mut self, value: T) -> (Key, &mut Entry<T>) {
        // This comes first, because it panics if there are too many entries.
        let key = Key::new(self.entries.vacant_key());
        self.len += 1;
        // The entry is filled in place, because it would be copied if it were passed to the slab by value.
        let index = self.entries.insert(Entry::BLANK);
        let entry = &mut self.entries[index];
        entry.value = Some(value);
        (key, entry)
    }

    /// Returns the value of a pending timer, or `None` once it has expired.
    #[inline]
    pub(in crate::engine) fn get_mut(&mut self, key: &Key) -> Option<&mut T> {
        self.entries[key.index() as usize].value.as_mut()
    }

    /// Returns whether [`TimingWheel::cancel_all`] ended a timer before its deadline.
    pub(in crate::engine) fn is_cancelled(&self, key: &Key) -> bool {
        self.entries[key.index() as usize].place == Place::CANCELLED
    }

    /// Returns the deadline of a timer, pending, expired or cancelled. It is [`Tick::MAX`] if the timer was cancelled while
    /// incoming, without a deadline.
    #[inline]
    pub(in crate::engine) fn deadline(&self, key: &Key) -> Tick {
        self.entries[key.index() as usize].deadline()
    }

    /// Returns the tick at which a timer that has a deadline expires, or has expired: its deadline, rounded up by its slack.
    #[inline]
    pub(in crate::engine) fn due(&self, key: &Key) -> Tick {
        self.entries[key.index() as usize].due()
    }

    /// Returns the power to which the deadline of a timer is rounded.
    #[inline]
    pub(in crate::engine) fn power(&self, key: &Key) -> u8 {
        self.entries[key.index() as usize].power
    }

    /// Moves a timer, pending or expired, to another deadline and gives it a new value. Returns the former value.
    pub(in crate::engine) fn reinsert(
        &mut self,
        key: &Key,
        deadline: impl Into<Deadline>,
        value: T,
    ) -> Option<T> {
        let index = key.index();
        let old = self.entries[index as usize].value.replace(value);
        match old {
            Some(_) => self.unlink(index),
            None => self.len += 1,
        }
        self.link(index, deadline);
        old
    }

    /// Moves a timer to a deadline at which it is due earlier. Returns `false` if it has expired, or is due no later as it is.
    ///
    /// If the bucket stays the same, so does the timer's place in the list, because unlinking it would touch four other entries
    /// anywhere in memory.
    pub(in crate::engine) fn bring_forward(&mut self, key: &Key, deadline: impl Into<Deadline>) -> bool {
        let index = key.index();
        let entry = &self.entries[index as usize];
        let deadline = deadline.into();
        let due = deadline.due();
        if entry.value.is_none() || entry.due() <= due {
            return false;
        }
        let place = entry.place;
        if due > self.now && place == self.levels[self.level_of(due)].place(due) {
            self.entries[index as usize].set_deadline(deadline);
            return true;
        }
        self.unlink(index);
        self.link(index, deadline);
        true
    }

    /// Ends a timer and frees its cell. Returns `None` if it had expired.
    #[inline]
    pub(in crate::engine) fn remove(&mut self, key: Key) -> Option<T> {
        let index = key.index();
        if self.entries[index as usize].value.is_some() {
            self.unlink(index);
            self.len -= 1;
        }
        self.entries.remove(index as usize).value
    }

    /// Returns every pending value, in no particular order.
    pub(in crate::engine) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries
            .iter_mut()
            .filter_map(|(_, entry)| entry.value.as_mut())
    }

    /// Ends every pending timer and takes its value, in no particular order. The entries stay.
    ///
    /// This walks the lists and not the arena, most of whose cells may be vacant.
    pub(in crate::engine) fn cancel_all(&mut self, cancelled: &mut Vec<T>) {
        cancelled.reserve(self.len);
        while let Some(index) = self.any_pending() {
            if self.entries[index as usize].place == Place::INCOMING {
                self.entries[index as usize].set_deadline(Tick::MAX);
            }
            self.expire(index, cancelled);
            self.entries[index as usize].place = Place::CANCELLED;
        }
    }

    fn any_pending(&self) -> Option<u32> {
        let used = |level: &Level| level.used.next(0).map(|at| level.buckets[at].head);
        let listed = [self.incoming.head, self.overdue.head];
        let mut heads = listed.into_iter().filter(|head| *head != NIL);
        heads.next().or_else(|| self.levels.iter().find_map(used))
    }

    /// Takes out an empty arena of more than `retain` cells. The caller drops it where no thread waits for that.
    #[inline]
    pub(in crate::engine) fn release_arena(&mut self, retain: usize) -> Option<Slab<Entry<T>>> {
        let release = self.entries.is_empty() && self.entries.capacity() > retain;
        release.then(|| mem::replace(&mut self.entries, Slab::with_capacity(retain)))
    }
}
