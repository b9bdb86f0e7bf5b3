//! `Waiter`: the task that is waiting in a poll function.

use std::task::{Context, Waker};

/// The waker of the task that polled last, and whether that task is waiting.
///
/// The waker is kept when the task stops waiting, because the same task usually polls again.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    waker: Option<Waker>,
    waiting: bool,
}

impl Waiter {
    #[inline]
    pub(crate) fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
        self.waiting = true;
    }

    /// Records that the polling task has an output and no longer waits. If another task was waiting, it is
    /// woken to poll again, because the timer that would have woken it may be gone.
    pub(crate) fn stop_waiting(&mut self, cx: &Context<'_>) {
        match &self.waker {
            Some(waker) if waker.will_wake(cx.waker()) => self.waiting = false,
            _ => self.wake(),
        }
    }

    /// Wakes the waiting task, if there is one. It counts as waiting until it polls again.
    pub(crate) fn wake_by_ref(&self) {
        if let (true, Some(waker)) = (self.waiting, &self.waker) {
            waker.wake_by_ref();
        }
    }

    /// Wakes the waiting task, if there is one, which then no longer waits.
    pub(crate) fn wake(&mut self) {
        self.wake_by_ref();
        self.waiting = false;
    }
}
