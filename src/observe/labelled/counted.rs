//! `Counted`: counts a limit under a label, at its first poll and once it ends. A limit that was never polled does not count.

use std::{fmt, mem, sync::Arc};

use crate::engine::{
    labels::{LabelId, Outcome},
    moment::{Moment, Nanos},
    shared::Shared,
};

/// The count of one limit, which counts as cancelled if it is dropped before it has ended.
#[derive(Debug)]
pub(crate) struct Counted {
    label: LabelId,
    progress: Progress,
}

#[derive(Clone, Copy, Debug)]
enum Progress {
    /// The limit has this time, if it is known before its first poll.
    New(Option<Nanos>),
    /// The beginning is counted, and the future has not been pending.
    Begun(Option<Nanos>),
    Waiting {
        total: Nanos,
        deadline: Moment,
        may_be_refused: bool,
    },
    /// The outcome is counted.
    Ended,
}

impl Counted {
    /// Creates the count of a limit that has this time or, if that is `None`, the time from its first poll to its deadline.
    pub(crate) fn new(label: LabelId, total: Option<Nanos>) -> Counted {
        Counted {
            label,
            progress: Progress::New(total),
        }
    }

    /// Counts the beginning at the first poll.
    pub(crate) fn begin_poll(&mut self, shared: &Shared) {
        if let Progress::New(total) = self.progress {
            self.progress = Progress::Begun(total);
            shared.labels.count_start(self.label);
        }
    }

    /// Records the limit's deadline when its first poll is pending.
    pub(crate) fn wait(&mut self, deadline: Moment, now: impl FnOnce() -> Moment) {
        if let Progress::Begun(total) = self.progress {
            let total = total.unwrap_or_else(|| deadline.since(now()));
            self.progress = Progress::Waiting {
                total,
                deadline,
                may_be_refused: false,
            };
        }
    }

    /// Counts the limit as one that waits and may be refused, which a shutdown does.
    pub(crate) fn let_refuse(&mut self, shared: &Shared) {
        if let Progress::Waiting { may_be_refused, .. } = &mut self.progress {
            if !mem::replace(may_be_refused, true) {
                shared.labels.count_refusable(self.label);
            }
        }
    }

    /// Counts a completion by the time that is left, which takes a reading of the clock. All is left of a limit that was ready at its first poll.
    pub(crate) fn complete(&mut self, shared: &Shared, now: impl FnOnce() -> Moment) {
        let outcome = match self.progress {
            Progress::Waiting { total, deadline, .. } => Outcome::completed(deadline.since(now()).0, total.0),
            _ => Outcome::completed(1, 1),
        };
        self.end(shared, outcome);
    }

    /// Counts an outcome, unless one has been counted or the limit was never polled.
    pub(crate) fn end(&mut self, shared: &Shared, outcome: Outcome) {
        let outcome = match self.progress {
            Progress::New(_) | Progress::Ended => return,
            Progress::Waiting {
                may_be_refused: true, ..
            } => {
                shared.labels.uncount_refusable(self.label);
                // A shutdown has refused it, whatever came after.
                if shared.limit.is_shutdown() {
                    Outcome::Refused
                } else {
                    outcome
                }
            }
            Progress::Begun(_) | Progress::Waiting { .. } => outcome,
        };
        self.progress = Progress::Ended;
        shared.labels.count(self.label, outcome);
    }
}

/// A count beside what it is counted in, for a limit that has no timer to ask.
pub(crate) struct CountedOn {
    pub(crate) shared: Arc<Shared>,
    pub(crate) counted: Counted,
}

impl fmt::Debug for CountedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counted.fmt(f)
    }
}

impl Drop for CountedOn {
    fn drop(&mut self) {
        self.counted.end(&self.shared, Outcome::Cancelled);
    }
}
