//! `FallbackTimer`: a timer of the wheel, which goes on as a timer of Tokio's if the wheel refuses it.

use std::{
    future::Future,
    mem,
    panic::catch_unwind,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker, ready},
};

use tokio::{
    runtime::{Handle, Id},
    task::coop,
    time::{self, Instant},
};

use crate::{
    engine::{
        clock::{self, Moment},
        shard::{ShardRef, Timer},
    },
    error::SleepError,
    timers::budget,
    wheel::current,
};

/// The timer of a future.
///
/// A future that cannot fail [polls](FallbackTimer::poll) it, and so waits for the same instant on Tokio's timer if the wheel is
/// full or shut down. A future that the wheel may refuse [tries](FallbackTimer::try_poll_after) it, and never leaves the wheel.
#[derive(Debug)]
pub(crate) enum FallbackTimer {
    Wheel(Timer),
    /// Until Tokio's timer has elapsed. Never shared. The drop of an `Arc` is one call, so the compiler inlines the drop of a timer on
    /// the wheel, which a `Box` would make a tenth dearer.
    Tokio(Arc<TokioTimer>),
}

// The rare fallback costs no byte of a timer on the wheel.
const _: () = assert!(mem::size_of::<FallbackTimer>() == mem::size_of::<Timer>());

#[derive(Debug)]
pub(crate) struct TokioTimer {
    /// Not in the wheel; says when it is due, and on which shard.
    refused: Timer,
    /// `None` where Tokio has no timers. The next poll then completes.
    tokio_sleep: Option<Pin<Box<time::Sleep>>>,
    /// The runtime of Tokio's timer, which ends with it.
    runtime: Option<Id>,
}

