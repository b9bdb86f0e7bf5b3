//! Checks the invariants of the essay in mod.rs, each by its number.

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

        for index in list(self.overdue, Place::OVERDUE) {
            let due = self.entries[index as usize].due;
            assert!(due <= now, "4: {due:?} hangs in overdue at {now:?}");
        }
        let top = self.levels.len() - 1;
        let mut looked_at = false;
        // The tick at which each level has something to do: that of a bucket, or half a bucket before a
        // coarse one begins.
        let mut visits = Vec::new();
        for (level, ring) in self.levels.iter().enumerate() {
            let (mut used, mut told) = (Vec::new(), Vec::new());
            let hand = ring.number(now);
            let all_spread = level == top && level > 0 && self.walked == hand + 1 && self.cursor == NIL;
            for (at, bucket) in ring.buckets.iter().enumerate() {
                let entries = list(*bucket, Place((level * ring.len + at) as u32));
                used.extend((!entries.is_empty()).then_some(at));
                told.extend(ring.used.next(at).filter(|next| *next == at));
                let cursor = entries.iter().position(|index| *index == self.cursor);
                looked_at |= cursor.is_some();
                for (position, index) in entries.into_iter().enumerate() {
                    let due = self.entries[index as usize].due;
                    let number = ring.number(due);
                    assert_eq!(at, ring.index(number), "3: bucket of {due:?} on level {level}");
                    let is_due = top == 0 && due == now;
                    assert!(
                        due > now || is_due,
                        "4: {due:?} hangs on level {level} at {now:?}"
                    );
                    assert!(
                        level == top
                            || self.levels[level + 1].number(due) <= self.levels[level + 1].number(now) + 1,
                        "3: {due:?} is beyond level {level} at {now:?}"
                    );
                    assert!(
                        top == 0 || number > hand,
                        "5: {due:?} hangs on level {level} at {now:?}, where its bucket has begun"
                    );
                    if is_due {
                        assert!(
                            cursor.is_some_and(|cursor| cursor <= position),
                            "6: {due:?} is due and has been passed by"
                        );
                        visits.push(now);
                        continue;
                    }
                    let laps = (number - hand - 1) >> self.ring_bits << self.ring_bits;
                    let mut next = number - laps;
                    if level > 0 && number == hand + 1 && self.walked == number && level == top {
                        assert!(
                            cursor.is_some_and(|cursor| position <= cursor),
                            "6: {due:?} was to be spread and has been passed by"
                        );
                    }
                    if all_spread && next == hand + 1 {
                        next += 1 << self.ring_bits;
                    }
                    visits.push(match level {
                        0 => Tick(next),
                        _ => Tick((next << ring.shift) - (1 << ring.shift) / 2).max(Tick(now.0 + 1)),
                    });
                }
            }
            assert_eq!(told, used, "2: bits and buckets in use of level {level}");
        }
        assert!(
            self.cursor == NIL || looked_at,
            "6: the cursor is at an entry of no bucket"
        );
        for (index, _) in &self.entries {
            assert_eq!(listed[index], 1, "7: lists in which entry {index} hangs");
        }
        if !self.overdue.is_empty() || (top == 0 && self.cursor != NIL) {
            visits.push(now);
        }
        assert_eq!(
            self.next_visit(),
            visits.into_iter().min(),
            "9: the next visit is to the earliest of all buckets"
        );
    }

    /// Returns the entries of a list, after checking that it is linked both ways and that each entry names
    /// it.
    fn assert_linked(&self, bucket: Bucket, place: Place) -> Vec<u32> {
        let mut entries = Vec::new();
        let (mut prev, mut index) = (NIL, bucket.head);
        while index != NIL {
            let entry = self.entries.get(index as usize);
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
        for bucket in buckets.chain([&self.overdue]) {
            let mut index = bucket.head;
            while let Some(entry) = self.entries.get(index as usize) {
                found.push((entry.due, &entry.value));
                index = entry.next;
            }
        }
        found
    }
}
