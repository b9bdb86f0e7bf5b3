//! `Timer`: the part of a timer that its future owns. It is started by its first pending poll, polled again, moved and cancelled.

use std::{
    mem,
    task::{Poll, Waker},
    time::Duration,
};

use super::{
    clock::may_be_paused,
    driver::tokio_timer::has_come,
    moment::{Moment, Nanos},
    shard::{Home, Shard, Started, shared_of},
    shared::{Admission, Refusal, Shared},
    sync::{Arc, planted},
    thread::{self, Bound, Spare, Thread},
    timing_wheel::Key,
    waker_id::WakerId,
};

/// An entry may become a spare if it is due less than this, which is 69 s, after its timer was started. So a spare is gone after a minute or so.
const LONGEST_SPARE: Nanos = Nanos(1 << 36);

/// The entry of a longer timer that will probably be cancelled soon is due after this, which is 34 s, so that it may become a spare.
const EARLY: Nanos = Nanos(LONGEST_SPARE.0 / 2);

/// A spare is taken over only if it is due after at least an eighth of the timer's duration. Otherwise the timer would soon have to be started again.
const LEAST_PART: u64 = 8;

/// One timer.
#[derive(Debug)]
pub(crate) struct Timer {
    /// The shard to which the timer is bound. Until it is, any shard of its wheel stands for the wheel, and `None` for the global wheel.
    shard: Home,
    /// The deadline as a [`Moment`] or, while the timer is [`State::Counting`], the delay in nanoseconds.
    when: u64,
    /// When the entry is due. The timer has an entry while it is [`State::Waiting`] and `until` is after the horizon of its shard.
    until: Moment,
    /// The task that the waker in the entry wakes. Unknown where each poll has to take the lock.
    task: WakerId,
    key: Option<Key>,
    state: State,
    /// Whether the entry becomes a spare if the timer is cancelled.
    leaves_spare: bool,
    /// Whether the wheel may refuse the timer.
    may_be_refused: bool,
    /// Whether the wheel has admitted the timer, so that its limit concerns it no more.
    was_admitted: bool,
}

// A sleep in a box then fits into a chunk of 48 bytes of an allocator. There is no padding at the end either, because the compiler would copy it together
// with a future that stands behind, and so move that future once more.
const _: () = assert!(mem::size_of::<Timer>() == 40 || cfg!(not(target_pointer_width = "64")));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The delay counts from the first poll that finds the future pending.
    Counting,
    /// Elapses at the next poll.
    Immediate,
    /// Not started. The deadline was set to an instant that had not passed then, so the first poll need not read the clock.
    Ahead,
    /// Not started. The deadline may have passed.
    New,
    /// As [`State::New`], after a reset. The timer elapses once the deadline has passed, even without a poll, as Tokio's does.
    Reset,
    /// Started. The entry may have expired since.
    Waiting,
    Elapsed,
}

/// What came of a poll. Only a timer that may be refused fails.
pub(crate) type Polled = Poll<Result<(), Refusal>>;

impl Timer {
    fn new(home: Home, when: u64, state: State) -> Timer {
        Timer {
            shard: home,
            when,
            until: Moment::ZERO,
            task: WakerId::UNKNOWN,
            key: None,
            state,
            leaves_spare: false,
            may_be_refused: false,
            was_admitted: false,
        }
    }

    /// Creates a timer that is due `delay` after its first poll.
    #[inline]
    pub(crate) fn counting(home: Home, delay: Duration) -> Timer {
        Timer::new(home, Nanos::of(delay).0, State::Counting)
    }

    #[inline]
    pub(crate) fn at(home: Home, when: Moment) -> Timer {
        Timer::new(home, when.0, State::New)
    }

    /// Creates a timer that is due `duration` after `now`. If that is zero, it is due at the first poll.
    #[inline]
    pub(crate) fn after(home: Home, now: Moment, duration: Duration) -> Timer {
        let state = if duration.is_zero() {
            State::Immediate
        } else {
            State::Ahead
        };
        Timer::new(home, now.after(Nanos::of(duration)).0, state)
    }

    /// Lets the wheel refuse the timer, which has not been polled.
    pub(crate) fn let_refuse(&mut self) {
        self.may_be_refused = true;
        thread::with(|thread| thread.exchange_home(&mut self.shard));
    }

