//! A timer whose start and outcome are counted under a label.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use super::counted::Counted;
use crate::{
    engine::{
        labels::{LabelId, Outcome},
        moment::Nanos,
    },
    error::SleepError,
    timers::sleep::Sleep,
};

#[derive(Debug)]
pub(crate) struct LabelledTimer {
    sleep: Sleep,
    counted: Counted,
}

impl LabelledTimer {
    /// Creates the timer of a timeout that has `total` or, if that is `None`, the time from its first poll to its deadline.
    pub(crate) fn new(sleep: Sleep, label: LabelId, total: Option<Duration>) -> LabelledTimer {
        LabelledTimer {
            counted: Counted::new(label, total.map(Nanos::of)),
            sleep,
        }
    }

    /// Begins a poll of the future.
    pub(crate) fn begin_poll(&mut self) {
        self.counted.begin_poll(self.sleep.timer.shared());
    }

    /// Counts the completion of the future.
    pub(crate) fn complete(&mut self) {
        let timer = &self.sleep.timer;
        self.counted.complete(timer.shared(), || timer.now());
        self.sleep.complete();
    }

    /// Polls the timer after the future was pending.
    pub(crate) fn poll_after(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.sleep.poll_after(had_budget, cx);
        self.count(match polled {
            Poll::Pending => None,
            Poll::Ready(()) => Some(Outcome::Elapsed),
        });
        polled
    }

    /// Polls the timer after the future was pending, and fails if the wheel refuses it.
    pub(crate) fn try_poll_after(
        &mut self,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        let polled = self.sleep.try_poll_after(had_budget, cx);
        self.count(match polled {
            Poll::Pending => None,
            Poll::Ready(Ok(())) => Some(Outcome::Elapsed),
            Poll::Ready(Err(_)) => Some(Outcome::Refused),
        });
        if polled.is_pending() {
            self.counted.let_refuse(self.sleep.timer.shared());
        }
        polled
    }

    fn count(&mut self, outcome: Option<Outcome>) {
        let timer = &self.sleep.timer;
        match outcome {
            None => self.counted.wait(timer.deadline(), || timer.now()),
            Some(outcome) => self.counted.end(timer.shared(), outcome),
        }
    }
}

impl Drop for LabelledTimer {
    fn drop(&mut self) {
        self.counted.end(self.sleep.timer.shared(), Outcome::Cancelled);
    }
}
