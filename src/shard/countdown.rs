//! A timer that may be due so long after it is registered.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use super::{
    Hold, Mode, Shard, Standing,
    aside::{Mark, Note, Owner},
};
use crate::{
    clock::Deadline,
    error::Refusal,
    timing_wheel::{Key, Nanos},
};

/// When a timer is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    /// So long after it is registered.
    After(Duration),
    At(Deadline),
}

/// A claim on one timer of a shard that may count from its registration. Dropping it cancels the timer.
pub(crate) struct Countdown {
    key: Option<Key>,
    /// Until the shard's term ends, and as long as the timer's waker is known.
    mark: Option<Mark>,
    shard: Hold,
}

impl Countdown {
    #[inline]
    pub(crate) fn new(shard: &Arc<Shard>) -> Countdown {
        Countdown {
            key: None,
            mark: None,
            shard: Hold::new(shard),
        }
    }

    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Waits until the timer is due. The first poll registers it.
    #[inline]
    pub(crate) fn poll(&mut self, due: &Due, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let Countdown { key, mark, shard } = self;
        let delay = match *due {
            Due::After(delay) => delay,
            Due::At(deadline) => return shard.poll_at(key, deadline, Standing::New, waker),
        };
        if key.is_none() {
            return shard.register_after(key, mark, Nanos::from_duration(delay), waker);
        }
        *mark = mark.filter(|mark| mark.owner.has(waker) && shard.aside.lasts(mark));
        if mark.is_some() {
            // Incoming still, and its waker the right one.
            return Poll::Pending;
        }
        shard.poll(key, None, waker)
    }

    /// Ends the timer.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            self.end(key);
        }
    }

    fn end(&mut self, key: Key) {
        let left = match self.mark.take() {
            Some(mark) => self.shard.aside.put(key, &mark).err(),
            None => Some(key),
        };
        drop(left.and_then(|key| self.shard.cancel(key)));
    }
}

impl Drop for Countdown {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Shard {
    /// Takes over a timer, if it is there still, and gives it the delay that its mark now says.
    fn take_over(&self, found: &Note) -> Option<Key> {
        let mut state = self.lock_to_register();
        let key = self.aside.take_locked(found)?;
        state.wheel.set_incoming_delay(&key, found.mark.delay);
        Some(key)
    }

    /// Starts a timer that is due so long after now.
    pub(super) fn register_after(
        &self,
        key: &mut Option<Key>,
        mark: &mut Option<Mark>,
        delay: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        if let Some(mut found) = self.aside.find(waker) {
            *key = if found.mark.delay == delay {
                self.aside.take(&found)
            } else {
                found.mark.delay = delay;
                self.take_over(&found)
            };
            if key.is_some() {
                *mark = Some(found.mark);
                return Poll::Pending;
            }
        }
        let waker = waker.clone();
        let mut state = self.lock_to_register();
        if let Mode::Ticking { .. } = state.mode {
            self.admit(&mut state, Standing::New)?;
            // Another task's, most likely: with it gone, the next to be cancelled has room.
            let outdated = match self.aside.word().is_occupied() {
                true => self.count(&mut state, self.aside.clear()),
                false => None,
            };
            let owner = Owner::of(&waker);
            *key = Some(state.wheel.insert_incoming(delay, waker));
            *mark = self.limit.is_none().then(|| Mark {
                term: self.aside.term(),
                delay,
                owner,
            });
            drop(state);
            drop(outdated);
            return Poll::Pending;
        }
        let mut state = self.driven(state)?;
        self.admit(&mut state, Standing::New)?;
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
}
