//! The state that a series of runs shares with its handle.
//!
//! The task of the series alternates between waiting and running. If it is stopped while it waits, it ends at once; if it is stopped during
//! a run, it ends after that run.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use tokio::sync::Notify;

use crate::{
    error::SleepError,
    interval::Interval,
    sleep::Sleep,
    sync::{AtomicU64, Mutex, Ordering, lock},
};

/// Decides when the next run starts.
pub(super) enum Pace {
    Rate(Interval),
    Delay {
        sleep: Sleep,
        period: Duration,
        /// Whether the first run is due. Until then the sleep waits for the first run, and not for a period.
        started: bool,
    },
}

impl Pace {
    async fn next(&mut self) -> Result<(), SleepError> {
        match self {
            Pace::Rate(interval) => interval.tick().await.map(|_| ()),
            Pace::Delay {
                sleep,
                period,
                started,
            } => {
                if std::mem::replace(started, true) {
                    sleep.reset_after(*period);
                }
                sleep.await
            }
        }
    }
}

/// The state shared by a series and its handle.
#[derive(Default)]
pub(super) struct Series {
    state: Mutex<State>,
    /// Wakes the task when the series is stopped.
    notify_stop: Notify,
    runs: AtomicU64,
}

/// Both flags are behind one lock, so that a stop comes either before a run or during it.
#[derive(Clone, Copy, Default)]
struct State {
    /// Whether a run is in progress.
    running: bool,
    /// Whether the series was stopped, so that no other run starts.
    stopped: bool,
}

impl Series {
    /// Waits for the next run. Returns `false` if the series has been stopped.
    pub(super) async fn wait(&self, pace: &mut Pace) -> Result<bool, SleepError> {
        let mut stopped = pin!(self.notify_stop.notified());
        let mut next = pin!(pace.next());
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => next.as_mut().poll(cx),
        })
        .await?;
        let mut state = lock(&self.state);
        state.running = !state.stopped;
        Ok(state.running)
    }

    pub(super) fn finish_run(&self) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        lock(&self.state).running = false;
    }

    /// Stops the series. A run in progress is the last one.
    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.notify_stop.notify_one();
    }

    /// Returns whether the series was stopped and its last run has finished.
    pub(super) fn has_stopped(&self) -> bool {
        let State { running, stopped } = *lock(&self.state);
        stopped && !running
    }

    pub(super) fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}
