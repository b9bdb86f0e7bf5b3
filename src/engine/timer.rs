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
//!   AfterFirstPoll ---begin---> Waiting ---poll---> Elapsed
//!        Unstarted ------'       |   ^                 |
//!           ^                    |   `-- start: its entry was due too early, or its engine has ended
//!           `----- cancel -------+---------- reset ----'
//! ```
//!
//! A reset of a timer that waits does not change its phase. One of another timer makes it `Unstarted`. A
//! timer that waits is in a shard. In any other phase it is in none, and only knows its wheel.
//!
//! # Deadline and due
//!
//! The *deadline* is what the user asked for. A timer is due once the tick of its deadline has begun, which is
//! the first tick that begins at or after it; this rule has no exception. The *entry* is due later than that
//! by the slack, or earlier, in two cases: it was taken over from an earlier timer of the task, or the timer
//! has been reset to a later deadline. Moving the entry would cost more than a second look at the timer: once
//! the entry has expired, the timer elapses if its deadline has been reached as well, and otherwise starts
//! again for the rest. The entry is due after the rounded deadline in no case, except if a reset has moved the
//! deadline forward by so little that the slack of the former one covers it.

use std::{
    mem,
    task::{Poll, Waker},
    time::Duration,
};

use tokio::runtime::Id;

use super::{
    clock::{Moment, Nanos, Reading},
    driver::tokio_timer,
    shard::{Shard, StartOutcome},
    shared::{Shared, WheelRef},
    spare::Spare,
    sync::Arc,
    test_clock, thread,
    timing_wheel::Key,
    waker_id::WakerId,
};

/// One timer.
#[derive(Debug)]
pub(crate) struct Timer {
    /// Of no meaning while the timer is [`Apart::AfterFirstPoll`].
    deadline: Moment,
    phase: Phase,
}

// At this size, a boxed sleep fits into an allocator's chunk of 48 bytes.
const _: () = assert!(mem::size_of::<Timer>() == 40 || cfg!(not(target_pointer_width = "64")));

#[derive(Debug)]
enum Phase {
    /// Started, and in a shard. The entry may have expired since.
    Waiting(Wait),
    /// In no shard, and of this wheel.
    Apart(WheelRef, Apart),
}

/// The phases in which a timer is in no shard.
#[derive(Debug)]
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
        /// By how much the deadline was rounded up to the moment at which the entry was due. Zero if the
        /// timer has not waited, or not until then.
        rounded_up_by: Nanos,
    },
}

/// What a timer that waits knows of its entry.
#[derive(Debug)]
struct Wait {
    shard: Arc<Shard>,
    due: Moment,
    /// The task that the waker in the entry wakes. Unknown if each poll has to take the lock.
    task: WakerId,
    key: Key,
    /// Whether the entry becomes a spare if the timer is dropped.
    leaves_spare: bool,
}

impl Timer {
    /// Creates a timer that is due `delay` after its first poll.
    #[inline]
    pub(crate) fn from_first_poll(wheel: WheelRef, delay: Duration) -> Timer {
        Timer {
            deadline: Moment::ZERO,
            phase: Phase::Apart(wheel, Apart::AfterFirstPoll(Nanos::of_timeout(delay))),
        }
    }

    pub(crate) fn at(wheel: WheelRef, deadline: Moment) -> Timer {
        Timer {
            deadline,
            phase: Phase::unstarted(wheel, Moment::ZERO, false),
        }
    }

    /// Creates a timer that is due `duration` after `now`.
    pub(crate) fn after(wheel: WheelRef, now: Moment, duration: Duration) -> Timer {
        Timer {
            deadline: now.after(Nanos::of(duration)),
            phase: Phase::unstarted(wheel, now, false),
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
            return Timer::at(wheel.clone(), deadline);
        };
        let phase = match shard.start(waker, deadline, reading) {
            StartOutcome::Waits(key, due) => Phase::Waiting(Wait {
                shard,
                due,
                task: WakerId::UNKNOWN,
                key,
                leaves_spare: false,
            }),
            StartOutcome::IsDue => {
                let rounded_up_by = Nanos(0);
                Phase::Apart(wheel.clone(), Apart::Elapsed { rounded_up_by })
            }
            // The next attempt finds or begins another engine, or panics.
            StartOutcome::Ended(waker) => return Timer::started(wheel, runtime, waker, deadline, reading),
        };
        Timer { deadline, phase }
    }

