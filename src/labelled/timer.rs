//! A timer whose beginning and end are counted under a label.

use std::task::{Context, Poll};

use crate::{
    error::TimeoutError,
    labels::{Count, Label},
    shard::{Headroom, Timer},
    timeout::poll_timer,
};

pub(super) struct LabelledTimer {
    pub(super) timer: Timer,
    headroom: Headroom,
    label: Label,
    progress: Progress,
}

/// What has been counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    New,
    /// In its first poll, which counts also if the future panics.
    Polled,
    /// That it has begun.
    Begun,
    /// What came of it.
    Ended,
}

impl LabelledTimer {
    #[inline]
    pub(super) fn new(timer: Timer, label: Label) -> LabelledTimer {
        LabelledTimer {
            timer,
            headroom: Headroom::NONE,
            label,
            progress: Progress::New,
        }
    }

    #[inline]
    fn count(&self, count: Count) {
        self.label.count(count, || self.timer.shard().labels());
    }

    #[inline]
    pub(super) fn begin_poll(&mut self) {
        if self.progress == Progress::New {
            self.progress = Progress::Polled;
        }
    }

    /// The future was ready.
    #[inline(always)]
    pub(super) fn complete(&mut self) {
        let count = match self.progress {
            Progress::New | Progress::Polled => Count::AT_ONCE,
            Progress::Begun => self
                .timer
                .tenths_left(&self.headroom)
                .map_or(Count::REFUSED, Count::completed),
            Progress::Ended => return,
        };
        self.progress = Progress::Ended;
        self.count(count);
        self.timer.cancel();
    }

    /// The future is pending.
    #[inline]
    pub(super) fn poll(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<TimeoutError> {
        let begins = self.progress == Progress::Polled;
        let delay = self.timer.delay();
        if begins {
            self.progress = Progress::Begun;
            self.count(Count::BEGUN);
        }
        let polled = poll_timer(&mut self.timer, had_budget, cx);
        match &polled {
            Poll::Pending if begins => self.headroom = self.timer.begin_headroom(delay),
            Poll::Pending => {}
            Poll::Ready(error) => self.fail(error),
        }
        polled
    }

    fn fail(&mut self, error: &TimeoutError) {
        if self.progress == Progress::Begun {
            self.progress = Progress::Ended;
            self.count(match error {
                TimeoutError::Elapsed => Count::ELAPSED,
                _ => Count::REFUSED,
            });
        }
    }

    /// It is dropped before anything has come of it.
    #[cold]
    #[inline(never)]
    fn end_unfinished(&mut self) {
        if self.progress == Progress::Polled {
            self.count(Count::BEGUN);
        }
        self.count(match self.timer.shard().is_shutdown() {
            true => Count::REFUSED,
            false => Count::CANCELLED,
        });
    }
}

impl Drop for LabelledTimer {
    #[inline(always)]
    fn drop(&mut self) {
        if matches!(self.progress, Progress::Polled | Progress::Begun) {
            self.end_unfinished();
        }
    }
}
