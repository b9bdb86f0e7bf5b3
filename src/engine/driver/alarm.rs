//! `Alarm`: which thread runs the driver, and when the driver runs next.
//!
//! The alarm's [`Plan`] owns the idle driver. To run it, Tokio's timer (when it fires) or the driver's task takes it out. Rules:
//!
//! 1. Only the caller that has taken the driver may run it, with no lock held, and gives it back afterwards. A caller that finds the driver
//!    taken has nothing to do, because `at` keeps the earliest registration made meanwhile, and is read when the driver is given back.
//! 2. While the plan owns the driver, Tokio's timer is set to `at` or earlier, so that no deadline of an idle driver is missed.
//! 3. A driver that has ended leaves no plan. A late call for it carries its number, and so finds another plan or none.
//!
//! The lock of the plan is the last in the crate's order, and only Tokio's own locks are taken under it. `loom/` checks these rules with a
//! stand-in for Tokio's timer.

use crate::engine::sync::{Mutex, lock, planted};

/// The timer on which a driver waits, and its task.
pub(super) trait WaitsOn {
    type Instant: Copy + Ord;

    /// Sets the timer. Returns `true` if the instant has already come, in which case the timer does not fire. The timer will probably be
    /// set to `ahead` afterwards.
    fn set(&mut self, at: Self::Instant, ahead: Option<Self::Instant>) -> bool;

    /// Sets the timer to an instant before which other tasks run, and returns that instant.
    fn set_soon(&mut self) -> Self::Instant;

    /// Makes the task run, even if it does not wait yet.
    fn wake_task(&self);
}

pub(super) struct Alarm<D, T: WaitsOn>(Mutex<Option<Plan<D, T>>>);

/// When a driver runs next.
pub(super) struct Plan<D, T: WaitsOn> {
    /// The number of the driver.
    number: u64,
    timer: T,
    /// The driver, unless it is running.
    driver: Option<Box<D>>,
    /// When the driver runs next, or `None` while no timer needs it.
    at: Option<T::Instant>,
}

/// When a driver that has run is to run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextWake<I> {
    /// Once other tasks have run, because it has more to do.
    Soon,
    /// At an instant. `ahead` is probably the instant of the turn after that.
    At { at: I, ahead: Option<I> },
    /// When a timer is registered.
    Never,
}

impl<D, T: WaitsOn> Default for Alarm<D, T> {
    fn default() -> Alarm<D, T> {
        Alarm(Mutex::new(None))
    }
}

impl<D, T: WaitsOn> Alarm<D, T> {
    /// Creates the plan of a driver that is about to start. Returns the plan of the previous driver, to be dropped with no lock
    /// held.
    pub(super) fn set_up(&self, number: u64, driver: D, timer: T) -> Option<Plan<D, T>> {
        lock(&self.0).replace(Plan {
            number,
            timer,
            driver: Some(Box::new(driver)),
            at: None,
        })
    }

    /// Removes the plan of a driver that has ended, so that its timer is not used while its runtime may be shutting down. Returns
    /// the plan, to be dropped with no lock held.
    pub(super) fn take_down(&self, number: u64) -> Option<Plan<D, T>> {
        lock(&self.0).take_if(|plan| plan.number == number)
    }

    /// Ends a driver that has panicked or that has nothing left to do. The driver's task finds no plan, and so ends too.
    pub(super) fn end(&self, number: u64) {
        let plan = self.take_down(number);
        if let Some(plan) = plan.filter(|_| !planted("end")) {
            plan.timer.wake_task();
        }
    }

    /// Returns whether the driver has a plan.
    pub(super) fn is_set_up(&self, number: u64) -> bool {
        lock(&self.0).as_ref().is_some_and(|plan| plan.number == number)
    }

    /// Makes the driver run at `at` or earlier. It does not run on the calling thread. Returns `true` if the instant has already
    /// come, as far as is known.
    pub(super) fn wake_by(&self, at: T::Instant) -> bool {
        let mut guard = lock(&self.0);
        let Some(plan) = guard.as_mut() else { return false };
        if plan.at.is_some_and(|planned| planned <= at) {
            return false;
        }
        plan.at = Some(at);
        let has_come = plan.driver.is_some() && plan.timer.set(at, None);
        if has_come {
            plan.pause();
            plan.timer.wake_task();
        }
        has_come
    }

    /// Wakes the driver's task, so that it checks whether it is still needed.
    pub(super) fn wake_task(&self) {
        if let Some(plan) = &*lock(&self.0) {
            plan.timer.wake_task();
        }
    }

    /// Takes the driver to run it, with the instant it was planned for. Returns `None` while another caller has it.
    #[inline(always)]
    pub(super) fn take(&self, number: u64) -> Option<(Box<D>, Option<T::Instant>)> {
        let mut guard = lock(&self.0);
        let plan = guard.as_mut().filter(|plan| plan.number == number)?;
        let driver = plan.driver.take()?;
        Some((driver, plan.at.take()))
    }

    /// Gives the driver back. Returns its next instant if Tokio's timer has already elapsed for that one, so that the caller takes
    /// the driver again.
    #[inline(always)]
    pub(super) fn give_back(
        &self,
        number: u64,
        driver: Box<D>,
        next: NextWake<T::Instant>,
    ) -> Option<T::Instant> {
        let mut guard = lock(&self.0);
        let Some(plan) = guard
            .as_mut()
            .filter(|plan| plan.number == number || planted("replaced"))
        else {
            drop(guard);
            // Dropped with no lock held, because shards may be dropped with it.
            drop(driver);
            return None;
        };
        plan.driver = Some(driver);
        let (next, ahead) = match next {
            NextWake::Soon => {
                plan.pause();
                return None;
            }
            NextWake::At { at, ahead } => (Some(at), ahead),
            NextWake::Never => (None, None),
        };
        if planted("given_back") {
            plan.at = None;
        }
        plan.at = plan.at.into_iter().chain(next).min();
        plan.at.filter(|at| plan.timer.set(*at, ahead))
    }

    /// Lets other tasks run before a driver that has more to do. The driver continues when its task is polled or, if many other
    /// tasks are ahead of that task, when the timer fires.
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
