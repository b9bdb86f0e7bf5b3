//! Tokio's cooperative budget of a task, as the timers use it.
//!
//! A future that completes spends one unit, and a poll without budget left does nothing.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use tokio::task::coop;

/// Returns ready while there is budget. Otherwise wakes the task, which is then polled again with a new budget.
#[inline]
pub(crate) fn poll_left(cx: &mut Context<'_>) -> Poll<()> {
    if coop::has_budget_remaining() {
        Poll::Ready(())
    } else {
        coop::poll_proceed(cx).map(drop)
    }
}

/// Spends one unit of the budget.
#[inline]
pub(crate) fn poll_spend(cx: &mut Context<'_>) -> Poll<()> {
    ready!(coop::poll_proceed(cx)).made_progress();
    Poll::Ready(())
}

/// Polls a timer after the future that it limits. A future that always uses up the budget must not keep its timer from elapsing,
/// so the timer is polled without a budget if there was some before the future was polled.
pub(crate) fn poll_after<T: Future>(
    had_budget: bool,
    timer: Pin<&mut T>,
    cx: &mut Context<'_>,
) -> Poll<T::Output> {
    match had_budget && !coop::has_budget_remaining() {
        true => pin!(coop::unconstrained(timer)).poll(cx),
        false => timer.poll(cx),
    }
}
