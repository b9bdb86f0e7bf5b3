//! The single timer of a queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    runtime::{Handle, Id},
    time::{self, Instant},
};

use crate::{timers::sleep::Sleep, wheel::Wheel};

/// The timer of a queue, which is set for a deadline or not set.
#[derive(Debug, Default)]
pub(super) struct QueueTimer {
    /// Made when the timer is set for the first time, and out of the wheel while the timer is not set.
    sleep: Option<Sleep>,
    /// On a test's clock, a sleep of Tokio's for the same instant, and its runtime. There the wheel's turns come after what else is due, so a test
    /// that has slept until that instant would not see its queue woken, as it sees tokio-util's.
    beside: Option<(Id, Pin<Box<time::Sleep>>)>,
    /// The deadline for which the timer is set. The timer fires later if that was rounded up.
    pub(super) deadline: Option<Instant>,
}

impl QueueTimer {
    /// Sets the timer. The sleep leaves the wheel first, because a sleep that is moved to a later deadline still wakes at the old
    /// one.
    pub(super) fn set(&mut self, wheel: &Wheel, deadline: Instant, until: Instant, is_of_test: bool) {
        self.unset();
        match &mut self.sleep {
            Some(sleep) => sleep.reset(until),
            None => self.sleep = Some(wheel.sleep_until(until)),
        }
        if is_of_test {
            self.beside = Some((Handle::current().id(), Box::pin(time::sleep_until(until))));
        }
        self.deadline = Some(deadline);
    }

    #[inline]
    pub(super) fn unset(&mut self) {
        if let (Some(sleep), Some(_)) = (&mut self.sleep, self.deadline.take()) {
            drop(sleep.timer.remove());
            self.beside = None;
        }
    }

    /// Polls the timer. When the timer fires, this unsets it and returns its deadline.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        let Some(sleep) = &mut self.sleep else {
            return Poll::Pending;
        };
        let on_wheel = Pin::new(sleep).poll(cx);
        if !on_wheel.is_ready() {
            ready!(
                self.beside
                    .as_mut()
                    .map_or(Poll::Pending, |beside| poll_beside(beside, cx))
            );
        }
        let deadline = self.deadline;
        self.unset();
        Poll::Ready(deadline)
    }
}

/// Polls Tokio's sleep, unless this is another runtime than its own, which may have ended.
#[cold]
fn poll_beside((runtime, sleep): &mut (Id, Pin<Box<time::Sleep>>), cx: &mut Context<'_>) -> Poll<()> {
    if Handle::try_current().is_ok_and(|here| here.id() == *runtime) {
        sleep.as_mut().poll(cx)
    } else {
        Poll::Pending
    }
}
