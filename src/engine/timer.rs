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
//! A reset of a timer that waits does not change its phase. One of another timer makes it `Unstarted`.
//!
//! # Deadline and due
//!
//! The *deadline* is what the user asked for. The entry's *due* time is when the driver expires the entry. It
//! is the deadline rounded up to a tick and by the slack, or a time before the deadline, in two cases: the
//! entry was taken over from an earlier timer of the task, or the timer has been reset to a later deadline.
//! Moving the entry would cost more than a second look at the timer: once the entry has expired, the timer
//! elapses if its deadline has been reached as well, and otherwise starts again for the rest. The entry is
//! due after the rounded deadline in no case, except if a reset has moved the deadline forward by so little
//! that the slack of the former one covers it.

use std::{
    mem,
    task::{Poll, Waker},
    time::Duration,
};

use super::{
    clock::{self, Clock, Moment, Nanos},
    driver::tokio_timer,
    shard::{Shard, SpareEntry, StartOutcome, TimerShard, kind_of, shared_of},
    shared::{Admission, Refusal, Shared},
    sync::{Arc, planted},
    thread::{self, Spare, Thread},
    timing_wheel::Key,
    waker_id::WakerId,
};

/// A timer takes over a spare only if the spare's remaining time is at least the timer's duration divided by
/// this. Otherwise the timer would soon have to be started again.
const TAKE_OVER_DIVISOR: u64 = 8;

/// One timer.
#[derive(Debug)]
pub(crate) struct Timer {
    /// Where the timer waits or has waited. Until it starts, any shard of its kind.
    shard: TimerShard,
    /// Of no meaning while the timer is [`Phase::AfterFirstPoll`].
    deadline: Moment,
    phase: Phase,
}

// At this size, a boxed sleep fits into an allocator's chunk of 48 bytes.
const _: () = assert!(mem::size_of::<Timer>() == 40 || cfg!(not(target_pointer_width = "64")));

#[derive(Debug)]
enum Phase {
    /// A timeout, whose delay counts from the first poll that finds its future pending.
    AfterFirstPoll(Nanos),
    /// Not started since it was created, reset or cancelled.
    Unstarted {
        /// A moment that has passed, so that a timer which is due after it need not read the clock to start,
        /// and one that is not elapses at its first poll. [`Moment::ZERO`] if none is known.
        known_past: Moment,
        /// Whether it has been reset, and elapses without a poll.
        is_reset: bool,
        admission: Admission,
    },
    /// Started. The entry may have expired since.
    Waiting(Wait),
    Elapsed {
        /// By how much the deadline was rounded up to the moment at which the entry was due. Zero if the
        /// timer has not waited, or not until then.
        rounded_up_by: Nanos,
        admission: Admission,
    },
}

/// What a timer that waits knows of its entry.
#[derive(Debug)]
struct Wait {
    due: Moment,
    /// The task that the waker in the entry wakes. Unknown if each poll has to take the lock.
    task: WakerId,
    key: Key,
    /// Whether the entry becomes a spare if the timer is dropped.
    leaves_spare: bool,
}

/// The outcome of a poll. Only a timer that may be refused fails.
pub(crate) type Polled = Poll<Result<(), Refusal>>;

impl Timer {
    fn unstarted(shard: TimerShard, deadline: Moment, known_past: Moment) -> Timer {
        let phase = Phase::Unstarted {
            known_past,
            is_reset: false,
            admission: Admission::First,
        };
        Timer {
            shard,
            deadline,
            phase,
        }
    }

    /// Creates a timer that is due `delay` after its first poll.
    pub(crate) fn from_first_poll(shard: TimerShard, delay: Duration) -> Timer {
        Timer {
            shard,
            deadline: Moment::ZERO,
            phase: Phase::AfterFirstPoll(Nanos::of(delay)),
        }
    }

    pub(crate) fn at(shard: TimerShard, deadline: Moment) -> Timer {
        Timer::unstarted(shard, deadline, Moment::ZERO)
    }

    /// Creates a timer that is due `duration` after `now`. With a zero duration, it is due at the first poll.
    pub(crate) fn after(shard: TimerShard, now: Moment, duration: Duration) -> Timer {
        Timer::unstarted(shard, now.after(Nanos::of(duration)), now)
    }

