//! How the wheel advances: `expire_due` goes from bucket to bucket in the order of their ticks, and
//! `spread_ahead` moves the timers of a coarse bucket to the next finer ring, ahead of time and in small steps.

use std::mem;

use super::{
    Tick, TimingWheel,
    level::{Level, NIL},
};

/// At least this many timers are spread in each tick.
const STEP: usize = 256;

/// A visit makes up for at most this many ticks without a visit.
const CATCH_UP: u64 = 8;

/// The outcome of one call of [`TimingWheel::advance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) expired: usize,
    pub(crate) cascaded: usize,
    /// Whether the limit was reached, so that there are more due timers, or more timers to be spread in this
    /// tick. Repeating the call continues.
    pub(crate) more: bool,
    /// The next tick at which `advance` has something to do, or `None` if the wheel is empty.
    pub(crate) next: Option<Tick>,
}

/// What the hand meets next.
enum Step {
    /// Timers of the finest level that are due at this tick, or were inserted then and due before.
    Due(Tick),
    /// A bucket of this level, which begins at this tick and has to be empty by then.
    Spread(usize, Tick),
    /// At this tick, a bucket of later rounds comes within reach of the coarsest level.
    NextRound(Tick),
}

impl<T> TimingWheel<T> {
    /// Advances to tick `now`. Appends to `expired` the values of the due timers, in the order of their ticks
    /// and, within a tick, of insertion. Then spreads some of the timers that will be due before long.
    ///
    /// This expires and cascades no more than `limit` timers, and looks at no more, except that a bucket of
    /// later rounds is looked at as a whole. While it returns `more`, due timers may be left. The wheel never
    /// goes back: if `now` has passed, only timers that were due when they were inserted expire.
    pub(crate) fn advance(&mut self, now: Tick, limit: usize, expired: &mut Vec<T>) -> Turn {
        let (mut turn, before) = (Turn::default(), expired.len());
        let left = self.expire_due(now.max(self.now), limit, expired, &mut turn);
        turn.expired = expired.len() - before;
        // This is usual after the only timer has expired, and saves a look at each level.
        if self.entries.is_empty() {
            return turn;
        }
        // What is due goes first. Only what is left of the limit is used to spread.
        if !turn.more {
            self.spread_ahead(left, &mut turn);
        }
        turn.next = if turn.more {
            Some(self.now)
        } else {
            self.next_visit()
        };
        turn
    }

    /// Moves the hand to `now`, or to the tick before the first at which a timer is due or has to have been
    /// spread. With a hand that nobody has moved for a while, a timer that is due soon would go into a coarse
    /// bucket, and wait until all others there have been spread.
    pub(crate) fn catch_up(&mut self, now: Tick) {
        let now = now.max(self.now);
        let to = loop {
            match self.next_step(now) {
                None => break now,
                // Due timers wait for the driver, and the hand with them: no value may leave the wheel here.
                Some(Step::Due(tick) | Step::Spread(_, tick)) => break Tick(tick.0.saturating_sub(1)),
                Some(Step::NextRound(tick)) => self.begin_round(tick),
            };
        };
        self.move_hand(to.max(self.now));
    }

    /// Returns the tick from which on the hand should catch up before a timer is inserted.
    pub(crate) fn stale_at(&self) -> Tick {
        let age = ((1 << self.ring_bits) / 16).max(1);
        Tick(self.now.0.saturating_add(age))
    }

    /// Moves the hand to `now`, from one bucket that has to be emptied to the next, and expires due timers on
    /// the way. Returns how much of the limit is left.
    fn expire_due(&mut self, now: Tick, mut limit: usize, expired: &mut Vec<T>, turn: &mut Turn) -> usize {
        while let Some(step) = self.next_step(now) {
            if limit == 0 {
                turn.more = true;
                return 0;
            }
            limit -= match step {
                Step::Due(tick) => self.expire_bucket(tick, limit, expired),
                // Nobody has spread it ahead of time, because the clock has jumped, or visits were late.
                Step::Spread(level, begin) => {
                    self.move_hand(Tick(begin.0 - 1));
                    let moved = self.move_down(level, self.levels[level].number(begin), limit);
                    turn.cascaded += moved;
                    moved
                }
                Step::NextRound(tick) => self.begin_round(tick).min(limit),
            };
        }
        self.move_hand(now);
        limit
    }

