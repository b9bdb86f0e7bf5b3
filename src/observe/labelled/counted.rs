//! `Counted`: counts a limit under a label, once it begins and once it ends.
//!
//! A limit that is ready at its first poll counts once, as `AT_ONCE`. Any other limit counts twice: first as `BEGUN`, when its first poll is
//! pending (or when it is dropped, if that poll panicked), and then by its outcome. A limit that was never polled does not count.

use std::mem;

use crate::engine::{
    clock::{Moment, Nanos},
    labels::{Count, Label},
    shard::Shard,
};

/// The count of one limit, whose owner passes a shard of the wheel to count in, and [cancels](Counted::cancel) it when dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    label: Label,
    progress: Progress,
    /// The time that the limit has, or zero if that is what is left at its first poll.
    total: Nanos,
}

/// What has been counted of a limit.
#[derive(Clone, Copy, Debug)]
enum Progress {
    /// Nothing, and the limit has not been polled.
    New,
    /// Nothing, but the first poll has begun. It may have panicked.
    Polled,
    /// The beginning of a limit with this deadline.
    Begun(Moment),
    /// The outcome.
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

    /// Records that the first poll begins, unless there has been one.
    #[inline]
    pub(crate) fn begin_poll(&mut self) {
        if let Progress::New = self.progress {
            self.progress = Progress::Polled;
        }
    }

    /// Counts the beginning, unless that has been counted. `deadline` returns `None` if the time counts from now.
    #[inline]
    pub(crate) fn begin(&mut self, shard: &Shard, deadline: impl FnOnce() -> Option<Moment>) {
        if let Progress::New | Progress::Polled = self.progress {
            let deadline = deadline().unwrap_or_else(|| shard.glance().after(self.total));
            if self.total == Nanos::ZERO {
                self.total = left(shard, deadline);
            }
            self.progress = Progress::Begun(deadline);
            shard.labels().count(self.label, Count::BEGUN);
        }
    }

    /// Counts a completion by how much of the time is left.
    #[inline]
    pub(crate) fn complete(&mut self, shard: &Shard) {
        match self.progress {
            Progress::Begun(deadline) => {
                let now = shard.glance();
                let outcome = match now.is_wheel_time() && deadline.is_wheel_time() {
                    true => Count::completed(deadline.since(now).0, self.total.0),
                    false => self.outcome_by_another_clock(shard, deadline),
                };
                self.progress = Progress::Ended;
                shard.labels().count(self.label, outcome);
            }
            Progress::New | Progress::Polled => {
                self.progress = Progress::Ended;
                shard.labels().count(self.label, Count::AT_ONCE);
            }
            Progress::Ended => {}
        }
    }

    /// Returns the outcome of a completion where there is no driver, or was none when the limit began.
    #[cold]
    fn outcome_by_another_clock(&self, shard: &Shard, deadline: Moment) -> Count {
        match shard.is_shutdown() {
            true => Count::REFUSED,
            false => Count::completed(left(shard, deadline).0, self.total.0),
        }
    }

    /// Counts the end of the time or, after a shutdown, a refusal.
    #[cold]
    pub(crate) fn elapse(&mut self, shard: &Shard) {
        self.end_unless_shut_down(shard, Count::ELAPSED);
    }

    #[cold]
    pub(crate) fn refuse(&mut self, shard: &Shard) {
        self.end(shard, Count::REFUSED);
    }

    /// Returns whether the limit has been polled and has not ended, so that its owner cancels it when dropped.
    #[inline]
    pub(crate) fn is_unfinished(&self) -> bool {
        matches!(self.progress, Progress::Polled | Progress::Begun(_))
    }

    #[cold]
    pub(crate) fn cancel(&mut self, shard: &Shard) {
        self.end_unless_shut_down(shard, Count::CANCELLED);
    }

    fn end_unless_shut_down(&mut self, shard: &Shard, outcome: Count) {
        match shard.is_shutdown() {
            true => self.end(shard, Count::REFUSED),
            false => self.end(shard, outcome),
        }
    }

    fn end(&mut self, shard: &Shard, outcome: Count) {
        match mem::replace(&mut self.progress, Progress::Ended) {
            Progress::New | Progress::Polled => shard.labels().count(self.label, Count::BEGUN),
            Progress::Begun(_) => {}
            Progress::Ended => return,
        }
        shard.labels().count(self.label, outcome);
    }
}

/// Returns the time until `deadline`. Another driver may have started since, by whose clock the deadline is known now.
fn left(shard: &Shard, deadline: Moment) -> Nanos {
    shard.to_wheel(deadline).since(shard.glance())
}
