//! When the driver comes, and who has it work.
//!
//! Tokio's time driver does. The timer on which the driver waits wakes no task. It wakes a [`DriverWaker`], and that has the driver work there
//! and then: in the place where Tokio would wake the task of a sleep of its own. So a sleep of the wheel's is woken when and where Tokio's
//! would be. It does not matter how many tasks are ready, in which queue they stand, or which worker is blocked. A thread that registers
//! an earlier deadline moves Tokio's timer.
//!
//! The driver's task works only when it starts, when it is to end, where Tokio's timer would come too late, and on a test's clock: what
//! else comes at the same instant of that comes first, a value before the timeout around it.
//!
//! # What this needs of Tokio
//!
//! All of this rests on how Tokio calls the wakers of its timers, which its documentation does not promise. These places are those of Tokio
//! 1.54; look at them again when it is updated.
//!
//! - A waker is called with no lock of the timers held, so it may register and reset timers. `Handle::process_at_time` in
//!   `runtime/time/mod.rs` collects wakers under the lock and calls them after it has released it, also when the runtime shuts down
//!   (`Driver::shutdown`, in the same file).
//! - A waker may take its time: Tokio sets it no limit. But while it runs on a multi-thread runtime, its worker keeps the
//!   `try_lock` on Tokio's driver (`Inner::park` and `Parker::park_timeout` in `runtime/scheduler/multi_thread/park.rs`), so no other worker
//!   polls I/O or timers until it returns. The driver therefore lets others run when it has worked for a slice (`SLICE`, 5 ms).
//! - A waker may be called synchronously by the thread that resets the timer, if the new instant has come already: `Handle::reregister` in
//!   `runtime/time/mod.rs` fires the entry, releases its lock and calls the waker before it returns. That thread holds the alarm's lock
//!   here, which is why [`SETS_TIMER`] exists.
//!
//! The timer is an [`Interval`] because it keeps its sleep in a box, and so is [`Unpin`] and can be part of a [`Plan`]. When it has fired,
//! `Interval::poll_tick` moves it on without registering it (`reset_without_timer` in `time/interval.rs`), so a driver that has come is not
//! woken again until it sets the timer.

use std::{
    cell::Cell,
    future::poll_fn,
    mem,
    pin::pin,
    sync::{Arc, Weak},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task,
    time::{Instant, Interval},
};

use super::{
    shared::Shared,
    task::{Begin, Driver, Rest},
};
use crate::{
    clock::Source,
    sync::{Mutex, lock},
};

/// How long the driver lets others run, where it has more to do.
const PAUSE: Duration = Duration::from_millis(1);

/// What the driver waits for. Its lock is the last in the crate's order. Only Tokio's own locks are taken under it.
#[derive(Default)]
pub(super) struct Alarm(Mutex<Plan>);

/// When a driver is to come. The default one is nobody's.
#[derive(Default)]
pub(super) struct Plan {
    /// Whose plan it is.
    number: u64,
    timer: Option<Timer>,
    /// The waker of the driver's task, once that has been polled.
    task: Option<Waker>,
    /// The driver itself, while it does not work. Whoever takes it has it alone, and works with no lock held.
    driver: Option<Box<Driver>>,
    /// When the driver means to come. None while nothing waits for it.
    at: Option<Instant>,
    /// The driver is done with its turn, and waits. If not, it looks at the plan before it waits.
    waiting: bool,
    /// The driver is to look again at once, whatever `at` says.
    notified: bool,
    /// The driver has nothing left to do: its task is to end.
    over: bool,
}

/// Tokio's timer, and what that wakes.
struct Timer {
    interval: Interval,
    runtime: Handle,
    waker: Waker,
}

/// Has the driver work when it is woken.
struct DriverWaker {
    shared: Weak<Shared>,
    driver: u64,
    runtime: Handle,
    source: Source,
}

thread_local! {
    /// This thread is setting Tokio's timer, under the alarm's lock. If the new instant has come already, Tokio calls the waker there and
    /// then, and the thread learns of it otherwise too. What another thread wakes meanwhile is not to be missed.
    static SETS_TIMER: Cell<bool> = const { Cell::new(false) };
}

/// While this lives, [`SETS_TIMER`] holds: also if Tokio panics, because its runtime is shutting down.
struct SetsTimer;

impl SetsTimer {
    fn begin() -> SetsTimer {
        SETS_TIMER.set(true);
        SetsTimer
    }
}

impl Drop for SetsTimer {
    fn drop(&mut self) {
        SETS_TIMER.set(false);
    }
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if SETS_TIMER.get() {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            let _entered = self.runtime.enter();
            let wakes_task = match self.source.recheck().is_real() {
                true => shared.work(self.driver) || shared.may_retire(),
                false => true,
            };
            shared.alarm.wake_task_if(self.driver, wakes_task);
        }
    }
}

impl Alarm {
    /// A driver is about to start, and is to wait on this timer. Returns the plan of the last one, to be dropped with no lock held.
    pub(super) fn set_up(&self, driver: Driver, interval: Interval, runtime: Handle) -> Plan {
        let waker = DriverWaker {
            shared: Arc::downgrade(driver.shared()),
            driver: driver.number(),
            runtime: runtime.clone(),
            source: driver.source(),
        };
        let plan = Plan {
            number: driver.number(),
            timer: Some(Timer {
                interval,
                runtime,
                waker: Waker::from(Arc::new(waker)),
            }),
            driver: Some(Box::new(driver)),
            ..Plan::default()
        };
        mem::replace(&mut *lock(&self.0), plan)
    }

    /// The driver's task has been spawned. If it stands behind many others, the driver works before it is polled.
    pub(super) fn begin(&self, driver: u64) {
        let mut plan = lock(&self.0);
        if plan.number == driver && plan.driver.is_some() && !plan.waiting {
            plan.come_soon();
        }
    }

