//! `Timer`: the part of a timer that its future owns, and how it is started by its first pending poll, polled
//! again, moved and cancelled.

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
    timing_wheel::{Key, Tick},
    waker_id::WakerId,
};

/// A timer takes over a spare only if the spare's remaining time is at least the timer's duration divided by
/// this. Otherwise the timer would soon have to be started again.
const TAKE_OVER_DIVISOR: u64 = 8;

/// One timer.
#[derive(Debug)]
pub(crate) struct Timer {
    shard: TimerShard,
    /// The deadline or, while the timer is [`State::FromFirstPoll`], [`Moment::ZERO`] plus the delay.
    deadline: Moment,
    /// The deadline of the entry, which is the timer's deadline rounded up, or earlier. The timer has an
    /// entry while it is [`State::Waiting`] and this is after the horizon of its shard. While the timer is
    /// [`State::Ahead`], this is a moment that has passed, unless the timer has lost its engine.
    entry_deadline: Moment,
    /// The task that the waker in the entry wakes. Unknown if each poll has to take the lock.
    task: WakerId,
    key: Option<Key>,
    state: State,
    /// Whether the entry becomes a spare when the timer is dropped.
    leaves_spare: bool,
    admission: Admission,
}

// At this size, a boxed sleep fits into an allocator's chunk of 48 bytes. There is no padding at the end
// either, because the compiler would copy the padding together with a future that follows, and so move that
// future once more.
const _: () = assert!(mem::size_of::<Timer>() == 40 || cfg!(not(target_pointer_width = "64")));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The delay counts from the first poll that finds the future pending.
    FromFirstPoll,
    /// Elapses at the next poll.
    Immediate,
    /// Not started. The deadline was set to an instant that had not passed then, so the first poll need not
    /// read the clock.
    Ahead,
    /// Not started. The deadline may have passed.
    NotStarted,
    /// Like [`State::NotStarted`], after a reset. The timer elapses once the deadline has passed, even
    /// without a poll, as Tokio's does.
    Reset,
    /// Started. The entry may have expired since.
    Waiting,
    Elapsed,
}

/// The outcome of a poll. Only a timer that may be refused fails.
pub(crate) type Polled = Poll<Result<(), Refusal>>;

impl Timer {
    fn new(shard: TimerShard, deadline: Moment, state: State) -> Timer {
        Timer {
            shard,
            deadline,
            entry_deadline: Moment::ZERO,
            task: WakerId::UNKNOWN,
            key: None,
            state,
            leaves_spare: false,
            admission: Admission::First,
        }
    }

    /// Creates a timer that is due `delay` after its first poll.
    pub(crate) fn from_first_poll(shard: TimerShard, delay: Duration) -> Timer {
        Timer::new(shard, Moment::ZERO.after(Nanos::of(delay)), State::FromFirstPoll)
    }

    pub(crate) fn at(shard: TimerShard, deadline: Moment) -> Timer {
        Timer::new(shard, deadline, State::NotStarted)
    }

    /// Creates a timer that is due `duration` after `now`. With a zero duration, it is due at the first poll.
    pub(crate) fn after(shard: TimerShard, now: Moment, duration: Duration) -> Timer {
        let state = if duration.is_zero() {
            State::Immediate
        } else {
            State::Ahead
        };
        let mut timer = Timer::new(shard, now.after(Nanos::of(duration)), state);
        timer.entry_deadline = now;
        timer
    }

