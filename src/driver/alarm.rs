//! `Alarm`: who has the driver, and when it runs next.
//!
//! The driver is a value. While it waits it lies in the alarm's [`Plan`], and whoever takes it out runs it: Tokio's timer, when it fires, or
//! the driver's task. Rules:
//!
//! 1. Only whoever has taken the driver may run it, with no lock held, and gives it back. Whoever finds it taken has nothing to do: `at`
//!    keeps what is registered meanwhile, and the driver reads it when it is given back.
//! 2. While the driver lies in the plan, Tokio's timer is set to `at` or earlier. So a driver that waits is never slept through.
//! 3. A driver that has gone leaves no plan. What comes late for it, by its number, finds another plan or none.
//!
//! The lock of the plan is the last in the crate's order. Only Tokio's own locks are taken under it. `loom/` checks these rules with a
//! stand-in for Tokio's timer.

use std::task::Waker;

use crate::sync::{Mutex, lock, planted};

/// The timer on which a driver waits.
pub(super) trait WaitsOn {
    type Instant: Copy + Ord;

    /// Sets the timer. Returns whether the instant has come already: the timer does not fire then.
    fn set(&mut self, at: Self::Instant) -> bool;

    /// Sets the timer to an instant before which other tasks run, and returns that.
    fn set_soon(&mut self) -> Self::Instant;
}

pub(super) struct Alarm<D, T: WaitsOn>(Mutex<Option<Plan<D, T>>>);

/// When a driver is to come.
pub(super) struct Plan<D, T: WaitsOn> {
    /// Whose plan it is.
    number: u64,
    timer: T,
    /// The waker of the driver's task, once that has been polled.
    task: Option<Waker>,
    /// The driver, unless somebody runs it.
    driver: Option<Box<D>>,
    /// When the driver is to come. `None` while nothing waits for it.
    at: Option<T::Instant>,
}

/// When the driver is to run next, once it has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextWake<I> {
    /// Once others have run, because it has more to do.
    Soon,
    /// At an instant.
    At(I),
    /// When something is registered.
    Never,
}

impl<D, T: WaitsOn> Default for Alarm<D, T> {
    fn default() -> Alarm<D, T> {
        Alarm(Mutex::new(None))
    }
}

impl<D, T: WaitsOn> Alarm<D, T> {
    /// A driver is about to start. Returns the plan of the last one, to be dropped with no lock held.
    pub(super) fn set_up(&self, number: u64, driver: D, timer: T) -> Option<Plan<D, T>> {
        lock(&self.0).replace(Plan {
            number,
            timer,
            task: None,
            driver: Some(Box::new(driver)),
            at: None,
        })
    }

    /// The driver has gone. Nobody uses its timer after this, because its runtime may be shutting down. Returns the plan, to be dropped with
    /// no lock held.
    pub(super) fn take_down(&self, number: u64) -> Option<Plan<D, T>> {
        lock(&self.0).take_if(|plan| plan.number == number)
    }

    /// The driver has panicked, or has nothing left to do. Its task, which finds no plan, ends.
    pub(super) fn end(&self, number: u64) {
        let plan = self.take_down(number);
        wake(plan.and_then(|plan| plan.task).filter(|_| !planted("end")));
    }

    /// Whether the driver has a plan.
    pub(super) fn is_set_up(&self, number: u64) -> bool {
        lock(&self.0).as_ref().is_some_and(|plan| plan.number == number)
    }

    /// The driver's task is polled: this is its waker.
    pub(super) fn task_is(&self, number: u64, waker: &Waker) {
        let mut guard = lock(&self.0);
        let Some(plan) = guard.as_mut().filter(|plan| plan.number == number) else {
            return;
        };
        if !plan.task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            // It is the waker of the driver's own task: no user code runs when it is dropped.
            plan.task = Some(waker.clone());
        }
    }

    /// Makes the driver come at `at`, unless it comes earlier anyway. It does not run on the calling thread.
    pub(super) fn wake_by(&self, at: T::Instant) {
        let mut guard = lock(&self.0);
        let Some(plan) = guard.as_mut() else { return };
        if plan.at.is_some_and(|planned| planned <= at) {
            return;
        }
        plan.at = Some(at);
        if plan.driver.is_some() && plan.timer.set(at) {
            plan.pause();
            let task = plan.task.clone();
            drop(guard);
            wake(task);
        }
    }

    /// Wakes the driver's task, for it to look whether it is still needed.
    pub(super) fn wake_task(&self) {
        let task = lock(&self.0).as_ref().and_then(|plan| plan.task.clone());
        wake(task);
    }

    /// Takes the driver, to run it, and the instant for which it comes. `None` while somebody else has it.
    pub(super) fn take(&self, number: u64) -> Option<(Box<D>, Option<T::Instant>)> {
        let mut guard = lock(&self.0);
        let plan = guard.as_mut().filter(|plan| plan.number == number)?;
        let driver = plan.driver.take()?;
        Some((driver, plan.at.take()))
    }

    /// Gives the driver back. Returns whether it has more to do already: then the caller takes it again, or has it [`pause`](Alarm::pause).
    pub(super) fn give_back(&self, number: u64, driver: Box<D>, next: NextWake<T::Instant>) -> bool {
        let mut guard = lock(&self.0);
        let Some(plan) = guard
            .as_mut()
            .filter(|plan| plan.number == number || planted("replaced"))
        else {
            drop(guard);
            // With no lock held, because shards may go with it.
            drop(driver);
            return false;
        };
        plan.driver = Some(driver);
        let next = match next {
            NextWake::Soon => return true,
            NextWake::At(at) => Some(at),
            NextWake::Never => None,
        };
        if planted("given_back") {
            plan.at = None;
        }
        plan.at = plan.at.into_iter().chain(next).min();
        plan.at.is_some_and(|at| plan.timer.set(at))
    }

    /// The driver has more to do, and others run first. It goes on when its task is polled or, where that stands behind many others, when
    /// the timer fires.
    pub(super) fn pause(&self, number: u64) {
        if let Some(plan) = lock(&self.0).as_mut().filter(|plan| plan.number == number) {
            plan.pause();
        }
    }
}

impl<D, T: WaitsOn> Plan<D, T> {
    fn pause(&mut self) {
        let soon = self.timer.set_soon();
        if !planted("pause") {
            self.at = Some(self.at.map_or(soon, |at| at.min(soon)));
        }
    }
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}
