//! A timer whose beginning and end are counted under a label.
//!
//! A timeout that is ready at its first poll counts once, as `AT_ONCE`. Any other counts twice: as `BEGUN` when its first poll is
//! pending, or at its drop if that poll panicked, and then by what came of it. A timeout that was never polled does not count.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    clock::Nanos,
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
            timer: Timer::at(shard, shard.stamp(deadline)),
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
        // If there are no labels any more, nobody could read the count.
        if let Some(labels) = self.timer.shard().labels() {
            self.label.count_elsewhere(count, labels);
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
        if self.timer.is_fresh(self.total) {
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
    /// drop: for a timer that has ended it is two comparisons. Otherwise the drop of every timer is a call, of 15 instructions.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::task::Waker;

    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::Wheel;

    const TOTAL: Duration = Duration::from_secs(600);

    fn runtime(paused: bool) -> Runtime {
        let mut builder = Builder::new_current_thread();
        builder.enable_time().start_paused(paused).build().unwrap()
    }

    fn wheel() -> Wheel {
        let builder = Wheel::builder().shards(1);
        builder.tick_duration(Duration::from_millis(1)).build().unwrap()
    }

    /// A timer with a deadline, as a timeout's is in a shard that dozes.
    fn started(wheel: &Wheel, duration: Duration) -> Timer {
        let mut timer = Timer::from_now(wheel.shard(), duration);
        assert!(timer.poll(Waker::noop()).is_pending());
        timer
    }

    fn is_fresh(timer: &Timer, total: Duration) -> bool {
        timer.is_fresh(Nanos::from_duration(total))
    }

    /// Reads the clock so often that a visit is asked for, if it may be.
    fn read_often(wheel: &Wheel, total: Duration) {
        let timer = started(wheel, total);
        for _ in 0..1_000 {
            timer.tenths_left(Nanos::from_duration(total));
        }
    }

    #[test]
    fn a_thread_that_reads_the_clock_often_asks_for_a_visit_instead() {
        let wheel = wheel();
        let first = runtime(false);
        let entered = first.enter();
        assert!(!is_fresh(&started(&wheel, TOTAL), TOTAL));
        read_often(&wheel, TOTAL);
        let timer = started(&wheel, TOTAL);
        assert!(is_fresh(&timer, TOTAL));
        for less in [2, 10, 600] {
            let less = TOTAL / less;
            assert!(!is_fresh(&started(&wheel, less), less), "no visit in its tenth");
        }
        let later = started(&wheel, TOTAL + TOTAL / 5);
        assert!(!is_fresh(&later, TOTAL), "it will have begun after the visit");
        drop((later, entered));
        drop(first);
        assert!(!is_fresh(&timer, TOTAL), "nobody comes any more");

        let second = runtime(false);
        let _entered = second.enter();
        assert!(!is_fresh(&started(&wheel, TOTAL), TOTAL));
        read_often(&wheel, TOTAL);
        let timer = started(&wheel, TOTAL);
        assert!(is_fresh(&timer, TOTAL));
        wheel.shutdown();
        assert!(!is_fresh(&timer, TOTAL));
        assert_eq!(timer.tenths_left(Nanos::from_duration(TOTAL)), None);
    }

    #[test]
    fn the_visit_comes_and_from_then_on_the_clock_is_read() {
        runtime(false).block_on(async {
            let wheel = wheel();
            let total = Duration::from_secs(2);
            let reads_until_asked = async {
                loop {
                    // On a machine that is busy, so many readings may take too long.
                    read_often(&wheel, total);
                    let before = std::time::Instant::now();
                    let timer = started(&wheel, total);
                    if is_fresh(&timer, total) {
                        return (before, timer, std::time::Instant::now());
                    }
                    tokio::task::yield_now().await;
                }
            };
            let minute = Duration::from_secs(60);
            let (before, timer, after) = tokio::time::timeout(minute, reads_until_asked).await.unwrap();
            let come = async {
                while is_fresh(&timer, total) {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(minute, come).await.expect("nobody comes");
            let tenths = |passed| (total.saturating_sub(passed).as_nanos() * 10 / total.as_nanos()) as usize;
            let most = tenths(after.elapsed());
            let left = timer.tenths_left(Nanos::from_duration(total)).unwrap();
            let least = tenths(before.elapsed());
            assert!((least..=most).contains(&left), "{left}, not {least} to {most}");
        });
    }

    #[test]
    fn on_a_test_clock_no_visit_is_asked_for() {
        runtime(true).block_on(async {
            let wheel = wheel();
            read_often(&wheel, TOTAL);
            assert!(!is_fresh(&started(&wheel, TOTAL), TOTAL));
        });
    }
}
