//! A timer whose start and outcome are counted under a label.
//!
//! A timeout that is ready at its first poll counts once, as `AT_ONCE`. Any other counts twice: as `BEGUN` when its first poll is pending, or
//! when it is dropped if that poll panicked, and again by its outcome. A timeout that was never polled does not count.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    clock::Nanos,
    driver::Shared,
    error::TimeoutError,
    labels::{Count, Label},
    shard::{Shard, Timer},
    timeout::poll_timer,
};

pub(super) struct LabelledTimer {
    pub(super) timer: Timer,
    /// The time that it has. It is known from the first poll on, or before if the timer counts from there.
    total: Nanos,
    label: Label,
    progress: Progress,
    /// Its first poll has begun. It is set before the future is polled, because that may panic.
    polled: bool,
}

/// What has been counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing.
    New,
    /// Nothing. The timer has a deadline, so its time becomes known at the first poll.
    NewWithDeadline,
    /// That it has begun.
    Begun,
    /// What came of it.
    Ended,
}

impl LabelledTimer {
    /// A timer that is due `delay` after its first poll.
    #[inline]
    pub(super) fn counting(shard: &Arc<Shard>, delay: Duration, label: Label) -> LabelledTimer {
        let timer = Timer::counting(shard, delay);
        LabelledTimer {
            total: timer.delay(),
            timer,
            label,
            progress: Progress::New,
            polled: false,
        }
    }

    /// A timer that is due at `deadline`.
    pub(super) fn at(shard: &Arc<Shard>, deadline: Instant, label: Label) -> LabelledTimer {
        LabelledTimer {
            total: Nanos::ZERO,
            timer: Timer::at(shard, shard.moment_of(deadline)),
            label,
            progress: Progress::NewWithDeadline,
            polled: false,
        }
    }

    #[inline]
    fn count(&self, count: Count) {
        if !self.label.count(count) {
            self.count_elsewhere(count);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_elsewhere(&self, count: Count) {
        if let Some(driver) = self.timer.shard().driver().as_any().downcast_ref::<Shared>() {
            self.label.count_elsewhere(count, &driver.labels);
        }
    }

    #[inline]
    pub(super) fn begin_poll(&mut self) {
        self.polled = true;
    }

    /// The future was ready.
    #[inline(always)]
    pub(super) fn complete(&mut self) {
        // A fresh timer is registered. So its beginning has been counted, and its end has not.
        if self.timer.is_fresh() {
            self.end(Count::completed(9));
        } else {
            self.complete_slowly();
        }
        self.timer.cancel();
    }

    #[inline(never)]
    fn complete_slowly(&mut self) {
        match self.progress {
            Progress::New | Progress::NewWithDeadline => self.end(Count::AT_ONCE),
            Progress::Begun => self.end(
                self.timer
                    .tenths_left(self.total)
                    .map_or(Count::REFUSED, Count::completed),
            ),
            Progress::Ended => {}
        }
    }

    #[inline]
    fn end(&mut self, count: Count) {
        self.progress = Progress::Ended;
        self.count(count);
    }

    /// The future is pending.
    #[inline(always)]
    pub(super) fn poll(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<TimeoutError> {
        // Two comparisons, the likelier one first, take fewer instructions than a match.
        if self.progress == Progress::New {
            self.progress = Progress::Begun;
            self.count(Count::BEGUN);
        } else if self.progress == Progress::NewWithDeadline {
            self.begin_with_deadline();
        }
        let polled = poll_timer(&mut self.timer, had_budget, cx);
        if let Poll::Ready(error) = &polled {
            self.fail(error);
        }
        polled
    }

    #[cold]
    #[inline(never)]
    fn begin_with_deadline(&mut self) {
        self.progress = Progress::Begun;
        self.count(Count::BEGUN);
        self.total = self.timer.until_deadline();
    }

    #[cold]
    #[inline(never)]
    fn fail(&mut self, error: &TimeoutError) {
        if self.progress == Progress::Begun {
            self.end(match error {
                TimeoutError::Elapsed => Count::ELAPSED,
                _ => Count::REFUSED,
            });
        }
    }

    /// It is dropped before it has ended.
    ///
    /// It is `extern "C"` because such a function cannot unwind, and no user code runs in it that could. So the compiler inlines the
    /// drop: for a timer that has ended it is two comparisons. Otherwise the drop of every timer is a call, and a label would make a timeout
    /// 24 % dearer instead of 20 %.
    #[cold]
    #[inline(never)]
    extern "C" fn end_unfinished(&mut self) {
        if !self.polled {
            return;
        }
        if self.progress != Progress::Begun {
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
        if self.progress != Progress::Ended {
            self.end_unfinished();
        }
    }
}
