//! The state that a series of runs shares with its handle.
//!
//! The task of the series alternates between waiting and running. If it is stopped while it waits, it ends at once; if it is stopped during
//! a run, it ends after that run.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use tokio::sync::Notify;

use crate::{
    engine::sync::{AtomicU64, Mutex, Ordering, lock},
    error::SleepError,
    timers::interval::Interval,
};

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
    pub(super) async fn wait(&self, interval: &mut Interval) -> Result<bool, SleepError> {
        let mut stopped = pin!(self.notify_stop.notified());
        poll_fn(|cx| match stopped.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => interval.try_poll_tick(cx).map_ok(drop),
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
