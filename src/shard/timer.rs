//! What a future does with its timer: register, poll, bring forward, cancel.

use std::{
    mem,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use super::{Hold, Leaving, Mode, NOBODY, Shard, Standing, owner};
use crate::{
    clock::Deadline,
    error::Refusal,
    sync::{Ordering, lock},
    timing_wheel::{Key, Nanos},
};

/// When a timer is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// So long after it is registered.
    After(Duration),
    At(Deadline),
}

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
    pub(crate) fn poll(&mut self, due: &Due, standing: Standing, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let Timer { key, shard } = self;
        match due {
            _ if key.is_some() => shard.poll(key, due, waker),
            Due::After(delay) => shard.register_after(key, Nanos::from_duration(*delay), standing, waker),
            Due::At(deadline) => shard.register_at(key, *deadline, standing, waker.clone()),
        }
    }

    /// Moves a registered timer to an earlier deadline at once; a later one is left to [`Timer::poll`].
    pub(crate) fn bring_forward(&mut self, deadline: Deadline) {
        if let Some(key) = &self.key {
            self.shard.bring_forward(key, deadline);
        }
    }

    /// Whether the timer's deadline has come, and the wheel knows.
    pub(crate) fn has_expired(&self, deadline: Deadline) -> bool {
        let Some(key) = &self.key else { return false };
        let state = lock(&self.shard.state);
        state.wheel.has_expired(key)
            && state.tick_of(deadline) <= state.wheel.now().max(state.wheel.deadline(key))
    }

    /// Ends the timer.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        drop(self.withdraw());
    }

    /// Ends the timer; the waker that comes out is somebody's, to be dropped with no lock held.
    #[inline]
    pub(crate) fn withdraw(&mut self) -> Option<Waker> {
        let key = self.key.take()?;
        self.shard.cancel(key)
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Shard {
    /// Puts a timer that is due so long after now into the wheel.
    pub(super) fn register_after(
        &self,
        key: &mut Option<Key>,
        delay: Nanos,
        standing: Standing,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        let hint = self.spare_of.load(Ordering::Relaxed);
        let spare = hint != NOBODY && hint == owner(waker);
        let mut own = if spare { None } else { Some(waker.clone()) };
        let mut state = self.lock_to_register();
        if spare {
            self.spare_of.store(NOBODY, Ordering::Relaxed);
            own = state.spare.take_if(|spare| spare.will_wake(waker));
        }
        let waker = match own {
            Some(waker) => waker,
            // Somebody else was quicker, or the hint was wrong.
            None => {
                drop(state);
                let waker = waker.clone();
                state = lock(&self.state);
                waker
            }
        };
        if let Mode::Ticking { .. } = state.mode {
            if let Err(refusal) = self.admit(&mut state, standing) {
                drop(state);
                drop(waker);
                return Poll::Ready(Err(refusal));
            }
            *key = Some(state.wheel.insert_incoming(delay, waker));
            return Poll::Pending;
        }
        let mut state = self.driven(state)?;
        self.admit(&mut state, standing)?;
        let now = state.clock.nanos_of(self.now());
        let deadline = state.clock.deadline_tick(now.saturating_add(delay));
        *key = Some(state.wheel.insert(deadline, waker));
        let tick = state.clock.tick_at(now);
        let wake_by = if state.ticks_from_now_on(tick) {
            tick.next()
        } else {
            deadline
        };
        self.wake_by(state, wake_by);
        Poll::Pending
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

    /// Looks after a registered timer, and takes its key once it is done.
    pub(super) fn poll(&self, key: &mut Option<Key>, due: &Due, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let mut spare = None;
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
            let deadline = match due {
                Due::At(deadline) => state.tick_of(*deadline),
                Due::After(_) => own,
            };
            match (state.mode, state.wheel.get_mut(timer)) {
                (mode, None) => {
                    // While a visit is under way, what it expired is due a tick before the wheel gets there.
                    let done = match deadline <= reached.max(own) && !state.wheel.is_abandoned(timer) {
                        true => Some(Ok(())),
                        false => (mode == Mode::Shutdown).then_some(Err(Refusal::Shutdown)),
                    };
                    if let Some(done) = done {
                        key.take()
                            .and_then(|key| self.remove(state, key, Leaving::Expired));
                        return Poll::Ready(done);
                    }
                    if let Some(waker) = spare.take() {
                        self.admit(&mut state, Standing::Admitted)?;
                        state.wheel.reinsert(timer, deadline, waker);
                        self.wake_by(state, deadline);
                        // Without a driver the next round starts one.
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
                    if let Some(waker) = spare.take() {
                        let outdated = mem::replace(registered, waker);
                        drop(state);
                        drop(outdated);
                        return Poll::Pending;
                    }
                }
            }
            drop(state);
            spare = Some(waker.clone());
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
