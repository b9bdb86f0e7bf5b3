//! An agenda: values in order of deadline, each identified by its cell, which is reused once the value is taken.
//!
//! It provides what [`DelayQueue`](crate::DelayQueue) needs and [`TimingWheel`](crate::engine::timing_wheel::TimingWheel) does not offer: ticks of a
//! nanosecond, taking due values one by one, and asking for the next deadline. It is built from the same rings and lists. A ring covers one
//! bucket of the next coarser level, so every value on a level is due before any on a coarser one, and the next bucket is always on the finest
//! level in use.
//!
//! The current tick lags behind the clock while due values wait in their buckets, so a value that is inserted late still finds a bucket. Only
//! a deadline before the current tick has none. Such values are in a tree of lists, one for each deadline, so no order of insertion costs more
//! than O(log n).

use std::collections::{BTreeMap, TryReserveError, btree_map};

use slab::Slab;

use crate::engine::timing_wheel::{Bucket, Entry, Level, NIL, Place};

pub(crate) use crate::engine::timing_wheel::{Nanos, Tick};

/// A ring has 256 buckets, so each level corresponds to one byte of a tick.
const BITS: u32 = 8;

/// A bucket with no more values than this is searched for its first value. A longer one is cascaded once its time has come.
const SHORT: usize = 16;

/// Bounds of the earliest deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) at_least: Tick,
    /// The deadline of some value. If it equals `at_least`, it is the earliest.
    pub(crate) at_most: Tick,
}

/// Values of type `T` in order of deadline, and then of insertion.
pub(crate) struct Agenda<T> {
    /// The current tick. Values that are due by then are in `overdue`, the others in the levels.
    now: Tick,
    entries: Slab<Entry<T>>,
    /// Lists of the values with one deadline. None is empty.
    overdue: BTreeMap<Tick, Bucket>,
    /// The levels, the finest first. They cover all 64 bits of a deadline.
    levels: Box<[Level]>,
}

/// The bucket whose values are due next.
#[derive(Clone, Copy)]
struct Next {
    level: usize,
    begin: Tick,
    list: Bucket,
}

impl<T> Agenda<T> {
    /// Creates an empty agenda at tick `now`.
    pub(crate) fn new(now: Tick) -> Agenda<T> {
        let level = |level| Level::new(level, 1 << BITS, level as u32 * BITS);
        let mut agenda = Agenda {
            now,
            entries: Slab::new(),
            overdue: BTreeMap::new(),
            levels: (0..(u64::BITS / BITS) as usize).map(level).collect(),
        };
        agenda.move_to(now);
        agenda
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of values that fit without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Reserves memory for `additional` more values.
    ///
    /// # Errors
    ///
    /// Returns an error if there is not enough memory for them.
    pub(crate) fn try_reserve(&mut self, additional: usize) -> Result<(), TryReserveError> {
        if additional > self.capacity() - self.len() {
            // This reports a lack of memory, for which the slab itself would abort. The slab doubles its capacity if that is more
            // than needed.
            let doubled = self.capacity().saturating_mul(2);
            let needed = self.len().saturating_add(additional);
            Vec::<Entry<T>>::new().try_reserve_exact(needed.max(doubled))?;
        }
        self.entries.reserve(additional);
        Ok(())
    }

    /// Frees the memory after the last cell in use.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Inserts a value after all values with the same deadline. Returns its cell.
    ///
    /// # Panics
    ///
    /// Panics if there are more than four billion values.
    #[inline]
    #[track_caller]
    pub(crate) fn insert(&mut self, deadline: Tick, value: T) -> u32 {
        let cell = u32::try_from(self.entries.vacant_key()).ok();
        let cell = cell.filter(|cell| *cell != NIL);
        let cell = cell.expect("a delay queue holds at most u32::MAX values");
        let index = self.entries.insert(Entry::BLANK);
        self.entries[index].value = Some(value);
        self.link(cell, deadline);
        cell
    }

    /// Returns the deadline and the value in a cell.
    #[inline]
    pub(crate) fn get(&self, cell: u32) -> Option<(Tick, &T)> {
        let entry = self.entries.get(cell as usize)?;
        Some((entry.deadline(), entry.value.as_ref()?))
    }

    /// Sets another deadline for a value, which then comes after all other values with that deadline.
    #[inline]
    pub(crate) fn reset(&mut self, cell: u32, deadline: Tick) {
        self.unlink(cell);
        self.link(cell, deadline);
    }

    /// Removes a value and frees its cell.
    #[inline]
    pub(crate) fn remove(&mut self, cell: u32) -> Option<(Tick, T)> {
        self.unlink(cell);
        let entry = self.entries.remove(cell as usize);
        Some((entry.deadline(), entry.value?))
    }

    /// Removes and returns the first of the values that are due by `now`.
    #[inline]
    pub(crate) fn take_due(&mut self, now: Tick) -> Option<(Tick, T)> {
        loop {
            if let Some((_, list)) = self.overdue.first_key_value() {
                return self.remove(list.head);
            }
            let Some(next) = self.next().filter(|next| next.begin <= now) else {
                self.move_to(self.now.max(now));
                return None;
            };
            match self.earliest(next) {
                Some((deadline, _)) if deadline > now => return None,
                Some((_, cell)) => return self.remove(cell),
                None => self.cascade(next),
            }
        }
    }

    /// Returns the cell of the first value, due or not. This walks one bucket.
    pub(crate) fn first_cell(&self) -> Option<u32> {
        if let Some((_, list)) = self.overdue.first_key_value() {
            return Some(list.head);
        }
        let first = self.list(self.next()?.list).min_by_key(|&(deadline, _)| deadline);
        first.map(|(_, cell)| cell)
    }

    /// Returns bounds of the earliest deadline. They are equal unless its bucket is long.
    pub(crate) fn first(&self) -> Option<First> {
        let exactly = |tick| First {
            at_least: tick,
            at_most: tick,
        };
        if let Some((deadline, _)) = self.overdue.first_key_value() {
            return Some(exactly(*deadline));
        }
        let next = self.next()?;
        match self.earliest(next) {
            Some((deadline, _)) => Some(exactly(deadline)),
            None => Some(First {
                at_least: next.begin,
                at_most: self.list(next.list).take(SHORT).min()?.0,
            }),
        }
    }

    /// Returns the deadline and the cell of a bucket's first value, unless the bucket is too long to be searched.
    #[inline]
    fn earliest(&self, next: Next) -> Option<(Tick, u32)> {
        if next.level == 0 {
            return Some((next.begin, next.list.head));
        }
        let mut list = self.list(next.list);
        let first = list.by_ref().take(SHORT).min_by_key(|&(deadline, _)| deadline);
        first.filter(|_| list.next().is_none())
    }

    /// Drops all values, but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.overdue.clear();
        for level in &mut self.levels {
            while let Some(number) = level.next_used(0) {
                level.clear(Tick(number << level.shift));
            }
        }
        // If a value panics when it is dropped, the memory is lost, and nothing else.
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        self.entries = entries;
    }

