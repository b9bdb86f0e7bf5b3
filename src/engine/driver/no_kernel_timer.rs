//! In place of `kernel_timer.rs` on other systems than Linux, and without the feature `precise`.

use std::{task::Waker, time::Duration};

use crate::engine::clock::Moment;

/// No tick is shorter than Tokio's.
pub(crate) const SHORTEST_TICK: Duration = Duration::from_millis(1);

pub(crate) enum KernelTimer {}

impl KernelTimer {
    pub(crate) fn new() -> Option<KernelTimer> {
        None
    }

    pub(super) fn set(&self, _: Moment, _: &Waker) -> bool {
        match *self {}
    }
}
