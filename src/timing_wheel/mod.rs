//! A hashed, hierarchical timing wheel: starting, moving and cancelling a timer is O(1).
//!
//! **The idea** (Varghese and Lauck 1987). A clock face of `n` buckets, one for each tick to come. A timer due in `d`
//! ticks hangs in the bucket `d` places ahead; every tick the hand moves on by one bucket and what hangs there is due.
//! Nothing is ever sorted. A timer further away than one round of the hand either waits in its bucket for a later round
//! (scheme 6, Netty), or hangs on a coarser level, whose every bucket spans a whole round of the finer one, and comes down
//! when its time is near (scheme 7, Kafka). This wheel does the second with all levels but the last, and the first there.
//!
//! **The picture**, with 4 ticks per wheel and 3 levels, at tick 6. Write a deadline in base 4: its digits are its buckets.
//! A timer hangs on the level of the highest digit in which its deadline differs from now, in the bucket of that digit.
//!
//! ```text
//!   now = 6 = 012₄                 bucket   0      1      2      3
//!   level 0, a bucket spans  1 tick       ( )    ( )   now 6    [7]      deadline  7 = 013₄ differs in digit 0
//!   level 1, a bucket spans  4 ticks      ( )   now 4  [8..11] [12..15]  deadline  9 = 021₄ differs in digit 1
//!   level 2, a bucket spans 16 ticks   now 0  [16..31] [32..47] [48..63] deadline 70 = 1012₄: bucket 0, next round
//! ```
//!
//! **A worked example.** Timers for 7, 9, 9' and 10 are started at 6. Level 0 holds 7; bucket 2 of level 1 holds 9, 9', 10.
//!
//! ```text
//!   advance to   sweeps                  which                                  expires
//!   7            level 0, bucket 3       holds 7                                7
//!   8            level 1, bucket 2       cascades: 9, 9', 10 go to level 0
//!   9            level 0, bucket 1       holds 9, 9'                            9, 9' (first in, first out)
//!   10           level 0, bucket 2       holds 10                               10
//! ```
//!
//! Had the clock jumped from 6 to a million, the same four sweeps would have been made, and none in between: the bitmap of
//! each level says where the next used bucket is. Timers cancelled before 8 would never have been moved at all.
//!
//! **Invariants**, checked one by one by `assert_consistent` after every step of the model test:
//!
//! 1. Every list is linked both ways, from its head to its tail, and each entry says which list it hangs in.
//! 2. A bucket's bit is set exactly when the bucket holds an entry.
//! 3. An entry that is neither incoming nor overdue hangs on the level of the highest base-n digit in which its deadline
//!    differs from now (from the swept tick, while a sweep is unfinished; beyond the top level, on the top level), in the
//!    bucket of that digit.
//! 4. So everything on a level is due before anything on a coarser one, except that the top level's buckets also hold
//!    later rounds: the next sweep is always in the finest level in use.
//! 5. Every deadline in the levels lies after now; deadlines past hang in `overdue`, those not yet known in `incoming`.
//! 6. An entry without a value hangs nowhere, and its cell stays until its key comes back.
//! 7. `len` counts the entries that have a value.
//! 8. Entries with one deadline hang in one list, in the order in which they came to it; a cascade keeps it.
//! 9. The mark among the incoming entries is at one of them, the last to be transferred, or nowhere.
//!
//! **Costs.** `insert`, `reinsert` and `remove`: O(1). `advance`: O(expired + cascaded + swept buckets), whatever the
//! distance; a timer cascades at most once for each level. A timer beyond the span of the top level is looked at once a
//! round. `next_deadline`: a scan of bits on each level. Memory: a cell for each entry, 8 bytes for each bucket.

mod bucket;
mod by_cell;
mod census;
mod level;
#[cfg(any(all(test, not(loom)), fuzzing))]
pub(crate) mod model;
#[cfg(all(test, not(loom)))]
mod tests;
mod tick;

use std::{collections::TryReserveError, mem};

use slab::Slab;

use bucket::{Bucket, Entry, NIL, Place};
use level::Level;

pub(crate) use bucket::Key;
pub(crate) use by_cell::First;
pub(crate) use census::Site;
pub(crate) use tick::{Nanos, Tick, TickDuration};

