//! How the wheel advances from bucket to bucket, in the order of their ticks, and how the timers of a coarse
//! bucket are spread over the next finer level, ahead of time and in small steps.

use std::collections::BinaryHeap;

use super::{Tick, TimingWheel, level::NIL};

/// The number of timers that are spread in each tick while there is plenty of time.
const STEP: usize = 256;

/// A visit makes up for at most this many ticks without a visit.
const CATCH_UP: u64 = 8;

/// The outcome of one call of [`TimingWheel::advance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advanced {
    pub(crate) expired: usize,
    pub(crate) cascaded: usize,
    /// Whether the limit was reached, so that there are more due timers, or more timers to be spread in this
    /// tick. Repeating the call continues.
    pub(crate) more: bool,
}

impl<T> TimingWheel<T> {
    /// Advances to tick `now`. Appends to `expired` the values of the due timers, in the order of their ticks
    /// and, within a tick, of insertion. Then spreads some of the timers that will be due before long.
    ///
    /// This looks at no more than `limit` timers, unless it has to sort due timers in a jump over a whole
    /// round of the last level. While it returns `more`, due timers may be left. The wheel never goes back:
    /// if `now` has passed, only overdue timers expire.
    pub(crate) fn advance(&mut self, now: Tick, mut limit: usize, expired: &mut Vec<T>) -> Advanced {
        let mut done = Advanced::default();
        let now = now.max(self.now);
        while !self.entries.is_empty() {
            let due = self.next_due();
            let bucket = if due.is_none() {
                self.next_bucket(now)
            } else {
                None
            };
            match (due, bucket) {
                (None, None) => break,
                _ if limit == 0 => {
                    done.more = true;
                    return done;
                }
                (Some(due), _) => {
                    limit -= 1;
                    let entry = &self.entries[due as usize];
                    if entry.due <= self.now {
                        expired.push(self.take(due));
                        done.expired += 1;
                    } else {
                        // With one level, this entry is of a later round.
                        self.cursor = entry.next;
                    }
                }
                // A jump over a whole round.
                (_, Some((_, top))) if self.is_top(top) && self.is_rounds_away(now) => self.sort_rounds(now),
                // The only level: the bucket may have timers of later rounds, so each is looked at.
                (_, Some((begin, 0))) if self.is_top(0) => self.move_hand(begin),
                (_, Some((begin, 0))) => {
                    limit -= self.expire_bucket(begin, limit, expired, &mut done);
                }
                (_, Some((begin, level))) => {
                    // A bucket must be empty when it begins.
                    self.move_hand(Tick(begin.0 - 1));
                    limit -= self.spread(level, limit, &mut done);
                }
            }
        }
        self.move_hand(now);
        self.spread_ahead(limit, &mut done);
        done
    }

    /// Expires up to `limit` timers of the bucket that begins at `begin`. All of them are due then. Returns
    /// the number of expired timers.
    fn expire_bucket(
        &mut self,
        begin: Tick,
        limit: usize,
        expired: &mut Vec<T>,
        done: &mut Advanced,
    ) -> usize {
        let level = &mut self.levels[0];
        let at = level.index(level.number(begin));
        let (mut next, mut taken) = (level.buckets[at].head, 0);
        while taken < limit && next != NIL {
            let entry = self.entries.remove(next as usize);
            expired.push(entry.value);
            next = entry.next;
            taken += 1;
        }
        done.expired += taken;
        match self.entries.get_mut(next as usize) {
            None => level.clear(at),
            Some(entry) => {
                entry.prev = NIL;
                level.buckets[at].head = next;
            }
        }
        taken
    }