    /// The driver has gone. Nobody uses Tokio's timer after this, because its runtime may be shutting down. Returns the plan, to be dropped
    /// with no lock held.
    pub(super) fn take_down(&self) -> Plan {
        mem::take(&mut *lock(&self.0))
    }

    /// Makes the driver come at `at`, unless it comes earlier anyway.
    pub(super) fn wake_by(&self, at: Instant) {
        let mut plan = lock(&self.0);
        if plan.at.is_some_and(|planned| planned <= at) {
            return;
        }
        plan.at = Some(at);
        if plan.waiting && plan.has_come() {
            plan.come_soon();
            let task = plan.task.clone();
            drop(plan);
            wake(task);
        }
    }

    /// Makes the driver come at once.
    pub(super) fn wake_now(&self) {
        let mut plan = lock(&self.0);
        plan.notified = true;
        let task = plan.task.clone();
        drop(plan);
        wake(task);
    }

    /// The driver's task is polled: this is its waker.
    pub(super) fn task_is(&self, driver: u64, waker: &Waker) {
        let mut plan = lock(&self.0);
        if plan.number == driver && !plan.task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            // It is the waker of the driver's own task: no user code runs when it is dropped.
            plan.task = Some(waker.clone());
        }
    }

    /// Whether the driver has gone, or has nothing left to do.
    pub(super) fn is_over(&self, driver: u64) -> bool {
        let plan = lock(&self.0);
        plan.number != driver || plan.over
    }

    /// The driver's task is to end. It does so, with the driver, when it is polled.
    pub(super) fn end(&self, driver: u64) {
        let mut plan = lock(&self.0);
        plan.over |= plan.number == driver;
    }

    /// Wakes the driver's task, if the driver is over or the caller says so.
    fn wake_task_if(&self, driver: u64, needed: bool) {
        let plan = lock(&self.0);
        let needed = plan.number == driver && (plan.over || needed);
        let task = plan.task.clone().filter(|_| needed);
        drop(plan);
        wake(task);
    }

    /// Takes the driver, to have it work, unless somebody else does.
    pub(super) fn take(&self, driver: u64) -> Option<(Box<Driver>, Begin)> {
        let mut plan = lock(&self.0);
        if plan.number != driver || plan.over {
            return None;
        }
        let driver = plan.driver.take()?;
        plan.notified = false;
        Some((driver, plan.begin()))
    }

    /// Gives the driver back.
    pub(super) fn give_back(&self, driver: Box<Driver>, rest: Rest) -> Given {
        let mut plan = lock(&self.0);
        if plan.number != driver.number() {
            // The driver goes with no lock held, and shards may go with it.
            drop(plan);
            return Given::Waits;
        }
        let mut goes_on = true;
        if let Rest::Until(at) = rest {
            plan.at = at.into_iter().chain(plan.at).min();
            plan.waiting = true;
            goes_on = mem::take(&mut plan.notified) | plan.has_come();
            if goes_on && !driver.has_worked_enough() {
                return Given::Again(driver, plan.begin());
            }
        }
        plan.driver = Some(driver);
        if !goes_on {
            return Given::Waits;
        }
        plan.come_soon();
        Given::Pauses
    }
}

/// What becomes of a driver that is given back.
pub(super) enum Given {
    /// It waits, or has gone.
    Waits,
    /// It has more to do, and comes again once others have run: its task is to be polled.
    Pauses,
    /// It is to work again at once.
    Again(Box<Driver>, Begin),
}

impl Plan {
    /// The driver works from here on.
    fn begin(&mut self) -> Begin {
        match mem::take(&mut self.waiting) {
            true => Begin::Turn {
                planned: self.at.take(),
            },
            false => Begin::Rest,
        }
    }

    /// Sets Tokio's timer to the planned instant. Tells whether that has come already.
    fn has_come(&mut self) -> bool {
        self.at.is_some_and(|at| self.set(at).is_ready())
    }

    /// The driver has more to do, but lets others run first. It goes on when its task is polled. Where that stands behind many others,
    /// Tokio's timer comes first.
    fn come_soon(&mut self) {
        let Some(timer) = &self.timer else { return };
        // The caller may be in a runtime with another clock.
        let entered = timer.runtime.enter();
        let now = Instant::now();
        drop(entered);
        // If this has come too, the thread was kept from running meanwhile. The task goes on all the same.
        let _ = self.set(now + PAUSE);
    }

    /// Sets Tokio's timer, and polls it with the driver's waker, whoever calls.
    fn set(&mut self, at: Instant) -> Poll<Instant> {
        let Some(Timer { interval, waker, .. }) = &mut self.timer else {
            return Poll::Pending;
        };
        let _setting = SetsTimer::begin();
        interval.reset_at(at);
        // This ignores the calling task's budget: without budget, the timer would not be registered.
        let tick = pin!(task::unconstrained(poll_fn(|cx| interval.poll_tick(cx))));
        tick.poll(&mut Context::from_waker(waker))
    }
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Wheel, shard::Drive};

    /// A turn has done with a shard when the wheel is shut down. The driver's task, woken for that, finds the driver at work.
    #[tokio::test(start_paused = true)]
    async fn whoever_wants_a_driver_that_is_at_work_has_it_look_again() {
        let wheel = Wheel::new();
        wheel.sleep(Duration::from_millis(1)).await.unwrap();
        let shared = wheel.driver();
        let (driver, _) = shared.alarm.take(1).expect("it waits");
        shared.wake_now();
        for _ in 0..32 {
            task::yield_now().await;
        }
        assert!(matches!(
            shared.alarm.give_back(driver, Rest::Until(None)),
            Given::Again(..)
        ));
    }
}
