//! How the wheel moves on: sweep after sweep, in the order of their ticks.

use super::{
    TimingWheel,
    bucket::{NIL, Place},
    tick::Tick,
};

/// The sweep of one bucket, whose tick has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    pub(super) tick: Tick,
    pub(super) level: usize,
    pub(super) place: Place,
    /// The next entry to look at. [`NIL`] at the end of the list.
    pub(super) cursor: u32,
}

/// What one call of [`TimingWheel::advance`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advanced {
    pub(crate) expired: usize,
    pub(crate) cascaded: usize,
    /// The limit was reached. The same call again goes on.
    pub(crate) more: bool,
}

/// What one [`TimingWheel::advance`] has done, and how many timers it may still look at.
struct Work {
    limit: usize,
    done: Advanced,
}

impl Work {
    /// Takes one from the limit. Returns `false`, and sets `more`, if none is left.
    #[inline]
    fn proceed(&mut self) -> bool {
        self.done.more = self.limit == 0;
        self.limit = self.limit.saturating_sub(1);
        !self.done.more
    }
}

impl<T> TimingWheel<T> {
    /// Moves on to tick `now`. Appends the values of the timers that are due to `expired`, in order of deadline and, within a tick, of
    /// insertion.
    ///
    /// It looks at no more than `limit` timers. While it returns `more`, the wheel has not arrived. It never goes back: if `now` has
    /// passed, only what is overdue expires.
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

    /// The next tick at which `advance` has something to do. It is no later than the earliest deadline. It is earlier if a bucket has to
    /// cascade before, or a later round's timers have to be looked at. Incoming timers do not count.
    pub(crate) fn next_deadline(&self) -> Option<Tick> {
        if !self.overdue.is_empty() {
            return Some(self.now);
        }
        self.unfinished
            .or_else(|| self.next_sweep())
            .map(|sweep| sweep.tick)
    }

    /// Sweeps one bucket. What is due expires, what is near cascades, and what is of a later round stays. Returns `false` if the limit
    /// was reached.
    fn sweep(&mut self, mut sweep: Sweep, work: &mut Work, expired: &mut Vec<T>) -> bool {
        // The ticks before this one are empty. This one is reached only at the end of the sweep. So a timer that is started for it
        // meanwhile comes after those that are in the bucket.
        self.now = Tick(sweep.tick.0 - 1);
        while sweep.cursor != NIL {
            if !work.proceed() {
                self.unfinished = Some(sweep);
                return false;
            }
            let index = sweep.cursor;
            let entry = &self.entries[index as usize];
            let deadline = entry.deadline();
            sweep.cursor = entry.next;
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

    /// Skips rounds in which nothing is due, if only the top level is in use and `now` is several rounds away. Each of these rounds
    /// would look at every timer.
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
                first = first.min(entry.deadline());
                index = entry.next;
            }
            used = (digit + 1 < ring.buckets.len())
                .then(|| ring.used.next(digit + 1))
                .flatten();
        }
        // It stops just before the bucket of the first deadline: invariant 3 then still holds.
        let before = (first.0 >> shift << shift).saturating_sub(1);
        self.now = self.now.max(Tick(before));
    }

    /// The next used bucket. By invariant 4 it is on the finest level in use.
    pub(super) fn next_sweep(&self) -> Option<Sweep> {
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
}
