//! A timer whose start and outcome are counted under a label.
//!
//! A timeout that is ready at its first poll counts once, as `AT_ONCE`. Any other timeout counts twice: first as `BEGUN`, when its first
//! poll is pending (or when it is dropped, if that poll panicked), and then by its outcome. A timeout that was never polled does not count.

use std::task::{Context, Poll, ready};

use crate::{
    engine::{
        clock::Nanos,
        driver::Shared,
        labels::{Count, Label},
        shard::Timer,
    },
    error::SleepError,
    timers::sleep::Sleep,
};

#[derive(Debug)]
pub(crate) struct LabelledTimer {
    sleep: Sleep,
    /// The time that the timer has. It is known from the first poll on, or earlier if the duration counts from that poll.
    total: Nanos,
    label: Label,
    progress: Progress,
    /// Whether the first poll has begun. This is set before the future is polled, because the future may panic.
    polled: bool,
}

/// What has been counted of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Nothing has been counted.
    New,
    /// The beginning has been counted.
    Begun,
    /// The outcome has been counted.
    Ended,
}

impl LabelledTimer {
    #[inline]
    pub(super) fn new(sleep: Sleep, label: Label) -> LabelledTimer {
        LabelledTimer {
            total: sleep.timer().ask(Timer::delay),
            sleep,
            label,
            progress: Progress::New,
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
        if let Some(driver) = self.sleep.shard().driver().as_any().downcast_ref::<Shared>() {
            self.label.count_elsewhere(count, &driver.labels);
        }
    }

    #[inline]
    pub(super) fn begin_poll(&mut self) {
        self.polled = true;
    }

    /// Counts the completion of the future.
    #[inline(always)]
    pub(super) fn complete(&mut self) {
        // A fresh timer is registered, so its beginning has been counted and its end has not.
        if self.sleep.timer().ask(Timer::is_fresh) {
            self.end(Count::completed(9));
        } else {
            self.complete_slowly();
        }
        self.sleep.cancel();
    }

    #[inline(never)]
    fn complete_slowly(&mut self) {
        match self.progress {
            Progress::New => self.end(Count::AT_ONCE),
            Progress::Begun => self.end(
                self.sleep
                    .timer()
                    .ask(|timer| timer.tenths_left(self.total))
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

    /// Polls the timer after the future was pending.
    #[inline(always)]
    pub(super) fn poll(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        self.begin();
        ready!(self.sleep.poll_after(had_budget, cx));
        self.fail(self.outcome_after_shutdown().unwrap_or(Count::ELAPSED));
        Poll::Ready(())
    }

    /// Polls the timer after the future was pending, and fails if the wheel refuses it.
    #[inline(always)]
    pub(super) fn try_poll(
        &mut self,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        self.begin();
        let waited = ready!(self.sleep.try_poll_after(had_budget, cx));
        self.fail(waited.map_or(Count::REFUSED, |()| Count::ELAPSED));
        Poll::Ready(waited)
    }

    #[inline(always)]
    fn begin(&mut self) {
        if self.progress == Progress::New {
            self.progress = Progress::Begun;
            self.count(Count::BEGUN);
            if self.total == Nanos::ZERO {
                self.total = self.sleep.timer().ask(Timer::until_deadline);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn fail(&mut self, outcome: Count) {
        if self.progress == Progress::Begun {
            self.end(outcome);
        }
    }

    /// Returns the outcome of every timeout that ends when the wheel has been shut down, since it then counts as refused.
    fn outcome_after_shutdown(&self) -> Option<Count> {
        self.sleep.shard().is_shutdown().then_some(Count::REFUSED)
    }

    /// Counts a timer that is dropped before it has ended.
    ///
    /// This function is `extern "C"` because such a function cannot unwind, and runs no user code that could panic. Without a
    /// possible unwind, the compiler inlines the drop, which for a timer that has ended is two comparisons. Otherwise the drop of
    /// every timer would be a call, and a label would make a timeout 24 % dearer instead of 20 %.
    #[cold]
    #[inline(never)]
    extern "C" fn end_unfinished(&mut self) {
        if !self.polled {
            return;
        }
        if self.progress != Progress::Begun {
            self.count(Count::BEGUN);
        }
        self.count(self.outcome_after_shutdown().unwrap_or(Count::CANCELLED));
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
