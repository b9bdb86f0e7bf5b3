//! `Counted`: counts a limit under a label, after its first poll and once it ends. A limit that was never polled does not count.

use crate::engine::{
    clock::{Moment, Nanos},
    labels::{Count, Label},
    shard::{Shard, Stamp},
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
    /// Nothing is counted, and the first poll has not ended, or has panicked.
    Polled,
    /// The beginning is counted, and the time lasts until this deadline.
    Pending(Stamp),
    /// The outcome is counted.
    Ended,
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
        self.label = shard.labels().begin(self.label);
    }

    /// Counts the beginning when the first poll is pending, and records the deadline, or begins to count the time if there is none yet.
    #[inline]
    pub(crate) fn wait(&mut self, shard: &Shard, deadline: Option<Moment>) {
        if let Progress::Polled = self.progress {
            self.count_beginning(shard);
            let deadline = match deadline {
                Some(deadline) => shard.stamp_of(deadline),
                None => shard.stamp().after(self.total),
            };
            self.progress = Progress::Pending(deadline);
            if self.total == Nanos::ZERO {
                self.total = left(shard, deadline);
            }
        }
    }

    /// Counts a completion by how much of the time is left.
    #[inline]
    pub(crate) fn complete(&mut self, shard: &Shard) {
        let outcome = match &self.progress {
            Progress::Pending(deadline) => {
                let now = shard.stamp();
                match deadline.since(now) {
                    Some(left) => Count::completed(left.0, self.total.0),
                    None => self.outcome_by_another_clock(shard, *deadline),
                }
            }
            Progress::New | Progress::Polled => {
                self.count_beginning(shard);
                Count::AT_ONCE
            }
            Progress::Ended => return,
        };
        self.progress = Progress::Ended;
        shard.labels().count(self.label, outcome);
    }

    /// Returns the outcome of a completion where there is no driver, or where another one has started.
    #[cold]
    fn outcome_by_another_clock(&self, shard: &Shard, deadline: Stamp) -> Count {
        match shard.is_shutdown() {
            true => Count::REFUSED,
            false => Count::completed(left(shard, deadline).0, self.total.0),
        }
    }

    /// Returns whether the limit has been polled and has not ended, so that its owner cancels it when dropped.
    #[inline]
    pub(crate) fn is_unfinished(&self) -> bool {
        matches!(self.progress, Progress::Polled | Progress::Pending(_))
    }

    /// Counts another end than a completion, which after a shutdown is a refusal.
    #[cold]
    pub(crate) fn end(&mut self, shard: &Shard, outcome: Count) {
        if self.is_unfinished() {
            if let Progress::Polled = self.progress {
                self.count_beginning(shard);
            }
            self.progress = Progress::Ended;
            let outcome = match shard.is_shutdown() {
                true => Count::REFUSED,
                false => outcome,
            };
            shard.labels().count(self.label, outcome);
        }
    }
}

/// Returns the time until `deadline`. Another driver may have started since, by whose clock the deadline is known now.
#[cold]
#[inline(never)]
fn left(shard: &Shard, deadline: Stamp) -> Nanos {
    shard.to_wheel(deadline.to_wheel()).since(shard.glance())
}
