//! A timer with a deadline: register, poll, move, cancel.

use std::{
    fmt, mem,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Admission, Generation, Mode, Removal, Shard, ShardRef, State,
    reuse::{Candidate, WakerId},
};
use crate::{
    clock::{self, Epoch, EpochInstant, Moment},
    error::Refusal,
    sync::{MutexGuard, lock},
    timing_wheel::{Key, Nanos, Tick},
};

/// A claim on one timer of a shard. The first poll registers it, in the shard of the thread that polls. Dropping it cancels it.
///
/// A million of these wait in a million connections: each byte counts.
pub(crate) struct Timer {
    pub(super) shard: ShardRef,
    pub(super) claim: Claim,
}

/// What a timer knows of itself without the lock.
pub(super) struct Claim {
    /// The moment of the deadline or, while [`Progress::Counting`], nanoseconds of a delay.
    pub(super) nanos: u64,
    /// The timer waits, and its entry is pending with the waker below, as long as this outlasts the shard's generation.
    pub(super) until: Generation,
    pub(super) waker: WakerId,
    pub(super) key: Option<Key>,
    pub(super) epoch: Epoch,
    pub(super) progress: Progress,
    admission: Admission,
}

const _: () = assert!(mem::size_of::<Timer>() <= 40 || cfg!(loom));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Neither polled nor reset yet.
    New,
    Waiting,
    /// Its delay counts from its registration, and its entry, if it has one, is incoming as far as is known.
    Counting,
    /// Elapses at the next poll, whatever the deadline.
    Immediate,
    Elapsed,
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut timer = f.debug_struct("Timer");
        match self.claim.progress {
            Progress::Counting => timer.field("delay", &Nanos(self.claim.nanos).to_duration()),
            _ => timer.field("deadline", &self.deadline()),
        };
        timer.field("progress", &self.claim.progress).finish()
    }
}

/// What a look at a registered timer, under the lock, comes to.
enum Look {
    Done(Poll<Result<(), Refusal>>),
    /// It goes on with a clone of the task's waker, which is not to be made under the lock.
    WantsWaker,
    Again,
}

impl Timer {
    #[inline]
    fn new(shard: &Arc<Shard>, nanos: u64, epoch: Epoch, progress: Progress) -> Timer {
        let claim = Claim {
            nanos,
            until: Generation::UNKNOWN,
            waker: WakerId::UNKNOWN,
            key: None,
            epoch,
            progress,
            admission: Admission::New,
        };
        let shard = ShardRef::new(shard);
        Timer { shard, claim }
    }

    /// One that is due at `deadline`.
    #[inline]
    pub(crate) fn at(shard: &Arc<Shard>, deadline: EpochInstant) -> Timer {
        let moment = Moment::of(deadline.instant);
        Timer::new(shard, moment.0, deadline.epoch, Progress::New)
    }

    /// One that is due `duration` after `start`; at the first poll, when that is zero.
    #[inline]
    pub(crate) fn after(shard: &Arc<Shard>, start: EpochInstant, duration: Duration) -> Timer {
        let mut timer = Timer::at(shard, start.after(duration));
        timer.elapses_if_zero(duration);
        timer
    }

    /// The same from now on.
    #[inline]
    pub(crate) fn from_now(shard: &Arc<Shard>, duration: Duration) -> Timer {
        if duration >= Nanos::FAR_FUTURE.to_duration() {
            return Timer::at(shard, shard.read_clock().after(duration));
        }
        let (now, epoch) = shard.read_moment();
        let deadline = now.after(Nanos::from_duration(duration));
        let mut timer = Timer::new(shard, deadline.0, epoch, Progress::New);
        timer.elapses_if_zero(duration);
        timer
    }

    #[inline]
    fn elapses_if_zero(&mut self, duration: Duration) {
        if duration.is_zero() {
            self.claim.progress = Progress::Immediate;
        }
    }

