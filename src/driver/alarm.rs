//! When the driver comes, and who wakes it.
//!
//! The driver sleeps on Tokio's timer alone. A thread that registers an earlier deadline moves that timer. It does not wake the driver.
//! Tokio's time driver does, from a worker that has nothing else to do. So a worker that registers a timer and then blocks delays
//! nobody.
//!
//! If the worker itself woke the driver, the driver would go into the worker's LIFO slot. Tokio lets no other worker steal from there.
//! Sometimes such a wake-up cannot be avoided. Then an empty task is spawned after it and takes the slot. That moves the driver into
//! the worker's queue, from which any worker can take it.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    task::{Context, Poll, Waker},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task,
    time::{Instant, Interval},
};

use super::overtaking::Overtaking;
use crate::sync::{Mutex, lock};

/// What the driver waits for. Its lock is the last in the crate's order. Only Tokio's own locks are taken under it.
#[derive(Default)]
pub(super) struct Alarm(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    /// Tokio's timer. None while there is no driver.
    interval: Option<Interval>,
    /// The driver task's waker, once it has waited.
    waker: Option<Waker>,
    /// When the driver means to come. None while nothing waits for it.
    at: Option<Instant>,
    /// The driver is to come at once, whatever `at` says.
    notified: bool,
    /// Whether the driver waits. If it does not, it looks at the plan before it waits.
    waiting: bool,
}

impl Alarm {
    /// A driver is about to start, and is to wait on this timer.
    pub(super) fn set_up(&self, interval: Interval) {
        let plan = Plan {
            interval: Some(interval),
            ..Plan::default()
        };
        // The lock is released first: a timer takes Tokio's locks when it is dropped.
        let former = mem::replace(&mut *lock(&self.0), plan);
        drop(former);
    }

    /// The driver has gone. Nobody uses Tokio's timer after this, because its runtime may be shutting down.
    pub(super) fn take_down(&self) {
        let former = mem::take(&mut *lock(&self.0));
        drop(former);
    }

    /// Makes the driver come at `at`, unless it comes earlier anyway.
    pub(super) fn wake_by(&self, at: Instant) {
        let mut plan = lock(&self.0);
        if plan.at.is_some_and(|planned| planned <= at) {
            return;
        }
        plan.at = Some(at);
        let late = plan.waiting && plan.arm().is_ready();
        plan.notified |= late;
        let waker = plan.waker.clone().filter(|_| late);
        drop(plan);
        wake_for_any_worker(waker);
    }

    /// Makes the driver come at once.
    pub(super) fn wake_now(&self) {
        let mut plan = lock(&self.0);
        plan.notified = true;
        let waker = plan.waker.clone().filter(|_| plan.waiting);
        drop(plan);
        wake_for_any_worker(waker);
    }

    /// Waits until `at`, until an earlier instant given to `wake_by`, or until `wake_now`. Returns when the driver meant to come, if it had
    /// a plan.
    pub(super) async fn wait(&self, at: Option<Instant>, overtaking: &Overtaking) -> Option<Instant> {
        let mut starts = true;
        poll_fn(|cx| {
            let mut plan = lock(&self.0);
            if mem::take(&mut starts) {
                plan.at = at.into_iter().chain(plan.at).min();
                plan.waker = Some(overtaking.waker(cx.waker()));
                plan.waiting = true;
                if plan.at.is_some() && plan.arm().is_ready() {
                    plan.notified = true;
                }
            }
            let came = mem::take(&mut plan.notified) || plan.at.is_some() && plan.poll().is_ready();
            if !came {
                return Poll::Pending;
            }
            plan.waiting = false;
            Poll::Ready(plan.at.take())
        })
        .await
    }
}

impl Plan {
    /// Moves Tokio's timer to the planned instant. Ready if that has come already.
    fn arm(&mut self) -> Poll<Instant> {
        if let (Some(interval), Some(at)) = (&mut self.interval, self.at) {
            interval.reset_at(at);
        }
        self.poll()
    }

    /// Polls Tokio's timer for the driver, whoever calls.
    fn poll(&mut self) -> Poll<Instant> {
        let (Some(interval), Some(waker)) = (&mut self.interval, &self.waker) else {
            return Poll::Pending;
        };
        // This ignores the calling task's budget: without budget, the timer would not be registered.
        let tick = pin!(task::unconstrained(poll_fn(|cx| interval.poll_tick(cx))));
        tick.poll(&mut Context::from_waker(waker))
    }
}

/// Wakes the driver so that any worker can take it, whatever the current one does next.
fn wake_for_any_worker(driver: Option<Waker>) {
    let Some(driver) = driver else { return };
    driver.wake();
    if let Ok(runtime) = Handle::try_current() {
        if runtime.runtime_flavor() == RuntimeFlavor::MultiThread {
            drop(runtime.spawn(async {}));
        }
    }
}
