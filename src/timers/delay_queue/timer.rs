//! The single timer of a queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::Instant;

use crate::{timers::sleep::Sleep, wheel::Wheel};

/// The timer of a queue, which is set for a deadline or not set.
#[derive(Debug, Default)]
pub(super) struct QueueTimer {
    /// Made when the timer is set for the first time, and out of the wheel while the timer is not set.
    sleep: Option<Sleep>,
    /// The deadline for which the timer is set. The timer fires later if that was rounded up.
    pub(super) deadline: Option<Instant>,
}

impl QueueTimer {
    /// Sets the timer. The sleep leaves the wheel first, because a sleep that is moved to a later deadline still wakes at the old
    /// one.
    pub(super) fn set(&mut self, wheel: &Wheel, deadline: Instant, until: Instant) {
        self.unset();
        match &mut self.sleep {
            Some(sleep) => sleep.reset(until),
            None => self.sleep = Some(wheel.sleep_until(until)),
        }
        self.deadline = Some(deadline);
    }

    #[inline]
    pub(super) fn unset(&mut self) {
        if let (Some(sleep), Some(_)) = (&mut self.sleep, self.deadline.take()) {
            drop(sleep.timer.remove());
        }
    }

    /// Polls the timer. When the timer fires, this unsets it and returns its deadline.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        let Some(sleep) = &mut self.sleep else {
            return Poll::Pending;
        };
        ready!(Pin::new(sleep).poll(cx));
        Poll::Ready(self.deadline.take())
    }
}
