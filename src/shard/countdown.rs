//! A timer that may be due so long after it is registered.

use std::{
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Hold, Leaving, Mode, Shard, Standing,
    aside::{Mark, Note, Owner, Unfit},
};
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

/// A claim on one timer of a shard that may count from its registration. Dropping it cancels the timer.
pub(crate) struct Countdown {
    key: Option<Key>,
    /// As long as the timer's waker is known. After its term it is of no use, and may stay: terms only count up.
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

    /// Waits until the timer is due. The first poll registers it, if its time is not up already.
    #[inline]
    pub(crate) fn poll(&mut self, due: &Due, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let Countdown { key, mark, shard } = self;
        if key.is_none() {
            shard.follow_thread();
        }
        match *due {
            Due::After(delay) if key.is_none() => match Nanos::from_duration(delay) {
                Nanos::ZERO if shard.is_shutdown() => Poll::Ready(Err(Refusal::Shutdown)),
                Nanos::ZERO => Poll::Ready(Ok(())),
                delay => shard.register_after(key, mark, delay, waker),
            },
            Due::After(_) => self.poll_again(waker),
            Due::At(deadline) => shard.poll_at(key, deadline, Standing::New, waker),
        }
    }

    #[inline(never)]
    fn poll_again(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let Countdown { key, mark, shard } = self;
        match mark {
            // Incoming still, and its waker the right one.
            Some(mark) if mark.owner.has(waker) && shard.aside.lasts(mark) => Poll::Pending,
            _ => {
                *mark = None;
                shard.poll(key, None, waker)
            }
        }
    }

    /// When a timer that was ended by a shutdown would have been due.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        let key = self.key.as_ref()?;
        let state = lock(&self.shard.state);
        Some(state.clock.instant_of(state.wheel.deadline(key)))
    }

    /// Ends the timer.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            self.shard.end(key, self.mark.as_ref());
        }
    }
}

impl Drop for Countdown {
    #[inline]
    fn drop(&mut self) {
        self.cancel();
    }
}

impl Shard {
    /// Ends a timer: sets it aside, if that can be.
    pub(super) fn end(&self, key: Key, mark: Option<&Mark>) {
        let put = match mark {
            Some(mark) => self.aside.put(key, mark),
            None => Err(Unfit::Still(key)),
        };
        match put {
            Ok(()) => {}
            Err(Unfit::Still(key)) => drop(self.cancel(key)),
            Err(Unfit::Late) => self.take_down(),
        }
    }

    /// Ends the timer that this thread set aside as the term ended, if it was overlooked.
    #[inline(never)]
    fn take_down(&self) {
        let state = lock(&self.state);
        if let Some(key) = self.aside.clear() {
            drop(self.remove(state, key, Leaving::Cancelled));
        }
    }

    /// Starts a timer that is due so long after now.
    #[inline]
    pub(super) fn register_after(
        &self,
        key: &mut Option<Key>,
        mark: &mut Option<Mark>,
        delay: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        let taken = self.aside.find(waker, |note| {
            let key = match note.mark.delay == delay {
                true => note.take(),
                false => self.take_over_with(note, delay),
            };
            Some((key?, note.mark))
        });
        match taken {
            Some(taken) => {
                (*key, *mark) = (Some(taken.0), Some(taken.1));
                Poll::Pending
            }
            None => self.register_anew(key, mark, delay, waker),
        }
    }

    /// Takes over a timer and gives it another delay: under the lock, for a visit may be about to settle it.
    #[inline(never)]
    fn take_over_with(&self, note: &mut Note, delay: Nanos) -> Option<Key> {
        let mut state = self.lock_to_register();
        let key = note.take_locked()?;
        state.wheel.set_incoming_delay(&key, delay);
        note.mark.delay = delay;
        Some(key)
    }

    /// Registers a timer where none can be taken over. The slow path, kept out of the fast one's frame.
    #[inline(never)]
    fn register_anew(
        &self,
        key: &mut Option<Key>,
        mark: &mut Option<Mark>,
        delay: Nanos,
        waker: &Waker,
    ) -> Poll<Result<(), Refusal>> {
        let waker = waker.clone();
        let mut state = self.lock_to_register();
        if let Mode::Ticking { .. } = state.mode {
            self.admit(&mut state, Standing::New)?;
            let mut outdated = None;
            let owner = Owner::of(&waker);
            *key = Some(state.wheel.insert_incoming(delay, waker));
            if self.limit.is_none() {
                let made = Mark {
                    term: self.aside.term(),
                    delay,
                    owner,
                };
                // What is on the shelf is another task's, most likely: with that gone, the next to be cancelled has room.
                outdated = self.aside.make_room(&mut state, &made);
                *mark = Some(made);
            }
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