    /// Returns the next tick at which `advance` has something to do. It is no later than the earliest
    /// deadline, and earlier if a bucket has to be spread before, or the timers of a later round have to be
    /// looked at.
    ///
    /// Any visit while the hand is in the bucket before a coarse one spreads that coarse bucket, but a visit
    /// is requested only from the middle of the bucket before it. By then a visit may have come for another
    /// reason.
    pub(crate) fn next_visit(&self) -> Option<Tick> {
        if self.next_due().is_some() {
            return Some(self.now);
        }
        // This is usual after the only timer has expired, and saves a look at each level.
        if self.entries.is_empty() {
            return None;
        }
        let soonest = Tick(self.now.0.saturating_add(1));
        let levels = self.levels.iter().enumerate();
        let mut visits = levels.filter_map(|(level, ring)| {
            let number = self.next_used(level)?;
            // Half a bucket ahead of a coarse one, which has to be spread.
            let ahead = (1 << ring.shift) / 2;
            Some(Tick(ring.begin(number).0 - ahead).max(soonest))
        });
        match visits.next()? {
            // Usually a timer is due at the next tick, so that the coarser levels need not be looked at.
            next if next == soonest => Some(next),
            next => Some(visits.fold(next, Tick::min)),
        }
    }

    /// Returns the first deadline after `tick` of a timer on the finest level. With one level, that timer may
    /// be of a later round.
    pub(crate) fn deadline_after(&self, tick: Tick) -> Option<Tick> {
        let level = &self.levels[0];
        let end = self.now.0.saturating_add(level.len as u64);
        if tick.0 >= end {
            return None;
        }
        level.next_used(tick.0).filter(|next| *next < end).map(Tick)
    }

    /// Returns the next entry to be looked at because it is due. With one level, it may be of a later round.
    pub(super) fn next_due(&self) -> Option<u32> {
        let walks = self.levels.len() == 1 && self.cursor != NIL;
        let next = if walks { self.cursor } else { self.overdue.head };
        (next != NIL).then_some(next)
    }

    /// Returns the next bucket of all levels that begins by `by`, as the tick at which it begins and its
    /// level. Of two buckets that begin at the same tick this is the coarser one, because it may contain
    /// timers that are due at that tick.
    fn next_bucket(&self, mut by: Tick) -> Option<(Tick, usize)> {
        let mut next = None;
        for (level, ring) in self.levels.iter().enumerate() {
            if ring.number(self.now) == ring.number(by) {
                // No bucket begins on a coarser level either.
                break;
            }
            let begin = self.next_used(level).map(|number| ring.begin(number));
            if let Some(begin) = begin.filter(|begin| *begin <= by) {
                by = begin;
                next = Some((begin, level));
            }
        }
        next
    }

    /// Returns the number of the next used bucket of a level. A bucket that has been spread, and has only
    /// timers of later rounds left, is skipped.
    fn next_used(&self, level: usize) -> Option<u64> {
        let ring = &self.levels[level];
        let hand = ring.number(self.now);
        ring.next_used(hand + u64::from(self.is_walked_through(level)))
    }

    /// Returns whether the bucket after the hand has only timers of later rounds left.
    fn is_walked_through(&self, level: usize) -> bool {
        level > 0
            && self.cursor == NIL
            && self.is_top(level)
            && self.walked == self.levels[level].number(self.now) + 1
    }

    fn is_top(&self, level: usize) -> bool {
        level + 1 == self.levels.len()
    }

    /// Moves the hand to a tick. The caller ensures that no deadline is before it, and that no coarse bucket
    /// in use begins before or at it.
    pub(super) fn move_hand(&mut self, now: Tick) {
        if now == self.now {
            return;
        }
        let before = std::mem::replace(&mut self.now, now);
        // The last tick of every level stays the same while the hand is in one bucket of the second level.
        if (before.0 ^ now.0) >> (self.ring_bits - 1) != 0 {
            self.set_last_ticks();
        }
        if self.levels.len() == 1 {
            self.cursor = self.levels[0].bucket(now.0).head;
        }
    }

    /// Sets the last tick of each level below the top, which is the end of the next bucket of the level
    /// above.
    pub(super) fn set_last_ticks(&mut self) {
        let bits = self.ring_bits - 1;
        if let Some((_, levels)) = self.levels.split_last_mut() {
            for level in levels {
                let span = 1 << (level.shift + bits);
                level.last_tick = Tick((self.now.0 | (span - 1)).saturating_add(span));
            }
        }
    }

