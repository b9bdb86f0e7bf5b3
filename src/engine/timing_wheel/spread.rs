//! How the timers of a coarse bucket are spread over the next finer level, ahead of time and in small steps.

use super::{TimingWheel, advance::Advanced};

/// The number of timers that are spread in a tick while there is time.
const STEP: usize = 256;

/// The number of ticks that a visit makes up for, if no other visit has come for some time.
const CATCH_UP: u64 = 8;

impl<T> TimingWheel<T> {
    /// Spreads up to `limit` timers of the bucket after the hand to the next finer level, the youngest first. Each is put at the
    /// front of a list, because the timers that are already in that list were inserted later. Returns how many timers were looked
    /// at.
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
            let index = match has_rounds {
                true => self.cursor,
                false => coarse.buckets[at].tail,
            };
            let Some(entry) = self.entries.get(index as usize) else {
                return looks;
            };
            let (due, prev, next) = (entry.due(), entry.prev, entry.next);
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
    pub(super) fn spread_ahead(&mut self, mut limit: usize, done: &mut Advanced) {
        if self.spread_at != self.now {
            self.steps = (self.now.0 - self.spread_at.0).min(CATCH_UP) as usize;
            self.spread_at = self.now;
            self.spread = 0;
        }
        if self.len == 0 {
            return;
        }
        for level in 1..self.levels.len() {
            if !self.is_to_be_spread(level) {
                continue;
            }
            let step = self
                .step(level)
                .saturating_mul(self.steps)
                .saturating_sub(self.spread);
            let looks = self.spread(level, limit.min(step), done);
            limit -= looks;
            self.spread += looks;
            done.more |= looks < step && self.is_to_be_spread(level);
        }
    }

    /// Returns whether the bucket after the hand still has timers to be spread.
    fn is_to_be_spread(&self, level: usize) -> bool {
        let next = self.levels[level].number(self.now) + 1;
        !self.levels[level].bucket(next).is_empty()
            && !self.is_whole(level, next)
            && !self.is_walked_through(level)
    }

    /// Returns how many timers to spread in this tick. For half of the time it is [`STEP`]. From then on it is enough to finish
    /// if a visit comes at every tick, even if all the wheel's timers are in this bucket.
    fn step(&self, level: usize) -> usize {
        let span = 1 << self.levels[level].shift;
        let left = span - (self.now.0 & (span - 1));
        match left > span / 2 {
            true => STEP,
            false => STEP.max((self.len as u64).div_ceil(left) as usize),
        }
    }
}