    /// Expires up to `limit` timers of a tick's bucket on the finest level, the oldest first. Returns how many they
    /// were.
    fn expire_bucket(&mut self, tick: Tick, limit: usize, expired: &mut Vec<T>) -> usize {
        let finest = &mut self.levels[0];
        let at = finest.index(tick.0);
        let list = &mut finest.buckets[at];
        let before = expired.len();
        while expired.len() - before < limit && !list.is_empty() {
            let entry = self.entries.remove(list.head);
            self.dues.remove(entry.due);
            expired.push(entry.value);
            // The list is mended once, below, for all that have left it.
            list.head = entry.next;
        }
        if list.is_empty() {
            list.tail = NIL;
            finest.used.remove(at);
        } else {
            self.entries[list.head].prev = NIL;
        }
        expired.len() - before
    }

    /// Spreads the bucket after the hand of each coarse level, a share in each tick: as many timers as empty
    /// that bucket in time even if it has all timers of the wheel, and the visits at every tick begin only in
    /// the middle of the bucket before it.
    fn spread_ahead(&mut self, mut limit: usize, turn: &mut Turn) {
        // Once a tick: the calls that continue a turn go on with the same share.
        if self.spread_at != self.now {
            let ticks = (self.now.0 - self.spread_at.0).min(CATCH_UP) as usize;
            let share = STEP.max((self.entries.len() >> self.ring_bits.saturating_sub(2)) + 1);
            self.to_spread = ticks.saturating_mul(share);
            self.spread_at = self.now;
        }
        for level in 1..self.later() {
            // At the end of time there is no next bucket. No timer's number is the one that comes out then.
            let next = self.levels[level].number(self.now).wrapping_add(1);
            if self.levels[level].bucket(next).is_empty() {
                continue;
            }
            let moved = self.move_down(level, next, limit.min(self.to_spread));
            turn.cascaded += moved;
            limit -= moved;
            self.to_spread -= moved;
            turn.more |= self.to_spread > 0 && !self.levels[level].bucket(next).is_empty();
        }
    }

    /// Moves the hand to `tick`, at which a bucket of later rounds comes within reach. Returns how many timers
    /// that bucket had.
    fn begin_round(&mut self, tick: Tick) -> usize {
        self.move_hand(tick);
        let later = self.later();
        self.move_down(later, self.levels[later].emptied_at(tick), usize::MAX)
    }

    /// Moves up to `limit` timers of bucket `number` to the next finer ring, the youngest first. Each is put at
    /// the front of a list, because the timers that are already in that list were inserted later. Timers of the
    /// rounds after that stay. Returns how many timers were looked at.
    fn move_down(&mut self, level: usize, number: u64, limit: usize) -> usize {
        // Neighbours, which are borrowed together.
        let [finer, coarse] = &mut self.levels[level - 1..=level] else {
            return 0;
        };
        let mut index = coarse.bucket(number).tail;
        for looks in 0..limit {
            let Some(entry) = self.entries.get(index) else {
                return looks;
            };
            let (due, prev, next) = (entry.due, entry.prev, entry.next);
            // Only in the ring of later rounds does a bucket have timers of several rounds.
            if coarse.number(due) == number {
                coarse.unlink(&mut self.entries, coarse.index(number), prev, next);
                let (bucket, place) = finer.bucket_for(due);
                bucket.push_front(&mut self.entries, index, place);
            }
            index = prev;
        }
        limit
    }

    /// Returns whether there are timers that were due when they were inserted.
    pub(super) fn has_due(&self) -> bool {
        !self.levels[0].bucket(self.now.0).is_empty()
    }

