//! `Timer`: the part of a timer that its future owns. The other part is its entry in a shard.
//!
//! # Ground rules
//!
//! 1. Only the owner of a timer changes it, by `&mut`. The driver knows nothing of timers: it expires entries
//!    and wakes their wakers. A timer learns what has become of its entry from the horizon of its shard.
//! 2. While a timer waits and its entry is due *after* the horizon, the entry is in the wheel and the key is
//!    valid. Once the horizon has reached it, the entry is gone and the key is void. `shard.rs` says why one
//!    load of the horizon is enough, although it may be stale.
//! 3. No waker is woken here. A function that has to wake one returns it, and the caller wakes it with no
//!    lock held.
//!
//! # Phases
//!
//! ```text
//!   AfterFirstPoll ---start---> Waiting ---poll---> Elapsed
//!        Unstarted ------'      |    ^                 |
//!           ^                   |    `-- start: its entry was due too early, or its engine has ended
//!           `- cancel or leave -+---------- reset -----'
//! ```
//!
//! A reset of a timer that waits does not change its phase, unless the timer is due then. One of another timer
//! makes it `Unstarted`. A timer that waits is in a shard. In any other phase it is in none, and only knows its
//! wheel.
//!
//! # Deadline and due
//!
//! The *deadline* is what the user asked for. A timer is due once the tick of its deadline has begun, which is
//! the first tick that begins at or after it. The *entry* is due later than that by the slack, or earlier, in
//! two cases: it was taken over from an earlier timer of the task, or the timer has been reset to a later
//! deadline. Moving the entry would cost more than a second look at the timer: once the entry has expired, the
//! timer elapses if its deadline has been reached as well, and otherwise starts again for the rest. The entry
//! is due after the rounded deadline in no case, except if a reset has moved the deadline forward by so little
//! that the slack of the former one covers it.
//!
//! Only an engine has ticks. A timer in no shard is therefore due for certain a tick after its deadline
//! ([`Timer::is_due`]), and one whose engine has ended is due in the next engine or, where there is no other,
//! at once ([`Timer::poll_ended`]).

