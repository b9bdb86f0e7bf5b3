//! Runs the driver: from Tokio's timer and, where that is not enough, from a task.
//!
//! On a real clock, the waker of Tokio's timer runs the driver. The task runs it only at the start, and to continue after a full slice. On
//! a test's clock the task always runs it, because other tasks that are due at the same instant must run first there, such as a task that
//! sends the value that a timeout waits for. On either clock, the task tells the wheel when the runtime has ended, and ends itself when the
//! driver is no longer needed.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Weak},
    task::{Context, Poll, Wake},
    time::Duration,
};

use tokio::{runtime::Handle, task, time::Sleep};

use super::{shared::Shared, timer::sets_timer, waking::panics};
use crate::{clock::Source, events, sync::lock};

/// How long a driver that is no longer needed waits for the next timer, on the real clock. Starting a driver costs as much as
/// fifty timers.
const LINGER: Duration = Duration::from_millis(100);

/// The waker of Tokio's timer, which runs the driver.
pub(super) struct DriverWaker {
    shared: Weak<Shared>,
    driver: u64,
    runtime: Handle,
    source: Source,
}

impl DriverWaker {
    pub(super) fn new(shared: &Arc<Shared>, driver: u64, runtime: Handle, source: Source) -> DriverWaker {
        DriverWaker {
            shared: Arc::downgrade(shared),
            driver,
            runtime,
            source,
        }
    }
}

impl Wake for DriverWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if sets_timer() {
            return;
        }
        if let Some(shared) = self.shared.upgrade() {
            let _entered = self.runtime.enter();
            let real = self.source.recheck().is_real();
            if !real || shared.work(self.driver) || shared.may_retire() {
                shared.alarm.wake_task();
            }
        }
    }
}

/// Owned by the driver's task. Its drop tells the wheel that the driver ends, whatever the reason.
pub(super) struct Guard {
    shared: Arc<Shared>,
    number: u64,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Guard {
        Guard { shared, number }
    }

    /// The driver's task, which lives as long as the driver.
    pub(super) async fn run(self) {
        let mut linger = None;
        // Wakers that run in here may poll their futures, which must not spend the budget of this task.
        task::unconstrained(poll_fn(|cx| {
            let Guard { shared, number } = &self;
            shared.alarm.task_is(*number, cx.waker());
            let goes_on = shared.work(*number);
            if !shared.alarm.is_set_up(*number)
                || shared.is_shut_down()
                || has_lingered(shared, &mut linger, cx)
            {
                return Poll::Ready(());
            }
            if goes_on {
                // Other tasks run first, including those that the driver has woken.
                let _ = pin!(task::yield_now()).poll(cx);
            }
            Poll::Pending
        }))
        .await;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.driver_has_gone(self.number);
        // A subscriber may panic here while the panic of another one unwinds.
        panics(|| events::driver_stopped(&self.shared.stats.name, self.number));
    }
}

/// Returns whether no handle is left and no timer has been pending for [`LINGER`]. On a test's clock the driver does not linger,
/// because waiting would move that clock.
fn has_lingered(shared: &Shared, linger: &mut Option<Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> bool {
    if !shared.may_retire() || !shared.shards().all(|shard| shard.pending() == 0) {
        *linger = None;
        return false;
    }
    if !lock(&shared.slot).clock.source.recheck().is_real() {
        return true;
    }
    let sleep = linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
    sleep.as_mut().poll(cx).is_ready()
}