    /// Returns the state that the engines of this timer's wheel share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        shared_of(&self.shard)
    }

    pub(crate) fn deadline(&self) -> Moment {
        match self.phase {
            Phase::AfterFirstPoll(delay) => self.now().after(delay),
            _ => self.deadline,
        }
    }

    /// Reads the clock by which the timer waits or, before its first poll, the clock from which it would
    /// count here.
    pub(crate) fn now(&self) -> Moment {
        self.home()
            .map_or_else(|| self.wheel_now(), |home| home.alarm.now())
    }

    /// Reads the clock from which a timer of this wheel would count here.
    fn wheel_now(&self) -> Moment {
        let shard = self.shard.as_ref();
        shard.map_or_else(Moment::now, |shard| shard.shared.now())
    }

    /// Returns the shard in which the timer waits, unless that has ended.
    fn home(&self) -> Option<&Arc<Shard>> {
        let shard = self.shard.as_ref()?;
        let is_home = matches!(self.phase, Phase::Waiting(_)) && !shard.has_ended();
        is_home.then_some(shard)
    }

    /// Returns whether the timer waits in a shard that has ended.
    pub(crate) fn has_lost_engine(&self) -> bool {
        matches!(self.phase, Phase::Waiting(_)) && self.home().is_none()
    }

    /// Returns whether the wheel may refuse the timer.
    pub(crate) fn may_be_refused(&self) -> bool {
        kind_of(&self.shard).may_refuse()
    }

    /// Returns whether the wheel refuses the timer, because it has been shut down.
    fn is_refused(&self) -> bool {
        self.may_be_refused() && self.shared().limit.is_shutdown()
    }

    /// Returns whether the limit still applies to the timer.
    fn admission(&self) -> Admission {
        match self.phase {
            Phase::AfterFirstPoll(_) => Admission::First,
            Phase::Unstarted { admission, .. } | Phase::Elapsed { admission, .. } => admission,
            Phase::Waiting(_) => Admission::Again,
        }
    }

    pub(crate) fn is_elapsed(&self) -> bool {
        match &self.phase {
            Phase::AfterFirstPoll(_) => false,
            Phase::Unstarted { is_reset, .. } => *is_reset && self.has_passed(),
            Phase::Waiting(wait) => {
                let is_gone = || self.home().is_some_and(|home| wait.due <= home.horizon());
                self.has_expired() || is_gone() && self.has_passed()
            }
            Phase::Elapsed { .. } => true,
        }
    }

    /// Returns whether the timer waits, its entry has expired and its deadline has been reached as well. A
    /// timer whose engine has ended has another clock, unless it was a shutdown that ended its shard.
    fn has_expired(&self) -> bool {
        let (Phase::Waiting(wait), Some(shard)) = (&self.phase, &self.shard) else {
            return false;
        };
        let (last, horizon) = (wait.due.max(self.deadline), shard.horizon());
        if horizon == Moment::NEVER {
            self.is_refused() && shard.has_expired(last)
        } else {
            last <= horizon
        }
    }

    /// Returns whether the deadline has passed on the clock that [`Timer::now`] reads. If a test may pause
    /// that clock, Tokio's timer decides.
    fn has_passed(&self) -> bool {
        if let Some(home) = self.home() {
            return home.alarm.has_passed(self.deadline);
        }
        let has_builder_runtime = |shard: &Arc<Shard>| shard.builder_runtime().is_some();
        if clock::may_be_paused() && !self.shard.as_ref().is_some_and(has_builder_runtime) {
            tokio_timer::has_passed(self.deadline)
        } else {
            self.wheel_now() >= self.deadline
        }
    }

    /// Returns whether a zero duration elapses at the first poll. On a test's clock it waits until the end of
    /// the millisecond, as Tokio's does, but not until the end of a longer tick.
    fn zero_is_at_once(&self) -> bool {
        !clock::may_be_paused() || self.shared().settings.tick_duration > Nanos::MILLISECOND.to_duration()
    }

    /// Polls the timer. Returns early if the timer is known to be waiting and to wake this task.
    #[inline]
    pub(crate) fn poll(&mut self, waker: &Waker) -> Polled {
        if self.waits(waker) {
            Poll::Pending
        } else {
            self.poll_further(waker)
        }
    }

    /// Returns whether the timer is waiting and wakes this task.
    #[inline]
    pub(crate) fn waits(&self, waker: &Waker) -> bool {
        match (&self.phase, &self.shard) {
            (Phase::Waiting(wait), Some(shard)) => wait.due > shard.horizon() && wait.task.is(waker),
            _ => false,
        }
    }

    /// Polls a timer that is not waiting or wakes another task.
    pub(crate) fn poll_further(&mut self, waker: &Waker) -> Polled {
        match self.phase {
            Phase::AfterFirstPoll(_) | Phase::Unstarted { .. } => self.begin(waker),
            Phase::Waiting(_) => self.poll_waiting(waker),
            Phase::Elapsed { .. } => Poll::Ready(Ok(())),
        }
    }

    /// Starts the timer, unless it elapses at once: it takes over the thread's spare, or gets an entry of its
    /// own.
    #[inline]
    fn begin(&mut self, waker: &Waker) -> Polled {
        if self.elapses_at_once() && !self.is_refused() {
            return self.elapse(Moment::ZERO);
        }
        let (deadline, now) = match self.phase {
            Phase::Unstarted { known_past, .. } if known_past > Moment::ZERO => (self.deadline, known_past),
            Phase::AfterFirstPoll(delay) => {
                let now = self.wheel_now();
                (now.after(delay), now)
            }
            _ => (self.deadline, self.wheel_now()),
        };
        if thread::with(|thread| self.take_over(thread, waker, deadline, now)) == Some(true) {
            return Poll::Pending;
        }
        // Checked only now, because a timer that may be refused takes over no spare.
        if self.is_refused() {
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        self.start(waker, deadline, deadline.since(now))
    }

    /// Returns whether a timer that has not started is due at once.
    #[inline]
    fn elapses_at_once(&self) -> bool {
        match self.phase {
            Phase::AfterFirstPoll(delay) => delay.0 == 0 && self.zero_is_at_once(),
            Phase::Unstarted { is_reset: true, .. } => self.has_passed(),
            Phase::Unstarted { known_past, .. } => self.deadline <= known_past && self.zero_is_at_once(),
            _ => false,
        }
    }

    /// Takes over the thread's spare if it is of this task and due in time. Returns whether it did.
    #[inline]
    fn take_over(&mut self, thread: &Thread, waker: &Waker, deadline: Moment, now: Moment) -> bool {
        let fits = |spare: &Spare| {
            let (due, horizon) = (spare.entry.deadline, spare.shard.horizon());
            // The horizon is the moment of the last turn. A task whose polls are long would otherwise take
            // over an entry that is about to wake it, poll after poll.
            let now = now.max(horizon);
            spare.task.is(waker)
                && (due > horizon || planted("unchecked_take_over"))
                && spare.shard.clock.is_due_by(due, deadline)
                && due.since(now).0 >= deadline.since(now).0 / TAKE_OVER_DIVISOR
                && thread.spare_serves(spare, &self.shard)
        };
        let Some(Spare { shard, entry, task }) = thread.take_spare_if(fits) else {
            return false;
        };
        shard.count_take_over();
        self.shard = Some(shard);
        self.deadline = deadline;
        self.phase = Phase::Waiting(Wait {
            due: entry.deadline,
            task,
            key: entry.key,
            leaves_spare: true,
        });
        true
    }

    /// Polls a timer whose entry has expired, or may have to wake another task.
    fn poll_waiting(&mut self, waker: &Waker) -> Polled {
        let (Phase::Waiting(wait), Some(shard)) = (&self.phase, &self.shard) else {
            unreachable!("it waits in a shard")
        };
        let (due, horizon) = (wait.due, shard.horizon());
        if self.has_expired() {
            return self.elapse(due);
        }
        if self.is_refused() {
            self.cancel();
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        if due > horizon {
            // The task that calls Tokio's `advance` is polled before the engine's task, and its timers should
            // not need a second poll to elapse.
            if shard.clock.may_be_paused() && self.has_passed() {
                drop(self.end_entry(Shard::expire));
                return self.elapse(Moment::ZERO);
            }
            if self.direct_entry_to(waker) {
                return Poll::Pending;
            }
        }
        let now = if horizon == Moment::NEVER {
            self.wheel_now()
        } else {
            horizon
        };
        self.start(waker, self.deadline, self.deadline.since(now))
    }

    /// Makes the entry wake the task of `waker`. Returns `false` if the entry is gone.
    fn direct_entry_to(&mut self, waker: &Waker) -> bool {
        let may_be_refused = self.may_be_refused();
        let (Phase::Waiting(wait), Some(shard)) = (&mut self.phase, &self.shard) else {
            return false;
        };
        let mut task = WakerId::if_known(waker);
        if !shard.wakes(&wait.key, wait.due, waker) {
            let (clone, other) = identified(waker, may_be_refused);
            if !shard.replace(&wait.key, wait.due, clone) {
                return false;
            }
            // This may be a task of another runtime, whose memory and descriptors a spare would keep.
            wait.leaves_spare = false;
            task = other;
        }
        wait.task = remembered(task, &shard.clock);
        true
    }

    /// Puts an entry into the wheel: in the timer's own shard if it waits in one that has not ended, and
    /// otherwise in the shard of this thread. `wait` is the time from now until `deadline`, from which follows
    /// the slack.
    ///
    /// # Panics
    ///
    /// Panics if there is no runtime with timers. The timer is then unchanged.
    fn start(&mut self, waker: &Waker, deadline: Moment, wait: Nanos) -> Polled {
        let (clone, task) = identified(waker, self.may_be_refused());
        let admission = self.admission();
        let repeats = self.home().is_none() && self.bind(deadline, task, admission);
        let Some(shard) = &self.shard else {
            unreachable!("it has been bound")
        };
        let clock = &shard.clock;
        let tick = clock.due(deadline, clock.resolution(wait));
        let due = clock.start_of(tick);
        if has_come(shard, deadline, wait, due) {
            shard.alarm.notify_if_no_handle(&shard.shared);
            return self.elapse(Moment::ZERO);
        }
        match shard.start(clone, (tick, due), admission) {
            StartOutcome::Waits(key) => {
                let task = remembered(task, clock);
                self.phase = Phase::Waiting(Wait {
                    due,
                    task,
                    key,
                    leaves_spare: repeats && task.is_task() && shard.may_have_spares(),
                });
                Poll::Pending
            }
            StartOutcome::HasPassed => self.elapse(Moment::ZERO),
            StartOutcome::Refused(refusal) => {
                self.phase = Phase::cancelled(admission);
                Poll::Ready(Err(refusal))
            }
            StartOutcome::Ended(waker) => self.start(&waker, deadline, wait),
        }
    }

    /// Binds the timer to this thread's shard. Returns whether its task has cancelled the last timer here.
    #[inline]
    fn bind(&mut self, deadline: Moment, task: WakerId, admission: Admission) -> bool {
        let repeats = thread::with(|thread| thread.bind(&mut self.shard, task)).unwrap_or_else(|| {
            thread::bind_without_locals(&mut self.shard);
            false
        });
        // Any former entry was in another shard, so its key is void here.
        self.phase = Phase::cancelled(admission);
        self.deadline = deadline;
        repeats
    }

    /// Ends the wait, if the timer has waited. `due` is when its entry was due, if that has expired.
    fn elapse(&mut self, due: Moment) -> Polled {
        self.phase = Phase::Elapsed {
            rounded_up_by: due.since(self.deadline),
            admission: self.admission(),
        };
        Poll::Ready(Ok(()))
    }

    /// Returns by how much the deadline of a timer that has elapsed was rounded up.
    pub(crate) fn rounded_up_by(&self) -> Nanos {
        match self.phase {
            Phase::Elapsed { rounded_up_by, .. } => rounded_up_by,
            _ => Nanos(0),
        }
    }

    /// Moves the timer to another deadline. Returns a waker for the caller to wake with no lock held, such as
    /// the waiting task's if the deadline has passed.
    #[must_use]
    #[inline]
    pub(crate) fn reset(&mut self, deadline: Moment) -> Option<Waker> {
        self.reset_to(deadline, Moment::ZERO, true)
    }

    /// Moves the timer to another deadline. If the deadline is not after `now`, the timer elapses at the next
    /// poll, as a zero duration does.
    #[must_use]
    pub(crate) fn reset_given_now(&mut self, deadline: Moment, now: Moment) -> Option<Waker> {
        self.reset_to(deadline, now, false)
    }

    #[inline]
    fn reset_to(&mut self, deadline: Moment, known_past: Moment, is_reset: bool) -> Option<Waker> {
        let former = mem::replace(&mut self.deadline, deadline);
        let Phase::Waiting(wait) = &self.phase else {
            self.phase = Phase::Unstarted {
                known_past,
                is_reset,
                admission: self.admission(),
            };
            return None;
        };
        // An entry that is due before the new deadline stays, and the timer is started again when the entry
        // expires. One that is due after it is brought forward, unless the deadline is the same as before,
        // because then only slack makes the entry late.
        let is_late = deadline < wait.due && deadline != former;
        if deadline <= known_past && self.zero_is_at_once() {
            self.elapse_unpolled()
        } else if is_late {
            self.bring_forward(deadline)
        } else {
            None
        }
    }

    /// Ends the wait because the deadline has passed, and returns the waker of the waiting task. A timer that
    /// a shutdown has refused stays refused.
    fn elapse_unpolled(&mut self) -> Option<Waker> {
        let waker = self.end_entry(Shard::expire);
        if !self.is_refused() {
            let _ = self.elapse(Moment::ZERO);
        }
        waker
    }

    /// Moves the entry of a timer that waits to an earlier tick.
    fn bring_forward(&mut self, deadline: Moment) -> Option<Waker> {
        let is_refused = self.is_refused();
        let (Phase::Waiting(wait), Some(shard)) = (&mut self.phase, &self.shard) else {
            return None;
        };
        if wait.due <= shard.horizon() {
            // The task is woken in any case. A timer that a shutdown has refused stays refused.
            if !is_refused {
                wait.due = deadline;
            }
            return None;
        }
        let Some(left) = shard.alarm.time_left(deadline) else {
            return self.elapse_unpolled();
        };
        let clock = &shard.clock;
        let tick = clock.due(deadline, clock.resolution(left));
        let sooner = clock.start_of(tick);
        if sooner >= wait.due {
            return None;
        }
        let (is_there, ended) = shard.bring_forward(&wait.key, wait.due, tick);
        if is_there {
            wait.due = sooner;
        }
        ended
    }

    /// Restarts a timer whose entry has expired, if `deadline` has not passed, with the slack of a timer
    /// whose duration is `wait`. The driver calls this by waking `waker`. Returns `false` if the timer is due
    /// or cannot be started here, so that its task has to poll.
    pub(crate) fn start_anew(&mut self, deadline: Moment, wait: Nanos, waker: &Waker) -> bool {
        let Some(home) = self.home() else { return false };
        let horizon = home.horizon();
        self.deadline = deadline;
        let is_gone = matches!(&self.phase, Phase::Waiting(wait) if wait.due <= horizon);
        if !is_gone || self.has_expired() {
            return self.poll_further(waker) == Poll::Pending;
        }
        self.start(waker, deadline, wait) == Poll::Pending
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
        let wait = self.take_wait()?;
        end(self.shard.as_ref()?, wait.key, wait.due)
    }

    /// Takes out what a timer that waits knows of its entry.
    fn take_wait(&mut self) -> Option<Wait> {
        if !matches!(self.phase, Phase::Waiting(_)) {
            return None;
        }
        match mem::replace(&mut self.phase, Phase::cancelled(Admission::Again)) {
            Phase::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    /// Cancels the entry, and tells the thread.
    fn cancel_here(&mut self) {
        if let Phase::Waiting(wait) = &self.phase {
            thread::with(|thread| thread.note_cancelled(wait.task));
        }
        drop(self.cancel());
    }

    /// Leaves the entry of a timer that is dropped to the thread.
    fn leave_spare(&mut self) {
        let (Some(wait), Some(shard)) = (self.take_wait(), self.shard.take()) else {
            return;
        };
        if wait.due > shard.horizon() {
            let Wait { due, task, key, .. } = wait;
            let entry = SpareEntry { key, deadline: due };
            thread::keep(Spare { shard, entry, task });
        }
    }
}

impl Phase {
    /// The phase of a timer whose entry is gone.
    fn cancelled(admission: Admission) -> Phase {
        Phase::Unstarted {
            known_past: Moment::ZERO,
            is_reset: false,
            admission,
        }
    }
}

/// Returns whether a timer is due, or about to be, as it starts. On a test's clock, Tokio's timer decides.
/// Otherwise this is known if `wait`, the time until `deadline`, is zero, and checked if the entry would move
/// Tokio's timer, which cannot be set to a moment that has passed.
#[inline]
fn has_come(shard: &Shard, deadline: Moment, wait: Nanos, due: Moment) -> bool {
    let is_unclear = shard.clock.may_be_paused() || due < shard.next_visit();
    wait == Nanos(0) && !shard.clock.may_be_paused() || is_unclear && shard.alarm.has_passed(deadline)
}

/// Clones a waker, and identifies its task.
#[inline]
fn identified(waker: &Waker, may_be_refused: bool) -> (Waker, WakerId) {
    if may_be_refused {
        WakerId::of_clone_if_known(waker)
    } else {
        WakerId::of_clone(waker)
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
        match &self.phase {
            Phase::Waiting(wait) if wait.leaves_spare => self.leave_spare(),
            Phase::Waiting(_) => self.cancel_here(),
            _ => {}
        }
    }
}
