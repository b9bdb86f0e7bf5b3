//! Runs the driver: from Tokio's timer and, where that is not enough, from a task.
//!
//! On a real clock, the waker of Tokio's timer runs the driver. The task runs it only at the start, and to continue after a full slice. On
//! a test's clock the task always runs it, because other tasks that are due at the same instant must run first there, such as a task that
//! sends the value that a timeout waits for. On either clock, the task tells the wheel when the runtime has ended, and ends itself when the
//! driver is no longer needed.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::Wake,
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify, task, time};

use super::{
    shared::Shared,
    timer::{observe_millisecond, sets_timer},
    waking::panics,
};
use crate::engine::{clock::Source, events, sync::lock};

/// How long a driver that is no longer needed waits for the next timer, on the real clock. Starting a driver costs as much as
/// fifty timers.
const LINGER: Duration = Duration::from_millis(100);

/// Spawns a background task.
///
/// Tokio's code for a task is compiled once per type of future and flavor of runtime, 8 KB each time, so these tasks share one type.
#[inline(never)]
pub(crate) fn spawn(
    runtime: &Handle,
    task: Pin<Box<dyn Future<Output = ()> + Send>>,
) -> task::JoinHandle<()> {
    runtime.spawn(task)
}

/// The waker of Tokio's timer, which runs the driver.
pub(super) struct DriverWaker {
    pub(super) shared: Arc<Shared>,
    pub(super) task: Arc<DriverTask>,
    pub(super) runtime: Handle,
    /// The source of the runtime's clock when the driver started.
    pub(super) source: Source,
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if sets_timer() {
            return;
        }
        let shared = &self.shared;
        if let Some(driver) = self.task.driver() {
            // The machine's clock is read without the runtime.
            let _entered = (self.source != Source::Machine).then(|| self.runtime.enter());
            let reading = self.source.read();
            let (_, source) = reading;
            if !source.is_real() {
                shared.clock_is_of_a_test(driver);
            }
            if !source.is_real() || shared.work(driver, reading) || shared.may_retire() {
                shared.alarm.wake_task();
            }
        }
    }
}

/// The driver's task, as who starts the driver and its [`Guard`] see it.
#[derive(Default)]
pub(super) struct DriverTask {
    pub(super) woken: Arc<Notify>,
    /// The number of the driver, once it is attached. `None` if the task ended before that.
    driver: OnceLock<Option<u64>>,
}

impl DriverTask {
    /// Attaches driver number `driver` to this task. Returns `false` if the task has ended.
    pub(super) fn attach(&self, driver: u64) -> bool {
        self.driver.set(Some(driver)).is_ok()
    }

    fn driver(&self) -> Option<u64> {
        self.driver.get().copied().flatten()
    }

    /// Ends the task. Returns the number of its driver, if one was attached.
    fn end(&self) -> Option<u64> {
        *self.driver.get_or_init(|| None)
    }
}

/// Owned by the driver's task. Its drop tells the wheel that the driver ends, whatever the reason.
pub(super) struct Guard {
    shared: Arc<Shared>,
    task: Arc<DriverTask>,
    /// Whether the task ended by itself. Otherwise it panicked, or its runtime was shut down.
    ended: bool,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, task: Arc<DriverTask>) -> Guard {
        Guard {
            shared,
            task,
            ended: false,
        }
    }

    /// The driver's task, which lives as long as the driver.
    pub(super) async fn run(mut self) {
        let Guard { shared, task, .. } = &self;
        let woken = &task.woken;
        // First, the driver is attached.
        woken.notified().await;
        let Some(number) = task.driver() else { return };
        // Wakers that run in here may poll their futures, which must not spend the budget of this task.
        task::unconstrained(async {
            let is_aligned = lock(&shared.slot).is_aligned;
            if !is_aligned {
                if let Some(begin) = observe_millisecond().await {
                    while !shared.align(number, begin) {
                        task::yield_now().await;
                    }
                }
            }
            loop {
                let goes_on = shared.work(number, shared.clock().source.read());
                if !shared.alarm.is_set_up(number) || shared.is_shut_down() {
                    return;
                }
                if goes_on {
                    // Other tasks run first, including those that the driver has woken.
                    task::yield_now().await;
                } else if !shared.is_needed() {
                    // On a test's clock the driver does not linger, because waiting would move that clock.
                    let lingers = shared.clock().source.recheck().is_real();
                    if !lingers
                        || time::timeout(LINGER, woken.notified()).await.is_err() && !shared.is_needed()
                    {
                        return;
                    }
                } else {
                    woken.notified().await;
                }
            }
        })
        .await;
        self.ended = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(number) = self.task.end() else { return };
        if !self.ended && !thread::panicking() {
            self.shared.driving_runtime_has_ended();
        }
        self.shared.driver_has_gone(number);
        // A subscriber may panic here while the panic of another one unwinds.
        panics(|| events::driver_changed(&self.shared.stats.name, number, "stopped"));
    }
}