    #[inline]
    fn wheel(&self) -> &WheelRef {
        match &self.phase {
            Phase::Waiting(wait) => &wait.shard.wheel,
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
        self.engine_shard()
            .map_or_else(|| self.wheel().now(), |shard| shard.alarm.now())
    }

    /// Returns whether the timer goes by the runtime that was given to the builder, and not by the caller's.
    #[inline]
    pub(crate) fn has_builder_runtime(&self) -> bool {
        self.wheel().builder_runtime().is_some()
    }

    /// Returns the shard in which the timer waits, unless that has ended.
    #[inline]
    fn engine_shard(&self) -> Option<&Shard> {
        match &self.phase {
            Phase::Waiting(wait) if !wait.shard.has_ended() => Some(&wait.shard),
            _ => None,
        }
    }

    /// Returns whether the timer waits in a shard that has ended.
    pub(crate) fn has_lost_engine(&self) -> bool {
        matches!(&self.phase, Phase::Waiting(wait) if wait.shard.has_ended())
    }

    /// Returns whether the timer waits for an entry that has not expired.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        matches!(&self.phase, Phase::Waiting(wait) if wait.due > wait.shard.horizon())
    }

    /// Returns whether the timer has not started since it was created, reset or cancelled.
    pub(crate) fn is_unstarted(&self) -> bool {
        matches!(self.phase, Phase::Apart(_, Apart::Unstarted { .. }))
    }

    /// Returns whether the timer has elapsed and stays so until it is reset.
    pub(crate) fn has_completed(&self) -> bool {
        matches!(self.phase, Phase::Apart(_, Apart::Elapsed { .. }))
    }

    pub(crate) fn is_elapsed(&self) -> bool {
        match &self.phase {
            Phase::Apart(_, Apart::AfterFirstPoll(_)) => false,
            // As with Tokio's sleep, which is registered by its first poll or by a reset.
            Phase::Apart(_, Apart::Unstarted { is_reset, .. }) => *is_reset && self.is_due(),
            // Without its engine, it elapses only in a poll.
            Phase::Waiting(wait) => {
                let is_gone = || !self.has_entry() && !wait.shard.has_ended();
                // An entry may be gone before its timer is due, and the horizon is behind the clock until the
                // next turn, so the clock is asked, too.
                wait.has_elapsed(self.deadline) || is_gone() && self.is_due()
            }
            Phase::Apart(_, Apart::Elapsed { .. }) => true,
        }
    }

