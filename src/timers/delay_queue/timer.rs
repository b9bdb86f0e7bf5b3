//! The single timer of a queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    runtime::Id,
    time::{self, Instant},
};

use crate::{
    engine::clock,
    timers::{fallback::tokio_sleep, sleep::Sleep},
    wheel::Wheel,
};

/// The timer of a queue, which is set for a deadline or not set.
///
/// It is a sleep on the wheel that falls back on Tokio's timer if the wheel is full or has been shut down. On a test's clock, one of Tokio's
/// timers runs beside it and decides, so that a test which polls before the wheel's driver has run finds what is due on Tokio's timer.
#[derive(Debug, Default)]
pub(super) struct QueueTimer {
    /// Made when the timer is set for the first time, and out of the wheel while the timer is not set.
    sleep: Option<Sleep>,
    /// With its runtime. On another one it is not polled, because Tokio panics if its own has ended.
    tokio_sleep: Option<(Id, Pin<Box<time::Sleep>>)>,
    /// The deadline for which the timer is set. The timer fires later if that was rounded up.
    pub(super) deadline: Option<Instant>,
}

impl QueueTimer {
    /// Sets the timer. The sleep leaves the wheel first, because a sleep that is moved to a later deadline still wakes at the old
    /// one.
    pub(super) fn set(&mut self, wheel: &Wheel, deadline: Instant, until: Instant, is_real: bool) {
        self.unset();
        match &mut self.sleep {
            Some(sleep) => sleep.reset(until),
            None => self.sleep = Some(wheel.sleep_until(until)),
        }
        if !is_real {
            self.tokio_sleep = clock::runtime_here().zip(tokio_sleep(until));
        }
        self.deadline = Some(deadline);
    }

    #[inline]
    pub(super) fn unset(&mut self) {
        if let (Some(sleep), Some(_)) = (&mut self.sleep, self.deadline.take()) {
            sleep.timer.remove();
            self.tokio_sleep = None;
        }
    }

    /// Polls the timer. When the timer fires, this unsets it and returns its deadline.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        let Some(sleep) = &mut self.sleep else {
            return Poll::Pending;
        };
        let on_wheel = Pin::new(sleep).poll(cx);
        ready!(match &mut self.tokio_sleep {
            Some(beside) => poll_beside(beside, cx).unwrap_or(on_wheel),
            None => on_wheel,
        });
        let deadline = self.deadline;
        self.unset();
        Poll::Ready(deadline)
    }
}

/// Polls Tokio's timer, unless the caller is on another runtime than the timer.
#[cold]
fn poll_beside((runtime, sleep): &mut (Id, Pin<Box<time::Sleep>>), cx: &mut Context<'_>) -> Option<Poll<()>> {
    clock::runtime_here()
        .is_none_or(|here| here == *runtime)
        .then(|| sleep.as_mut().poll(cx))
}
