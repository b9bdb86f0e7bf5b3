//! `Counted`: counts a limit under a label, after its first poll and once it ends. A limit that was never polled does not count.

use crate::engine::{
    clock::Nanos,
    labels::{Count, Label},
    shard::Shard,
};

/// The count of one limit, whose owner passes a shard of the wheel to count in, and [cancels](Counted::end) it when dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    label: Label,
    progress: Progress,
    /// The time that the limit has, or zero if that is what is left at its first poll.
    total: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    New,
    /// The outcome is counted.
    Ended,
    /// Nothing is counted, and the first poll has not ended, or has panicked.
    Polled,
    /// The beginning is counted.
    Pending,
}

impl Counted {
    #[inline]
    pub(crate) fn new(label: Label, total: Nanos) -> Counted {
        Counted {
            label,
            progress: Progress::New,
            total,
        }
    }

    #[inline]
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.progress, Progress::New)
    }

    /// Records that the first poll begins.
    #[inline]
    pub(crate) fn begin_poll(&mut self) {
        self.progress = Progress::Polled;
    }

    #[inline]
    fn count_beginning(&mut self, shard: &Shard) {
        shard.labels().count(self.label, Count::BEGUN);
    }

    /// Counts the beginning when the first poll is pending. `left` returns the time that is left.
    #[inline]
    pub(crate) fn wait(&mut self, shard: &Shard, left: impl FnOnce() -> Nanos) {
        if let Progress::Polled = self.progress {
            self.count_beginning(shard);
            self.progress = Progress::Pending;
            if self.total == Nanos::ZERO {
                self.total = left().max(Nanos(1));
            }
        }
    }

    /// Counts a completion by the time that is left, of which nothing is after a shutdown.
    #[inline(always)]
    pub(crate) fn complete(&mut self, shard: &Shard, left: impl FnOnce() -> Nanos) {
        let Progress::Pending = self.progress else {
            return self.complete_at_once(shard);
        };
        let (left, total) = (left().0, self.total.0);
        // This is how most limits end, and it takes no division.
        match left + total / 16 >= total {
            true => self.count_outcome(shard, Count::ALL_LEFT),
            false => self.end(shard, Count::completed(left, total)),
        }
    }

    #[inline(never)]
    fn complete_at_once(&mut self, shard: &Shard) {
        if let Progress::Polled = self.progress {
            self.count_beginning(shard);
            self.count_outcome(shard, Count::ALL_LEFT);
        }
    }

    #[inline]
    fn count_outcome(&mut self, shard: &Shard, outcome: Count) {
        self.progress = Progress::Ended;
        shard.labels().count(self.label, outcome);
    }

    /// Returns whether the limit has been polled and has not ended, so that its owner cancels it when dropped.
    #[inline]
    pub(crate) fn is_unfinished(&self) -> bool {
        matches!(self.progress, Progress::Polled | Progress::Pending)
    }

    /// Counts an end, which after a shutdown is a refusal.
    #[inline(never)]
    pub(crate) fn end(&mut self, shard: &Shard, outcome: Count) {
        if self.is_unfinished() {
            if let Progress::Polled = self.progress {
                self.count_beginning(shard);
            }
            let outcome = match shard.is_shutdown() {
                true => Count::REFUSED,
                false => outcome,
            };
            self.count_outcome(shard, outcome);
        }
    }
}
