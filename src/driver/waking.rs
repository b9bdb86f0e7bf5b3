//! How the driver wakes many tasks: with no lock held, whatever their wakers do.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use super::shared::Shared;
use crate::{events, shard::Wakers};

impl Shared {
    /// Wakes and drops what was taken out of shards, with no lock held, and survives whatever the wakers do.
    pub(crate) fn wake(&self, wakers: &mut Wakers) {
        self.catch_panics(wakers.due.drain(..), Waker::wake);
        self.catch_panics(wakers.spent.drain(..), drop);
    }

    fn catch_panics(&self, mut wakers: impl Iterator<Item = Waker>, act: impl Fn(Waker)) {
        while panics(|| wakers.by_ref().for_each(&act)) {
            self.stats.waker_panicked();
            // A subscriber that panics must not cost the other wakers.
            panics(|| events::waker_panicked(&self.name));
        }
    }
}

/// Whether this panics. If so, that goes no further.
pub(super) fn panics(act: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    // The payload of a panic may itself panic when it is dropped.
    outcome.map_err(mem::forget).is_err()
}
