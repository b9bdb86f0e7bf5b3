//! The verbs of an owner that knows its entries by their cells, and takes what is due one by one.
//!
//! A [`Key`](super::Key) is a claim: its cell stays until the key comes back. Here a cell is free again as soon as its entry is taken. The
//! owner tells by the value in a cell whether that is still its own.
//!
//! The wheel is made by [`TimingWheel::without_rounds`]. Its owner does not call [`advance`](TimingWheel::advance), so no sweep is ever
//! unfinished.

use super::{Bucket, NIL, Place, Sweep, Tick, TimingWheel};

/// A bucket with no more timers than this is sorted and not cascaded, once all of them are due.
const SHORT: usize = 32;

/// What is known of the earliest deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First {
    pub(crate) at_least: Tick,
    /// The deadline of some entry. If it equals `at_least`, it is the earliest.
    pub(crate) at_most: Tick,
}

impl<T> TimingWheel<T> {
    /// Creates a wheel with levels for all 64 bits of a deadline. No timer waits for a later round.
    pub(crate) fn without_rounds(ticks_per_wheel: usize) -> TimingWheel<T> {
        TimingWheel::try_new(ticks_per_wheel, usize::MAX).expect("memory for a few buckets")
    }

    /// How many entries fit without an allocation.
    pub(crate) fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Makes room for `additional` more entries.
    ///
    /// # Panics
    ///
    /// Panics if so much memory cannot be addressed.
    #[track_caller]
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.entries.reserve(additional);
    }

    /// Frees the memory after the last cell in use.
    pub(crate) fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Starts a timer, as [`insert`](TimingWheel::insert) does. Returns its cell.
    #[inline]
    pub(crate) fn insert_cell(&mut self, deadline: Tick, value: T) -> u32 {
        self.insert(deadline, value).index()
    }

    /// What is in a cell.
    #[inline]
    pub(crate) fn cell(&self, cell: u32) -> Option<(Tick, &T)> {
        let entry = self.entries.get(cell as usize)?;
        Some((entry.deadline(), entry.value.as_ref()?))
    }

    /// Moves a timer to another deadline, after all timers that have that deadline already.
    #[inline]
    pub(crate) fn move_cell(&mut self, cell: u32, deadline: Tick) {
        self.unlink(cell);
        self.entries[cell as usize].set_deadline(deadline);
        self.link(cell, self.now);
    }

    /// Ends a timer and frees its cell.
    #[inline]
    pub(crate) fn take_cell(&mut self, cell: u32) -> Option<(Tick, T)> {
        self.unlink(cell);
        self.len -= 1;
        let entry = self.entries.remove(cell as usize);
        Some((entry.deadline(), entry.value?))
    }

    /// Takes the first of the timers that are due by `now`, in order of deadline and then of insertion. When none is left, the wheel has
    /// moved on to `now`.
    ///
    /// A timer that was overdue when it was inserted comes in order of insertion, until [`sort_overdue`](Self::sort_overdue).
    pub(crate) fn take_due(&mut self, now: Tick) -> Option<(Tick, T)> {
        while self.overdue.is_empty() {
            match self.next_sweep() {
                Some(sweep) if sweep.tick <= now => {
                    let end = self.end_of(sweep);
                    if end <= now && self.is_short(sweep) {
                        self.make_overdue(sweep, end);
                    } else {
                        self.cascade(sweep);
                    }
                }
                _ => {
                    self.now = self.now.max(now);
                    return None;
                }
            }
        }
        self.take_cell(self.overdue.head)
    }

    /// Moves on to the tick of a sweep. What is due then becomes overdue, and the rest of the bucket cascades.
    fn cascade(&mut self, sweep: Sweep) {
        self.now = sweep.tick;
        self.empty(sweep);
        let mut cursor = sweep.cursor;
        while cursor != NIL {
            let next = self.entries[cursor as usize].next;
            self.link(cursor, sweep.tick);
            cursor = next;
        }
    }

    /// Moves on to the end of a bucket. All that is in it becomes overdue.
    fn make_overdue(&mut self, sweep: Sweep, end: Tick) {
        self.now = end;
        self.empty(sweep);
        let mut cursor = sweep.cursor;
        let mut last = Tick::ZERO;
        let mut sorted = true;
        while cursor != NIL {
            let entry = &self.entries[cursor as usize];
            sorted &= last <= entry.deadline();
            last = entry.deadline();
            let next = entry.next;
            self.overdue.push_back(&mut self.entries, cursor, Place::OVERDUE);
            cursor = next;
        }
        if !sorted {
            self.sort_overdue();
        }
    }

    /// Takes the whole list out of a bucket.
    #[inline]
    fn empty(&mut self, sweep: Sweep) {
        let digit = self.digit(sweep);
        let ring = &mut self.levels[sweep.level];
        ring.buckets[digit] = Bucket::EMPTY;
        ring.used.remove(digit);
    }

    /// Whether a bucket has no more than [`SHORT`] timers.
    fn is_short(&self, sweep: Sweep) -> bool {
        let mut cursor = sweep.cursor;
        for _ in 0..SHORT {
            let Some(entry) = self.entries.get(cursor as usize) else {
                return true;
            };
            cursor = entry.next;
        }
        cursor == NIL
    }

    /// The last tick of a bucket.
    #[inline]
    fn end_of(&self, sweep: Sweep) -> Tick {
        let span = 1 << (sweep.level as u32 * self.bits_per_level);
        Tick(sweep.tick.0 | (span - 1))
    }

    /// The deadline of the last timer in `overdue`.
    #[inline]
    pub(crate) fn last_overdue(&self) -> Option<Tick> {
        let entry = self.entries.get(self.overdue.tail as usize)?;
        Some(entry.deadline())
    }

    /// Sorts `overdue` by deadline, and then by insertion.
    pub(crate) fn sort_overdue(&mut self) {
        let mut overdue: Vec<(Tick, u32)> = self.list(self.overdue).collect();
        overdue.sort_by_key(|&(deadline, _)| deadline);
        self.overdue = Bucket::EMPTY;
        for (_, index) in overdue {
            self.overdue.push_back(&mut self.entries, index, Place::OVERDUE);
        }
    }

    /// The cell of the timer that [`take_due`](Self::take_due) would take next, if `overdue` were sorted. This walks one bucket.
    pub(crate) fn first_cell(&self) -> Option<u32> {
        let list = match self.overdue.is_empty() {
            true => {
                let sweep = self.next_sweep()?;
                self.levels[sweep.level].buckets[self.digit(sweep)]
            }
            false => self.overdue,
        };
        self.list(list)
            .min_by_key(|&(deadline, _)| deadline)
            .map(|(_, index)| index)
    }

    /// What is known of the earliest deadline, after a look at no more than `looks` entries.
    pub(crate) fn first(&self, looks: usize) -> Option<First> {
        let exactly = |tick| First {
            at_least: tick,
            at_most: tick,
        };
        if !self.overdue.is_empty() {
            return Some(exactly(self.now));
        }
        let sweep = self.next_sweep()?;
        if sweep.level == 0 {
            return Some(exactly(sweep.tick));
        }
        let mut list = self.list(self.levels[sweep.level].buckets[self.digit(sweep)]);
        let (earliest, _) = list.by_ref().take(looks.max(1)).min()?;
        Some(match list.next() {
            None => exactly(earliest),
            Some(_) => First {
                at_least: sweep.tick,
                at_most: earliest,
            },
        })
    }

    /// A tick by which the first timer is due. This looks at no entry.
    pub(crate) fn first_by(&self) -> Option<Tick> {
        if !self.overdue.is_empty() {
            return Some(self.now);
        }
        self.next_sweep().map(|sweep| self.end_of(sweep))
    }

    /// Ends all timers. The memory stays.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.incoming = Bucket::EMPTY;
        self.marked = NIL;
        self.overdue = Bucket::EMPTY;
        self.unfinished = None;
        for level in &mut self.levels {
            while let Some(digit) = level.used.next(0) {
                level.used.remove(digit);
                level.buckets[digit] = Bucket::EMPTY;
            }
        }
        // If a value panics when it is dropped, the memory is lost, and nothing else.
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        self.entries = entries;
    }

    /// Moves entries into free cells before them, and frees the memory that they no longer need. Calls `moved` with each value that
    /// has another cell now.
    pub(crate) fn compact(&mut self, mut moved: impl FnMut(&T, u32)) {
        let end = self.entries.iter().next_back().map_or(0, |(index, _)| index + 1);
        let len = self.entries.len();
        let mut cells = vec![NIL; end - len];
        self.entries.compact(|entry, from, to| {
            // Both fit: the links of entries are `u32` too.
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
        follow(&mut self.marked);
        for bucket in buckets.chain([&mut self.incoming, &mut self.overdue]) {
            follow(&mut bucket.head);
            follow(&mut bucket.tail);
        }
    }

    /// The bucket of a sweep, within its level.
    fn digit(&self, sweep: Sweep) -> usize {
        sweep.place.ordinal() as usize & ((1 << self.bits_per_level) - 1)
    }

    /// The deadlines and cells of a list, oldest first.
    fn list(&self, list: Bucket) -> impl Iterator<Item = (Tick, u32)> {
        let mut cursor = list.head;
        std::iter::from_fn(move || {
            let entry = self.entries.get(cursor as usize)?;
            let index = std::mem::replace(&mut cursor, entry.next);
            Some((entry.deadline(), index))
        })
    }
}
