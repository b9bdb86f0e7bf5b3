//! What is counted under a label: each timeout at its first poll and once it ends. One that was never polled
//! does not count.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    engine::{
        clock::Nanos,
        labels::{LabelId, Outcome},
        shared::Shared,
        timer::Timer,
    },
    timers::sleep::{HadBudget, Sleep},
};

/// The count of one timeout or scope.
#[derive(Debug)]
pub(super) struct Counted {
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
    pub(super) fn new(label: LabelId, total: Option<Duration>) -> Counted {
        Counted {
            label,
            total: total.map(Nanos::of),
            progress: Progress::New,
        }
    }

    /// Counts the beginning at the first poll.
    fn begin_poll<'a>(&mut self, shared: impl FnOnce() -> &'a Shared) {
        if self.progress == Progress::New {
            self.progress = Progress::Begun;
            shared().labels.count_start(self.label);
        }
    }

    /// Records that the first poll was pending, with the time that was `left` then.
    fn wait(&mut self, left: impl FnOnce() -> Nanos) {
        if self.progress == Progress::Begun {
            self.progress = Progress::Waiting;
            self.total.get_or_insert_with(left);
        }
    }

    /// Counts a completion by the time that is `left`. All is left of a timeout that was ready at its first
    /// poll.
    fn complete(&mut self, shared: &Shared, left: impl FnOnce() -> Nanos) {
        let outcome = match (self.progress, self.total) {
            (Progress::Waiting, Some(total)) => Outcome::completed(left().0, total.0),
            _ => Outcome::completed(1, 1),
        };
        self.end(shared, outcome);
    }

    /// Counts an outcome, unless one has been counted or the timeout was never polled.
    fn end(&mut self, shared: &Shared, outcome: Outcome) {
        if matches!(self.progress, Progress::Begun | Progress::Waiting) {
            self.progress = Progress::Ended;
            shared.labels.count(self.label, outcome);
        }
    }
}

/// The timer of a timeout, whose start and outcome are counted. Dropped before it has ended, it counts as
/// cancelled.
#[derive(Debug)]
pub(crate) struct LabelledTimer {
    sleep: Sleep,
    counted: Counted,
}

impl LabelledTimer {
    /// Creates the timer of a timeout that has `total` or, if that is `None`, the time from its first poll to
    /// its deadline.
    pub(crate) fn new(sleep: Sleep, label: LabelId, name: &str, total: Option<Duration>) -> LabelledTimer {
        sleep.resource.has_label(name);
        let counted = Counted::new(label, total);
        LabelledTimer { sleep, counted }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    #[inline]
    pub(crate) fn begin_poll(&mut self) {
        self.counted.begin_poll(|| self.sleep.timer.shared());
    }

    pub(crate) fn complete(&mut self) {
        let timer = &self.sleep.timer;
        self.counted.complete(timer.shared(), || left(timer));
        self.sleep.complete();
    }

    #[track_caller]
    pub(crate) fn poll_after(&mut self, had_budget: HadBudget, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.sleep.poll_after(had_budget, cx);
        let timer = &self.sleep.timer;
        if polled.is_pending() {
            self.counted.wait(|| left(timer));
        } else {
            self.counted.end(timer.shared(), Outcome::Elapsed);
        }
        polled
    }
}

/// Returns the time until a timer's deadline, which takes a reading of the clock.
fn left(timer: &Timer) -> Nanos {
    timer.deadline().since(timer.now())
}

impl Drop for LabelledTimer {
    #[inline]
    fn drop(&mut self) {
        if self.counted.progress != Progress::Ended {
            self.counted.end(self.sleep.timer.shared(), Outcome::Cancelled);
        }
    }
}

/// The count of a scope, which has no timer to ask for its wheel. Dropped before the scope has ended, it
/// counts as cancelled.
pub(crate) struct CountedScope {
    shared: Arc<Shared>,
    counted: Counted,
}

impl CountedScope {
    pub(crate) fn new(shared: Arc<Shared>, label: LabelId) -> CountedScope {
        let counted = Counted::new(label, None);
        CountedScope { shared, counted }
    }

    pub(crate) fn begin_poll(&mut self) {
        self.counted.begin_poll(|| &self.shared);
    }

    /// Counts what a poll of the scope has returned, after which there was so much time `left`.
    pub(crate) fn end_poll<T, E>(&mut self, polled: &Poll<Result<T, E>>, left: impl FnOnce() -> Nanos) {
        match polled {
            Poll::Pending => self.counted.wait(left),
            Poll::Ready(Ok(_)) => self.counted.complete(&self.shared, left),
            Poll::Ready(Err(_)) => self.counted.end(&self.shared, Outcome::Elapsed),
        }
    }
}

impl fmt::Debug for CountedScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counted.fmt(f)
    }
}

impl Drop for CountedScope {
    fn drop(&mut self) {
        self.counted.end(&self.shared, Outcome::Cancelled);
    }
}