    /// Returns whether the tick of the deadline has begun on the clock that [`Timer::now`] reads. Where a tick
    /// begins is not known before the timer has started, and it then counts as due a tick later.
    #[inline(never)]
    pub(crate) fn is_due(&self) -> bool {
        let deadline = self.deadline();
        if let Some(shard) = self.engine_shard() {
            return shard.is_due(deadline);
        }
        let tick = Nanos::of(self.shared().settings.tick_duration);
        if test_clock::may_be_paused() && !self.has_builder_runtime() {
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
        matches!(&self.phase, Phase::Waiting(wait) if wait.due > wait.shard.horizon() && wait.task.is(waker))
    }

    /// Polls a timer whose entry only ever has wakers that `waker` makes, all of which wake the same, and which
    /// are not those of a task.
    #[inline]
    #[track_caller]
    pub(crate) fn poll_with(&mut self, waker: impl Fn() -> Waker) -> Poll<()> {
        match &self.phase {
            Phase::Waiting(wait) if self.has_entry() && !wait.shard.source.is_test() => Poll::Pending,
            Phase::Apart(wheel, Apart::Unstarted { known_past, .. }) => {
                let reading = wheel.reading(*known_past);
                *self = Timer::started(wheel, None, waker(), self.deadline, reading);
                if self.has_completed() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }
            _ => self.poll_further(&waker()),
        }
    }

    /// Polls a timer that is not waiting or wakes another task.
    #[track_caller]
    pub(crate) fn poll_further(&mut self, waker: &Waker) -> Poll<()> {
        let (wheel, apart) = match &self.phase {
            Phase::Waiting(_) => return self.poll_waiting(waker),
            Phase::Apart(wheel, apart) => (wheel, apart),
        };
        let (deadline, reading) = match *apart {
            // Nothing is ever due, so this needs neither an entry nor a runtime.
            Apart::AfterFirstPoll(Nanos::NEVER) => return Poll::Pending,
            Apart::AfterFirstPoll(delay) => {
                // The only reading of the clock in the life of a timeout that completes in time.
                let now = wheel.now();
                (now.after(delay), Reading::current(now))
            }
            // The moment at which a sleep was created also tells how long it is, and so its slack, however late it
            // is polled.
            Apart::Unstarted { known_past, .. } => (self.deadline, wheel.reading(known_past)),
            Apart::Elapsed { .. } => return Poll::Ready(()),
        };
        self.begin(waker, deadline, reading)
    }

    /// Takes over a spare of the thread, or gets an entry of its own.
    #[inline]
    #[track_caller]
    fn begin(&mut self, waker: &Waker, deadline: Moment, reading: Reading) -> Poll<()> {
        let wheel = self.wheel().id();
        // Looked for first, because a spare has everything that a start has to find or to make: the shard, a
        // clone of the waker, and a place in the wheel.
        let taken = thread::with(|thread| {
            // The runtime is compared last, because Tokio may have to be asked for it, and by a count that all
            // workers share.
            thread.spares.take(|spare| {
                spare.fits(waker, wheel, deadline, reading.at)
                    && thread.is_in(spare.shard.runtime, spare.task)
            })
        });
        let Some(Spare {
            shard,
            key,
            due,
            task,
        }) = taken.flatten()
        else {
            return self.start(waker, deadline, reading);
        };
        self.deadline = deadline;
        self.phase = Phase::Waiting(Wait {
            shard,
            due,
            task,
            key,
            // What held for the former timer holds for this one: the task is the same, and so is the runtime.
            leaves_spare: true,
        });
        Poll::Pending
    }

    /// Polls a timer whose entry has expired, or may have to wake another task.
    #[inline(never)]
    #[track_caller]
    fn poll_waiting(&mut self, waker: &Waker) -> Poll<()> {
        let Phase::Waiting(wait) = &mut self.phase else {
            unreachable!("it waits")
        };
        // Read once, so that all questions below get the same answer.
        let horizon = wait.shard.horizon();
        if horizon == Moment::NEVER {
            // The engine has ended. All of its timers have been woken and count as pending no more, but for the
            // user they go on.
            if wait.shard.has_elapsed_with_runtime() {
                return self.elapse(Moment::ZERO);
            }
            let now = self.wheel().now();
            return self.start(waker, self.deadline, Reading::current(now));
        }
        // The horizon is the beginning of a tick that has come, so this is true of no timer too early.
        if wait.due.max(self.deadline) <= horizon {
            let due = wait.due;
            return self.elapse(due);
        }
        if wait.due > horizon {
            if wait.shard.is_due_before_turn(self.deadline) {
                drop(self.end_entry(Shard::expire));
                return self.elapse(Moment::ZERO);
            }
            if wait.direct_to(waker) {
                return Poll::Pending;
            }
            // A turn has taken the entry out since the horizon was read.
        }
        // The entry was due before the deadline. The horizon serves as a reading of the clock, because it is
        // the moment of the last turn.
        self.start_again(waker, Reading::earlier(horizon))
    }

    /// Starts the timer in the shard of this thread.
    ///
    /// # Panics
    ///
    /// Panics if there is no runtime with timers. The timer is then unchanged.
    #[track_caller]
    fn start(&mut self, waker: &Waker, deadline: Moment, reading: Reading) -> Poll<()> {
        // Cloned before a lock is taken, because that may be code of the user's.
        let (clone, task) = WakerId::of_clone(waker);
        let Some((shard, repeats)) = thread::bind(self.wheel(), task) else {
            // It starts where it is polled next, for the same deadline, if its task has handed it on by then.
            self.deadline = deadline;
            self.phase = Phase::unstarted(self.wheel().clone(), Moment::ZERO, false);
            return Poll::Pending;
        };
        match shard.start(clone, deadline, reading) {
            StartOutcome::Waits(key, due) => {
                let task = shard.source.remembered(task);
                // Decided now, because only this thread knows that its task runs in the shard's runtime. Of a
                // wheel with a runtime of its own, a spare could keep what a task of another runtime holds.
                let leaves_spare = repeats && task.is_task() && self.wheel().builder_runtime().is_none();
                // Stored only now: a poll that panics for want of a runtime leaves the timer as it was.
                self.deadline = deadline;
                self.phase = Phase::Waiting(Wait {
                    due,
                    task,
                    key,
                    leaves_spare,
                    shard,
                });
                Poll::Pending
            }
            // The tick of the deadline has begun, so there is nothing to wait for.
            StartOutcome::IsDue => {
                self.deadline = deadline;
                self.elapse(Moment::ZERO)
            }
            // The next attempt finds or begins another engine, or panics.
            StartOutcome::Ended(_) => self.start(waker, deadline, reading),
        }
    }

    /// Starts the timer again in the shard where it waits, because its entry has expired before its deadline.
    #[track_caller]
    fn start_again(&mut self, waker: &Waker, reading: Reading) -> Poll<()> {
        let Phase::Waiting(wait) = &mut self.phase else {
            unreachable!("it waits")
        };
        let (clone, task) = WakerId::of_clone(waker);
        // Not in the shard of this thread, because a timer stays in the runtime that polled it first.
        match wait.shard.start(clone, self.deadline, reading) {
            StartOutcome::Waits(key, due) => {
                (wait.key, wait.due) = (key, due);
                wait.task = wait.shard.source.remembered(task);
                // The task that polls now may be one of another runtime.
                wait.leaves_spare = false;
                Poll::Pending
            }
            StartOutcome::IsDue => self.elapse(Moment::ZERO),
            StartOutcome::Ended(_) => {
                let now = self.wheel().now();
                self.start(waker, self.deadline, Reading::current(now))
            }
        }
    }

    /// Ends the wait of a timer that is due, before the driver has come to its entry. Returns whether the timer
    /// was due.
    pub(crate) fn elapse_if_due(&mut self) -> bool {
        let is_due = self
            .engine_shard()
            .is_some_and(|shard| shard.is_due(self.deadline));
        if is_due {
            drop(self.end_entry(Shard::expire));
            let _ = self.elapse(Moment::ZERO);
        }
        is_due
    }

    /// Ends the wait, if the timer has waited. `due` is when its entry was due, if that has expired.
    fn elapse(&mut self, due: Moment) -> Poll<()> {
        // Told to an interval, whose next tick counts from the deadline and not from when it was rounded up to.
        let rounded_up_by = due.since(self.deadline);
        // Out of the shard, so that a timer which is kept after it has elapsed keeps no engine.
        self.phase = Phase::Apart(self.wheel().clone(), Apart::Elapsed { rounded_up_by });
        Poll::Ready(())
    }

    /// Returns by how much the deadline of a timer that has elapsed was rounded up.
    pub(crate) fn rounded_up_by(&self) -> Nanos {
        match self.phase {
            Phase::Apart(_, Apart::Elapsed { rounded_up_by }) => rounded_up_by,
            _ => Nanos(0),
        }
    }

    /// Moves the timer to another deadline. Returns a waker for the caller to wake with no lock held, such as
    /// the waiting task's if the timer is due.
    #[must_use]
    #[inline]
    pub(crate) fn reset(&mut self, deadline: Moment) -> Option<Waker> {
        let former = mem::replace(&mut self.deadline, deadline);
        match &self.phase {
            // The entry is due in time, and the timer is started again when it expires; or else the deadline
            // is the same as before, and only slack makes the entry late.
            Phase::Waiting(wait) if deadline >= wait.due || deadline == former => None,
            Phase::Waiting(_) => self.bring_forward(),
            // It counts as polled from now on, because that is how Tokio's behaves: its reset registers it.
            _ => {
                self.phase = Phase::unstarted(self.wheel().clone(), Moment::ZERO, true);
                None
            }
        }
    }

    /// Moves the timer to another deadline, given a reading of the clock, so that the next poll needs none.
    /// Unless the timer waits, it elapses only in a poll.
    #[must_use]
    pub(crate) fn reset_given_now(&mut self, deadline: Moment, now: Moment) -> Option<Waker> {
        let waker = self.reset(deadline);
        if let Phase::Apart(_, Apart::Unstarted { known_past, is_reset }) = &mut self.phase {
            (*known_past, *is_reset) = (now, false);
        }
        waker
    }

    /// Moves the entry of a timer that waits to the tick of its deadline, which is earlier.
    fn bring_forward(&mut self) -> Option<Waker> {
        let Phase::Waiting(wait) = &mut self.phase else {
            return None;
        };
        let shard = &wait.shard;
        if wait.due <= shard.horizon() {
            // The task is woken in any case. Without its engine, the timer starts in another one.
            if !shard.has_ended() {
                let _ = self.elapse(Moment::ZERO);
            }
            return None;
        }
        // The shard's clock, because the caller may be in another runtime than the timer.
        let now = shard.alarm.now();
        let (tick, sooner) = shard.clock.round_up(self.deadline, self.deadline.since(now));
        if shard.has_come(self.deadline, sooner, Reading::current(now)) {
            let waker = self.end_entry(Shard::expire);
            let _ = self.elapse(Moment::ZERO);
            return waker;
        }
        // With slack, two deadlines may be rounded up to the same tick.
        if sooner >= wait.due {
            return None;
        }
        let (is_there, ended) = shard.bring_forward(&wait.key, wait.due, tick, now);
        // Otherwise a turn has just taken the entry out, and its task is woken and starts the timer again.
        if is_there {
            wait.due = sooner;
        }
        ended
    }

    /// Restarts a timer whose entry has expired, if it is not due at `deadline`, with the slack of a timer that
    /// started at `start`. The driver calls this by waking `waker`. Returns `false` if the timer is due or
    /// cannot be started here, so that its task has to poll.
    pub(crate) fn start_anew(&mut self, deadline: Moment, start: Moment, waker: &Waker) -> bool {
        match &self.phase {
            Phase::Waiting(wait) if !wait.shard.has_ended() => {
                self.deadline = deadline;
                // The driver has woken this waker because the entry has expired, unless the timer was moved since.
                let is_gone = wait.due <= wait.shard.horizon();
                let polled = if is_gone && !wait.has_elapsed(deadline) {
                    self.start_again(waker, Reading::earlier(start))
                } else {
                    self.poll_further(waker)
                };
                polled.is_pending()
            }
            _ => false,
        }
    }

    /// Cancels the entry of a timer that is dropped next, and returns its waker.
    #[inline]
    pub(crate) fn end(&mut self) -> Option<Waker> {
        match self.phase.take() {
            // By the horizon, the entry is gone or is the driver's to free, which takes no lock here.
            Phase::Waiting(wait) if wait.due > wait.shard.horizon() => wait.shard.cancel(wait.key, wait.due),
            _ => None,
        }
    }

    /// Cancels the entry, and returns its waker.
    pub(crate) fn cancel(&mut self) -> Option<Waker> {
        self.end_entry(Shard::cancel)
    }

    /// Cancels the entry before the timer is dropped, unless the drop makes it a spare. If the timer is
    /// polled again nevertheless, it starts again.
    #[inline]
    pub(crate) fn cancel_unless_kept(&mut self) {
        if matches!(&self.phase, Phase::Waiting(wait) if !wait.leaves_spare) {
            self.cancel_here();
        }
    }

    /// Makes the entry of a timer that is dropped a spare of this thread, or cancels it.
    fn leave(&mut self) {
        thread::with(|thread| {
            let Phase::Waiting(wait) = &self.phase else { return };
            if !wait.leaves_spare {
                return;
            }
            // The entry of one that is due by the horizon is gone, or is the driver's to free, which takes no lock
            // here.
            if wait.due <= wait.shard.horizon() {
                return drop(self.phase.take());
            }
            if let Some(mut place) = thread.spares.make_room(&wait.shard, wait.due, wait.task) {
                *place = self.phase.take().into_spare();
            }
        });
        // Not kept, or the thread's locals have been destroyed.
        if let Phase::Waiting(_) = self.phase {
            self.cancel_here();
        }
    }

    /// Cancels the entry, if the timer waits, and tells the thread.
    fn cancel_here(&mut self) {
        let Some(Wait {
            shard,
            due,
            task,
            key,
            ..
        }) = self.phase.take_wait()
        else {
            return;
        };
        // From now on the task counts as one that starts a timer after the other.
        thread::with(|thread| thread.spares.note_cancelled(task));
        // The waker is dropped here, with no lock held, because that may be code of the user's.
        drop(shard.cancel(key, due));
    }

    fn end_entry(&mut self, end: impl FnOnce(&Shard, Key, Moment) -> Option<Waker>) -> Option<Waker> {
        let wait = self.phase.take_wait()?;
        end(&wait.shard, wait.key, wait.due)
    }
}

impl Wait {
    /// Returns whether the entry has expired and the deadline has been reached as well. A timer whose engine
    /// has ended has another clock.
    fn has_elapsed(&self, deadline: Moment) -> bool {
        let horizon = self.shard.horizon();
        horizon != Moment::NEVER && self.due.max(deadline) <= horizon
    }