    /// Returns what the engines of this timer's wheel share.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        shared_of(&self.shard)
    }

    /// Reads the clock by which the timer waits or, before its first poll, from which it would count here.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        match &self.shard {
            Some(shard) if self.state == State::Waiting && !shard.has_ended() => shard.alarm.now(),
            _ => self.now_here(),
        }
    }

    /// Reads the clock from which a timer of this wheel would count here.
    #[inline]
    fn now_here(&self) -> Moment {
        match &self.shard {
            Some(shard) if shard.pinned().is_some() => shard.shared.now(),
            _ => Moment::now(),
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        if self.state == State::Counting {
            self.now().after(Nanos(self.when))
        } else {
            Moment(self.when)
        }
    }

    pub(crate) fn is_elapsed(&self) -> bool {
        match self.state {
            State::Counting | State::Immediate | State::Ahead | State::New => false,
            State::Reset => self.has_passed(),
            State::Waiting => self.has_expired() || self.is_overdue(),
            State::Elapsed => true,
        }
    }

    /// Returns whether the entry has expired, and the deadline that the timer has now has passed with it. A timer whose engine has ended goes by another
    /// clock, unless a shutdown has ended it here.
    fn has_expired(&self) -> bool {
        let (last, horizon) = (self.until.max(Moment(self.when)), self.horizon());
        self.state == State::Waiting
            && last <= horizon
            && (horizon != Moment::NEVER || self.had_expired_at_shutdown(last))
    }

    #[cold]
    fn had_expired_at_shutdown(&self, last: Moment) -> bool {
        let shard = self.shard.as_ref().filter(|_| self.is_refused());
        shard.is_some_and(|shard| shard.has_expired(last))
    }

    /// Returns whether the entry has expired and the timer, which has been reset since and not been polled, is due again.
    fn is_overdue(&self) -> bool {
        let shard = self
            .shard
            .as_ref()
            .filter(|shard| self.until <= shard.horizon() && !shard.has_ended());
        shard.is_some_and(|shard| shard.alarm.has_come(Moment(self.when), None))
    }

    /// Returns whether the deadline of a timer that does not wait has passed, on the clock from which it would count here.
    fn has_passed(&self) -> bool {
        let when = Moment(self.when);
        let is_pinned = self.shard.as_ref().is_some_and(|shard| shard.pinned().is_some());
        if may_be_paused() && !is_pinned {
            has_come(when)
        } else {
            self.now() >= when
        }
    }

    /// Returns by how much the deadline of a timer that has elapsed was rounded up.
    pub(crate) fn rounding(&self) -> Nanos {
        self.until.since(Moment(self.when))
    }

    /// Returns whether the timer waits in an engine that has ended.
    pub(crate) fn has_lost_engine(&self) -> bool {
        self.state == State::Waiting && self.horizon() == Moment::NEVER
    }

    #[inline]
    fn horizon(&self) -> Moment {
        self.shard.as_ref().map_or(Moment::ZERO, |shard| shard.horizon())
    }

    /// Polls the timer. Returns as soon as it is known to wait, and to wake this task.
    #[inline]
    pub(crate) fn poll(&mut self, waker: &Waker) -> Polled {
        if self.waits(waker) {
            Poll::Pending
        } else {
            self.poll_further(waker)
        }
    }

    /// Returns whether the timer waits, and wakes this task.
    #[inline]
    pub(crate) fn waits(&self, waker: &Waker) -> bool {
        let shard = self.shard.as_ref();
        shard.is_some_and(|shard| self.until > shard.horizon()) && self.task.is(waker)
    }

    /// Polls a timer that does not wait, or wakes another task.
    pub(crate) fn poll_further(&mut self, waker: &Waker) -> Polled {
        match self.state {
            State::Elapsed => Poll::Ready(Ok(())),
            State::Waiting => self.poll_started(waker),
            _ => self.first_poll(waker),
        }
    }

    /// Returns whether the wheel refuses the timer, because it has been shut down.
    fn is_refused(&self) -> bool {
        self.may_be_refused && self.shared().limit.is_shutdown()
    }

    fn poll_started(&mut self, waker: &Waker) -> Polled {
        if self.has_expired() {
            return self.elapse();
        }
        if self.is_refused() {
            self.remove();
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        if self.until > self.horizon() {
            if self.has_come_in_test() {
                self.expire();
                return self.elapse();
            }
            if self.wakes_by_now(waker) {
                return Poll::Pending;
            }
        }
        self.start(waker, Moment(self.when), None)
    }

    /// Returns whether the deadline has passed on a clock that a test has moved, before the driver knows: the task that calls Tokio's `advance` is
    /// polled before the keeper, and its timers should not need a second poll for that.
    fn has_come_in_test(&self) -> bool {
        let shard = self.shard.as_ref();
        shard
            .is_some_and(|shard| shard.clock.may_be_paused() && shard.alarm.has_come(Moment(self.when), None))
    }

    /// Has the entry wake this task, if it is still there.
    fn wakes_by_now(&mut self, waker: &Waker) -> bool {
        let (Some(shard), Some(key)) = (&self.shard, &self.key) else {
            return false;
        };
        let task = match shard.wakes(key, self.until, waker) {
            None => return false,
            Some(true) => WakerId::if_known(waker),
            Some(false) => {
                let (waker, task) = self.identified(waker);
                if !shard.replace(key, self.until, waker) {
                    return false;
                }
                // It may be a task of another runtime, of which a spare would keep the memory and the descriptors.
                self.leaves_spare = false;
                task
            }
        };
        self.task = shard.clock.known(task);
        true
    }

    #[inline]
    fn first_poll(&mut self, waker: &Waker) -> Polled {
        if self.is_refused() {
            return Poll::Ready(Err(Refusal::Shutdown));
        }
        let (mut when, mut now) = (Moment(self.when), None);
        match self.state {
            State::Counting if self.when == 0 && self.zero_is_at_once() => return self.elapse(),
            State::Counting => {
                let read = self.now_here();
                when = read.after(Nanos(self.when));
                now = Some(read);
            }
            State::Immediate if self.zero_is_at_once() => return self.elapse(),
            State::Reset if self.has_passed() => return self.elapse(),
            _ => {}
        }
        if !self.may_be_refused
            && thread::with(|thread| self.take_over(thread, waker, when, now)) == Some(true)
        {
            return Poll::Pending;
        }
        self.start(waker, when, now)
    }

    /// Returns whether a zero duration has passed at the first poll. On a test's clock it waits for the end of the millisecond, because Tokio's
    /// does, but not for the end of a longer tick.
    fn zero_is_at_once(&self) -> bool {
        !may_be_paused() || self.shared().settings.tick_duration > Nanos::MILLISECOND.to_duration()
    }

    fn elapse(&mut self) -> Polled {
        self.state = State::Elapsed;
        self.key = None;
        Poll::Ready(Ok(()))
    }

    /// Takes over the entry of the timer that this thread cancelled last, if it is of this task, and due in time.
    #[inline]
    fn take_over(&mut self, thread: &Thread, waker: &Waker, when: Moment, now: Option<Moment>) -> bool {
        let Some(spare) = thread.take_spare_of(waker) else {
            return false;
        };
        let horizon = spare.shard.horizon();
        let until = spare.until;
        // The horizon is when the last turn came, and stands in for a clock reading.
        let now = now.unwrap_or(horizon);
        // The differences may wrap, for an overdue entry or a deadline that has passed. The timer is not late in either case, because `is_due_by` holds.
        let fits = (until > horizon || planted("unchecked_take_over"))
            && spare.shard.clock.is_due_by(until, when)
            && until.0.wrapping_sub(now.0) >= when.0.wrapping_sub(now.0).min(LONGEST_SPARE.0) / LEAST_PART
            && thread.is_at_home(&spare, &self.shard);
        if !fits {
            thread.put_back(spare);
            return false;
        }
        (self.when, self.until, self.task) = (when.0, until, spare.task);
        (self.key, self.state, self.leaves_spare) = (Some(spare.key), State::Waiting, true);
        thread.count_take_over();
        if let Some(shard) = self.shard.replace(spare.shard) {
            thread.return_shard(shard);
        }
        true
    }

    fn identified(&self, waker: &Waker) -> (Waker, WakerId) {
        if self.may_be_refused {
            WakerId::of_clone_if_known(waker)
        } else {
            WakerId::of_clone(waker)
        }
    }

    /// Starts the timer: again in its own shard if it waits in an engine that has not ended, and otherwise in the shard of this thread.
    ///
    /// # Panics
    ///
    /// Panics where there is no runtime with timers. The timer is then as it was.
    fn start(&mut self, waker: &Waker, when: Moment, now: Option<Moment>) -> Polled {
        self.start_with_slack(waker, when, now, None)
    }

    /// Starts the timer as [`Timer::start`] does, with the slack of a timer whose duration is `wait`. `None` stands for the time that is left.
    fn start_with_slack(
        &mut self,
        waker: &Waker,
        when: Moment,
        mut now: Option<Moment>,
        wait: Option<Nanos>,
    ) -> Polled {
        let (clone, task) = self.identified(waker);
        let is_bound = self.state == State::Waiting && !self.has_lost_engine();
        let bound = if is_bound {
            Bound::default()
        } else {
            self.bind(when, task)
        };
        let Some(shard) = &self.shard else {
            unreachable!("it has been bound")
        };
        let clock = &shard.clock;
        let task = clock.known(task);
        if self.state == State::New && !clock.may_be_paused() {
            now.get_or_insert_with(|| clock.now());
        }
        let (delay, now) = delay(shard, when, now);
        let is_long = delay >= LONGEST_SPARE;
        let may_become_spare = (bound.cancelled_last || !is_long) && shard.may_have_spares();
        let is_early = may_become_spare && is_long;
        let due = if is_early {
            // This task cancels one timer after the other, so it will probably cancel this one. Its entry is due early, so that it can become a spare. If
            // the timer still waits then, it is started again for the rest.
            clock.due(when.before(Nanos(delay.0 - EARLY.0)), 1)
        } else {
            clock.due(when, clock.resolution(wait.unwrap_or(delay)))
        };
        if is_long && !is_bound && !may_become_spare {
            thread::with(|thread| thread.note_long(task));
        } else if is_bound && self.leaves_spare {
            thread::with(|thread| thread.note_waits(self.task));
        }
        let admission = if self.was_admitted {
            Admission::Again
        } else {
            Admission::First
        };
        let until = clock.start_of(due);
        // Tokio's timer cannot be set to a moment that has passed, so this is asked wherever it may be set.
        let may_have_come = clock.may_be_paused() || now.is_some() || until < shard.wake_at();
        let has_come = may_have_come && shard.alarm.has_come(when, now);
        match shard.start(clone, (due, until), bound.spare, admission, has_come) {
            Started::Waits(key) => {
                (self.key, self.until) = (Some(key), until);
                (self.task, self.state) = (task, State::Waiting);
                self.leaves_spare = may_become_spare && !is_bound && task.is_task();
                self.was_admitted |= self.may_be_refused;
                Poll::Pending
            }
            Started::HasCome if is_early && !has_come => {
                // This thread was stopped until after the early entry was due, and the timer is not.
                thread::with(|thread| thread.note_waits(task));
                self.start_with_slack(waker, when, None, wait)
            }
            Started::HasCome => {
                shard.notice_unused();
                self.elapse()
            }
            Started::Refused(refusal) => {
                shard.notice_unused();
                self.state = State::New;
                Poll::Ready(Err(refusal))
            }
            Started::Ended(waker) => self.start_with_slack(&waker, when, now, wait),
        }
    }

    /// Binds the timer to this thread's shard.
    #[inline]
    fn bind(&mut self, when: Moment, task: WakerId) -> Bound {
        let bound = thread::with(|thread| thread.bind(&mut self.shard, self.may_be_refused, task))
            .unwrap_or_else(|| thread::bind_without_locals(&mut self.shard, self.may_be_refused));
        self.when = when.0;
        // `until` may be that of an entry in another shard. With no key and an unknown task, nobody takes the timer for one that waits in this shard.
        (self.key, self.task) = (None, WakerId::UNKNOWN);
        if self.state != State::Ahead {
            self.state = State::New;
        }
        bound
    }

    /// Moves the timer to another deadline. Returns a waker that the caller wakes with no lock held, such as that of the task that waits if the
    /// deadline has passed.
    #[must_use]
    #[inline]
    pub(crate) fn reset(&mut self, when: Moment) -> Option<Waker> {
        self.move_to(when, State::Reset)
    }

    /// Moves the timer to a deadline that has not passed.
    #[must_use]
    pub(crate) fn reset_ahead(&mut self, when: Moment) -> Option<Waker> {
        self.move_to(when, State::Ahead)
    }

    /// Moves the timer to a deadline that has passed, so that it elapses at the next poll, as a zero duration does.
    #[must_use]
    pub(crate) fn reset_immediately(&mut self, when: Moment) -> Option<Waker> {
        self.move_to(when, State::Immediate)
    }

    #[inline]
    fn move_to(&mut self, when: Moment, state: State) -> Option<Waker> {
        let former = mem::replace(&mut self.when, when.0);
        if self.state != State::Waiting {
            self.state = state;
            return None;
        }
        if state == State::Immediate && self.zero_is_at_once() {
            return self.pass();
        }
        // An entry that is due before the deadline stays, and the timer is started again when it expires. One that is due after it is brought forward.
        // With the same deadline as before, it is late only by its slack.
        if when < self.until && when.0 != former {
            self.bring_forward(when)
        } else {
            None
        }
    }

    /// Ends the wait, because the deadline has passed. Returns the waker of the task that waits. A timer that a shutdown has refused stays so.
    fn pass(&mut self) -> Option<Waker> {
        let waker = self.expire();
        if !self.is_refused() {
            self.state = State::Elapsed;
        }
        waker
    }

    fn bring_forward(&mut self, when: Moment) -> Option<Waker> {
        let (Some(shard), Some(key)) = (&self.shard, &self.key) else {
            return None;
        };
        let clock = &shard.clock;
        let now = (!clock.may_be_paused()).then(|| clock.now());
        if shard.has_ended() || self.until <= shard.horizon() {
            // The task is woken in any case.
            return None;
        }
        if shard.alarm.has_come(when, now) {
            return self.pass();
        }
        let (delay, _) = delay(shard, when, now);
        let due = clock.due(when, clock.resolution(delay));
        let until = clock.start_of(due);
        if until >= self.until {
            return None;
        }
        let (is_there, ended) = shard.bring_forward(key, self.until, due);
        if is_there {
            self.until = until;
        }
        ended
    }

    /// Starts a timer anew whose entry has expired, if the deadline is a later one, with the slack of a `wait`, where `waker` is called by the
    /// driver. Returns `false` if the timer is due or cannot be started here, so that its task has to poll.
    pub(crate) fn start_anew(&mut self, when: Moment, wait: Nanos, waker: &Waker) -> bool {
        if self.state != State::Waiting || self.has_lost_engine() {
            return false;
        }
        self.when = when.0;
        if self.until > self.horizon() || self.has_expired() {
            return self.poll_further(waker) == Poll::Pending;
        }
        self.start_with_slack(waker, when, None, Some(wait)) == Poll::Pending
    }

    /// Cancels the entry, and returns its waker.
    pub(crate) fn remove(&mut self) -> Option<Waker> {
        self.take_out(Shard::remove)
    }

    /// Removes the entry of a deadline that has passed, and returns its waker.
    fn expire(&mut self) -> Option<Waker> {
        self.take_out(Shard::expire)
    }

    fn take_out(&mut self, take_out: impl FnOnce(&Shard, Key, Moment) -> Option<Waker>) -> Option<Waker> {
        if self.state != State::Waiting {
            return None;
        }
        self.state = State::New;
        let key = self.key.take()?;
        let shard = self.shard.as_ref()?;
        let waker = take_out(shard, key, self.until);
        self.until = Moment::ZERO;
        waker
    }

    /// Takes the entry out before the timer is dropped, because the future that it limits is ready, unless the entry then becomes a spare. If the
    /// timer is polled again all the same, it waits anew.
    #[inline]
    pub(crate) fn complete(&mut self) {
        if self.state == State::Waiting && !self.leaves_spare {
            self.cancel();
        }
    }

    #[cold]
    fn cancel(&mut self) {
        self.remove();
        thread::with(|thread| thread.note_cancelled(self.task));
    }

    /// Gives up the entry, to this thread or under the lock.
    fn give_up(&mut self, key: Key) {
        let Some(shard) = self.shard.take() else { return };
        if self.leaves_spare {
            let (until, task) = (self.until, self.task);
            let spare = Spare {
                shard,
                key,
                until,
                task,
            };
            let mut spare = Some(spare);
            thread::with(|thread| spare.take().map(|spare| thread.keep(spare)));
            spare.map(Spare::free);
        } else {
            shard.remove(key, self.until);
            thread::with(|thread| {
                thread.note_cancelled(self.task);
                thread.return_shard(shard);
            });
        }
    }
}

/// Returns the time that is left until `when`, and `now`. If that is not known, this reads the clock, unless the timer has no slack and its entry may
/// become a spare in any case. The time that is returned then may be too long.
#[inline]
fn delay(shard: &Shard, when: Moment, now: Option<Moment>) -> (Nanos, Option<Moment>) {
    // The horizon is not after now, so this is no less than the time that is left.
    let most = when.since(now.unwrap_or_else(|| shard.horizon()));
    if now.is_some() || most < LONGEST_SPARE && shard.clock.resolution(most) == 1 {
        return (most, now);
    }
    let now = shard.alarm.now();
    (when.since(now), Some(now))
}

impl Drop for Timer {
    #[inline]
    fn drop(&mut self) {
        match self.key.take() {
            Some(key) if self.until > self.horizon() => self.give_up(key),
            _ => {
                if let Some(shard) = self.shard.take() {
                    thread::with(|thread| thread.return_shard(shard));
                }
            }
        }
    }
}
