//! Tokio's cooperative budget of a task, as the timers use it.

use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop;

/// Polls a timer on the task's budget: a completion spends one unit, and a poll without budget left only wakes the task, which is
/// then polled again with a new budget.
///
/// A future that always uses up the budget must not keep its own timer from elapsing. So `had_budget` says whether there was some
/// before that future was polled, and if there was, its timer is polled even without budget. A timer of no other future passes
/// `false`.
#[inline(always)]
pub(crate) fn poll<T>(
    had_budget: bool,
    cx: &mut Context<'_>,
    timer: impl FnOnce(&Waker) -> Poll<T>,
) -> Poll<T> {
    if !had_budget && !coop::has_budget_remaining() {
        drop(ready!(coop::poll_proceed(cx)));
    }
    let output = ready!(timer(cx.waker()));
    if coop::has_budget_remaining() {
        ready!(coop::poll_proceed(cx)).made_progress();
    }
    Poll::Ready(output)
}