    /// Makes the entry wake the task of `waker`. Returns `false` if the entry is gone.
    fn direct_to(&mut self, waker: &Waker) -> bool {
        // Compared in the shard, because the task is known in the timer only once its vtable has been learnt.
        if !self.shard.wakes(&self.key, self.due, waker) {
            if !self.shard.replace(&self.key, self.due, waker.clone()) {
                return false;
            }
            // This may be a task of another runtime, whose memory and descriptors a spare would keep.
            self.leaves_spare = false;
        }
        // A timer that is polled twice may be polled often, so its waker's vtable is worth a place.
        self.task = self.shard.source.remembered(WakerId::learn(waker));
        true
    }
}

impl Phase {
    fn unstarted(wheel: WheelRef, known_past: Moment, is_reset: bool) -> Phase {
        Phase::Apart(wheel, Apart::Unstarted { known_past, is_reset })
    }

    /// Takes the phase out of a timer that is dropped.
    #[inline]
    fn take(&mut self) -> Phase {
        mem::replace(self, Phase::unstarted(WheelRef::GLOBAL, Moment::ZERO, false))
    }

    /// Makes a spare of a phase in which the timer waits.
    #[inline]
    fn into_spare(self) -> Option<Spare> {
        let Phase::Waiting(wait) = self else { return None };
        let Wait {
            shard,
            due,
            task,
            key,
            ..
        } = wait;
        Some(Spare {
            shard,
            key,
            due,
            task,
        })
    }

    /// Makes a timer that waits one that has not started. The caller ends the entry.
    fn take_wait(&mut self) -> Option<Wait> {
        let Phase::Waiting(wait) = self else { return None };
        let unstarted = Phase::unstarted(wait.shard.wheel.clone(), Moment::ZERO, false);
        match mem::replace(self, unstarted) {
            Phase::Waiting(wait) => Some(wait),
            _ => None,
        }
    }
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        if let Phase::Waiting(_) = &self.phase {
            self.leave();
        }
    }
}