    /// Returns whether the hand passes the last level more than once on its way to `now`, with timers there.
    fn is_rounds_away(&self, now: Tick) -> bool {
        self.levels.last().is_some_and(|top| {
            let passes = top.number(now) - top.number(self.now);
            passes > top.len as u64 && top.used.next(0).is_some()
        })
    }

    /// Advances to one tick before the last bucket of the top level that begins by `now`, and sorts all
    /// timers that are due by then into `overdue`. Advancing round by round would look at every timer once
    /// per round.
    #[cold]
    fn sort_rounds(&mut self, now: Tick) {
        let Some(top) = self.levels.last() else { return };
        let end = Tick((top.number(now) << top.shift) - 1);
        // A heap takes a fraction of the code of a sort, and only a jump in time needs this.
        let mut due = BinaryHeap::new();
        // Of two timers that are due at the same tick, the one on the coarser level was inserted first.
        for level in self.levels.iter().rev() {
            for bucket in &level.buckets {
                let mut index = bucket.head;
                while let Some(entry) = self.entries.get(index as usize) {
                    if entry.due <= end {
                        due.push((entry.due, due.len(), index));
                    }
                    index = entry.next;
                }
            }
        }
        self.move_hand(end);
        for (due, _, index) in due.into_sorted_vec() {
            self.unlink(index);
            self.link(index, due);
        }
    }

    /// Spreads up to `limit` timers of the bucket after the hand to the next finer level, the youngest first.
    /// Each is put at the front of a list, because the timers that are already in that list were inserted
    /// later. Returns how many timers were looked at.
    pub(super) fn spread(&mut self, level: usize, limit: usize, done: &mut Advanced) -> usize {
        let number = self.levels[level].number(self.now) + 1;
        let has_rounds = self.is_top(level);
        if has_rounds && self.walked != number {
            self.walked = number;
            self.cursor = self.levels[level].bucket(number).tail;
        }
        let [finer, coarse] = &mut self.levels[level - 1..=level] else {
            return 0;
        };
        let at = coarse.index(number);
        for looks in 0..limit {
            let index = if has_rounds {
                self.cursor
            } else {
                coarse.buckets[at].tail
            };
            let Some(entry) = self.entries.get(index as usize) else {
                return looks;
            };
            let (due, prev, next) = (entry.due, entry.prev, entry.next);
            if has_rounds {
                self.cursor = prev;
            }
            if coarse.number(due) == number {
                coarse.unlink(&mut self.entries, at, prev, next);
                finer.push_front(&mut self.entries, index, due);
                done.cascaded += 1;
            }
        }
        limit
    }

    /// Spreads the timers of the buckets after the hand, a step in each tick.
    fn spread_ahead(&mut self, mut limit: usize, done: &mut Advanced) {
        if self.spread_at != self.now {
            self.steps = (self.now.0 - self.spread_at.0).min(CATCH_UP) as usize;
            self.spread_at = self.now;
            self.looked_at = 0;
        }
        if self.entries.is_empty() {
            return;
        }
        for level in 1..self.levels.len() {
            if !self.is_to_be_spread(level) {
                continue;
            }
            let step = self
                .step(level)
                .saturating_mul(self.steps)
                .saturating_sub(self.looked_at);
            let looks = self.spread(level, limit.min(step), done);
            limit -= looks;
            self.looked_at += looks;
            done.more |= looks < step && self.is_to_be_spread(level);
        }
    }

    /// Returns whether the bucket after the hand still has timers to be spread.
    fn is_to_be_spread(&self, level: usize) -> bool {
        let next = self.levels[level].number(self.now) + 1;
        !self.levels[level].bucket(next).is_empty() && !self.is_walked_through(level)
    }

    /// Returns how many timers to spread in this tick. In the first half of the bucket before, it is
    /// [`STEP`]. From then on it is enough to finish in time if a visit comes at every tick, even if all the
    /// wheel's timers are in the bucket to be spread.
    fn step(&self, level: usize) -> usize {
        let span = 1 << self.levels[level].shift;
        let left = span - (self.now.0 & (span - 1));
        if left > span / 2 {
            STEP
        } else {
            STEP.max((self.len() as u64).div_ceil(left) as usize)
        }
    }
}