impl FallbackTimer {
    /// Polls the timer, on the wheel or on Tokio's timer.
    #[inline]
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.waits(cx.waker()) {
            true => Poll::Pending,
            false => self.poll_awake(cx),
        }
    }

    #[inline(never)]
    fn poll_awake(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.takes_over(true, cx.waker()) {
            true => Poll::Pending,
            false => self.poll_locked(false, cx),
        }
    }

    /// Polls the timer after the future that it limits. See [`budget::poll`] for `had_budget`.
    #[inline(always)]
    pub(crate) fn poll_after(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        match self.takes_over(false, cx.waker()) {
            true => Poll::Pending,
            false => self.poll_locked(had_budget, cx),
        }
    }

    /// Polls the timer as [`poll_after`](FallbackTimer::poll_after) does, but fails if the wheel refuses it.
    #[inline]
    pub(crate) fn try_poll_after(
        &mut self,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SleepError>> {
        match self.takes_over(false, cx.waker()) {
            true => Poll::Pending,
            false => self.try_poll_locked(had_budget, cx),
        }
    }

    /// Polls the timer, which wakes `waker` while it is on the wheel, and on Tokio's timer the task. It takes over none that was kept.
    #[inline(never)]
    pub(crate) fn poll_for(&mut self, waker: &Waker, cx: &mut Context<'_>) -> Poll<()> {
        let FallbackTimer::Wheel(timer) = self else {
            return self.poll_locked(false, cx);
        };
        if timer.waits(waker) {
            return Poll::Pending;
        }
        timer.follow_thread();
        match ready!(budget::poll(false, cx, |_| timer.poll_locked(waker))) {
            Ok(()) => Poll::Ready(()),
            Err(_) => self.fall_back(false, cx),
        }
    }

    /// Returns whether the timer waits, as far as is known without the lock. Such a poll spends no budget.
    #[inline]
    fn waits(&self, waker: &Waker) -> bool {
        matches!(self, FallbackTimer::Wheel(timer) if timer.is_bound() && timer.waits(waker))
    }

    /// Binds an unbound timer, as its first poll would.
    #[inline]
    pub(crate) fn bind(&mut self, waker: &Waker) {
        if let FallbackTimer::Wheel(timer) = self {
            if !timer.is_bound() {
                current::bind(timer, waker);
            }
        }
    }

    /// Makes the timer wait if that needs no lock, unless it waits already. Such a poll spends no budget either. The first poll binds a timer
    /// that is unbound. A timer that `is_awake` is known not to wait.
    #[inline(always)]
    fn takes_over(&mut self, is_awake: bool, waker: &Waker) -> bool {
        let FallbackTimer::Wheel(timer) = self else {
            return false;
        };
        if !timer.is_bound() {
            current::bind(timer, waker);
        } else if !is_awake && timer.waits(waker) {
            return true;
        }
        timer.takes_over(waker)
    }

    #[inline(always)]
    fn poll_locked(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        match ready!(self.try_poll_locked(had_budget, cx)) {
            Ok(()) => Poll::Ready(()),
            Err(_) => self.fall_back(had_budget, cx),
        }
    }

    #[inline]
    fn try_poll_locked(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<Result<(), SleepError>> {
        budget::poll(had_budget, cx, |waker| match self {
            FallbackTimer::Wheel(timer) => timer.poll_locked(waker),
            FallbackTimer::Tokio(_) => self.poll_fallback(waker).map(Ok),
        })
    }

    /// Goes on with Tokio's timer, for the instant at which the refused timer would have been due.
    #[cold]
    fn fall_back(&mut self, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
        let FallbackTimer::Wheel(refused) = self else {
            return Poll::Ready(());
        };
        if refused.needs_no_timer() {
            refused.elapse();
            return Poll::Ready(());
        }
        let mut timer = TokioTimer {
            refused: same(refused),
            tokio_sleep: None,
            runtime: None,
        };
        timer.follow_runtime();
        let is_available = timer.tokio_sleep.is_some();
        *self = FallbackTimer::Tokio(Arc::new(timer));
        if !is_available {
            // A loop around such a timer must let other tasks run.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.poll_locked(had_budget, cx)
    }

    /// Polls Tokio's timer. When that has elapsed, the next reset asks the wheel again.
    #[cold]
    #[inline(never)]
    fn poll_fallback(&mut self, waker: &Waker) -> Poll<()> {
        let FallbackTimer::Tokio(timer) = self else {
            return Poll::Ready(());
        };
        let timer = own(timer);
        timer.follow_runtime();
        let TokioTimer {
            refused, tokio_sleep, ..
        } = timer;
        if let Some(tokio_sleep) = tokio_sleep {
            // The budget is spent by the caller.
            let unconstrained = pin!(coop::unconstrained(tokio_sleep.as_mut()));
            ready!(unconstrained.poll(&mut Context::from_waker(waker)));
        }
        let mut elapsed = same(refused);
        elapsed.elapse();
        *self = FallbackTimer::Wheel(elapsed);
        Poll::Ready(())
    }

    /// Calls `ask` with the timer or, if the wheel has refused it, with one of the same deadline.
    #[inline]
    pub(crate) fn ask<R>(&self, ask: impl FnOnce(&Timer) -> R) -> R {
        match self {
            FallbackTimer::Wheel(timer) => ask(timer),
            FallbackTimer::Tokio(timer) => ask(timer.refused()),
        }
    }

    #[inline]
    pub(crate) fn shard(&self) -> &ShardRef {
        match self {
            FallbackTimer::Wheel(timer) => timer.shard(),
            FallbackTimer::Tokio(timer) => timer.refused().shard(),
        }
    }

    pub(crate) fn is_elapsed(&self) -> bool {
        match self {
            FallbackTimer::Wheel(timer) => timer.is_elapsed(),
            FallbackTimer::Tokio(timer) => timer.tokio_sleep.as_ref().is_some_and(|sleep| sleep.is_elapsed()),
        }
    }

    #[inline]
    pub(crate) fn reset(&mut self, deadline: Moment) {
        match self {
            FallbackTimer::Wheel(timer) => timer.reset(deadline),
            FallbackTimer::Tokio(timer) => reset_fallback(timer, deadline, Timer::reset),
        }
    }

    #[inline]
    pub(crate) fn reset_at(&mut self, deadline: Instant) {
        match self {
            FallbackTimer::Wheel(timer) => timer.reset_at(deadline),
            FallbackTimer::Tokio(timer) => reset_fallback(timer, deadline, Timer::reset_at),
        }
    }

    /// Moves the timer to a deadline that has passed, so that the next poll completes it.
    pub(crate) fn reset_immediately(&mut self, deadline: Moment) {
        match self {
            FallbackTimer::Wheel(timer) => timer.reset_immediately(deadline),
            FallbackTimer::Tokio(timer) => reset_fallback(timer, deadline, Timer::reset_immediately),
        }
    }

    /// Converts the deadline to the axis on which moments are compared. Starts a driver to do so if there is none.
    pub(crate) fn settle(&mut self) {
        match self {
            FallbackTimer::Wheel(timer) => timer.settle(),
            FallbackTimer::Tokio(timer) => own(timer).refused.settle(),
        }
    }

    /// See [`Timer::count_from`]. Tokio's timer has no slack.
    pub(crate) fn count_from(&mut self, start: Moment) {
        if let FallbackTimer::Wheel(timer) = self {
            timer.count_from(start);
        }
    }

    /// See [`Timer::rearm`]. Tokio's timer wakes the task.
    pub(crate) fn rearm(&mut self, deadline: Moment, start: Moment, waker: &Waker) -> bool {
        match self {
            FallbackTimer::Wheel(timer) => timer.rearm(deadline, start, waker),
            FallbackTimer::Tokio(_) => false,
        }
    }

    /// Leaves the wheel, and keeps the timer for the next timer of its task if possible.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let FallbackTimer::Wheel(timer) = self {
            timer.cancel();
        }
    }

    /// Leaves the wheel or Tokio's timer, and keeps nothing for the next timer of its task, which would be woken at this one's
    /// deadline. After a reset, the next poll tries the wheel again.
    pub(crate) fn remove(&mut self) {
        match self {
            FallbackTimer::Wheel(timer) => timer.remove(),
            FallbackTimer::Tokio(timer) => *self = FallbackTimer::Wheel(same(&timer.refused)),
        }
    }
}

