//! What `src/engine/driver/timer_fd.rs` has: a timer of the kernel and its readiness in Tokio, which a turn of
//! the stand-in's timers sets.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    engine::clock::Moment,
    runtime::Handle,
    stand_in::time::{Timers, readiness},
};

pub(crate) const SHORTEST_TICK: Duration = Duration::from_millis(1);

pub(super) struct TimerFd {
    timers: Arc<Timers>,
    id: usize,
}

impl TimerFd {
    pub(super) fn new() -> Option<TimerFd> {
        let timers = Handle::current().timers().clone();
        let id = timers.add();
        Some(TimerFd { timers, id })
    }

    pub(super) fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<bool> {
        readiness::poll(&self.timers, self.id, cx.waker())
    }

    pub(super) fn clear_expired(&self) {
        readiness::clear(&self.timers, self.id);
    }

    pub(super) fn set_time(&self, at: Moment) -> bool {
        readiness::set(&self.timers, self.id, at.instant());
        true
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        self.timers.remove(self.id);
    }
}
