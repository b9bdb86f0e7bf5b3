//! A timer whose start and outcome are counted under a label.

use std::task::{Context, Poll};

use super::counted::Counted;
use crate::{
    engine::{labels::Label, shard::Timer},
    error::SleepError,
    timers::sleep::Sleep,
};

#[derive(Debug)]
pub(crate) struct LabelledTimer {
    sleep: Sleep,
    counted: Counted,
}

impl LabelledTimer {
    #[inline]
    pub(crate) fn new(sleep: Sleep, label: Label) -> LabelledTimer {
        LabelledTimer {
            counted: Counted::new(label, sleep.timer().ask(Timer::delay)),
            sleep,
        }
    }

    #[inline]
    pub(super) fn begin_poll(&mut self) {
        self.counted.begin_poll();
    }

    /// Counts the completion of the future.
    #[inline]
    pub(super) fn complete(&mut self) {
        self.counted.complete(self.sleep.shard());
        self.sleep.cancel();
    }

    /// Polls the timer after the future was pending.
    #[inline(always)]
    pub(super) fn poll(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.sleep.poll_after(had_budget, cx);
        match polled {
            Poll::Pending => self.begin(),
            Poll::Ready(()) => self.counted.elapse(self.sleep.shard()),
        }
        polled
    }

    /// Polls the timer after the future was pending, and fails if the wheel refuses it.
    #[inline(always)]
    pub(super) fn try_poll(
        &mut self,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        let polled = self.sleep.try_poll_after(had_budget, cx);
        match polled {
            Poll::Pending => self.begin(),
            Poll::Ready(Ok(())) => self.counted.elapse(self.sleep.shard()),
            Poll::Ready(Err(_)) => self.counted.refuse(self.sleep.shard()),
        }
        polled
    }

    /// Counts the beginning. After its first poll the timer has a deadline, unless it is incoming in a ticking shard.
    #[inline]
    fn begin(&mut self) {
        let timer = self.sleep.timer();
        self.counted.begin(timer.shard(), || timer.ask(Timer::known_due));
    }

    /// Counts a timer that is dropped before it has ended.
    ///
    /// This function is `extern "C"` because such a function cannot unwind, and runs no user code that could panic. Without a
    /// possible unwind, the compiler inlines the drop, which for a timer that has ended is a comparison.
    #[cold]
    #[inline(never)]
    extern "C" fn end_unfinished(&mut self) {
        self.counted.cancel(self.sleep.shard());
    }
}

impl Drop for LabelledTimer {
    #[inline(always)]
    fn drop(&mut self) {
        if self.counted.is_unfinished() {
            self.end_unfinished();
        }
    }
}