/// The wheel: values of type `T`, each with a deadline. It knows no clock; whoever owns it says what tick it is.
pub(crate) struct TimingWheel<T> {
    /// Every deadline up to and including this tick has expired.
    now: Tick,
    entries: Slab<Entry<T>>,
    len: usize,
    incoming: Bucket,
    /// The last of the incoming entries that are to be transferred; [`NIL`] when none is.
    marked: u32,
    overdue: Bucket,
    /// Finest first.
    levels: Box<[Level]>,
    /// A bucket of level k spans `1 << (k * bits_per_level)` ticks.
    bits_per_level: u32,
    /// A sweep that ran into its limit.
    unfinished: Option<Sweep>,
}

/// The sweep of one bucket, when its tick has come.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    tick: Tick,
    level: usize,
    place: Place,
    /// The next entry to look at; [`NIL`] at the end of the list.
    cursor: u32,
}

/// What one call of [`TimingWheel::advance`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advanced {
    pub(crate) expired: usize,
    pub(crate) cascaded: usize,
    /// The limit was reached: more may be due, and the same call again goes on.
    pub(crate) more: bool,
}

/// What is left of the limit of one [`TimingWheel::advance`], and what it has done.
struct Work {
    limit: usize,
    done: Advanced,
}

impl Work {
    /// Takes one from the limit; false, and `more` noted, when there is none left.
    #[inline]
    fn proceed(&mut self) -> bool {
        self.done.more = self.limit == 0;
        self.limit = self.limit.saturating_sub(1);
        !self.done.more
    }
}

impl<T> TimingWheel<T> {
    /// A wheel at tick 0. `ticks_per_wheel` is rounded up to a power of two, and at least 2; levels that no 64-bit
    /// deadline could reach are left out.
    ///
    /// # Errors
    ///
    /// When there is not enough memory for so many buckets.
    pub(crate) fn try_new(ticks_per_wheel: usize, levels: usize) -> Result<TimingWheel<T>, TryReserveError> {
        let ticks_per_wheel = ticks_per_wheel.max(2).next_power_of_two();
        let bits_per_level = ticks_per_wheel.trailing_zeros();
        let reachable = u64::BITS.div_ceil(bits_per_level) as usize;
        Ok(TimingWheel {
            now: Tick::ZERO,
            entries: Slab::new(),
            len: 0,
            incoming: Bucket::EMPTY,
            marked: NIL,
            overdue: Bucket::EMPTY,
            levels: (0..levels.clamp(1, reachable))
                .map(|_| Level::try_new(ticks_per_wheel))
                .collect::<Result<_, _>>()?,
            bits_per_level,
            unfinished: None,
        })
    }

    /// Bytes of the buckets of such a wheel.
    pub(crate) fn bucket_bytes(ticks_per_wheel: usize, levels: usize) -> usize {
        let ticks_per_wheel = ticks_per_wheel.max(2).next_power_of_two();
        let reachable = u64::BITS.div_ceil(ticks_per_wheel.trailing_zeros()) as usize;
        levels.clamp(1, reachable) * ticks_per_wheel * mem::size_of::<Bucket>()
    }

