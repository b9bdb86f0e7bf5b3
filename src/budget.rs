//! Tokio's cooperative budget of a task.
//!
//! A future that completes spends one unit, and a poll without budget left starts nothing.

use std::task::{Context, Poll, ready};

use tokio::task::coop;

/// Ready while there is budget. Otherwise the task is woken, to be polled again with a new budget.
#[inline]
pub(crate) fn poll_left(cx: &mut Context<'_>) -> Poll<()> {
    if coop::has_budget_remaining() {
        Poll::Ready(())
    } else {
        coop::poll_proceed(cx).map(drop)
    }
}

/// Spends one unit.
#[inline]
pub(crate) fn poll_spend(cx: &mut Context<'_>) -> Poll<()> {
    ready!(coop::poll_proceed(cx)).made_progress();
    Poll::Ready(())
}
