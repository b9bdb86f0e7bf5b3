//! The single timer of a queue.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    runtime::{Handle, Id},
    time::{self, Instant},
};

use crate::{engine::driver::tokio_timer::FARTHEST, timers::sleep::Sleep, wheel::Wheel};

/// The timer of a queue, which is set for a deadline or not set.
#[derive(Debug)]
pub(super) struct QueueTimer {
    /// When the queue was created, from which a test's clock counts milliseconds.
    created: Instant,
    /// Out of the wheel while the timer is not set.
    sleep: Sleep,
    /// On a test's clock, the current runtime and one of Tokio's sleeps for the same instant, or for an
    /// earlier one if that is too far away for Tokio. On such a clock the wheel's turns come after everything
    /// else that is due, so a test that has slept until that instant would not find its queue woken, as it
    /// finds tokio-util's.
    beside: Option<(Id, Pin<Box<time::Sleep>>)>,
    /// The deadline for which the timer is set. The timer fires later if the deadline was rounded up.
    pub(super) deadline: Option<Instant>,
}

impl QueueTimer {
    pub(super) fn new(wheel: &Wheel) -> QueueTimer {
        let created = Instant::now();
        QueueTimer {
            created,
            sleep: wheel.sleep_until(created),
            beside: None,
            deadline: None,
        }
    }

    /// Reads the clock by which the queue's entries come due: that of the runtime which the wheel was given
    /// or else that of the caller.
    #[inline]
    pub(super) fn now(&self) -> Instant {
        self.sleep.timer.shared().instant_now()
    }

    /// Sets the timer. On a clock that no test controls, returns the time instead if the deadline has passed.
    #[track_caller]
    pub(super) fn set(&mut self, deadline: Instant) -> Result<(), Instant> {
        let may_be_paused = self.sleep.timer.shared().may_be_paused_here();
        let now = self.now();
        if !may_be_paused && deadline <= now {
            return Err(now);
        }
        // The sleep leaves the wheel first, because one that is moved to a later deadline still wakes at the
        // old one.
        self.unset();
        let mut due = deadline;
        if may_be_paused {
            due = self.whole_milliseconds(deadline);
            let sleep = Box::pin(time::sleep_until(bounded(due, now)));
            self.beside = Some((Handle::current().id(), sleep));
        }
        self.sleep.reset_at(due);
        self.deadline = Some(deadline);
        Ok(())
    }

    /// Rounds an instant up to a whole number of milliseconds after the queue's creation, as tokio-util's
    /// queue does.
    fn whole_milliseconds(&self, instant: Instant) -> Instant {
        let after = instant.saturating_duration_since(self.created);
        let millis = u64::try_from(after.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let rounded = self.created.checked_add(Duration::from_millis(millis));
        rounded.unwrap_or(instant)
    }

    pub(super) fn unset(&mut self) {
        if self.deadline.take().is_some() {
            drop(self.sleep.timer.cancel());
            self.beside = None;
        }
    }

    /// Polls the timer, and unsets it when it fires.
    #[inline]
    #[track_caller]
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if Pin::new(&mut self.sleep).poll(cx).is_pending() {
            let Some(beside) = &mut self.beside else {
                return Poll::Pending;
            };
            ready!(poll_beside(beside, self.sleep.deadline(), cx));
        }
        self.unset();
        Poll::Ready(())
    }
}

/// Waits until `due`, if the caller is in the runtime of this sleep. Elsewhere, that runtime may have ended.
#[cold]
fn poll_beside(
    (runtime, sleep): &mut (Id, Pin<Box<time::Sleep>>),
    due: Instant,
    cx: &mut Context<'_>,
) -> Poll<()> {
    if !Handle::try_current().is_ok_and(|here| here.id() == *runtime) {
        return Poll::Pending;
    }
    loop {
        ready!(sleep.as_mut().poll(cx));
        if sleep.deadline() == due {
            return Poll::Ready(());
        }
        sleep.as_mut().reset(bounded(due, Instant::now()));
    }
}

/// Returns `due`, or the farthest instant to which Tokio's timers may be set.
fn bounded(due: Instant, now: Instant) -> Instant {
    due.min(now + FARTHEST.to_duration())
}