    /// One that is due `delay` after its first poll.
    #[inline]
    pub(crate) fn counting(shard: &Arc<Shard>, delay: Duration) -> Timer {
        let delay = Nanos::from_duration(delay).0;
        Timer::new(shard, delay, Epoch::NEVER_DRIVEN, Progress::Counting)
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The deadline, and by which clock it is one.
    #[inline]
    pub(crate) fn due(&self) -> EpochInstant {
        EpochInstant {
            instant: self.deadline(),
            epoch: self.claim.epoch,
        }
    }

    /// When a timer that was refused would have been due, by the clock here; one that was not even begun, from now on.
    pub(crate) fn refused_until(&self) -> Instant {
        match self.claim.progress {
            Progress::Counting => {
                clock::saturating_add(Instant::now(), Nanos(self.claim.nanos).to_duration())
            }
            _ => self.shard.driver.instant_here(self.deadline()),
        }
    }

    /// The deadline of a timer that has one.
    pub(crate) fn deadline(&self) -> Instant {
        Moment(self.claim.nanos).instant(self.shard.base)
    }

    /// For `Debug`.
    pub(crate) fn progress(&self) -> impl fmt::Debug {
        self.claim.progress
    }

    /// Whether the deadline has come, as [`Timer::poll`] sees it; not of one that was neither polled nor reset.
    pub(crate) fn is_elapsed(&self) -> bool {
        match self.claim.progress {
            Progress::New | Progress::Counting | Progress::Immediate => false,
            Progress::Waiting => self.is_past(),
            Progress::Elapsed => true,
        }
    }

    fn is_past(&self) -> bool {
        let mut state = lock(&self.shard.state);
        let tick = state.tick_of(Moment(self.claim.nanos), self.claim.epoch);
        let reached = self.shard.reached(&state);
        match &self.claim.key {
            None => tick <= reached,
            Some(key) if state.wheel.is_cancelled(key) => false,
            Some(key) if state.wheel.get_mut(key).is_none() => tick <= reached.max(state.wheel.deadline(key)),
            Some(_) => matches!(state.mode, Mode::Dozing { .. }) && tick <= reached,
        }
    }

    /// Moves the timer. To a later deadline, this touches nothing else: the entry stays where it is, and the timer re-arms when its
    /// old deadline comes. To an earlier one, the entry moves at once.
    #[inline]
    pub(crate) fn reset(&mut self, EpochInstant { instant, epoch }: EpochInstant) {
        let moment = Moment::of(instant).0;
        let later = moment >= self.claim.nanos && epoch == self.claim.epoch;
        self.claim.nanos = moment;
        self.claim.epoch = epoch;
        self.claim.progress = Progress::Waiting;
        if !later {
            self.bring_forward();
        }
    }

    /// Moves the timer to a deadline that has come already: the next poll completes it.
    pub(crate) fn reset_immediately(&mut self, deadline: EpochInstant) {
        self.reset(deadline);
        self.claim.progress = Progress::Immediate;
        self.claim.until = Generation::UNKNOWN;
    }

    fn bring_forward(&mut self) {
        let Some(key) = &self.claim.key else { return };
        let mut state = lock(&self.shard.state);
        let tick = state.tick_of(Moment(self.claim.nanos), self.claim.epoch);
        if state.wheel.bring_forward(key, tick) {
            self.claim.until = self.claim.until.min(state.until(tick));
            self.shard.wake_driver_by(state, tick);
        }
    }

    /// Waits until the timer is due.
    #[inline]
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        match self.waits(waker) || self.takes_over(waker) {
            true => Poll::Pending,
            false => self.poll_slowly(waker),
        }
    }

    /// Whether the timer waits and wakes this task, as far as can be told without the lock.
    #[inline]
    pub(crate) fn waits(&self, waker: &Waker) -> bool {
        self.claim.until.outlasts(self.shard.reuse.generation()) && self.claim.waker.is(waker)
    }

    /// Begins to wait, if that needs no lock: takes over what its thread keeps.
    #[inline]
    pub(crate) fn takes_over(&mut self, waker: &Waker) -> bool {
        match (&self.claim.key, self.claim.progress) {
            (None, Progress::New | Progress::Waiting) => self.take_over(waker),
            (None, Progress::Counting) => self.take_over_counting(waker),
            _ => false,
        }
    }

    /// What [`Timer::poll`] does where the lock is needed.
    #[inline(never)]
    pub(crate) fn poll_slowly(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        match (&self.claim.key, self.claim.progress) {
            (Some(_), Progress::Waiting | Progress::Counting) => self.claim.poll(&self.shard, waker),
            (None, Progress::New | Progress::Waiting) => self.register(waker),
            (None, Progress::Counting) => self.register_counting(waker),
            _ => self.complete(),
        }
    }

