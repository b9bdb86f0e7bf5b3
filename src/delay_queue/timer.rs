//! The single timer of a queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{self, Instant};

use crate::{agenda::Tick, clock, fallback::tokio_sleep, sleep::Sleep, wheel::Wheel};

/// The timer of a queue, which is set for a tick or not set.
///
/// It is a sleep on the wheel that falls back on Tokio's timer if the wheel is full or has been shut down. Under a test's clock,
/// one of Tokio's timers runs beside it, and the first of the two to fire counts. A test that sleeps until the very same instant
/// therefore finds the queue woken, whichever timer it sleeps on.
#[derive(Debug, Default)]
pub(super) struct QueueTimer(Option<Set>);

#[derive(Debug)]
struct Set {
    tick: Tick,
    sleep: Sleep,
    tokio_sleep: Option<Pin<Box<time::Sleep>>>,
}

impl QueueTimer {
    /// Returns the tick for which the timer is set.
    #[inline]
    pub(super) fn tick(&self) -> Option<Tick> {
        self.0.as_ref().map(|set| set.tick)
    }

    /// Sets the timer with a new sleep. The old sleep is not moved, because a sleep that is moved to a later deadline still wakes
    /// at the old one.
    pub(super) fn set(&mut self, wheel: &Wheel, tick: Tick, instant: Instant) {
        // The old place in the wheel is given back before a new one is taken.
        self.unset();
        self.0 = Some(Set {
            tick,
            sleep: wheel.sleep_until(instant),
            tokio_sleep: match clock::is_real(Instant::now) {
                true => None,
                false => tokio_sleep(instant),
            },
        });
    }

    /// Moves the timer to an earlier tick, if it is set for a later one.
    pub(super) fn bring_forward(&mut self, tick: Tick, instant: impl FnOnce() -> Instant) {
        if let Some(set) = self.0.as_mut().filter(|set| tick < set.tick) {
            let instant = instant();
            set.tick = tick;
            set.sleep.reset(instant);
            if let Some(sleep) = &mut set.tokio_sleep {
                sleep.as_mut().reset(instant);
            }
        }
    }

    pub(super) fn unset(&mut self) {
        if let Some(mut set) = self.0.take() {
            set.sleep.remove();
        }
    }

    /// Polls the timer. When the timer fires, this returns the tick for which it was set and unsets it.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Tick> {
        let Some(set) = &mut self.0 else {
            return Poll::Pending;
        };
        let on_wheel = Pin::new(&mut set.sleep).poll(cx);
        let beside = set.tokio_sleep.as_mut();
        if on_wheel.is_pending() && beside.is_none_or(|sleep| sleep.as_mut().poll(cx).is_pending()) {
            return Poll::Pending;
        }
        let tick = set.tick;
        self.unset();
        Poll::Ready(tick)
    }
}
