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
    clock::{Clock, Moment, Nanos, Reading},
    driver::tokio_timer,
    shard::{Shard, SpareEntry, StartOutcome},
    shared::{Shared, WheelRef},
    sync::Arc,
    test_clock,
    thread::{self, Spare},
    timing_wheel::Key,
    waker_id::WakerId,
};

/// A timer takes over a spare only if the spare's remaining time is at least the timer's duration divided by
/// this. Otherwise the timer would soon have to be started again.
const TAKE_OVER_DIVISOR: u64 = 8;

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

    /// Creates a timer and starts it for a caller in `runtime`, if that is known. `waker` is not that of a task.
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
        let shard = thread::bind_in(wheel, runtime);
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
            Phase::Apart(_, Apart::Unstarted { is_reset, .. }) => *is_reset && self.is_due(),
            // Without its engine, it elapses only in a poll.
            Phase::Waiting(wait) => {
                let is_gone = || !self.has_entry() && !wait.shard.has_ended();
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
        matches!(&self.phase, Phase::Waiting(wait) if wait.due > wait.shard.horizon() && wait.task.is(waker))
    }

    /// Polls a timer whose entry only ever has wakers that `waker` makes, all of which wake the same, and which
    /// are not those of a task.
    #[inline]
    #[track_caller]
    pub(crate) fn poll_with(&mut self, waker: impl Fn() -> Waker) -> Poll<()> {
        match &self.phase {
            Phase::Waiting(wait) if self.has_entry() && !wait.shard.clock.may_be_paused() => Poll::Pending,
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
                let now = wheel.now();
                (now.after(delay), Reading::current(now))
            }
            Apart::Unstarted { known_past, .. } => (self.deadline, wheel.reading(known_past)),
            Apart::Elapsed { .. } => return Poll::Ready(()),
        };
        self.begin(waker, deadline, reading)
    }

    /// Takes over the thread's spare, or gets an entry of its own.
    #[inline]
    #[track_caller]
    fn begin(&mut self, waker: &Waker, deadline: Moment, reading: Reading) -> Poll<()> {
        if let Some(spare) = thread::take_spare() {
            if self.can_take_over(&spare, waker, deadline, reading.at) {
                self.take_over(spare, deadline);
                return Poll::Pending;
            }
            // It may fit the task's next timer.
            thread::put_back(spare);
        }
        self.start(waker, deadline, reading)
    }

    /// Returns whether a spare is of this task and wheel, and due in time. `now` is a moment that has passed.
    #[inline]
    fn can_take_over(&self, spare: &Spare, waker: &Waker, deadline: Moment, now: Moment) -> bool {
        let (due, shard) = (spare.entry.deadline, &spare.shard);
        // The horizon is the moment of the last turn, and an entry that is due by then is gone. A task whose
        // polls are long would also take over an entry that is about to wake it, poll after poll.
        let now = now.max(shard.horizon());
        let left = deadline.since(now);
        spare.task.is(waker)
            && due.0 > now.0 + left.0 / TAKE_OVER_DIVISOR
            // A timer that starts sets the alarm anew.
            && !shard.alarm.is_overdue(now)
            && shard.clock.is_in_time(due, deadline, left)
            && shard.wheel.id() == self.wheel().id()
            && thread::is_in(shard.runtime, spare.task)
    }

    #[inline]
    fn take_over(&mut self, spare: Spare, deadline: Moment) {
        let Spare { shard, entry, task } = spare;
        shard.count_take_over();
        self.deadline = deadline;
        self.phase = Phase::Waiting(Wait {
            shard,
            due: entry.deadline,
            task,
            key: entry.key,
            leaves_spare: true,
        });
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
            if wait.shard.has_elapsed_with_runtime() {
                return self.elapse(Moment::ZERO);
            }
            let now = self.wheel().now();
            return self.start(waker, self.deadline, Reading::current(now));
        }
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
        }
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
        let (shard, repeats) = thread::bind(self.wheel(), task);
        match shard.start(clone, deadline, reading) {
            StartOutcome::Waits(key, due) => {
                self.deadline = deadline;
                self.phase = Phase::Waiting(Wait {
                    due,
                    task: remembered(task, &shard.clock),
                    key,
                    leaves_spare: repeats && task.is_task() && shard.may_have_spares(),
                    shard,
                });
                Poll::Pending
            }
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
        match wait.shard.start(clone, self.deadline, reading) {
            StartOutcome::Waits(key, due) => {
                (wait.key, wait.due) = (key, due);
                wait.task = remembered(task, &wait.shard.clock);
                // Its task may be that of another runtime.
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
        let rounded_up_by = due.since(self.deadline);
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
        let now = shard.alarm.now();
        let (tick, sooner) = shard.clock.round_up(self.deadline, self.deadline.since(now));
        if shard.has_come(self.deadline, sooner, Reading::current(now)) {
            let waker = self.end_entry(Shard::expire);
            let _ = self.elapse(Moment::ZERO);
            return waker;
        }
        if sooner >= wait.due {
            return None;
        }
        let (is_there, ended) = shard.bring_forward(&wait.key, wait.due, tick, now);
        if is_there {
            wait.due = sooner;
        }
        ended
    }

    /// Restarts a timer whose entry has expired, if it is not due at `deadline`, with the slack of a timer that
    /// started at `start`. The driver calls this by waking `waker`. Returns `false` if the timer is due or
    /// cannot be started here, so that its task has to poll.
    pub(crate) fn start_anew(&mut self, deadline: Moment, start: Moment, waker: &Waker) -> bool {
        self.deadline = deadline;
        match &self.phase {
            Phase::Waiting(wait) if !wait.shard.has_ended() => {
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
            Phase::Waiting(wait) => wait.shard.cancel(wait.key, wait.due),
            Phase::Apart(..) => None,
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

    fn end_entry(&mut self, end: impl FnOnce(&Shard, Key, Moment) -> Option<Waker>) -> Option<Waker> {
        let wait = self.phase.take_wait()?;
        end(&wait.shard, wait.key, wait.due)
    }

    /// Leaves the entry of a timer that is dropped to the thread, or cancels it.
    fn leave(&mut self) {
        let Phase::Waiting(wait) = self.phase.take() else {
            return;
        };
        if wait.leaves_spare {
            wait.leave_spare();
        } else {
            thread::with(|thread| thread.note_cancelled(wait.task));
            drop(wait.shard.cancel(wait.key, wait.due));
        }
    }

    /// Cancels the entry, and tells the thread.
    fn cancel_here(&mut self) {
        if let Phase::Waiting(wait) = &self.phase {
            thread::with(|thread| thread.note_cancelled(wait.task));
        }
        drop(self.cancel());
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
        if !self.shard.wakes(&self.key, self.due, waker) {
            if !self.shard.replace(&self.key, self.due, waker.clone()) {
                return false;
            }
            // This may be a task of another runtime, whose memory and descriptors a spare would keep.
            self.leaves_spare = false;
        }
        self.task = remembered(WakerId::learn(waker), &self.shard.clock);
        true
    }

    /// Leaves the entry of a timer that is dropped to the thread.
    #[inline]
    fn leave_spare(self) {
        let Wait {
            shard,
            due,
            task,
            key,
            ..
        } = self;
        if due > shard.horizon() {
            let entry = SpareEntry { key, deadline: due };
            thread::keep(Spare { shard, entry, task });
        }
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

/// Returns the task that a timer remembers: an unknown one on a clock that a test may move, where each poll
/// has to check whether the deadline has passed.
#[inline]
fn remembered(task: WakerId, clock: &Clock) -> WakerId {
    if clock.may_be_paused() {
        WakerId::UNKNOWN
    } else {
        task
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
