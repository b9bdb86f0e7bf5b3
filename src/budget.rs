//! A task's cooperative budget: what completes spends of it, and with none left nothing is begun.

use std::task::{Context, Poll, ready};

use tokio::task::coop;

/// Ready while there is budget; otherwise the task is woken for its next turn.
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
