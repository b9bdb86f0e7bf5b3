//! What a timer knows of itself, and how a poll uses that under the lock.
//!
//! ```text
//! New ------ it is registered -------------> Waiting -- its deadline comes --> Elapsed
//! Counting - its entry gets a deadline ----> Waiting                              ^
//! Immediate ------------------------- the next poll ------------------------------+
//! ```
//!
//! A reset leads from each of these to `Waiting`, and an immediate reset to `Immediate`.

use std::{
    mem,
    task::{Poll, Waker},
};

use super::{
    Admission, Generation, Mode, NEVER, Removal, Shard, State,
    reuse::{Candidate, WakerId},
};
use crate::{
    engine::{
        clock::Moment,
        sync::{MutexGuard, lock},
        timing_wheel::{Key, Nanos, Tick},
    },
    error::SleepError,
};

/// What a timer knows of itself without the lock.
pub(super) struct Claim {
    /// The value of [`Claim::due`] as a word.
    word: u64,
    /// While this outlasts the shard's generation, the timer waits, and its entry is pending with the waker identified below.
    pub(super) until: Generation,
    /// Identifies the task that the waker in the entry wakes.
    pub(super) waker: WakerId,
    /// The entry, while the timer is registered.
    pub(super) key: Option<Key>,
    pub(super) progress: Progress,
    pub(super) admission: Admission,
    /// The power to which the entry is rounded or, after a reset, to which it may be when the timer is re-armed. It is kept after
    /// the timer has elapsed. A timer that took its entry over is re-armed with the slack of the rest, and this is zero. While the
    /// delay counts, it is not zero.
    pub(super) power: u8,
}

/// When a timer is due.
pub(super) enum Due {
    At(Moment),
    /// This long after the timer's registration.
    In(Nanos),
}

/// It has two bytes so that a timer ends without padding. The compiler copies padding together with the future behind it, and would
/// then copy a large future once more when a timeout is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Progress {
    /// Neither polled nor reset yet.
    New,
    /// Waiting for the deadline. After a reset, the timer may have no entry until the next poll.
    Waiting,
    /// The delay counts from the registration, and the entry, if there is one, is incoming as far as is known.
    Counting,
    /// Elapses at the next poll, whatever the deadline.
    Immediate,
    Elapsed,
}

/// The result of a poll, or `None` if that needs a driver and there is none.
type Polled = Option<Poll<Result<(), SleepError>>>;

impl Claim {
    #[inline]
    pub(super) fn new(due: Due) -> Claim {
        let (word, progress, power) = match due {
            Due::At(deadline) => (deadline.word(), Progress::New, 0),
            Due::In(delay) => (delay.0, Progress::Counting, 1),
        };
        Claim {
            word,
            until: Generation::UNKNOWN,
            waker: WakerId::UNKNOWN,
            key: None,
            progress,
            admission: Admission::New,
            power,
        }
    }

    #[inline]
    pub(super) fn due(&self) -> Due {
        match self.progress {
            Progress::Counting => Due::In(Nanos(self.word)),
            _ => Due::At(Moment::from_word(self.word)),
        }
    }

    /// Returns the delay of an entry that is incoming as far as is known, and zero for any other.
    #[inline]
    pub(super) fn incoming_delay(&self) -> Nanos {
        match self.due() {
            Due::In(delay) => delay,
            Due::At(_) => Nanos::ZERO,
        }
    }

    #[inline]
    pub(super) fn set_entry(&mut self, key: Key, until: Generation, waker: WakerId) {
        self.key = Some(key);
        self.until = until;
        self.waker = waker;
        self.admission = Admission::Admitted;
    }

    /// Records that the timer has the entry of a timer that was kept.
    #[inline]
    pub(super) fn take_over(&mut self, key: Key, kept: &Candidate) {
        self.set_entry(key, kept.until, kept.waker);
    }

    /// Gives up the entry, of which nothing is known from now on.
    #[inline]
    pub(super) fn take_key(&mut self) -> Option<Key> {
        self.until = Generation::UNKNOWN;
        self.key.take()
    }

    /// Makes the timer wait for `deadline`.
    #[inline]
    pub(super) fn set_deadline(&mut self, deadline: Moment) {
        self.word = deadline.word();
        self.progress = Progress::Waiting;
    }

    /// Returns whether an earlier deadline was set before, at which the timer can be re-armed for this one. An entry that is rounded
    /// up may expire later than this deadline allows.
    #[inline]
    pub(super) fn may_wait_until(&self, deadline: Moment) -> bool {
        // While there is no driver, the order of the two is not known.
        deadline.is_wheel_time() && deadline.word() >= self.word && self.power == 0
    }

    /// Converts the deadline, if the timer has one, to wheel time, if there is a driver. This happens once, before the timer waits.
    #[inline]
    pub(super) fn settle(&mut self, shard: &Shard) -> Option<Moment> {
        match self.due() {
            Due::At(deadline) => {
                let deadline = shard.to_wheel(deadline);
                self.settle_at(deadline);
                Some(deadline)
            }
            Due::In(_) => None,
        }
    }

    /// Stores the deadline on another axis.
    #[inline]
    pub(super) fn settle_at(&mut self, deadline: Moment) {
        self.word = deadline.word();
    }

    /// Returns whether the deadline is independent of the next driver's clock.
    fn is_settled(&self) -> bool {
        match self.due() {
            Due::At(deadline) => deadline.is_wheel_time(),
            Due::In(_) => true,
        }
    }

