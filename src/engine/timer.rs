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
    clock::{self, Clock, Left, Moment, Nanos},
    driver::tokio_timer,
    shard::{Shard, SpareEntry, StartOutcome, TimerShard, kind_of, shared_of},
    shared::{Admission, Refusal, Shared},
    sync::{Arc, planted},
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
    #[inline(never)]
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
        let (deadline, now, is_exact) = match self.phase {
            Phase::Elapsed { .. } => return Poll::Ready(Ok(())),
            Phase::Waiting(_) => return self.poll_waiting(waker),
            Phase::AfterFirstPoll(delay) if delay.0 > 0 => {
                let now = self.wheel_now();
                (now.after(delay), now, true)
            }
            _ => match self.deadline_ahead() {
                Some(ahead) => ahead,
                None => return self.elapse_at_once(),
            },
        };
        self.begin(waker, deadline, now, is_exact)
    }

    /// Returns the deadline of a timer that has not started, a moment that has passed, and whether that is
    /// now. Returns `None` if the timer is due.
    fn deadline_ahead(&self) -> Option<(Moment, Moment, bool)> {
        let (is_due, known_past) = match self.phase {
            Phase::Unstarted { is_reset: true, .. } => (self.has_passed(), Moment::ZERO),
            Phase::Unstarted { known_past, .. } => {
                (self.deadline <= known_past && self.zero_is_at_once(), known_past)
            }
            // Of no duration.
            _ => (self.zero_is_at_once(), Moment::ZERO),
        };
        let is_exact = known_past == Moment::ZERO;
        let now = if is_exact { self.wheel_now() } else { known_past };
        let is_timeout = matches!(self.phase, Phase::AfterFirstPoll(_));
        let deadline = if is_timeout { now } else { self.deadline };
        (!is_due).then_some((deadline, now, is_exact))
    }

    /// Takes over the thread's spare, or gets an entry of its own. `now` is a moment that has passed, and is
    /// the present one if it is exact.
    #[inline]
    fn begin(&mut self, waker: &Waker, deadline: Moment, now: Moment, is_exact: bool) -> Polled {
        if let Some(spare) = thread::take_spare() {
            if self.can_take_over(&spare, waker, deadline, now) {
                self.take_over(spare, deadline);
                return Poll::Pending;
            }
            thread::put_back(spare);
        }
        // Checked only now, because a timer that may be refused takes over no spare.
        if self.is_refused() {
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        let time = deadline.since(now);
        self.start(waker, deadline, Left { time, is_exact })
    }

    /// Ends a timer that has not started, because it is due.
    #[cold]
    fn elapse_at_once(&mut self) -> Polled {
        if self.is_refused() {
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        self.elapse(Moment::ZERO)
    }

    /// Returns whether a spare is of this task and due in time.
    #[inline]
    fn can_take_over(&self, spare: &Spare, waker: &Waker, deadline: Moment, now: Moment) -> bool {
        let (due, shard) = (spare.entry.deadline, &spare.shard);
        let horizon = shard.horizon();
        // The horizon is the moment of the last turn. A task whose polls are long would otherwise take over
        // an entry that is about to wake it, poll after poll.
        let now = now.max(horizon);
        let wait = deadline.since(now);
        spare.task.is(waker)
            && (due > horizon || planted("unchecked_take_over"))
            && due.since(now).0 >= wait.0 / TAKE_OVER_DIVISOR
            // A timer that starts sets the alarm anew.
            && !shard.alarm.is_overdue(now)
            && shard.clock.is_in_time(due, deadline, wait)
            && shard.kind == kind_of(&self.shard)
            && thread::is_in(shard.runtime, spare.task)
    }

    #[inline]
    fn take_over(&mut self, spare: Spare, deadline: Moment) {
        let Spare { shard, entry, task } = spare;
        shard.count_take_over();
        self.shard = Some(shard);
        self.deadline = deadline;
        self.phase = Phase::Waiting(Wait {
            due: entry.deadline,
            task,
            key: entry.key,
            leaves_spare: true,
        });
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
        if horizon == Moment::NEVER {
            if self
                .shard
                .as_ref()
                .is_some_and(|shard| shard.has_elapsed_with_runtime())
            {
                return self.elapse(Moment::ZERO);
            }
            let time = self.deadline.since(self.wheel_now());
            let is_exact = true;
            return self.start(waker, self.deadline, Left { time, is_exact });
        }
        self.start_again(waker, self.deadline.since(horizon))
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

    /// Starts the timer in the shard of this thread.
    ///
    /// # Panics
    ///
    /// Panics if there is no runtime with timers. The timer is then unchanged.
    fn start(&mut self, waker: &Waker, deadline: Moment, left: Left) -> Polled {
        let (clone, task) = identified(waker, self.may_be_refused());
        let repeats = self.bind(deadline, task);
        match self.enter(clone, task, left, repeats) {
            Some(polled) => polled,
            None => self.start(waker, deadline, left),
        }
    }

    /// Starts the timer again, in the shard where it waits, because its entry has expired before its
    /// deadline. The slack is that of a timer whose duration is `time`.
    fn start_again(&mut self, waker: &Waker, time: Nanos) -> Polled {
        let is_exact = false;
        let left = Left { time, is_exact };
        let (clone, task) = identified(waker, self.may_be_refused());
        match self.enter(clone, task, left, false) {
            Some(polled) => polled,
            None => self.start(waker, self.deadline, left),
        }
    }

    /// Puts an entry into the wheel, unless the timer is due. `repeats` says whether it may leave a spare.
    /// Returns `None` if the shard has ended.
    #[inline(always)]
    fn enter(&mut self, waker: Waker, task: WakerId, left: Left, repeats: bool) -> Option<Polled> {
        let (admission, Some(shard)) = (self.admission(), &self.shard) else {
            unreachable!("it has been bound")
        };
        match shard.start(waker, self.deadline, left, admission) {
            StartOutcome::Waits(key, due) => {
                let task = remembered(task, &shard.clock);
                self.phase = Phase::Waiting(Wait {
                    due,
                    task,
                    key,
                    leaves_spare: repeats && task.is_task() && shard.may_have_spares(),
                });
                Some(Poll::Pending)
            }
            StartOutcome::HasPassed => Some(self.elapse(Moment::ZERO)),
            StartOutcome::Refused(refusal) => {
                self.phase = Phase::cancelled(admission);
                Some(Poll::Ready(Err(refusal)))
            }
            StartOutcome::Ended => None,
        }
    }

    /// Binds the timer to this thread's shard. Returns whether its task has cancelled the last timer here.
    #[inline]
    fn bind(&mut self, deadline: Moment, task: WakerId) -> bool {
        let repeats = thread::with(|thread| thread.bind(&mut self.shard, task)).unwrap_or_else(|| {
            thread::bind_without_locals(&mut self.shard);
            false
        });
        // Any former entry was in another shard, so its key is void here.
        if let Phase::Waiting(_) = self.phase {
            self.phase = Phase::cancelled(Admission::Again);
        }
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
        let former = mem::replace(&mut self.deadline, deadline);
        match &self.phase {
            // The entry is due in time, and the timer is started again when it expires; or else the deadline
            // is the same as before, and only slack makes the entry late.
            Phase::Waiting(wait) if deadline >= wait.due || deadline == former => None,
            Phase::Waiting(_) => self.bring_forward(deadline),
            _ => {
                self.phase = Phase::Unstarted {
                    known_past: Moment::ZERO,
                    is_reset: true,
                    admission: self.admission(),
                };
                None
            }
        }
    }

    /// Moves the timer to another deadline. If the deadline is not after `now`, the timer elapses at the next
    /// poll, as a zero duration does.
    #[must_use]
    pub(crate) fn reset_given_now(&mut self, deadline: Moment, now: Moment) -> Option<Waker> {
        if deadline <= now && matches!(self.phase, Phase::Waiting(_)) && self.zero_is_at_once() {
            self.deadline = deadline;
            return self.elapse_unpolled();
        }
        let waker = self.reset(deadline);
        if let Phase::Unstarted {
            known_past, is_reset, ..
        } = &mut self.phase
        {
            (*known_past, *is_reset) = (now, false);
        }
        waker
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
        let (tick, sooner) = shard.clock.round_up(deadline, left);
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
        self.start_again(waker, wait) == Poll::Pending
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
        let (Phase::Waiting(wait), Some(shard)) = (&mut self.phase, &self.shard) else {
            return None;
        };
        let (key, due) = (wait.key.take(), wait.due);
        self.phase = Phase::cancelled(Admission::Again);
        end(shard, key, due)
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
        let (Phase::Waiting(wait), Some(shard)) = (&mut self.phase, self.shard.take()) else {
            return;
        };
        if wait.due > shard.horizon() {
            let (key, deadline) = (wait.key.take(), wait.due);
            let (entry, task) = (SpareEntry { key, deadline }, wait.task);
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

/// Clones a waker, and identifies its task.
#[inline(always)]
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