    /// Returns the state that the engines of this timer's wheel share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        shared_of(&self.shard)
    }

    /// Reads the clock by which the timer waits or, before its first poll, the clock from which it would
    /// count here.
    pub(crate) fn now(&self) -> Moment {
        match &self.shard {
            Some(shard) if self.state == State::Waiting && !shard.has_ended() => shard.alarm.now(),
            _ => self.wheel_now(),
        }
    }

    /// Reads the clock from which a timer of this wheel would count here.
    fn wheel_now(&self) -> Moment {
        let shard = self.shard.as_ref();
        shard.map_or_else(Moment::now, |shard| shard.shared.now())
    }

    pub(crate) fn deadline(&self) -> Moment {
        if self.state == State::FromFirstPoll {
            self.counted_from(self.now())
        } else {
            self.deadline
        }
    }

    /// Returns the deadline of a timer that is [`State::FromFirstPoll`] and whose first poll is at `now`.
    fn counted_from(&self, now: Moment) -> Moment {
        now.after(self.deadline.since(Moment::ZERO))
    }

    pub(crate) fn is_elapsed(&self) -> bool {
        match self.state {
            State::FromFirstPoll | State::Immediate | State::Ahead | State::NotStarted => false,
            State::Reset => self.has_passed(),
            // The entry may have been due before the deadline.
            State::Waiting => {
                let is_gone = self.entry_deadline <= self.horizon() && !self.has_lost_engine();
                self.has_expired() || is_gone && self.has_passed()
            }
            State::Elapsed => true,
        }
    }

    /// Returns whether the entry of a timer that is [`State::Waiting`] has expired, and its current deadline
    /// has passed as well. A timer whose engine has ended has another clock, unless it was a shutdown that
    /// ended its shard.
    fn has_expired(&self) -> bool {
        let (last, horizon) = (self.entry_deadline.max(self.deadline), self.horizon());
        if horizon == Moment::NEVER {
            let had_expired = |shard: &Arc<Shard>| shard.has_expired(last);
            self.is_refused() && self.shard.as_ref().is_some_and(had_expired)
        } else {
            last <= horizon
        }
    }

    /// Returns whether the deadline has passed on the clock that [`Timer::now`] reads. If a test may pause
    /// that clock, Tokio's timer decides.
    fn has_passed(&self) -> bool {
        match &self.shard {
            Some(shard) if self.state == State::Waiting && !shard.has_ended() => {
                shard.alarm.has_passed(self.deadline, None)
            }
            Some(shard) if shard.builder_runtime().is_some() => self.wheel_now() >= self.deadline,
            _ if clock::may_be_paused() => tokio_timer::has_passed(self.deadline),
            _ => self.wheel_now() >= self.deadline,
        }
    }

    /// Returns by how much the deadline of a timer that has elapsed was rounded up.
    pub(crate) fn rounding(&self) -> Nanos {
        self.entry_deadline.since(self.deadline)
    }

    /// Returns whether the timer waits in an engine that has ended.
    pub(crate) fn has_lost_engine(&self) -> bool {
        self.state == State::Waiting && self.horizon() == Moment::NEVER
    }

    #[inline]
    fn horizon(&self) -> Moment {
        self.shard.as_ref().map_or(Moment::ZERO, |shard| shard.horizon())
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
        let shard = self.shard.as_ref();
        shard.is_some_and(|shard| self.entry_deadline > shard.horizon()) && self.task.is(waker)
    }

    /// Polls a timer that is not waiting or wakes another task.
    pub(crate) fn poll_further(&mut self, waker: &Waker) -> Polled {
        match self.state {
            State::Elapsed => Poll::Ready(Ok(())),
            State::Waiting => self.poll_started(waker),
            _ => self.first_poll(waker),
        }
    }

    /// Returns whether the wheel may refuse the timer.
    pub(crate) fn may_be_refused(&self) -> bool {
        kind_of(&self.shard).may_refuse()
    }

    /// Returns whether the wheel refuses the timer, because it has been shut down.
    fn is_refused(&self) -> bool {
        self.may_be_refused() && self.shared().limit.is_shutdown()
    }

    fn poll_started(&mut self, waker: &Waker) -> Polled {
        if self.has_expired() {
            return self.elapse();
        }
        if self.is_refused() {
            self.cancel();
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        if self.entry_deadline > self.horizon() {
            // The task that calls Tokio's `advance` is polled before the engine's task, and its timers should
            // not need a second poll to elapse.
            if self.may_be_paused() && self.has_passed() {
                drop(self.end_entry(Shard::expire));
                return self.elapse();
            }
            if self.direct_entry_to(waker) {
                return Poll::Pending;
            }
        }
        self.start(waker, self.deadline, None)
    }

    /// Returns whether a test may pause the clock by which the timer waits.
    fn may_be_paused(&self) -> bool {
        self.shard
            .as_ref()
            .is_some_and(|shard| shard.clock.may_be_paused())
    }

    /// Makes the entry wake the task of `waker`. Returns `false` if the entry is gone.
    fn direct_entry_to(&mut self, waker: &Waker) -> bool {
        let (Some(shard), Some(key)) = (&self.shard, &self.key) else {
            return false;
        };
        let mut task = WakerId::if_known(waker);
        if !shard.wakes(key, self.entry_deadline, waker) {
            let (waker, other) = self.identified(waker);
            if !shard.replace(key, self.entry_deadline, waker) {
                return false;
            }
            // This may be a task of another runtime, whose memory and descriptors a spare would keep.
            self.leaves_spare = false;
            task = other;
        }
        self.task = remembered(task, &shard.clock);
        true
    }

    #[inline]
    fn first_poll(&mut self, waker: &Waker) -> Polled {
        if self.elapses_at_once() && !self.is_refused() {
            return self.elapse();
        }
        let (deadline, now) = match self.state {
            State::FromFirstPoll => {
                let now = self.wheel_now();
                (self.counted_from(now), Some(now))
            }
            // It knows a moment that has passed, which `take_over` makes do with.
            State::Ahead => (self.deadline, None),
            _ => (self.deadline, Some(self.wheel_now())),
        };
        if thread::with(|thread| self.take_over(thread, waker, deadline, now)) == Some(true) {
            return Poll::Pending;
        }
        // Checked only now, because a timer that may be refused takes over no spare.
        if self.is_refused() {
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        self.start(waker, deadline, now)
    }

    /// Returns whether the first poll, or the first one after a reset, finds the timer due.
    #[inline]
    fn elapses_at_once(&self) -> bool {
        match self.state {
            State::FromFirstPoll => self.deadline == Moment::ZERO && self.zero_is_at_once(),
            State::Immediate => self.zero_is_at_once(),
            State::Reset => self.has_passed(),
            _ => false,
        }
    }

    /// Returns whether a zero duration elapses at the first poll. On a test's clock it waits until the end of
    /// the millisecond, as Tokio's does, but not until the end of a longer tick.
    fn zero_is_at_once(&self) -> bool {
        !clock::may_be_paused() || self.shared().settings.tick_duration > Nanos::MILLISECOND.to_duration()
    }

    fn elapse(&mut self) -> Polled {
        self.state = State::Elapsed;
        self.key = None;
        Poll::Ready(Ok(()))
    }

    /// Takes over the thread's spare if it is of this task and due in time. Returns whether it did.
    #[inline]
    fn take_over(&mut self, thread: &Thread, waker: &Waker, deadline: Moment, now: Option<Moment>) -> bool {
        let fits = |spare: &Spare| {
            let (entry_deadline, horizon) = (spare.entry.deadline, spare.shard.horizon());
            // The horizon, the moment of the last turn, stands in for a clock reading, as does the moment at
            // which the timer was created. Without that, a task whose polls are long would take over an entry
            // that is about to wake it, poll after poll.
            let now = now.unwrap_or_else(|| horizon.max(self.entry_deadline));
            // These wrap for an overdue entry or a deadline that has passed. The timer is late in neither
            // case, because `is_due_by` holds.
            let left = entry_deadline.0.wrapping_sub(now.0);
            let wait = deadline.0.wrapping_sub(now.0);
            spare.task.is(waker)
                && (entry_deadline > horizon || planted("unchecked_take_over"))
                && spare.shard.clock.is_due_by(entry_deadline, deadline)
                && left >= wait / TAKE_OVER_DIVISOR
                && thread.spare_serves(spare, &self.shard)
        };
        let Some(spare) = thread.take_spare_if(fits) else {
            return false;
        };
        (self.deadline, self.entry_deadline, self.task) = (deadline, spare.entry.deadline, spare.task);
        (self.key, self.state) = (Some(spare.entry.key), State::Waiting);
        self.leaves_spare = true;
        spare.shard.count_take_over();
        self.shard = Some(spare.shard);
        true
    }

    fn identified(&self, waker: &Waker) -> (Waker, WakerId) {
        if self.may_be_refused() {
            WakerId::of_clone_if_known(waker)
        } else {
            WakerId::of_clone(waker)
        }
    }

    /// Starts the timer: in its own shard if it is waiting in an engine that has not ended, and otherwise in
    /// the shard of this thread.
    ///
    /// # Panics
    ///
    /// Panics if there is no runtime with timers. The timer is then unchanged.
    fn start(&mut self, waker: &Waker, deadline: Moment, now: Option<Moment>) -> Polled {
        self.start_with_slack(waker, deadline, now, None)
    }

    /// Starts the timer as [`Timer::start`] does, with the slack of a timer whose duration is `wait`. `None`
    /// means the time that is left.
    fn start_with_slack(
        &mut self,
        waker: &Waker,
        deadline: Moment,
        mut now: Option<Moment>,
        wait: Option<Nanos>,
    ) -> Polled {
        let (clone, task) = self.identified(waker);
        let is_restart = self.state == State::Waiting && !self.has_lost_engine();
        if !is_restart {
            self.bind(deadline, task);
        }
        let Some(shard) = &self.shard else {
            unreachable!("it has been bound")
        };
        let clock = &shard.clock;
        let task = remembered(task, clock);
        // Other timers need no clock reading: the deadline of an `Ahead` timer had not passed when it was
        // set, and that of a `Waiting` timer is after the horizon.
        if self.state == State::NotStarted && !clock.may_be_paused() {
            now.get_or_insert_with(|| clock.now());
        }
        let (left, now) = time_left(shard, deadline, now);
        let due = clock.due(deadline, clock.resolution(wait.unwrap_or(left)));
        let entry_deadline = clock.start_of(due);
        // Checked if it takes no clock reading, or if the entry would move Tokio's timer, which cannot be set
        // to a moment that has passed.
        let may_have_passed = clock.may_be_paused() || now.is_some() || entry_deadline < shard.next_visit();
        if may_have_passed && shard.alarm.has_passed(deadline, now) {
            shard.alarm.notify_if_no_handle(&shard.shared);
            return self.elapse();
        }
        match shard.start(clone, (due, entry_deadline), self.admission) {
            StartOutcome::Waits(key) => {
                (self.key, self.entry_deadline) = (Some(key), entry_deadline);
                (self.task, self.state) = (task, State::Waiting);
                self.leaves_spare = !is_restart
                    && task.is_task()
                    && shard.may_have_spares()
                    && thread::with(|thread| thread.repeats(task)) == Some(true);
                self.admission = Admission::Again;
                Poll::Pending
            }
            StartOutcome::HasPassed => self.elapse(),
            StartOutcome::Refused(refusal) => {
                self.state = State::NotStarted;
                Poll::Ready(Err(refusal))
            }
            StartOutcome::Ended(waker) => self.start_with_slack(&waker, deadline, now, wait),
        }
    }

    /// Binds the timer to this thread's shard.
    #[inline]
    fn bind(&mut self, deadline: Moment, task: WakerId) {
        thread::with(|thread| thread.bind(&mut self.shard, task))
            .unwrap_or_else(|| thread::bind_without_locals(&mut self.shard));
        self.deadline = deadline;
        // Any former entry was in another shard, so its key is void here. While the task is unknown, no poll
        // takes the former entry's deadline for that of an entry in this shard. The former deadline stays,
        // because an interval asks by how much its last tick was rounded up.
        (self.key, self.task) = (None, WakerId::UNKNOWN);
        if self.state != State::Ahead {
            self.state = State::NotStarted;
        }
    }

    /// Moves the timer to another deadline. Returns a waker for the caller to wake with no lock held, such as
    /// the waiting task's if the deadline has passed.
    #[must_use]
    #[inline]
    pub(crate) fn reset(&mut self, deadline: Moment) -> Option<Waker> {
        self.reset_as(deadline, State::Reset)
    }

    /// Moves the timer to another deadline. If the deadline is not after `now`, the timer elapses at the next
    /// poll, as a zero duration does.
    #[must_use]
    pub(crate) fn reset_given_now(&mut self, deadline: Moment, now: Moment) -> Option<Waker> {
        let state = if deadline <= now {
            State::Immediate
        } else {
            State::Ahead
        };
        self.reset_as(deadline, state)
    }

    #[inline]
    fn reset_as(&mut self, deadline: Moment, state: State) -> Option<Waker> {
        let former = mem::replace(&mut self.deadline, deadline);
        if self.state != State::Waiting {
            self.state = state;
            if state == State::Reset {
                // The former value was rounded up from another deadline.
                self.entry_deadline = Moment::ZERO;
            }
            return None;
        }
        if state == State::Immediate && self.zero_is_at_once() {
            return self.elapse_unpolled();
        }
        // An entry that is due before the new deadline stays, and the timer is started again when the entry
        // expires. An entry that is due after it is brought forward, unless the deadline is the same as
        // before, because then only slack makes the entry late.
        if deadline < self.entry_deadline && deadline != former {
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
            self.state = State::Elapsed;
        }
        waker
    }

    fn bring_forward(&mut self, deadline: Moment) -> Option<Waker> {
        let shard = self.shard.as_ref()?;
        let clock = &shard.clock;
        let now = (!clock.may_be_paused()).then(|| clock.now());
        if shard.has_ended() || self.entry_deadline <= shard.horizon() {
            // The task is woken in any case. A timer that a shutdown has refused stays refused.
            if !self.is_refused() {
                self.entry_deadline = Moment::ZERO;
            }
            return None;
        }
        if shard.alarm.has_passed(deadline, now) {
            return self.elapse_unpolled();
        }
        let (left, _) = time_left(shard, deadline, now);
        let due = clock.due(deadline, clock.resolution(left));
        self.bring_entry_to(due)
    }

    /// Moves the entry to an earlier tick, unless it is due by then. Returns a waker for the caller to wake
    /// with no lock held.
    #[must_use]
    fn bring_entry_to(&mut self, due: Tick) -> Option<Waker> {
        let (shard, key) = (self.shard.as_ref()?, self.key.as_ref()?);
        let sooner = shard.clock.start_of(due);
        if sooner >= self.entry_deadline {
            return None;
        }
        let (is_there, ended) = shard.bring_forward(key, self.entry_deadline, due);
        if is_there {
            self.entry_deadline = sooner;
        }
        ended
    }

    /// Restarts a timer whose entry has expired, if `deadline` has not passed, with the slack of a timer
    /// whose duration is `wait`. The driver calls this by waking `waker`. Returns `false` if the timer is due
    /// or cannot be started here, so that its task has to poll.
    pub(crate) fn start_anew(&mut self, deadline: Moment, wait: Nanos, waker: &Waker) -> bool {
        if self.state != State::Waiting || self.has_lost_engine() {
            return false;
        }
        self.deadline = deadline;
        if self.entry_deadline > self.horizon() || self.has_expired() {
            return self.poll_further(waker) == Poll::Pending;
        }
        self.start_with_slack(waker, deadline, None, Some(wait)) == Poll::Pending
    }

    /// Cancels the entry, and returns its waker.
    pub(crate) fn cancel(&mut self) -> Option<Waker> {
        self.end_entry(Shard::cancel)
    }

    fn end_entry(&mut self, end: impl FnOnce(&Shard, Key, Moment) -> Option<Waker>) -> Option<Waker> {
        if self.state != State::Waiting {
            return None;
        }
        self.state = State::NotStarted;
        let key = self.key.take()?;
        let shard = self.shard.as_ref()?;
        let waker = end(shard, key, self.entry_deadline);
        self.entry_deadline = Moment::ZERO;
        waker
    }

    /// Cancels the entry before the timer is dropped, unless the drop makes it a spare. If the timer is
    /// polled again nevertheless, it starts again.
    #[inline]
    pub(crate) fn cancel_unless_kept(&mut self) {
        if !self.leaves_spare && self.state == State::Waiting {
            thread::with(|thread| thread.note_cancelled(self.task));
            self.cancel();
        }
    }

    /// Gives up the entry and the shard of a timer that is dropped.
    fn leave(&mut self) {
        if thread::with(|thread| self.leave_to(thread)).is_none() {
            // The thread's locals have been destroyed.
            self.cancel();
        }
    }

    /// Leaves the shard to the thread, and also the entry if it may become a spare. Otherwise, the entry is
    /// cancelled.
    #[inline]
    fn leave_to(&mut self, thread: &Thread) {
        if self.state == State::Waiting {
            thread.note_cancelled(self.task);
        }
        if !self.leaves_spare && self.entry_deadline > self.horizon() {
            drop(self.cancel());
        }
        let (deadline, task) = (self.entry_deadline, self.task);
        match (self.shard.take(), self.key.take()) {
            (Some(shard), Some(key)) if deadline > shard.horizon() => {
                let entry = SpareEntry { key, deadline };
                thread.keep(Spare { shard, entry, task });
            }
            _ => {}
        }
    }
}

/// Returns the task that a timer remembers: an unknown one on a clock that a test may move, where each poll
/// has to check whether the deadline has passed.
fn remembered(task: WakerId, clock: &Clock) -> WakerId {
    if clock.may_be_paused() {
        WakerId::UNKNOWN
    } else {
        task
    }
}

/// Returns the time that is left until `deadline`, and `now`. If `now` is not known, this reads the clock,
/// unless the timer has no slack. The time returned may then be too long.
#[inline]
fn time_left(shard: &Shard, deadline: Moment, now: Option<Moment>) -> (Nanos, Option<Moment>) {
    // The horizon is never after now, so this is at least the time that is left.
    let most = deadline.since(now.unwrap_or_else(|| shard.horizon()));
    if now.is_some() || shard.clock.resolution(most) == 1 {
        return (most, now);
    }
    let now = shard.alarm.now();
    (deadline.since(now), Some(now))
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        // A timer of the global wheel that has not been polled has nothing to give up.
        if self.shard.is_some() {
            self.leave();
        }
    }
}