    /// Completes a timer that waits for nothing.
    fn complete(&mut self) -> Poll<Result<(), Refusal>> {
        self.cancel();
        if self.claim.progress == Progress::Immediate {
            if self.shard.is_shutdown() {
                return Poll::Ready(Err(Refusal::Shutdown));
            }
            self.claim.progress = Progress::Elapsed;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes over the timer that this thread keeps, if it has a deadline that is no later than this one's.
    #[inline]
    fn take_over(&mut self, waker: &Waker) -> bool {
        self.shard.follow_thread();
        let until = self.shard.until(Moment(self.claim.nanos), self.claim.epoch);
        let taken = until.and_then(|until| self.shard.reuse.take_by(waker, until));
        if let Some((key, candidate)) = taken {
            self.claim.set_entry(key, candidate.until, candidate.waker);
            self.claim.progress = Progress::Waiting;
            return true;
        }
        false
    }

    /// Registers the timer, unless it is due already.
    fn register(&mut self, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let waker = waker.clone();
        let mut state = self.shard.ensure_driven(self.shard.lock_to_register())?;
        let tick = state.tick_of(Moment(self.claim.nanos), self.claim.epoch);
        if tick <= self.shard.reached(&state) {
            self.claim.progress = Progress::Elapsed;
            return Poll::Ready(Ok(()));
        }
        self.shard.admit(&mut state, self.claim.admission)?;
        let (id, until) = (WakerId::of(&waker), state.until(tick));
        let key = state.wheel.insert(tick, waker);
        let spent = self.shard.make_room(&mut state);
        self.shard.wake_driver_by(state, tick);
        drop(spent);
        self.claim.set_entry(key, until, id);
        self.claim.progress = Progress::Waiting;
        Poll::Pending
    }

    /// Ends the timer: keeps it for the next of its task, if that can be.
    #[inline]
    pub(crate) fn cancel(&mut self) {
        if let Some(key) = self.claim.key.take() {
            self.give_back(key);
        }
    }

    /// Ends the timer, and leaves nothing for the next of its task: that would wake the task at this one's deadline.
    pub(crate) fn remove(&mut self) {
        if let Some(key) = self.claim.key.take() {
            self.claim.until = Generation::UNKNOWN;
            drop(self.shard.cancel(key));
        }
    }

    #[inline(never)]
    fn give_back(&mut self, key: Key) {
        let candidate = Candidate {
            until: self.claim.until,
            delay: self.claim.incoming_delay(),
            waker: self.claim.waker,
        };
        self.claim.until = Generation::UNKNOWN;
        if let Err(key) = self.shard.reuse.put(key, &candidate) {
            drop(self.shard.cancel(key));
        }
    }
}

impl Claim {
    #[inline]
    pub(super) fn set_entry(&mut self, key: Key, until: Generation, waker: WakerId) {
        self.key = Some(key);
        self.until = until;
        self.waker = waker;
        self.admission = Admission::Admitted;
    }

    /// Moves the deadline of a timer that counted from its registration to the moment that has come of it.
    pub(super) fn set_deadline(&mut self, moment: Moment, epoch: Epoch) {
        self.nanos = moment.0;
        self.epoch = epoch;
        self.progress = Progress::Waiting;
    }

    /// Looks after a registered timer, which may be due at another time by now.
    #[inline(never)]
    fn poll(&mut self, shard: &Shard, waker: &Waker) -> Poll<Result<(), Refusal>> {
        let mut cloned = None;
        loop {
            let look = {
                let mut state = lock(&shard.state);
                let Some(key) = &self.key else {
                    return Poll::Pending;
                };
                match (state.wheel.get_mut(key).is_some(), state.mode) {
                    (false, _) => self.look_at_expired(shard, state, &mut cloned),
                    (true, Mode::Driverless) => {
                        drop(state);
                        self.look_for_driver(shard)
                    }
                    (true, _) => self.look_at_pending(shard, state, waker, &mut cloned),
                }
            };
            match look {
                Look::Done(polled) => {
                    if let Poll::Ready(Ok(())) = polled {
                        self.progress = Progress::Elapsed;
                    }
                    return polled;
                }
                Look::WantsWaker => cloned = Some(waker.clone()),
                Look::Again => {}
            }
        }
    }

    /// The entry has expired: the timer is done, or its deadline has moved on since.
    fn look_at_expired(
        &mut self,
        shard: &Shard,
        mut state: MutexGuard<'_, State>,
        cloned: &mut Option<Waker>,
    ) -> Look {
        let Some(key) = &self.key else { return Look::Again };
        let own = state.wheel.deadline(key);
        let deadline = self.tick(&state, own);
        // While a visit is under way, what it expired is due a tick before the wheel gets there.
        let done = match deadline <= shard.reached(&state).max(own) && !state.wheel.is_cancelled(key) {
            true => Some(Ok(())),
            false => (state.mode == Mode::Shutdown).then_some(Err(Refusal::Shutdown)),
        };
        if let Some(done) = done {
            if self.progress == Progress::Counting {
                // The entry alone knows when it would have been due.
                self.set_deadline(state.clock.moment_of(own), state.epoch);
            }
            self.end(shard, state, Removal::Expired);
            return Look::Done(Poll::Ready(done));
        }
        let Some(waker) = cloned.take() else {
            return Look::WantsWaker;
        };
        if let Err(refusal) = shard.admit(&mut state, Admission::Admitted) {
            return Look::Done(Poll::Ready(Err(refusal)));
        }
        self.waker = WakerId::of(&waker);
        self.until = state.until(deadline);
        state.wheel.reinsert(key, deadline, waker);
        let driven = state.mode != Mode::Driverless;
        shard.wake_driver_by(state, deadline);
        match driven {
            true => Look::Done(Poll::Pending),
            // The next look starts a driver.
            false => Look::Again,
        }
    }

    fn look_for_driver(&mut self, shard: &Shard) -> Look {
        match shard.driver.clone().start() {
            Ok(()) => Look::Again,
            Err(refusal) => {
                drop(self.key.take().and_then(|key| shard.cancel(key)));
                Look::Done(Poll::Ready(Err(refusal)))
            }
        }
    }

    /// The entry is pending, and somebody drives.
    fn look_at_pending(
        &mut self,
        shard: &Shard,
        mut state: MutexGuard<'_, State>,
        waker: &Waker,
        cloned: &mut Option<Waker>,
    ) -> Look {
        let Some(key) = &self.key else { return Look::Again };
        let incoming = state.wheel.is_incoming(key);
        let own = state.wheel.deadline(key);
        if !incoming {
            let deadline = self.tick(&state, own);
            // The driver may be about to come; under a test's clock nobody should have to wait for that.
            if matches!(state.mode, Mode::Dozing { .. }) && deadline <= shard.reached(&state) {
                self.end(shard, state, Removal::Expired);
                return Look::Done(Poll::Ready(Ok(())));
            }
            // Reset while there was no driver.
            if deadline < own && state.wheel.bring_forward(key, deadline) {
                shard.wake_driver_by(state, deadline);
                return Look::Again;
            }
            self.until = state.until(own);
            if self.progress == Progress::Counting {
                self.nanos = state.clock.moment_of(own).0;
                self.epoch = state.epoch;
                self.progress = Progress::Waiting;
            }
        }
        let outdated = match state.wheel.get_mut(key) {
            Some(registered) if registered.will_wake(waker) => None,
            Some(registered) => match cloned.take() {
                Some(waker) => Some(mem::replace(registered, waker)),
                None => return Look::WantsWaker,
            },
            None => return Look::Again,
        };
        // Of the waker in the entry, not of the one that is polled: a clone may hold another address.
        self.waker = state
            .wheel
            .get_mut(key)
            .map_or(WakerId::UNKNOWN, |waker| WakerId::of(waker));
        drop(state);
        drop(outdated);
        Look::Done(Poll::Pending)
    }

    /// The tick at which the timer may expire; of one that counts from its registration, what its entry says.
    fn tick(&self, state: &State, own: Tick) -> Tick {
        match self.progress {
            Progress::Counting => own,
            _ => state.tick_of(Moment(self.nanos), self.epoch),
        }
    }

    fn end(&mut self, shard: &Shard, state: MutexGuard<'_, State>, removal: Removal) {
        self.until = Generation::UNKNOWN;
        if let Some(key) = self.key.take() {
            drop(shard.remove(state, key, removal));
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
    #[cold]
    pub(super) fn cancel(&self, key: Key) -> Option<Waker> {
        let state = lock(&self.state);
        self.remove(state, key, Removal::Cancelled)
    }
}