use std::{
    mem,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::runtime::Id;

use super::{
    clock::{Moment, Nanos, Reading},
    driver::tokio_timer,
    shard::{Claim, OnLeave, Shard, StartOutcome},
    shared::{Shared, WheelRef},
    sync::Arc,
    thread,
    waker_id::WakerId,
};

/// One timer.
#[derive(Debug)]
pub(crate) struct Timer {
    /// Without a meaning until the first pending poll of a timeout, which has none before.
    // Not in the phases, because each change of the phase would copy it: 15 instructions of a scheduled task.
    deadline: Moment,
    phase: Phase,
}

// At this size, a boxed sleep fits into an allocator's chunk of 48 bytes.
const _: () = assert!(size_of::<Timer>() == 40 || cfg!(not(target_pointer_width = "64")));

#[derive(Debug)]
enum Phase {
    /// Started, and in a shard. The entry may have expired since.
    Waiting(Claim),
    /// In no shard, and of this wheel.
    Apart(WheelRef, Apart),
}

/// The phases in which a timer is in no shard.
#[derive(Clone, Copy, Debug)]
enum Apart {
    /// A timeout, whose delay counts from the first poll that finds its future pending.
    AfterFirstPoll(Nanos),
    /// Not started since it was created, reset or cancelled.
    Unstarted {
        /// A moment that has passed, so that a timer which is due after it need not read the clock to start.
        /// [`Moment::ZERO`] if none is known.
        known_past: Moment,
        /// Whether it has been reset, and elapses without a poll.
        is_reset: bool,
    },
    Elapsed {
        /// By how much the deadline was rounded up to the moment at which the entry was due, for an interval,
        /// whose next tick counts from the deadline. Zero if the timer has not waited, or not until then.
        rounded_up_by: Nanos,
    },
}

impl Timer {
    /// Creates a timer that is due `delay` after its first poll.
    #[inline]
    pub(crate) fn after_first_poll(wheel: WheelRef, delay: Duration) -> Timer {
        Timer {
            deadline: Moment::ZERO,
            phase: Phase::Apart(wheel, Apart::AfterFirstPoll(Nanos::of_timeout(delay))),
        }
    }

    /// Creates a timer that is due at `deadline`. `known_past` is a moment that has passed, such as that from
    /// which the deadline counts, or [`Moment::ZERO`].
    #[inline]
    pub(crate) fn at(wheel: WheelRef, deadline: Moment, known_past: Moment) -> Timer {
        let is_reset = false;
        Timer {
            deadline,
            phase: Phase::Apart(wheel, Apart::Unstarted { known_past, is_reset }),
        }
    }

    /// Creates a timer and starts it, if it can, for a caller in `runtime`, if that is known. `waker` is not that of
    /// a task.
    ///
    /// # Panics
    ///
    /// Panics if there is no runtime with timers.
    #[track_caller]
    pub(crate) fn started(
        wheel: &WheelRef,
        runtime: Option<Id>,
        waker: Waker,
        deadline: Moment,
        reading: Reading,
    ) -> Timer {
        let Some(shard) = thread::bind_in(wheel, runtime) else {
            return Timer::at(wheel.clone(), deadline, Moment::ZERO);
        };
        // Not by `start`, because to make the timer and then start it takes 25 instructions more.
        let phase = match shard.start(waker, deadline, reading) {
            StartOutcome::Waits(key, due) => {
                let task = WakerId::UNKNOWN;
                Phase::Waiting(Claim::new(shard, key, due, task, OnLeave::Cancel))
            }
            StartOutcome::IsDue => Phase::elapsed(wheel.clone(), Nanos(0)),
            // The next attempt finds or begins another engine, or panics.
            StartOutcome::Ended(waker) => return Timer::started(wheel, runtime, waker, deadline, reading),
        };
        Timer { deadline, phase }
    }

    #[inline]
    fn wheel(&self) -> &WheelRef {
        match &self.phase {
            Phase::Waiting(claim) => &claim.shard.wheel,
            Phase::Apart(wheel, _) => wheel,
        }
    }

    /// Returns the state that the engines of this timer's wheel share.
    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        self.wheel().shared()
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Moment {
        match self.phase {
            // What a poll now would make of it. There is no instant for a deadline that overflows the clock.
            Phase::Apart(_, Apart::AfterFirstPoll(delay)) => self.now().after(delay.min(Nanos::FAR_FUTURE)),
            _ => self.deadline,
        }
    }

    /// Reads the clock by which the timer waits or, while it does not, the clock from which it would count
    /// here.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        match &self.phase {
            Phase::Waiting(claim) if !claim.shard.has_ended() => claim.shard.alarm.now(),
            _ => self.wheel().now(),
        }
    }

    /// Returns whether the timer waits in a shard that has ended.
    pub(crate) fn has_lost_engine(&self) -> bool {
        matches!(&self.phase, Phase::Waiting(claim) if claim.shard.has_ended())
    }

    /// Returns whether the timer waits for an entry that has not expired.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        matches!(&self.phase, Phase::Waiting(claim) if !claim.has_expired())
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_))
    }

    /// Returns whether the timer has elapsed and stays so until it is reset.
    pub(crate) fn has_completed(&self) -> bool {
        matches!(self.phase, Phase::Apart(_, Apart::Elapsed { .. }))
    }

    /// Returns by how much the deadline of a timer that has elapsed was rounded up.
    pub(crate) fn rounded_up_by(&self) -> Nanos {
        match self.phase {
            Phase::Apart(_, Apart::Elapsed { rounded_up_by, .. }) => rounded_up_by,
            _ => Nanos(0),
        }
    }

    pub(crate) fn is_elapsed(&self) -> bool {
        match &self.phase {
            Phase::Apart(_, Apart::AfterFirstPoll(_)) => false,
            // As with Tokio's sleep, which is registered by its first poll or by a reset.
            Phase::Apart(_, Apart::Unstarted { is_reset, .. }) => *is_reset && self.is_due(),
            // Without its engine, it elapses only in a poll. With it, an entry may be gone before its timer is due.
            Phase::Waiting(claim) => claim.has_expired() && !claim.shard.has_ended() && self.is_due(),
            Phase::Apart(_, Apart::Elapsed { .. }) => true,
        }
    }

    /// Returns whether the tick of the deadline has begun or, while the timer is in no shard, whether it has for
    /// certain.
    #[inline(never)]
    pub(crate) fn is_due(&self) -> bool {
        match &self.phase {
            Phase::Waiting(claim) if !claim.shard.has_ended() => claim.shard.is_due(self.deadline),
            _ => self.has_passed_by_a_tick(),
        }
    }

    /// Returns whether a tick has begun for certain, at or after the deadline, whenever ticks begin in the engine
    /// that the timer would start in here.
    fn has_passed_by_a_tick(&self) -> bool {
        let tick = Nanos::of(self.shared().settings.tick_duration);
        let deadline = self.deadline();
        if self.shared().may_be_paused_here() {
            // Tokio's milliseconds are ticks of the wheel.
            let rest = if tick > Nanos::MILLISECOND { tick } else { Nanos(0) };
            tokio_timer::has_passed(deadline.after(rest))
        } else {
            self.wheel().now() >= deadline.after(tick)
        }
    }

    /// Returns whether the timer is waiting and wakes this task.
    #[inline]
    pub(crate) fn waits(&self, waker: &Waker) -> bool {
        // The horizon may have been stored meanwhile. The driver then wakes the task, which polls once more.
        matches!(&self.phase, Phase::Waiting(claim) if !claim.has_expired() && claim.task.is(waker))
    }

    /// Polls a timer that is not waiting or wakes another task.
    ///
    /// # Panics
    ///
    /// Panics if the timer has to start, and there is no runtime with timers. It is then unchanged.
    #[track_caller]
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let (wheel, apart) = match &self.phase {
            Phase::Waiting(_) => return self.poll_waiting(waker, Moment::NEVER),
            Phase::Apart(wheel, apart) => (wheel, apart),
        };
        let reading = match *apart {
            // Nothing is ever due, so this needs neither an entry nor a runtime.
            Apart::AfterFirstPoll(Nanos::NEVER) => return Poll::Pending,
            Apart::AfterFirstPoll(delay) => {
                // The only reading of the clock in the life of a timeout that completes in time.
                let now = wheel.now();
                self.deadline = now.after(delay);
                Reading::current(now)
            }
            // The moment at which a sleep was created also tells how long it is, and so its slack, however late it
            // is polled.
            Apart::Unstarted { known_past, .. } => wheel.reading(known_past),
            Apart::Elapsed { .. } => return Poll::Ready(()),
        };
        // Looked for first, because a spare has everything that a start has to find or to make: the shard, a
        // clone of the waker, and a place in the wheel.
        let (wheel, deadline) = (wheel.id(), self.deadline);
        let give = |spare| self.phase = Phase::Waiting(spare);
        if thread::take_spare(wheel, waker, deadline, reading.at, give) {
            return Poll::Pending;
        }
        // Cloned before a lock is taken, because that may be code of the user's.
        self.start(WakerId::of_clone(waker), reading)
    }

    /// Polls a timer whose entry only ever has wakers that `waker` makes, all of which wake the same, and which
    /// are not those of a task. `since` is the moment from which the deadline counts, which gives the slack if the
    /// timer starts again, or [`Moment::NEVER`], with which the rest of its time gives it.
    #[inline]
    #[track_caller]
    pub(crate) fn poll_with(&mut self, waker: impl Fn() -> Waker, since: Moment) -> Poll<()> {
        match &self.phase {
            Phase::Waiting(claim) if !claim.has_expired() && !claim.shard.source.tokio_decides() => {
                Poll::Pending
            }
            Phase::Waiting(_) => self.poll_waiting(&waker(), since),
            Phase::Apart(wheel, Apart::Unstarted { known_past, .. }) => {
                let reading = wheel.reading(*known_past);
                self.start((waker(), WakerId::UNKNOWN), reading)
            }
            _ => self.poll(&waker()),
        }
    }

    /// Polls a timer whose entry has expired, or may have to wake another task.
    #[inline(never)]
    #[track_caller]
    fn poll_waiting(&mut self, waker: &Waker, since: Moment) -> Poll<()> {
        let Phase::Waiting(claim) = &mut self.phase else {
            unreachable!("it waits")
        };
        if !claim.has_expired() {
            if claim.shard.is_due_before_turn(self.deadline) {
                drop(self.expire());
                return Poll::Ready(());
            }
            if claim.direct_to(waker) {
                return Poll::Pending;
            }
            // A turn has taken the entry out meanwhile, or the engine has ended.
        }
        // Read once, so that both questions get the same answer.
        let (due, horizon) = (claim.due, claim.shard.horizon());
        if horizon == Moment::NEVER {
            return self.poll_ended(waker);
        }
        // The horizon is the beginning of a tick that has come, so this is true of no timer too early.
        if self.deadline <= horizon {
            return self.elapse(due.since(self.deadline));
        }
        // Not in the shard of this thread, because a timer stays in the runtime that polled it first. It leaves no
        // spare, because the task that polls now may be one of another runtime.
        let place = (claim.shard.clone(), OnLeave::Cancel);
        // The horizon serves as a reading of the clock, because it has passed.
        let reading = Reading::earlier(horizon.min(since));
        self.start_in(place, WakerId::of_clone(waker), reading)
    }

    /// Polls a timer whose engine has ended. All timers there have been woken and count as pending no more, but
    /// for the user they go on.
    #[cold]
    #[track_caller]
    fn poll_ended(&mut self, waker: &Waker) -> Poll<()> {
        if matches!(&self.phase, Phase::Waiting(claim) if claim.shard.has_elapsed_with_runtime()) {
            return self.elapse(Nanos(0));
        }
        let reading = Reading::current(self.wheel().now());
        self.start(WakerId::of_clone(waker), reading)
    }

    /// Starts the timer in the shard of this thread.
    ///
    /// # Panics
    ///
    /// Panics if there is no runtime with timers. The phase is then unchanged.
    #[track_caller]
    fn start(&mut self, waker: (Waker, WakerId), reading: Reading) -> Poll<()> {
        match thread::bind(self.wheel(), waker.1) {
            Some(place) => self.start_in(place, waker, reading),
            None => self.stay_unstarted(),
        }
    }

    /// Leaves the timer to be started where it is polled next, for the same deadline, if its task has handed it on
    /// by then.
    #[cold]
    fn stay_unstarted(&mut self) -> Poll<()> {
        self.phase = Phase::unstarted(self.wheel().clone());
        // One whose deadline has passed needs no engine.
        if self.has_passed_by_a_tick() {
            return self.elapse(Nanos(0));
        }
        Poll::Pending
    }

    /// Starts the timer in a shard. The second half of the place says what becomes of its entry.
    // Out of line, this takes 30 instructions more of a timer that finds no spare.
    #[inline(always)]
    #[track_caller]
    fn start_in(
        &mut self,
        (shard, on_leave): (Arc<Shard>, OnLeave),
        (waker, task): (Waker, WakerId),
        reading: Reading,
    ) -> Poll<()> {
        match shard.start(waker, self.deadline, reading) {
            StartOutcome::Waits(key, due) => {
                self.phase = Phase::Waiting(Claim::new(shard, key, due, task, on_leave));
                Poll::Pending
            }
            // The tick of the deadline has begun, so there is nothing to wait for.
            StartOutcome::IsDue => self.elapse(Nanos(0)),
            StartOutcome::Ended(waker) => {
                // The next attempt finds or begins another engine, whose clock may be another one, or panics.
                let reading = Reading::current(self.wheel().now());
                self.start((waker, task), reading)
            }
        }
    }

    /// Ends the wait, if the timer has waited, for an entry that was due by `rounded_up_by` after the deadline.
    fn elapse(&mut self, rounded_up_by: Nanos) -> Poll<()> {
        // Out of the shard, so that a timer which is kept after it has elapsed keeps no engine.
        self.phase = Phase::elapsed(self.wheel().clone(), rounded_up_by);
        Poll::Ready(())
    }

    /// Moves the timer to another deadline. `known_past` is a moment that has passed or [`Moment::ZERO`], as
    /// for [`Timer::at`]. Returns a waker for the caller to wake with no lock held, such as the waiting task's
    /// if the timer is due.
    #[must_use]
    #[inline]
    pub(crate) fn reset(&mut self, deadline: Moment, known_past: Moment) -> Option<Waker> {
        let former = mem::replace(&mut self.deadline, deadline);
        if let Phase::Waiting(claim) = &self.phase {
            // Otherwise, the entry is due in time, and the timer is started again when it expires; or else the
            // deadline is the same as before, and only slack makes the entry late.
            if deadline < claim.due && deadline != former {
                return self.bring_forward();
            }
        } else {
            // It counts as polled from now on, because that is how Tokio's behaves: its reset registers it.
            let is_reset = true;
            let unstarted = Apart::Unstarted { known_past, is_reset };
            self.phase = Phase::Apart(self.wheel().clone(), unstarted);
        }
        None
    }

    /// Moves the entry of a timer that waits to the tick of its deadline, which is earlier.
    fn bring_forward(&mut self) -> Option<Waker> {
        let Phase::Waiting(claim) = &mut self.phase else {
            unreachable!("it waits")
        };
        let shard = &claim.shard;
        if claim.has_expired() {
            // The task is woken in any case. Without its engine, the timer starts in another one. This is asked
            // last, because the entry may be gone for the reason that the engine has just ended.
            if !shard.has_ended() {
                let _ = self.elapse(Nanos(0));
            }
            return None;
        }
        // The shard's clock, because the caller may be in another runtime than the timer.
        let now = shard.alarm.now();
        let (tick, due) = shard.clock.round_up(self.deadline, self.deadline.since(now));
        if shard.has_come(self.deadline, due, Reading::current(now)) {
            return self.expire();
        }
        claim.bring_forward(tick, due, now)
    }

    /// Ends the wait of a timer that is due, before the driver has come to its entry. Returns the entry's waker.
    pub(crate) fn expire(&mut self) -> Option<Waker> {
        let claim = self.take_claim()?;
        let _ = self.elapse(Nanos(0));
        claim.expire()
    }

    /// Takes the entry out, if the timer waits, and returns its waker, whose destructor may be code of the
    /// user's. If the timer is polled again, it starts again.
    pub(crate) fn cancel(&mut self) -> Option<Waker> {
        self.take_claim()?.cancel()
    }

    /// Cancels a timer that nobody polls any more. From now on, it keeps neither its wheel nor, thereby, a runtime
    /// that was given to the builder.
    pub(crate) fn end(&mut self) -> Option<Waker> {
        match mem::replace(&mut self.phase, Phase::unstarted(WheelRef::GLOBAL)) {
            Phase::Waiting(claim) => claim.cancel(),
            Phase::Apart(..) => None,
        }
    }

    /// Ends the wait of a timer that is dropped, or whose timeout has completed. If it is polled again, it starts
    /// again.
    #[inline]
    pub(crate) fn leave(&mut self) {
        // All the rest is out of line, because a timeout around a ready future gets here, too.
        if let Phase::Waiting(_) = self.phase {
            self.leave_shard();
        }
    }

    /// Makes the entry a spare of this thread, or cancels it.
    #[inline(never)]
    fn leave_shard(&mut self) {
        let mut claim = self.take_claim();
        // Only a task of Tokio's leaves spares, or has them taken over.
        if claim.as_ref().is_some_and(|claim| claim.task.is_task()) {
            thread::with(|thread| thread.spares.keep(&mut claim));
        }
        // Not kept, or the thread's locals have been destroyed. The waker is dropped here, with no lock held, because
        // that may be code of the user's.
        drop(claim.and_then(Claim::cancel));
    }

    /// Makes a timer that waits one that has not started. The caller ends the entry.
    #[inline(always)]
    fn take_claim(&mut self) -> Option<Claim> {
        let Phase::Waiting(claim) = &self.phase else {
            return None;
        };
        let unstarted = Phase::unstarted(claim.shard.wheel.clone());
        match mem::replace(&mut self.phase, unstarted) {
            Phase::Waiting(claim) => Some(claim),
            Phase::Apart(..) => None,
        }
    }
}

impl Phase {
    fn elapsed(wheel: WheelRef, rounded_up_by: Nanos) -> Phase {
        Phase::Apart(wheel, Apart::Elapsed { rounded_up_by })
    }

    /// The phase after the wait has ended early.
    fn unstarted(wheel: WheelRef) -> Phase {
        let unstarted = Apart::Unstarted {
            known_past: Moment::ZERO,
            is_reset: false,
        };
        Phase::Apart(wheel, unstarted)
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        self.leave();
    }
}
