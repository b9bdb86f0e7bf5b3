//! Checks the invariants of the essay in mod.rs, each by its number.

use std::iter;

use super::{
    Tick, TimingWheel,
    level::{Bucket, NIL, Place},
};

impl<T> TimingWheel<T> {
    /// Panics if an invariant of the module's essay does not hold, and names that invariant.
    pub(super) fn assert_consistent(&self) {
        let now = self.now;
        let mut listed = vec![0_u32; self.entries.capacity()];
        let mut list = |bucket, place| {
            let entries = self.assert_linked(bucket, place);
            entries.iter().for_each(|index| listed[*index as usize] += 1);
            entries
        };

        // The tick at which each entry wants a visit.
        let mut visits = Vec::new();
        for (level, ring) in self.levels.iter().enumerate() {
            let lead = if level == self.later() {
                ring.len as u64 / 2
            } else {
                0
            };
            let emptied = ring.number(now).saturating_add(lead);
            let bits = iter::successors(ring.used.next(0), |at| ring.used.next(at + 1));
            let (mut used, told) = (Vec::new(), Vec::from_iter(bits));
            for (at, bucket) in ring.buckets.iter().enumerate() {
                let entries = list(*bucket, Place::new(level, at));
                used.extend((!entries.is_empty()).then_some(at));
                for index in entries {
                    let due = self.entries[index].due;
                    // The finest level's bucket of now has what was due when it was inserted.
                    if due <= now {
                        assert_eq!((level, at), (0, ring.index(now.0)), "4: {due:?} at {now:?}");
                        visits.push(now);
                        continue;
                    }
                    let number = ring.number(due);
                    assert_eq!(at, ring.index(number), "3: bucket of {due:?} on level {level}");
                    assert!(
                        due <= self.last_tick_of(level),
                        "3: {due:?} is beyond level {level} at {now:?}"
                    );
                    assert!(
                        number > emptied,
                        "4: {due:?} is on level {level} at {now:?}, when its bucket has to be empty"
                    );
                    let rounds = (number - emptied - 1) / ring.len as u64;
                    let next = number - rounds * ring.len as u64;
                    assert!(
                        rounds == 0 || level == self.later(),
                        "3: {due:?} is more than a round away on level {level} at {now:?}"
                    );
                    let half = if level == self.later() {
                        0
                    } else {
                        (1 << ring.shift) / 2
                    };
                    let visit = ((next - lead) << ring.shift) - half;
                    visits.push(Tick(visit).max(Tick(now.0 + 1)));
                }
            }
            assert_eq!(told, used, "2: bits and buckets in use of level {level}");
        }
        for (index, _) in self.entries.iter() {
            assert_eq!(listed[index as usize], 1, "5: lists in which entry {index} is");
        }
        let dues = self.entries.iter().map(|(_, entry)| entry.due.max(now));
        let next = if self.dues.is_counting() {
            dues.min()
        } else {
            visits.into_iter().min()
        };
        assert_eq!(
            self.next_visit(),
            next,
            "7: the next visit is to the earliest of all buckets"
        );
    }

    /// Returns the end of the bucket after the hand's on the level above, or of the half of the coarsest ring
    /// after that of the hand.
    fn last_tick_of(&self, level: usize) -> Tick {
        if level == self.later() {
            return Tick::MAX;
        }
        let span = (self.levels[level].len as u128 / 2) << self.levels[level].shift;
        let end = (u128::from(self.now.0) / span + 2) * span - 1;
        Tick(u64::try_from(end).unwrap_or(u64::MAX))
    }

    /// Returns the entries of a list, after checking that it is linked both ways and that each entry names
    /// it.
    fn assert_linked(&self, bucket: Bucket, place: Place) -> Vec<u32> {
        let mut entries = Vec::new();
        let (mut prev, mut index) = (NIL, bucket.head);
        while index != NIL {
            let entry = self.entries.get(index);
            let entry = entry.unwrap_or_else(|| panic!("1: {place:?} links to the empty cell {index}"));
            assert_eq!(
                (entry.prev, entry.place),
                (prev, place),
                "1: prev and place of entry {index}"
            );
            entries.push(index);
            assert!(
                entries.len() <= self.entries.len(),
                "1: {place:?} is linked in a circle"
            );
            (prev, index) = (index, entry.next);
        }
        assert_eq!(bucket.tail, prev, "1: the tail of {place:?}");
        entries
    }

    /// Returns the due ticks and values of all timers, the coarsest level first, and each list from its
    /// head. Timers due at the same tick come in the order of their insertion.
    pub(super) fn coarsest_first(&self) -> Vec<(Tick, &T)> {
        let buckets = self.levels.iter().rev().flat_map(|level| &level.buckets);
        let mut found = Vec::new();
        for bucket in buckets {
            let mut index = bucket.head;
            while let Some(entry) = self.entries.get(index) {
                found.push((entry.due, &entry.value));
                index = entry.next;
            }
        }
        found
    }
}