    /// Moves values into free cells before them, and frees the memory that they no longer need. Calls `moved` with each value
    /// that has changed its cell.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(&T, u32)) {
        let end = self.entries.iter().next_back().map_or(0, |(cell, _)| cell + 1);
        let len = self.entries.len();
        let mut cells = vec![NIL; end - len];
        self.entries.compact(|entry, from, to| {
            // Both fit, because the links of entries are `u32` too.
            cells[from - len] = to as u32;
            if let Some(value) = &entry.value {
                moved(value, to as u32);
            }
            true
        });
        let follow = |link: &mut u32| {
            if *link != NIL && *link as usize >= len {
                *link = cells[*link as usize - len];
            }
        };
        for (_, entry) in &mut self.entries {
            follow(&mut entry.prev);
            follow(&mut entry.next);
        }
        let buckets = self.levels.iter_mut().flat_map(|level| &mut level.buckets);
        for bucket in buckets.chain(self.overdue.values_mut()) {
            follow(&mut bucket.head);
            follow(&mut bucket.tail);
        }
    }

    /// Appends a value that is in no list to the list of a deadline.
    #[inline]
    fn link(&mut self, cell: u32, deadline: Tick) {
        self.entries[cell as usize].set_deadline(deadline);
        if deadline <= self.now {
            let list = self.overdue.entry(deadline).or_insert(Bucket::EMPTY);
            return list.push_back(&mut self.entries, cell, Place::OVERDUE);
        }
        // There is always such a level, because the last level has no horizon.
        let level = self.levels.iter_mut().find(|level| deadline <= level.horizon);
        if let Some(level) = level {
            level.push_back(&mut self.entries, cell, deadline);
        }
    }

    #[inline]
    fn unlink(&mut self, cell: u32) {
        let entry = &self.entries[cell as usize];
        let (deadline, prev, next, place) = (entry.deadline(), entry.prev, entry.next, entry.place);
        if place == Place::OVERDUE {
            if let btree_map::Entry::Occupied(mut list) = self.overdue.entry(deadline) {
                list.get_mut().unlink(&mut self.entries, prev, next);
                if list.get().is_empty() {
                    list.remove();
                }
            }
            return;
        }
        let (level, at) = (place.ordinal() >> BITS, place.ordinal() & ((1 << BITS) - 1));
        self.levels[level as usize].unlink(&mut self.entries, at as usize, prev, next);
    }

    /// Advances to a tick. A level's horizon is the end of the next coarser level's bucket that contains this tick.
    fn move_to(&mut self, now: Tick) {
        self.now = now;
        if let Some((_, levels)) = self.levels.split_last_mut() {
            for level in levels {
                level.horizon = Tick(now.0 | ((1 << (level.shift + BITS)) - 1));
            }
        }
    }

    #[inline]
    fn next(&self) -> Option<Next> {
        let mut levels = self.levels.iter().enumerate();
        levels.find_map(|(level, ring)| {
            let number = ring.next_used(ring.number(self.now))?;
            Some(Next {
                level,
                begin: Tick(number << ring.shift),
                list: ring.bucket(number),
            })
        })
    }

    /// Advances to the beginning of a bucket and moves its values to finer levels.
    fn cascade(&mut self, next: Next) {
        self.move_to(next.begin);
        self.levels[next.level].clear(next.begin);
        let mut cell = next.list.head;
        while let Some(entry) = self.entries.get(cell as usize) {
            let (deadline, after) = (entry.deadline(), entry.next);
            self.link(cell, deadline);
            cell = after;
        }
    }

    /// Returns the deadlines and cells of a list, oldest first.
    fn list(&self, list: Bucket) -> impl Iterator<Item = (Tick, u32)> {
        let mut cursor = list.head;
        std::iter::from_fn(move || {
            let entry = self.entries.get(cursor as usize)?;
            let cell = std::mem::replace(&mut cursor, entry.next);
            Some((entry.deadline(), cell))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
