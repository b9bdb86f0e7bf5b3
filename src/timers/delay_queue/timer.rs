//! The single timer of a queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::time::{self, Instant};

use crate::{
    timers::{fallback::tokio_sleep, sleep::Sleep},
    wheel::Wheel,
};

/// The timer of a queue, which is set for a deadline or not set.
///
/// It is a sleep on the wheel that falls back on Tokio's timer if the wheel is full or has been shut down. On a test's clock, one of Tokio's
/// timers runs beside it and decides, so that a test which polls before the wheel's driver has run finds what is due on Tokio's timer.
#[derive(Debug, Default)]
pub(super) struct QueueTimer(Option<Set>);

#[derive(Debug)]
struct Set {
    deadline: Instant,
    /// When the timer fires, which is later than `deadline` if that was rounded up.
    until: Instant,
    sleep: Sleep,
    tokio_sleep: Option<Pin<Box<time::Sleep>>>,
}

impl QueueTimer {
    /// Returns the deadline for which the timer is set.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.0.as_ref().map(|set| set.deadline)
    }

    /// Sets the timer with a new sleep. The old sleep is not moved, because a sleep that is moved to a later deadline still wakes
    /// at the old one.
    pub(super) fn set(&mut self, wheel: &Wheel, deadline: Instant, until: Instant, is_real: bool) {
        // The old place in the wheel is given back before a new one is taken.
        self.unset();
        self.0 = Some(Set {
            deadline,
            until,
            sleep: wheel.sleep_until(until),
            tokio_sleep: match is_real {
                true => None,
                false => tokio_sleep(until),
            },
        });
    }

    pub(super) fn unset(&mut self) {
        if let Some(mut set) = self.0.take() {
            set.sleep.remove();
        }
    }

    /// Polls the timer. When the timer fires, this unsets it and returns the instant that has been reached.
    #[inline]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        let Some(set) = &mut self.0 else {
            return Poll::Pending;
        };
        let on_wheel = Pin::new(&mut set.sleep).poll(cx);
        let fired = match &mut set.tokio_sleep {
            Some(sleep) => sleep.as_mut().poll(cx),
            None => on_wheel,
        };
        let until = set.until;
        ready!(fired);
        self.unset();
        Poll::Ready(until)
    }
}
