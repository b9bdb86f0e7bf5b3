//! What a future does with its timer: register, poll, bring forward, cancel.

use std::{
    mem,
    sync::Arc,
    task::{Poll, Waker},
};

use super::{Hold, Leaving, Mode, Shard, Standing};
use crate::{clock::Deadline, error::Refusal, sync::lock, timing_wheel::Key};

/// A claim on one timer of a shard. Dropping it cancels the timer.
pub(crate) struct Timer {
    key: Option<Key>,
    shard: Hold,
}

impl Timer {
    #[inline]
    pub(crate) fn new(shard: &Arc<Shard>) -> Timer {
        Timer {
            key: None,
            shard: Hold::new(shard),
        }
    }

    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Waits until the timer is due. The first poll registers it. One that expires before it is due, because what it
    /// waits for has moved on, is registered anew.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        due: Deadline,
        standing: Standing,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        if self.key.is_none() {
            self.shard.follow_thread();
        }
        self.shard.poll_at(&mut self.key, due, standing, waker)
    }

    /// Moves a registered timer to an earlier deadline at once; a later one is left to [`Timer::poll`].
    pub(crate) fn bring_forward(&mut self, deadline: Deadline) {
        if let Some(key) = &self.key {
            self.shard.bring_forward(key, deadline);
        }
    }

    /// Whether the deadline has come, as [`Timer::poll`] sees it.
    pub(crate) fn is_past(&self, deadline: Deadline) -> bool {
        let mut state = lock(&self.shard.state);
        let tick = state.tick_of(deadline);
        let reached = self.shard.reached(&state);
        match &self.key {
            None => tick <= reached,
            Some(key) if state.wheel.is_abandoned(key) => false,
            Some(key) if state.wheel.get_mut(key).is_none() => tick <= reached.max(state.wheel.deadline(key)),
            Some(_) => matches!(state.mode, Mode::Dozing { .. }) && tick <= reached,
        }
    }

    /// Ends the timer.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            drop(self.shard.cancel(key));
        }
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Shard {
    #[inline]
    pub(super) fn poll_at(
        &self,
        key: &mut Option<Key>,
        due: Deadline,
        standing: Standing,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        if key.is_some() {
            self.poll(key, Some(due), waker)
        } else {
            self.register_at(key, due, standing, waker.clone())
        }
    }

    /// Puts a timer into the wheel, unless it is due already.
    pub(super) fn register_at(
        &self,
        key: &mut Option<Key>,
        deadline: Deadline,
        standing: Standing,
        waker: Waker,
    ) -> Poll<Result<(), Refusal>> {
        let mut state = self.driven(self.lock_to_register())?;
        let deadline = state.tick_of(deadline);
        if deadline <= self.reached(&state) {
            return Poll::Ready(Ok(()));
        }
        self.admit(&mut state, standing)?;
        *key = Some(state.wheel.insert(deadline, waker));
        self.wake_by(state, deadline);
        Poll::Pending
    }

    /// Looks after a registered timer, which may be due at another time by now, and takes its key once it is done.
    pub(super) fn poll(
        &self,
        key: &mut Option<Key>,
        due: Option<Deadline>,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        let mut cloned = None;
        loop {
            let Some(timer) = key else { return Poll::Pending };
            let mut state = lock(&self.state);
            let ticking = matches!(state.mode, Mode::Ticking { .. });
            if ticking
                && state
                    .wheel
                    .get_mut(timer)
                    .is_some_and(|registered| registered.will_wake(waker))
            {
                return Poll::Pending;
            }
            let reached = self.reached(&state);
            let own = state.wheel.deadline(timer);
            let deadline = due.map_or(own, |deadline| state.tick_of(deadline));
            match (state.mode, state.wheel.get_mut(timer)) {
                (mode, None) => {
                    // While a visit is under way, what it expired is due a tick before the wheel gets there.
                    let done = match deadline <= reached.max(own) && !state.wheel.is_abandoned(timer) {
                        true => Some(Ok(())),
                        false => (mode == Mode::Shutdown).then_some(Err(Refusal::Shutdown)),
                    };
                    if let Some(done) = done {
                        if done.is_err() && due.is_none() {
                            // The entry alone knows when it would have been due.
                            return Poll::Ready(done);
                        }
                        key.take()
                            .and_then(|key| self.remove(state, key, Leaving::Expired));
                        return Poll::Ready(done);
                    }
                    if let Some(waker) = cloned.take() {
                        self.admit(&mut state, Standing::Admitted)?;
                        state.wheel.reinsert(timer, deadline, waker);
                        self.wake_by(state, deadline);
                        // Without a driver, the next pass of this loop starts one.
                        continue;
                    }
                }
                (Mode::Driverless, Some(_)) => {
                    drop(state);
                    if let Err(refusal) = self.driver.clone().start() {
                        drop(key.take().and_then(|key| self.cancel(key)));
                        return Poll::Ready(Err(refusal));
                    }
                    continue;
                }
                // The driver may be about to come; under a test's clock nobody should have to wait for that.
                (Mode::Dozing { .. }, Some(_)) if deadline <= reached => {
                    key.take()
                        .and_then(|key| self.remove(state, key, Leaving::Expired));
                    return Poll::Ready(Ok(()));
                }
                // Reset while there was no driver.
                (Mode::Dozing { .. } | Mode::Ticking { .. }, Some(_)) if deadline < own => {
                    if state.wheel.bring_forward(timer, deadline) {
                        self.wake_by(state, deadline);
                    }
                    continue;
                }
                (_, Some(registered)) => {
                    if registered.will_wake(waker) {
                        return Poll::Pending;
                    }
                    if let Some(waker) = cloned.take() {
                        let outdated = mem::replace(registered, waker);
                        drop(state);
                        drop(outdated);
                        return Poll::Pending;
                    }
                }
            }
            drop(state);
            cloned = Some(waker.clone());
        }
    }

    pub(super) fn bring_forward(&self, key: &Key, deadline: Deadline) {
        let mut state = lock(&self.state);
        let tick = state.tick_of(deadline);
        if state.wheel.bring_forward(key, tick) {
            self.wake_by(state, tick);
        }
    }

    pub(super) fn cancel(&self, key: Key) -> Option<Waker> {
        let state = lock(&self.state);
        self.remove(state, key, Leaving::Cancelled)
    }
}