    /// Returns what has to be done next on the way to `by`. Of two buckets that begin at the same tick, the
    /// coarser one comes first, because it may have timers that are due at that tick. A bucket of later
    /// rounds comes last, because the hand moves to that tick for it.
    fn next_step(&self, by: Tick) -> Option<Step> {
        if self.has_due() {
            return Some(Step::Due(self.now));
        }
        if self.entries.is_empty() {
            return None;
        }
        let (later, levels) = self.levels.split_last()?;
        let (mut first, mut step) = (by, None);
        for (level, ring) in levels.iter().enumerate() {
            // Usually the hand moves by a tick or a few, and this ends the search at the first coarse level.
            if ring.number(self.now) == ring.number(by) {
                // No bucket begins on a coarser level either.
                return step;
            }
            if let Some(begin) = ring.next_begin(self.now).filter(|begin| *begin <= first) {
                first = begin;
                step = Some(if level == 0 {
                    Step::Due(begin)
                } else {
                    Step::Spread(level, begin)
                });
            }
        }
        // Round by round, a jump over very many would look at each timer in each of them.
        let has_near = step.is_some();
        let begin = if !has_near && later.number(by) - later.number(self.now) > later.len as u64 {
            self.first_round()
        } else {
            later.next_begin(self.now)
        };
        match begin {
            Some(begin) if begin < first || begin == first && !has_near => Some(Step::NextRound(begin)),
            _ => step,
        }
    }

    /// Returns the tick at which the first of all timers, which are all of later rounds, comes within reach
    /// of the coarsest level. To go there round by round would be to look at every timer in each round.
    #[cold]
    fn first_round(&self) -> Option<Tick> {
        let first = self.entries.iter().map(|(_, entry)| entry.due).min()?;
        let later = &self.levels[self.later()];
        Some(later.begin_of(later.number(first)))
    }

    /// Returns the next tick at which `advance` has something to do. It is no later than the earliest
    /// deadline, and earlier if a bucket has to be spread before, or a bucket of later rounds has to be looked
    /// at.
    ///
    /// Any visit while the hand is in the bucket before a coarse one spreads that coarse bucket, but a visit
    /// is requested only from the middle of the bucket before it. By then a visit may have come for another
    /// reason.
    pub(crate) fn next_visit(&self) -> Option<Tick> {
        if self.dues.is_counting() {
            return Some(self.dues.first()?.max(self.now));
        }
        if self.has_due() {
            return Some(self.now);
        }
        // The middle of the bucket before may have passed, if timers were added since.
        let soonest = Tick(self.now.0.saturating_add(1));
        let visit = |ring: &Level| Some(Tick(ring.next_begin(self.now)?.0 - ring.notice()).max(soonest));
        let mut visits = self.levels.iter().filter_map(visit);
        match visits.next()? {
            // Usually a timer is due at the next tick, so that the coarser levels need not be looked at.
            next if next == soonest => Some(next),
            next => Some(visits.fold(next, Tick::min)),
        }
    }

    /// Returns the tick at which a visit is wanted before that of a timer that has been inserted for `due`, because it
    /// is in a crowd that has to be spread ahead of time: half a bucket before that of the timer begins.
    #[inline]
    pub(crate) fn visit_before(&self, due: Tick) -> Option<Tick> {
        // As many as that are spread in one step, when their bucket begins. Nothing is spread on the finest level, nor
        // ahead of time for a clock that jumps.
        if self.entries.len() <= STEP || due <= self.levels[0].last_tick || self.dues.is_counting() {
            return None;
        }
        let ring = self.levels[1..].iter().find(|ring| due <= ring.last_tick)?;
        let visit = Tick(ring.begin_of(ring.number(due)).0 - ring.notice());
        Some(visit.max(Tick(self.now.0 + 1)))
    }

    /// Moves the hand to a tick. The caller ensures that nothing has to be done before that tick, and that no
    /// bucket in use begins at it.
    fn move_hand(&mut self, now: Tick) {
        let before = mem::replace(&mut self.now, now);
        // The last tick of every level stays the same while the hand is in one half of the finest ring.
        if (before.0 ^ now.0) >> (self.ring_bits - 1) != 0 {
            self.set_last_ticks();
        }
    }

    /// Sets the last tick of each level, which is the end of the next bucket of the level above or, on the
    /// coarsest level, of the next half of its ring.
    pub(super) fn set_last_ticks(&mut self) {
        let (bits, later) = (self.ring_bits - 1, self.later());
        for level in &mut self.levels[..later] {
            // Half a ring is as long as a bucket of the next coarser level. Where that is more than all ticks,
            // the level reaches to the last one.
            let span = 1_u64.checked_shl(level.shift + bits);
            let end = span.map_or(u64::MAX, |span| (self.now.0 | (span - 1)).saturating_add(span));
            level.last_tick = Tick(end);
        }
    }
}
