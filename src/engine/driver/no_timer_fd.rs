//! In place of `timer_fd.rs` on other systems than Linux, and without the feature `precise`.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use crate::engine::clock::Moment;

/// No tick is shorter than Tokio's.
pub(crate) const SHORTEST_TICK: Duration = Duration::from_millis(1);

pub(super) enum TimerFd {}

impl TimerFd {
    pub(super) fn new() -> Option<TimerFd> {
        None
    }

    pub(super) fn poll_expired(&self, _: &mut Context<'_>) -> Poll<bool> {
        match *self {}
    }

    pub(super) fn clear_expired(&self) {
        match *self {}
    }

    pub(super) fn set_time(&self, _: Moment) -> bool {
        match *self {}
    }
}
