//! The invariants of the essay in mod.rs, each looked at by its number.

use std::collections::BTreeMap;

use super::{
    TimingWheel,
    bucket::{Bucket, NIL, Place},
    tick::Tick,
};

impl<T> TimingWheel<T> {
    /// Panics if an invariant of the module's essay does not hold, and names it.
    pub(super) fn assert_consistent(&self) {
        let swept = self.unfinished.map(|sweep| sweep.place);
        // While a sweep is unfinished, entries outside its bucket are where the swept tick says. Into the bucket itself new ones still
        // come as of the tick before.
        let placed_at = self.unfinished.map_or(self.now, |sweep| sweep.tick);
        if let Some(sweep) = self.unfinished {
            assert_eq!(
                Some(self.now.0),
                sweep.tick.0.checked_sub(1),
                "3: {sweep:?} is not at the tick after now"
            );
        }
        let mut listed = vec![0_u32; self.entries.capacity()];
        let mut pending = 0;
        let mut first_list = BTreeMap::new();
        let mut next_sweep = self.unfinished.map(|sweep| sweep.tick);

        let incoming = self.assert_linked(self.incoming, Place::INCOMING);
        assert!(
            self.marked == NIL || incoming.contains(&self.marked),
            "9: the mark is at an entry that is not incoming"
        );
        for index in incoming {
            listed[index as usize] += 1;
        }
        for index in self.assert_linked(self.overdue, Place::OVERDUE) {
            listed[index as usize] += 1;
            let deadline = self.entries[index as usize].deadline();
            assert!(
                deadline <= self.now,
                "5: {deadline:?} hangs in overdue at {:?}",
                self.now
            );
        }
        for (level, ring) in self.levels.iter().enumerate() {
            let mut used = Vec::new();
            for (digit, bucket) in ring.buckets.iter().enumerate() {
                let place = self.place(level, digit);
                let entries = self.assert_linked(*bucket, place);
                if !entries.is_empty() {
                    used.push(digit);
                }
                let placed_at = if swept == Some(place) { self.now } else { placed_at };
                let cursor = match self.unfinished {
                    Some(sweep) if sweep.place == place => {
                        assert_eq!(sweep.level, level, "3: {sweep:?} is in a bucket of level {level}");
                        let cursor = entries.iter().position(|index| *index == sweep.cursor);
                        assert!(
                            cursor.is_some() || sweep.cursor == NIL,
                            "1: {sweep:?} is not at an entry of its bucket"
                        );
                        cursor.unwrap_or(entries.len())
                    }
                    _ => 0,
                };
                for (position, index) in entries.into_iter().enumerate() {
                    listed[index as usize] += 1;
                    let deadline = self.entries[index as usize].deadline();
                    assert!(
                        deadline > placed_at,
                        "5: {deadline:?} hangs on level {level} at {placed_at:?}"
                    );
                    let (its_level, its_digit, sweep) = self.belongs(deadline, placed_at);
                    assert_eq!(
                        (level, digit),
                        (its_level, its_digit),
                        "3: place of {deadline:?} at {placed_at:?}"
                    );
                    if position < cursor {
                        let left = self
                            .unfinished
                            .is_some_and(|sweep| self.belongs(deadline, sweep.tick).0 == level);
                        assert!(left, "3: {deadline:?} was swept and left behind on level {level}");
                    }
                    if self.unfinished.is_none() {
                        next_sweep = Some(next_sweep.map_or(sweep, |earlier| sweep.min(earlier)));
                    }
                    let first = *first_list.entry(deadline).or_insert(place);
                    let split = first != place && swept != Some(first) && swept != Some(place);
                    assert!(
                        !split,
                        "8: entries for {deadline:?} hang in {first:?} and {place:?}"
                    );
                }
            }
            let told: Vec<usize> =
                std::iter::successors(ring.used.next(0), |digit| ring.used.next(digit + 1)).collect();
            assert_eq!(told, used, "2: bits and buckets in use of level {level}");
        }
        for (index, entry) in &self.entries {
            pending += usize::from(entry.value.is_some());
            let expired = entry.value.is_none();
            assert_eq!(
                expired,
                matches!(entry.place, Place::EXPIRED | Place::CANCELLED),
                "6: value and place of entry {index}"
            );
            assert_eq!(
                listed[index],
                u32::from(!expired),
                "6: lists in which entry {index} hangs"
            );
        }
        assert_eq!(self.len, pending, "7: len");
        let next_deadline = if self.overdue.is_empty() {
            next_sweep
        } else {
            Some(self.now)
        };
        assert_eq!(
            self.next_deadline(),
            next_deadline,
            "4: the next sweep is to the earliest bucket of all"
        );
    }

    /// The entries of a list. It must be linked both ways, and each entry must name it.
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

    /// The level and bucket of a deadline that is to come, digit by digit, and the tick at which that bucket is swept next.
    fn belongs(&self, deadline: Tick, now: Tick) -> (usize, usize, Tick) {
        let ticks_per_wheel = 1_u64 << self.bits_per_level;
        let digits = |tick: Tick, level: usize| tick.0 >> (level as u32 * self.bits_per_level);
        let top = self.levels.len() - 1;
        let level = (0..top)
            .find(|level| digits(deadline, level + 1) == digits(now, level + 1))
            .unwrap_or(top);
        let (mut start, hand) = (digits(deadline, level), digits(now, level));
        let digit = start % ticks_per_wheel;
        start -= (start - hand - 1) / ticks_per_wheel * ticks_per_wheel;
        (
            level,
            digit as usize,
            Tick(start << (level as u32 * self.bits_per_level)),
        )
    }
}
