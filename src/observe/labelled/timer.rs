//! A timer whose start and outcome are counted under a label.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use super::counted::Counted;
use crate::{
    engine::{
        clock::Nanos,
        labels::{Count, Label},
        shard::Timer,
    },
    error::SleepError,
    timers::{fallback::FallbackTimer, sleep::Sleep},
};

#[derive(Debug)]
pub(crate) struct LabelledTimer {
    sleep: Sleep,
    counted: Counted,
}

impl LabelledTimer {
    /// Creates the timer of a timeout that lasts `total`, or until the deadline of `sleep` if that is zero.
    #[inline]
    pub(crate) fn new(sleep: Sleep, label: Label, total: Duration) -> LabelledTimer {
        LabelledTimer {
            counted: Counted::new(label, Nanos::from_duration(total)),
            sleep,
        }
    }

    /// Begins a poll of the future. Whatever comes of the first poll, it is counted on the wheel of its runtime.
    #[inline(always)]
    pub(super) fn begin_poll(&mut self, cx: &Context<'_>) {
        if self.counted.is_new() {
            self.sleep.bind(cx.waker());
            self.counted.begin_poll();
        }
    }

    /// Ends the timer, and counts the completion of the future.
    #[inline(never)]
    pub(super) fn cancel(&mut self) {
        match &mut self.sleep.timer {
            FallbackTimer::Wheel(timer) => {
                self.counted.complete(timer.shard(), || timer.left());
                timer.give_back_inlined();
            }
            timer => self.counted.complete(timer.shard(), || timer.ask(Timer::left)),
        }
    }

    /// Polls the timer after the future was pending.
    #[inline(never)]
    pub(super) fn poll_after(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.sleep.poll_after_inlined(had_budget, cx);
        match polled {
            Poll::Pending => self.wait(),
            Poll::Ready(()) => self.end(Count::ELAPSED),
        }
        polled
    }

    /// Polls the timer after the future was pending, and fails if the wheel refuses it.
    #[inline(always)]
    pub(super) fn try_poll_after(
        &mut self,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        let polled = self.sleep.try_poll_after(had_budget, cx);
        match polled {
            Poll::Pending => self.wait(),
            Poll::Ready(Ok(())) => self.end(Count::ELAPSED),
            Poll::Ready(Err(_)) => self.end(Count::REFUSED),
        }
        polled
    }

    #[inline]
    fn wait(&mut self) {
        let LabelledTimer { sleep, counted } = self;
        counted.wait(sleep.shard(), || sleep.left());
    }

    #[cold]
    fn end(&mut self, outcome: Count) {
        self.counted.end(self.sleep.shard(), outcome);
    }

    /// Counts a timer that is dropped before it has ended.
    ///
    /// This function is `extern "C"` because such a function cannot unwind, and runs no user code that could panic. Without a
    /// possible unwind, the compiler inlines the drop, which for a timer that has ended is a comparison.
    #[cold]
    #[inline(never)]
    extern "C" fn end_unfinished(&mut self) {
        self.end(Count::CANCELLED);
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