impl TokioTimer {
    /// Takes a timer of the current runtime, whose poll this is, in place of one of another runtime, which may have ended.
    fn follow_runtime(&mut self) {
        let here = clock::runtime_here();
        if here.is_some() && here != self.runtime {
            self.runtime = here;
            self.tokio_sleep = tokio_sleep(self.refused.refused_until()).or(self.tokio_sleep.take());
        }
    }

    #[cold]
    #[inline(never)]
    fn refused(&self) -> &Timer {
        &self.refused
    }
}

/// Creates a timer on the same shard, for the same deadline.
fn same(timer: &Timer) -> Timer {
    Timer::at(&**timer.shard(), timer.due())
}

/// Moves Tokio's timer, unless the deadline stays the same: an instant of a clock that has stopped would be carried over anew, and so move
/// away at each reset.
#[cold]
#[inline(never)]
fn reset_fallback<D>(timer: &mut Arc<TokioTimer>, deadline: D, reset: fn(&mut Timer, D)) {
    let TokioTimer {
        refused, tokio_sleep, ..
    } = own(timer);
    let former = refused.due();
    reset(refused, deadline);
    if let Some(tokio_sleep) = tokio_sleep.as_mut().filter(|_| refused.due() != former) {
        tokio_sleep.as_mut().reset(refused.refused_until());
    }
}

fn own(timer: &mut Arc<TokioTimer>) -> &mut TokioTimer {
    Arc::get_mut(timer).expect("a fallback is never shared")
}

/// Creates a sleep on Tokio's own timer. Returns `None` in another executor and in a runtime without timers.
pub(crate) fn tokio_sleep(deadline: Instant) -> Option<Pin<Box<time::Sleep>>> {
    Handle::try_current().ok()?;
    // Tokio reports a runtime without timers only by a panic.
    catch_unwind(|| Box::pin(time::sleep_until(deadline))).ok()
}
