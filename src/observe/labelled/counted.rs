//! What is counted under a label: each timeout at its first poll and once it ends. One that was never polled
//! does not count.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::{
        clock::Nanos,
        labels::{LabelId, Outcome},
        shared::WheelRef,
        timer::Timer,
    },
    timers::sleep::{HadBudget, Sleep},
};

/// The count of one timeout or scope. Dropped before that has ended, it counts as cancelled.
#[derive(Debug)]
pub(crate) struct Counted {
    wheel: WheelRef,
    label: LabelId,
    /// The time that the timeout has. `None` until its first poll is pending if it has a deadline instead.
    total: Option<Nanos>,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    New,
    /// The beginning is counted, and the future has not been pending.
    Begun,
    Waiting,
    /// The outcome is counted.
    Ended,
}

impl Counted {
    /// Creates the count of a timeout that has `total` or, if that is `None`, the time from its first poll to
    /// its deadline.
    pub(super) fn new(wheel: WheelRef, label: LabelId, total: Option<Duration>) -> Counted {
        Counted {
            wheel,
            label,
            total: total.map(Nanos::of),
            progress: Progress::New,
        }
    }

    /// Counts the beginning at the first poll.
    #[inline]
    pub(crate) fn begin_poll(&mut self) {
        if self.progress == Progress::New {
            self.progress = Progress::Begun;
            self.wheel.shared().labels.count_start(self.label);
        }
    }

    /// Records that the first poll was pending, with the time that was `left` then.
    pub(crate) fn wait(&mut self, left: impl FnOnce() -> Nanos) {
        if self.progress == Progress::Begun {
            self.progress = Progress::Waiting;
            self.total.get_or_insert_with(left);
        }
    }

    /// Counts a completion by the time that is `left`. All is left of a timeout that was ready at its first
    /// poll.
    pub(crate) fn complete(&mut self, left: impl FnOnce() -> Nanos) {
        let outcome = match (self.progress, self.total) {
            (Progress::Waiting, Some(total)) => Outcome::completed(left().0, total.0),
            _ => Outcome::completed(1, 1),
        };
        self.end(outcome);
    }

    /// Counts that the time has run out.
    pub(crate) fn elapse(&mut self) {
        self.end(Outcome::Elapsed);
    }

    /// Counts an outcome, unless one has been counted or the timeout was never polled.
    fn end(&mut self, outcome: Outcome) {
        if matches!(self.progress, Progress::Begun | Progress::Waiting) {
            self.progress = Progress::Ended;
            self.wheel.shared().labels.count(self.label, outcome);
        }
    }
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        // Nearly all have ended, for which the call would take 15 instructions.
        if self.progress != Progress::Ended {
            self.end(Outcome::Cancelled);
        }
    }
}

/// The timer of a timeout whose start and outcome are counted.
#[derive(Debug)]
pub(crate) struct LabelledTimer {
    pub(super) sleep: Sleep,
    pub(super) counted: Counted,
}

impl LabelledTimer {
    pub(crate) fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    pub(crate) fn complete(&mut self) {
        self.counted.complete(|| left(&self.sleep.timer));
        self.sleep.complete();
    }

    #[track_caller]
    pub(crate) fn poll_after(&mut self, had_budget: HadBudget, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.sleep.poll_after(had_budget, cx);
        if polled.is_pending() {
            self.counted.wait(|| left(&self.sleep.timer));
        } else {
            self.counted.elapse();
        }
        polled
    }
}

/// Returns the time until a timer's deadline, which takes a reading of the clock.
fn left(timer: &Timer) -> Nanos {
    timer.deadline().since(timer.now())
}
