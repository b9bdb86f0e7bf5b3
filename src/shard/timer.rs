//! A future's claim on one timer of a shard, and what it can do with it: register, re-arm, cancel.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use super::{Mode, Shard, Standing};
use crate::{
    clock::Deadline,
    error::Refusal,
    sync::lock,
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
    shard: Arc<Shard>,
    key: Option<Key>,
}

impl Timer {
    #[inline]
    pub(crate) fn new(shard: Arc<Shard>) -> Timer {
        Timer { shard, key: None }
    }

    #[inline]
    pub(crate) fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Whether the timer has a place in the wheel, expired or not.
    #[inline]
    pub(crate) fn is_registered(&self) -> bool {
        self.key.is_some()
    }

    /// Waits until the timer is due. The first poll registers it. One that expires before it is due, because what it
    /// waits for has moved on, is registered anew.
    #[inline]
    pub(crate) fn poll(&mut self, due: Due, standing: Standing, waker: &Waker) -> Poll<Result<(), Refusal>> {
        match &self.key {
            None => self.register(due, standing, waker.clone()),
            Some(_) => self.poll_registered(due, waker),
        }
    }

    #[inline(never)]
    fn register(&mut self, due: Due, standing: Standing, waker: Waker) -> Poll<Result<(), Refusal>> {
        let mut state = lock(&self.shard.state);
        if let (Mode::Ticking { .. }, Due::After(delay)) = (state.mode, due) {
            self.shard.admit(&mut state, standing)?;
            self.key = Some(state.wheel.insert_incoming(Nanos::from_duration(delay), waker));
            return Poll::Pending;
        }
        drop(state);
        self.register_exact(due, standing, waker)
    }

    /// Registers straight into a bucket, whatever the mode.
    #[inline(never)]
    fn register_exact(&mut self, due: Due, standing: Standing, waker: Waker) -> Poll<Result<(), Refusal>> {
        let mut state = self.shard.driven()?;
        let (deadline, wake_by) = match due {
            Due::At(deadline) => {
                let tick = state.tick_of(deadline);
                if tick <= self.shard.reached(&state) {
                    return Poll::Ready(Ok(()));
                }
                (tick, tick)
            }
            Due::After(delay) => {
                let now = state.clock.nanos_of(self.shard.now());
                let deadline = state.clock.deadline_tick(now.saturating_add(Nanos::from_duration(delay)));
                let tick = state.clock.tick_at(now);
                if state.is_busy(tick) {
                    state.mode = Mode::Ticking {
                        quiet: 0,
                        seen: state.counters.registered,
                    };
                    (deadline, tick.next())
                } else {
                    (deadline, deadline)
                }
            }
        };
        self.shard.admit(&mut state, standing)?;
        self.key = Some(state.wheel.insert(deadline, waker));
        self.shard.wake_by(state, wake_by);
        Poll::Pending
    }

    #[inline]
    fn poll_registered(&mut self, due: Due, waker: &Waker) -> Poll<Result<(), Refusal>> {
        if let Some(key) = &self.key {
            let mut state = lock(&self.shard.state);
            let ticking = matches!(state.mode, Mode::Ticking { .. });
            if ticking
                && state
                    .wheel
                    .get_mut(key)
                    .is_some_and(|registered| registered.will_wake(waker))
            {
                return Poll::Pending;
            }
        }
        self.poll_exact(due, waker)
    }

    /// All that polling a registered timer can come to.
    #[inline(never)]
    fn poll_exact(&mut self, due: Due, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let mut spare = None;
        loop {
            let Some(key) = &self.key else {
                return Poll::Pending;
            };
            let mut state = lock(&self.shard.state);
            let reached = self.shard.reached(&state);
            let deadline = match due {
                Due::At(deadline) => state.tick_of(deadline),
                Due::After(_) => state.wheel.deadline(key),
            };
            match (state.mode, state.wheel.get_mut(key)) {
                (mode, None) => {
                    // While a visit is under way, what it expired is due a tick before the wheel gets there.
                    let due = deadline <= reached.max(state.wheel.deadline(key));
                    if state.wheel.is_abandoned(key) || mode == Mode::Shutdown && !due {
                        self.key.take().map(|key| state.wheel.remove(key));
                        return Poll::Ready(Err(Refusal::Shutdown));
                    }
                    if due {
                        self.key.take().map(|key| state.wheel.remove(key));
                        return Poll::Ready(Ok(()));
                    }
                    if let Some(waker) = spare.take() {
                        self.shard.admit(&mut state, Standing::Admitted)?;
                        state.wheel.reinsert(key, deadline, waker);
                        self.shard.wake_by(state, deadline);
                        if mode != Mode::Driverless {
                            return Poll::Pending;
                        }
                        continue;
                    }
                }
                (Mode::Driverless, Some(_)) => {
                    drop(state);
                    if let Err(refusal) = self.shard.driver.clone().start() {
                        self.cancel();
                        return Poll::Ready(Err(refusal));
                    }
                    continue;
                }
                // The driver may be about to come; under a test's clock nobody should have to wait for that.
                (Mode::Dozing { .. }, Some(_)) if deadline <= reached => {
                    let expired = self.key.take().and_then(|key| state.wheel.remove(key));
                    state.counters.expired += 1;
                    self.shard.release(1);
                    drop(state);
                    drop(expired);
                    return Poll::Ready(Ok(()));
                }
                (_, Some(registered)) => {
                    if registered.will_wake(waker) {
                        return Poll::Pending;
                    }
                    if let Some(waker) = spare.take() {
                        let outdated = std::mem::replace(registered, waker);
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

    /// Moves a registered timer to an earlier deadline at once; a later one is left to [`Timer::poll`].
    pub(crate) fn bring_forward(&mut self, deadline: Deadline) {
        let Some(key) = &self.key else { return };
        let mut state = lock(&self.shard.state);
        let tick = state.tick_of(deadline);
        if state.wheel.bring_forward(key, tick) {
            self.shard.wake_by(state, tick);
        }
    }

    /// Whether the timer's deadline has come, and the wheel knows.
    pub(crate) fn has_expired(&self, deadline: Deadline) -> bool {
        let Some(key) = &self.key else { return false };
        let state = lock(&self.shard.state);
        state.wheel.has_expired(key)
            && state.tick_of(deadline) <= state.wheel.now().max(state.wheel.deadline(key))
    }

    /// Whether the shard was shut down while the timer waited in it.
    pub(crate) fn is_abandoned(&self) -> bool {
        let Some(key) = &self.key else { return false };
        lock(&self.shard.state).wheel.is_abandoned(key)
    }

    /// Ends the timer.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            self.shard.cancel(key);
        }
    }
}

impl Shard {
    fn cancel(&self, key: Key) {
        let mut state = lock(&self.state);
        let waker = state.wheel.remove(key);
        if waker.is_some() {
            state.counters.cancelled += 1;
            self.release(1);
        }
        let arena = state.wheel.release_arena(self.retained);
        drop(state);
        drop((waker, arena));
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}
