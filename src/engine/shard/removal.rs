//! How a timer leaves the wheel before a visit takes it out: its cell is freed, or kept for the next timer of its task.

use std::task::Waker;

use super::{
    Shard, State,
    reuse::{Candidate, KEPT_FOR},
};
use crate::engine::{
    sync::{MutexGuard, lock, planted},
    timing_wheel::Key,
};

/// Why a pending timer leaves the wheel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Removal {
    Cancelled,
    Expired,
}

impl Shard {
    /// Ends a timer and frees its cell. Returns its waker, for the caller to drop.
    #[cold]
    pub(super) fn cancel(&self, key: Key) -> Option<Waker> {
        let state = lock(&self.state);
        self.remove(state, key, Removal::Cancelled)
    }

    /// Ends the timer that this thread has put into its slot and cannot keep. Returns its waker, for the caller to drop.
    #[cold]
    pub(super) fn cancel_put(&self) -> Option<Waker> {
        let state = lock(&self.state);
        let key = self.reuse.make_room()?;
        self.remove(state, key, Removal::Cancelled)
    }

    /// Ends a timer that this thread's slot did not take. If the thread has no open slot, it gets one with this timer in it.
    /// Otherwise this returns the timer's waker, for the caller to drop.
    #[cold]
    pub(super) fn cancel_or_keep(&self, key: Key, candidate: &Candidate) -> Option<Waker> {
        let mut state = lock(&self.state);
        let clock = state.clock;
        let closes_at = || {
            let now = clock.wheel_time(self.read_clock());
            self.tick.deadline_tick(now.saturating_add(KEPT_FOR))
        };
        match self.reuse.open(&mut state.ledger, key, candidate, closes_at) {
            Ok(()) => {
                let closes_at = state.ledger.closes_at();
                if !planted("endless_keep") {
                    self.wake_driver_by(state, closes_at);
                }
                None
            }
            Err(key) => self.remove(state, key, Removal::Cancelled),
        }
    }

    /// Frees a timer's cell, and counts the timer if it was pending. Returns its waker, for the caller to drop after the lock is
    /// released.
    #[inline]
    pub(super) fn remove(
        &self,
        mut state: MutexGuard<'_, State>,
        key: Key,
        removal: Removal,
    ) -> Option<Waker> {
        let waker = state.wheel.remove(key);
        if waker.is_some() {
            self.release(1);
            match removal {
                Removal::Expired => state.counters.expired += 1,
                Removal::Cancelled => state.counters.cancelled += 1,
            }
        }
        // Timers that are kept for reuse need no driver, and there is at most one in each slot.
        let may_retire = || self.may_retire() && state.wheel.len() <= state.ledger.len();
        if state.wheel.is_vacant() || may_retire() {
            self.unlock(state);
            if self.may_retire() {
                self.driver.wake_task();
            }
        }
        waker
    }
}