    /// Returns whether the deadline has come, as far as the shard's generation tells. This needs no lock, so the entry stays where it is
    /// until the timer is dropped or waits again.
    ///
    /// A timer is registered for a tick that its driver's clock has not reached, and the generation reaches that tick only when the
    /// clock does.
    #[inline]
    pub(super) fn has_come(&self, shard: &Shard) -> bool {
        let Due::At(deadline) = self.due() else {
            return false;
        };
        self.until.has_come_by(shard.reuse.generation())
            && deadline.is_wheel_time()
            && deadline.wheel_time() <= shard.tick.start_of(self.until.tick())
    }

    /// Polls a registered timer, which may have been reset since.
    #[inline(never)]
    pub(super) fn poll(&mut self, shard: &Shard, waker: &Waker) -> Poll<Result<(), SleepError>> {
        loop {
            // No waker is cloned under the lock.
            if let Some(polled) = self.poll_driven(shard, WakerId::of_clone(waker)) {
                if let Poll::Ready(Ok(())) = polled {
                    self.progress = Progress::Elapsed;
                }
                return polled;
            }
            // A runtime that has ended drops the driver's task as it is spawned, which wakes every waker that waits here. This
            // timer's waker must not be among them yet, because a scheduled task is locked meanwhile.
            if let Err(refusal) = shard.driver.clone().start() {
                drop(self.take_key().and_then(|key| shard.cancel(key)));
                return Poll::Ready(Err(refusal));
            }
        }
    }

    /// Polls a registered timer by a clone of its waker, if there is a driver.
    pub(super) fn poll_driven(&mut self, shard: &Shard, waker: (Waker, WakerId)) -> Polled {
        let mut state = lock(&shard.state);
        self.settle(shard);
        let Some(key) = &self.key else {
            return Some(Poll::Pending);
        };
        let pending = state.wheel.get_mut(key).is_some();
        match pending {
            _ if state.mode == Mode::Driverless && (pending || !self.is_settled()) => None,
            true => self.poll_pending(shard, waker, state),
            false => self.poll_expired(shard, waker, state),
        }
    }

    /// The entry has expired. Either the timer is done, or it was reset to a later deadline.
    fn poll_expired(
        &mut self,
        shard: &Shard,
        (waker, id): (Waker, WakerId),
        mut state: MutexGuard<'_, State>,
    ) -> Polled {
        let key = self.key.as_ref()?;
        let own = state.wheel.deadline(key);
        let deadline = self.tick(&state, own);
        let reached = match state.mode {
            // An interval whose tick came before the shutdown waits for its next one, which never comes.
            Mode::Shutdown => state.wheel.now(),
            _ => shard.reached(&state),
        };
        // During a visit, timers that the visit has expired may be due a tick that the wheel has not reached yet.
        let done = match deadline <= reached.max(state.wheel.due(key)) && !state.wheel.is_cancelled(key) {
            true => Some(Ok(())),
            false => (state.mode == Mode::Shutdown).then_some(Err(SleepError::Shutdown)),
        };
        if let Some(done) = done {
            self.power = state.wheel.power(key);
            if self.progress == Progress::Counting {
                // Only the entry knows when the timer would have been due.
                self.set_deadline(Moment::of_wheel(shard.tick.start_of(own)));
            }
            return Some(Poll::Ready(done));
        }
        if state.mode == Mode::Driverless {
            return None;
        }
        if let Err(refusal) = shard.admit(&mut state, Admission::Admitted) {
            return Some(Poll::Ready(Err(refusal)));
        }
        self.waker = id;
        let deadline = shard.with_slack(&state, deadline, self.power);
        self.power = deadline.power;
        self.until = state.until(deadline.due());
        state.wheel.reinsert(key, deadline, waker);
        shard.wake_driver_by(state, deadline.due());
        Some(Poll::Pending)
    }

    /// The entry is pending, and the shard has a driver.
    fn poll_pending(
        &mut self,
        shard: &Shard,
        (waker, id): (Waker, WakerId),
        mut state: MutexGuard<'_, State>,
    ) -> Polled {
        let key = self.key.as_ref()?;
        let mut wake_at = NEVER;
        self.waker = id;
        let outdated = mem::replace(state.wheel.get_mut(key)?, waker);
        if !state.wheel.is_incoming(key) {
            let own = state.wheel.deadline(key);
            let deadline = self.tick(&state, own);
            // The driver may be about to run, and under a test's clock no task should have to wait for it.
            if state.mode == Mode::Dozing && deadline <= shard.reached(&state) {
                drop(state);
                self.expire(shard);
                return Some(Poll::Ready(Ok(())));
            }
            // The timer was reset while there was no driver.
            if deadline != own && deadline < state.wheel.due(key) {
                let deadline = shard.with_slack(&state, deadline, 0);
                if state.wheel.bring_forward(key, deadline) {
                    self.power = deadline.power;
                    wake_at = deadline.due();
                }
            }
            self.until = state.until(state.wheel.due(key));
            if self.progress == Progress::Counting {
                self.set_deadline(Moment::of_wheel(shard.tick.start_of(own)));
            }
        }
        shard.wake_driver_by(state, wake_at);
        // Dropped last, with no lock held.
        drop(outdated);
        Some(Poll::Pending)
    }

    /// Returns the tick at which the timer may expire. For a timer that counts from its registration, this is the tick of its
    /// entry.
    fn tick(&self, state: &State, own: Tick) -> Tick {
        match self.due() {
            Due::In(_) => own,
            Due::At(deadline) => state.tick_of(deadline),
        }
    }

    /// Gives up the entry, and counts the timer as expired.
    #[inline(never)]
    pub(super) fn expire(&mut self, shard: &Shard) {
        if let Some(key) = self.take_key() {
            drop(shard.remove(lock(&shard.state), key, Removal::Expired));
        }
    }
}