    /// The same where the memory is known to be there.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn new(ticks_per_wheel: usize, levels: usize) -> TimingWheel<T> {
        TimingWheel::try_new(ticks_per_wheel, levels).expect("memory for a few buckets")
    }

    /// The tick up to which everything has expired.
    #[inline]
    pub(crate) fn now(&self) -> Tick {
        self.now
    }

    /// How many entries have neither expired nor been removed.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether not even an expired entry is left.
    #[inline]
    pub(crate) fn is_vacant(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes room for `additional` more entries, if the memory can be had.
    pub(crate) fn try_reserve(&mut self, additional: usize) -> Result<(), TryReserveError> {
        // A slab can only abort where this can fail.
        Vec::<Entry<T>>::new().try_reserve_exact(additional)?;
        self.entries.reserve(additional);
        Ok(())
    }

    /// Bytes held by the arena, used or not.
    pub(crate) fn arena_bytes(&self) -> usize {
        // A cell is slab's own enum around an entry, for whose tag the entry has a niche.
        self.entries.capacity() * mem::size_of::<Entry<T>>()
    }

    /// Starts a timer. A deadline that is not after now is due at the next advance.
    #[inline]
    pub(crate) fn insert(&mut self, deadline: Tick, value: T) -> Key {
        let key = self.occupy(deadline, value);
        self.link(key.index(), self.now);
        key
    }

    /// Starts a timer whose deadline is not known yet: it waits, with its delay in nanoseconds, to be transferred.
    #[inline]
    pub(crate) fn insert_incoming(&mut self, delay: Nanos, value: T) -> Key {
        let key = self.occupy(Tick(delay.0), value);
        self.incoming
            .push_back(&mut self.entries, key.index(), Place::INCOMING);
        key
    }

    /// Gives a timer another delay, if it is incoming; false if it is not.
    #[inline]
    pub(crate) fn set_incoming_delay(&mut self, key: &Key, delay: Nanos) -> bool {
        let entry = &mut self.entries[key.index() as usize];
        let incoming = entry.place == Place::INCOMING;
        if incoming {
            entry.deadline = Tick(delay.0);
        }
        incoming
    }

    /// Whether a timer has no deadline yet.
    #[inline]
    pub(crate) fn is_incoming(&self, key: &Key) -> bool {
        self.entries[key.index() as usize].place == Place::INCOMING
    }

    /// Whether there are timers that have no deadline yet.
    #[inline]
    pub(crate) fn has_incoming(&self) -> bool {
        !self.incoming.is_empty()
    }

    #[inline]
    fn occupy(&mut self, deadline: Tick, value: T) -> Key {
        // First of all, for it panics where the wheel can hold no more.
        let key = Key::new(self.entries.vacant_key());
        self.len += 1;
        // Filled in place: a whole entry passed to the slab by value would be read back before its parts are written.
        let index = self.entries.insert(Entry::BLANK);
        let entry = &mut self.entries[index];
        entry.deadline = deadline;
        entry.value = Some(value);
        key
    }

    /// Marks what is incoming now: [`TimingWheel::transfer_incoming`] goes no further than that.
    pub(crate) fn mark_incoming(&mut self) {
        self.marked = self.incoming.tail;
    }

    /// Gives up to `limit` of the incoming timers that were marked the deadline that `deadline_of` makes of their delay, oldest
    /// first; true when none is left.
    pub(crate) fn transfer_incoming(&mut self, limit: usize, deadline_of: impl Fn(Nanos) -> Tick) -> bool {
        for _ in 0..limit {
            if self.marked == NIL {
                break;
            }
            let index = self.incoming.head;
            self.unlink(index);
            let entry = &mut self.entries[index as usize];
            entry.deadline = deadline_of(Nanos(entry.deadline.0));
            self.link(index, self.now);
        }
        self.marked == NIL
    }

    /// The value of a pending timer; `None` once it has expired.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: &Key) -> Option<&mut T> {
        self.entries[key.index() as usize].value.as_mut()
    }

    /// Whether a timer was given up before its deadline came.
    pub(crate) fn is_cancelled(&self, key: &Key) -> bool {
        self.entries[key.index() as usize].place == Place::CANCELLED
    }

    /// The deadline of a timer, pending, expired or cancelled; [`Tick::MAX`] for one cancelled as incoming, which had none.
    #[inline]
    pub(crate) fn deadline(&self, key: &Key) -> Tick {
        self.entries[key.index() as usize].deadline
    }

    /// Moves a timer, pending or expired, to another deadline, and gives back the value it had.
    pub(crate) fn reinsert(&mut self, key: &Key, deadline: Tick, value: T) -> Option<T> {
        let index = key.index();
        let old = self.entries[index as usize].value.replace(value);
        match old {
            Some(_) => self.unlink(index),
            None => self.len += 1,
        }
        self.entries[index as usize].deadline = deadline;
        self.link(index, self.now);
        old
    }

    /// Moves a timer that has a deadline to an earlier one; false when it has expired or its deadline is no later.
    ///
    /// It stays where it is, if its bucket is the right one: to unlink it would touch four other entries, wherever they are.
    pub(crate) fn bring_forward(&mut self, key: &Key, deadline: Tick) -> bool {
        let index = key.index();
        let entry = &self.entries[index as usize];
        if entry.value.is_none() || entry.deadline <= deadline {
            return false;
        }
        let place = entry.place;
        let is_swept = self.unfinished.is_some_and(|sweep| sweep.place == place);
        if deadline > self.now && place == self.bucket_of(deadline, self.now).2 && !is_swept {
            self.entries[index as usize].deadline = deadline;
            return true;
        }
        self.unlink(index);
        self.entries[index as usize].deadline = deadline;
        self.link(index, self.now);
        true
    }

    /// Ends a timer and frees its cell; `None` when it had expired.
    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let index = key.index();
        if self.entries[index as usize].value.is_some() {
            self.unlink(index);
            self.len -= 1;
        }
        self.entries.remove(index as usize).value
    }

    /// Moves on to tick `now` and appends the values of the timers due by then to `expired`, in order of deadline and,
    /// within a tick, of insertion. Looks at no more than `limit` timers: while `more` is set, the wheel has not arrived.
    /// It never goes back: a `now` in its past expires only what is overdue.
    pub(crate) fn advance(&mut self, now: Tick, limit: usize, expired: &mut Vec<T>) -> Advanced {
        let mut work = Work {
            limit,
            done: Advanced::default(),
        };
        self.skip_rounds(now);
        loop {
            while !self.overdue.is_empty() {
                if !work.proceed() {
                    return work.done;
                }
                self.expire(self.overdue.head, expired);
                work.done.expired += 1;
            }
            match self.unfinished.or_else(|| self.next_sweep()) {
                Some(sweep) if sweep.tick <= now => {
                    if !self.sweep(sweep, &mut work, expired) {
                        return work.done;
                    }
                }
                _ => break,
            }
        }
        self.now = self.now.max(now);
        work.done
    }

    /// The next tick at which advancing has something to do: at the latest the earliest deadline, earlier if timers
    /// cascade or wait for a later round before. Incoming timers do not count.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        if !self.overdue.is_empty() {
            return Some(self.now);
        }
        self.unfinished
            .or_else(|| self.next_sweep())
            .map(|sweep| sweep.tick)
    }

    /// Every value still pending, in no particular order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.entries
            .iter_mut()
            .filter_map(|(_, entry)| entry.value.as_mut())
    }

    /// Takes every pending value at once, in no particular order; the entries stay, with a deadline that never came. It walks
    /// the lists, not the arena, which may have been reserved for millions.
    pub(crate) fn cancel_all(&mut self, cancelled: &mut Vec<T>) {
        cancelled.reserve(self.len);
        while let Some(index) = self.any_pending() {
            if self.entries[index as usize].place == Place::INCOMING {
                self.entries[index as usize].deadline = Tick::MAX;
            }
            self.expire(index, cancelled);
            self.entries[index as usize].place = Place::CANCELLED;
        }
    }

    fn any_pending(&self) -> Option<u32> {
        let used = |level: &Level| level.used.next(0).map(|digit| level.buckets[digit].head);
        let listed = [self.incoming.head, self.overdue.head];
        let mut heads = listed.into_iter().filter(|head| *head != NIL);
        heads.next().or_else(|| self.levels.iter().find_map(used))
    }

    /// An arena grown past `retain` cells that no longer holds one, for the caller to drop where it likes.
    #[inline]
    pub(crate) fn release_arena(&mut self, retain: usize) -> Option<Arena<T>> {
        let release = self.entries.is_empty() && self.entries.capacity() > retain;
        release.then(|| Arena(mem::replace(&mut self.entries, Slab::with_capacity(retain))))
    }

    /// Sweeps the bucket of `sweep`: what is due expires, what is near cascades, what belongs to a later round stays.
    /// False when the limit came first.
    fn sweep(&mut self, mut sweep: Sweep, work: &mut Work, expired: &mut Vec<T>) -> bool {
        // Ticks before this one are empty. The tick itself is reached only when its bucket has been swept to the end, so
        // that a timer for it which is started meanwhile hangs behind its elders.
        self.now = Tick(sweep.tick.0 - 1);
        while sweep.cursor != NIL {
            if !work.proceed() {
                self.unfinished = Some(sweep);
                return false;
            }
            let index = sweep.cursor;
            let Entry { deadline, next, .. } = self.entries[index as usize];
            sweep.cursor = next;
            if deadline <= sweep.tick {
                self.expire(index, expired);
                work.done.expired += 1;
            } else if self.level_of(deadline, sweep.tick) < sweep.level {
                self.unlink(index);
                self.link(index, sweep.tick);
                work.done.cascaded += 1;
            }
        }
        self.unfinished = None;
        self.now = sweep.tick;
        true
    }

    /// Goes on to the first deadline when only the top level is in use and `now` is rounds away: the rounds before would look at
    /// every timer of it, and find none due.
    fn skip_rounds(&mut self, now: Tick) {
        let top = self.levels.len() - 1;
        let shift = top as u32 * self.bits_per_level;
        let rounds = (now.0.saturating_sub(self.now.0) >> shift) >> self.bits_per_level;
        let next = match self.unfinished {
            None => self.next_sweep(),
            Some(_) => None,
        };
        if rounds < 2 || !self.overdue.is_empty() || next.is_none_or(|sweep| sweep.level != top) {
            return;
        }
        let mut first = now;
        let ring = &self.levels[top];
        let mut used = ring.used.next(0);
        while let Some(digit) = used {
            let mut index = ring.buckets[digit].head;
            while index != NIL {
                let entry = &self.entries[index as usize];
                first = first.min(entry.deadline);
                index = entry.next;
            }
            used = (digit + 1 < ring.buckets.len())
                .then(|| ring.used.next(digit + 1))
                .flatten();
        }
        // The last tick before the bucket of the first deadline, so that all still hang where invariant 3 has them.
        let before = (first.0 >> shift << shift).saturating_sub(1);
        self.now = self.now.max(Tick(before));
    }

    /// The next used bucket, by invariant 4 in the finest level in use.
    fn next_sweep(&self) -> Option<Sweep> {
        let ticks_per_wheel = 1 << self.bits_per_level;
        let top = self.levels.len() - 1;
        for (level, ring) in self.levels.iter().enumerate() {
            if ring.used.is_empty() {
                continue;
            }
            let shift = level as u32 * self.bits_per_level;
            let span = self.now.0 >> shift;
            let hand = span as usize & (ticks_per_wheel - 1);
            let ahead = if hand + 1 < ticks_per_wheel {
                ring.used.next(hand + 1)
            } else {
                None
            };
            let distance = match ahead {
                Some(digit) => digit - hand,
                None if level == top => match ring.used.next(0) {
                    Some(digit) => digit + ticks_per_wheel - hand,
                    None => continue,
                },
                None => continue,
            };
            let digit = (hand + distance) & (ticks_per_wheel - 1);
            return Some(Sweep {
                tick: Tick((span + distance as u64) << shift),
                level,
                place: self.place(level, digit),
                cursor: ring.buckets[digit].head,
            });
        }
        None
    }

    /// The level on which `deadline` hangs when it is `now`.
    #[inline]
    fn level_of(&self, deadline: Tick, now: Tick) -> usize {
        let highest_bit = ((deadline.0 ^ now.0) | 1).ilog2();
        ((highest_bit / self.bits_per_level) as usize).min(self.levels.len() - 1)
    }

    #[inline]
    fn place(&self, level: usize, digit: usize) -> Place {
        Place::bucket(((level << self.bits_per_level) | digit) as u32)
    }

    /// The bucket of a deadline after `now`, when it is that: its level, its digit there, and both in one.
    #[inline]
    fn bucket_of(&self, deadline: Tick, now: Tick) -> (usize, usize, Place) {
        let level = self.level_of(deadline, now);
        let digit =
            (deadline.0 >> (level as u32 * self.bits_per_level)) as usize & ((1 << self.bits_per_level) - 1);
        (level, digit, self.place(level, digit))
    }

    /// Puts an entry that hangs nowhere at the end of the list where its deadline belongs when it is `now`.
    #[inline]
    fn link(&mut self, index: u32, now: Tick) {
        let deadline = self.entries[index as usize].deadline;
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

    /// Takes an entry out of the list it hangs in.
    #[inline]
    fn unlink(&mut self, index: u32) {
        let Entry {
            prev, next, place, ..
        } = self.entries[index as usize];
        match place {
            Place::EXPIRED | Place::CANCELLED => {}
            Place::INCOMING => {
                self.incoming.unlink(&mut self.entries, prev, next);
                if self.marked == index {
                    // Those before it are still to be transferred; before the first there is none.
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

    /// Takes an entry out of its list and hands out its value; the cell stays for the key.
    fn expire(&mut self, index: u32, expired: &mut Vec<T>) {
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        entry.place = Place::EXPIRED;
        expired.extend(entry.value.take());
        self.len -= 1;
    }
}

/// The emptied memory of a wheel, to be dropped outside whatever lock the wheel is behind.
pub(crate) struct Arena<T>(#[allow(dead_code)] Slab<Entry<T>>);
