//! What runs the driver: Tokio's timer and, where that is not enough, a task.
//!
//! On a real clock, the waker of Tokio's timer runs the driver. The task does so only when the driver starts and when it goes on after a full
//! slice. On a test's clock the task always runs it, because whatever else comes at the same instant comes first there: a value before
//! the timeout around it. Either way the task tells the wheel when the runtime has gone, and ends when nothing is left to drive for.

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

/// How long a driver that nobody needs stays for the next timer, on the real clock. Starting one costs as much as fifty timers.
const LINGER: Duration = Duration::from_millis(100);

/// What Tokio's timer wakes.
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

/// The driver's task, and what tells the wheel that its driver goes, whatever the reason.
pub(super) struct Guard {
    shared: Arc<Shared>,
    number: u64,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Guard {
        Guard { shared, number }
    }

    /// Lives as long as the driver.
    pub(super) async fn run(self) {
        let mut linger = None;
        // The wakers that run in here may poll their futures, and the budget of this task is not theirs.
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
                // Others run first, and the driver's woken tasks too.
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

/// Whether no handle is left, and no timer has been pending for a while. A test's clock has no such while, because waiting would move it.
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
