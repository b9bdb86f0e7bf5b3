//! `KernelTimer`: a timer of the kernel, on which the driver of a wheel that asks for it waits in place of
//! Tokio's timer. It is exact, while Tokio rounds up to a millisecond, and `epoll_wait` to the next one.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Poll, Waker},
};

use tokio::task;

pub(crate) use super::timer_fd::SHORTEST_TICK;
use super::timer_fd::TimerFd;
use crate::engine::clock::Moment;

pub(crate) struct KernelTimer(TimerFd);

impl KernelTimer {
    /// Creates a timer in the current runtime that is not set. Returns `None` if there is none, because the
    /// process has no descriptor left, or the runtime is shutting down.
    ///
    /// # Panics
    ///
    /// Panics with Tokio's message if the runtime's I/O is disabled.
    #[track_caller]
    pub(crate) fn new() -> Option<KernelTimer> {
        TimerFd::new().map(KernelTimer)
    }

    /// Sets the timer to wake `waker` at `at` or, if that has come, as soon as the runtime polls I/O. Returns
    /// whether that was possible.
    pub(super) fn set(&self, at: Moment, waker: &Waker) -> bool {
        // In this order, because an expiry that another worker sees before the waker is registered would be
        // cleared as an old one. An old one that is seen afterwards wakes the driver for nothing.
        self.register(waker) && self.0.set_time(at)
    }

    /// Clears expiries that have been seen, and registers the waker.
    fn register(&self, waker: &Waker) -> bool {
        let register = poll_fn(|cx| {
            loop {
                // First, because the timer has mostly expired, and then one poll is enough.
                self.0.clear_expired();
                match self.0.poll_expired(cx) {
                    Poll::Ready(true) => {}
                    outcome => return outcome.map(drop),
                }
            }
        });
        // Without budget, the waker would not be registered, and be woken at once, under the alarm's lock, where
        // the caller is no task of the runtime.
        let register = pin!(task::unconstrained(register));
        register.poll(&mut Context::from_waker(waker)).is_pending()
    }
}
