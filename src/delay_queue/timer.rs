//! The single timer of a queue.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::time::{self, Instant};

use crate::{
    agenda::Tick,
    clock,
    fallback_sleep::{FallbackSleep, tokio_sleep},
    wheel::Wheel,
};

/// A timer that is set for a tick, or for none.
///
/// It is a sleep on the wheel. If the wheel is full or has been shut down, the sleep goes on with Tokio's timer. Under a test's
/// clock a timer of Tokio's runs beside it, and the first of the two counts. So a test that sleeps to the very same instant finds the
/// queue woken, whichever timer it sleeps on.
#[derive(Debug, Default)]
pub(super) struct QueueTimer(Option<Set>);

#[derive(Debug)]
struct Set {
    tick: Tick,
    sleep: FallbackSleep,
    tokio_sleep: Option<Pin<Box<time::Sleep>>>,
}

impl QueueTimer {
    /// The tick for which it is set.
    #[inline]
    pub(super) fn tick(&self) -> Option<Tick> {
        self.0.as_ref().map(|set| set.tick)
    }

    /// Sets the timer by a new sleep. The old one is not moved, because a sleep that is moved to a later deadline wakes at the old one.
    pub(super) fn set(&mut self, wheel: &Wheel, tick: Tick, instant: Instant) {
        // A place in the wheel is given back before the next is asked for.
        self.unset();
        self.0 = Some(Set {
            tick,
            sleep: FallbackSleep::new(wheel.sleep_until(instant)),
            tokio_sleep: match clock::is_real(Instant::now) {
                true => None,
                false => tokio_sleep(instant),
            },
        });
    }

    /// Moves it to an earlier tick, if it is set for a later one.
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
        if let Some(set) = self.0.take() {
            set.sleep.remove();
        }
    }

    /// Polls the timer. Once it has come, this returns the tick for which it was set, and it is no longer set.
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
