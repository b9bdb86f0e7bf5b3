//! `Shard`: one lock and the timing wheel behind it. `Claim`: the right to an entry there.
//!
//! # The rules of the horizon
//!
//! 1. The horizon is stored under the lock, before the entries that are due by then expire. An entry that is
//!    due *after* the horizon is in the wheel, has the waker that it was given, and belongs to its timer or
//!    spare, whose key is valid. An entry that is due *by* the horizon belongs to the driver, which wakes and
//!    frees it, and its key is void.
//! 2. Without the lock, a poll may read an earlier horizon than the one stored last, and return `Pending` for
//!    a timer that has expired. No wake-up is lost: the driver wakes the task after it has stored the
//!    horizon, and the poll that follows reads the new one.
//! 3. The horizon of an engine that has ended is [`Moment::NEVER`], so all keys are void.
//! 4. No user code runs under a lock: wakers are cloned before it is taken, and woken or dropped after it is
//!    released. Memory that takes long to free is freed then, too.

use std::{fmt, task::Waker};

use tokio::runtime::{Handle, Id};

use super::{
    clock::{Clock, Moment, Reading},
    driver::alarm::Alarm,
    shared::{Shared, Tally, WheelRef},
    spare_counts::SpareCounts,
    sync::{
        Arc, AtomicU64, Mutex, MutexGuard,
        Ordering::{Relaxed, SeqCst},
        lock, try_lock,
    },
    test_clock::Source,
    timing_wheel::{Key, Site, Tick, TimingWheel, Turn},
    waker_id::WakerId,
};

/// The number of timers that expire under one lock. With fewer, threads that register timers take the lock so
/// often in between that a storm, in which very many timers are due at once, takes longer. With more, a
/// thread that waits for the lock waits for milliseconds.
const BATCH: usize = 256;

/// An empty arena keeps this many cells.
const RETAINED: usize = 1024;

/// A walk looks at this many cells under one lock.
const WALK: usize = 256;

// Processors fetch cache lines in pairs, so with an alignment of 64, workers whose shards are neighbours
// would disturb each other.
#[repr(align(128))]
pub(crate) struct Shard {
    state: Mutex<State>,
    /// The tick up to which entries have expired, as the [`Moment`] at which it begins.
    horizon: AtomicU64,
    /// When the driver visits this shard next, or [`Moment::NEVER`].
    next_visit: AtomicU64,
    /// When the hand of the wheel is so old that it is moved before the next timer enters. Written under the
    /// lock.
    stale_at: AtomicU64,
    pub(crate) spares: SpareCounts,
    /// Copies of the alarm's, because other threads write to the cache lines of the alarm.
    pub(crate) source: Source,
    pub(crate) clock: Clock,
    pub(crate) shared: Arc<Shared>,
    pub(crate) alarm: Arc<Alarm>,
    /// For the timers that leave this shard.
    pub(crate) wheel: WheelRef,
    /// The engine's runtime.
    pub(crate) runtime: Id,
    /// The number of timers for which memory is reserved.
    capacity: usize,
    /// The index among the shards of the engine.
    index: usize,
    /// The number of the engine's shards, a power of two, less one.
    mask: usize,
}

/// The state that the lock protects.
pub(crate) struct State {
    /// Present from the first timer on, until the shard ends.
    wheel: Option<TimingWheel<Waker>>,
    tally: Tally,
    /// How many entries of spares are due by the horizon and have not been subtracted from those that expire.
    uncounted: usize,
}

/// The outcome of an attempt to start a timer.
pub(crate) enum StartOutcome {
    /// The entry is due at that moment.
    Waits(Key, Moment),
    /// The tick of the deadline has begun.
    IsDue,
    /// The shard has ended. Gives the waker back.
    Ended(Waker),
}

impl Shard {
    /// Creates the shard at `index` of the `shards` that an engine has, a power of two.
    pub(crate) fn new(
        shared: Arc<Shared>,
        alarm: Arc<Alarm>,
        runtime: Id,
        (index, shards): (usize, usize),
    ) -> Shard {
        Shard {
            state: Mutex::new(State {
                wheel: None,
                tally: Tally::default(),
                uncounted: 0,
            }),
            horizon: AtomicU64::new(alarm.clock.start_of(Tick::ZERO).0),
            next_visit: AtomicU64::new(Moment::NEVER.0),
            stale_at: AtomicU64::new(Moment::ZERO.0),
            spares: SpareCounts::new(),
            wheel: WheelRef::new(&shared),
            capacity: shared.settings.capacity.unwrap_or(0).div_ceil(shards),
            source: alarm.source,
            clock: alarm.clock,
            shared,
            alarm,
            runtime,
            index,
            mask: shards - 1,
        }
    }

    /// Returns whether the thread or worker of a number registers its timers of this wheel here when it is in
    /// `runtime`, and the shard has not ended.
    #[inline]
    pub(crate) fn serves(&self, runtime: Option<Id>, number: impl FnOnce() -> usize) -> bool {
        // The number is asked for last, and only of shards that are one of several.
        let is_here = || self.mask == 0 || self.index == number() & self.mask;
        Some(self.runtime) == runtime && !self.has_ended() && is_here()
    }

    #[inline]
    pub(crate) fn horizon(&self) -> Moment {
        Moment(self.horizon.load(Relaxed))
    }

    pub(crate) fn next_visit(&self) -> Moment {
        Moment(self.next_visit.load(Relaxed))
    }

    /// Returns whether the shard has ended, as far as this thread knows. Under the lock, this is certain.
    pub(crate) fn has_ended(&self) -> bool {
        self.horizon() == Moment::NEVER
    }

    /// Returns whether the shard has ended with a runtime that had the alternative timer, and the caller is in
    /// no other runtime. Tokio's timers have elapsed there.
    pub(crate) fn has_elapsed_with_runtime(&self) -> bool {
        let ended = self.has_ended() && self.alarm.has_alternative_timers() && self.alarm.is_closing();
        ended && Handle::try_current().map_or(true, |here| here.id() == self.runtime)
    }

    /// Starts a timer, unless the tick of its deadline has begun.
    #[inline(always)]
    pub(crate) fn start(&self, waker: Waker, deadline: Moment, reading: Reading) -> StartOutcome {
        // Any timer that starts sees that Tokio has lost a wake-up, whichever shard it starts in.
        if self.alarm.is_overdue(reading.at) {
            self.alarm.set_anew();
        }
        let (tick, due) = self.clock.round_up(deadline, deadline.since(reading.at));
        if self.has_come(deadline, due, reading) {
            return StartOutcome::IsDue;
        }
        let mut guard = self.lock_noting_contention();
        // Under the lock, the horizon is the last one. An entry that is due by then would belong to the driver, which
        // would not come to it before the next turn.
        if due <= self.horizon() {
            let has_ended = self.has_ended();
            // In this order, because the waker's destructor may be code of the user's.
            drop(guard);
            return if has_ended {
                StartOutcome::Ended(waker)
            } else {
                StartOutcome::IsDue
            };
        }
        let wheel = guard.wheel.get_or_insert_with(|| self.new_wheel());
        if reading.at.0 >= self.stale_at.load(Relaxed) {
            self.catch_up(wheel);
        }
        let key = wheel.insert(tick, waker);
        let visit = wheel
            .visit_before(tick)
            .map_or(due, |tick| self.clock.start_of(tick));
        guard.tally.registered += 1;
        let sooner = self.plan_visit(visit);
        drop(guard);
        // Rare, because most timers are due later than one that waits already. They leave the alarm alone, which
        // all workers share.
        if let Some(at) = sooner {
            let ended = self.alarm.wake_by(at);
            // There is one if the engine turned out to be ending. It ends it, and so wakes the new entry.
            ended.into_iter().for_each(Waker::wake);
        }
        StartOutcome::Waits(key, due)
    }

    /// Moves the hand of the wheel, which has been where it is for a while. With an old hand, a timer that is due
    /// soon could go into a coarse bucket.
    #[cold]
    fn catch_up(&self, wheel: &mut TimingWheel<Waker>) {
        // The timer's own reading may be of another runtime's clock, which a test has moved ahead of this one. A
        // hand ahead of the clock would have timers expire early.
        if let Some(now) = self.alarm.own_now() {
            wheel.catch_up(self.clock.tick_at(now));
            self.note_hand(wheel);
        }
    }

    fn note_hand(&self, wheel: &TimingWheel<Waker>) {
        self.stale_at
            .store(self.clock.start_of(wheel.stale_at()).0, Relaxed);
    }

    /// Returns whether a timer whose entry would be due at `due` is due itself.
    #[inline]
    pub(crate) fn has_come(&self, deadline: Moment, due: Moment, reading: Reading) -> bool {
        // On a test's clock, a timer elapses exactly when one of Tokio's does.
        if self.source.tokio_decides() {
            return self.is_due(deadline);
        }
        // With slack, the entry is due later than the timer, which then has seconds left. Where time has passed
        // since the reading, the clock is read if the entry would move Tokio's timer, which cannot be set to a
        // moment that has passed.
        due <= reading.at || (!reading.is_current && due < self.next_visit() && self.is_due(deadline))
    }

    /// Returns whether the tick of a deadline has begun.
    #[inline(never)]
    pub(crate) fn is_due(&self, deadline: Moment) -> bool {
        let begin = self.clock.start_of(self.clock.due(deadline, 1));
        if self.source.tokio_decides() {
            self.alarm.tokio_has_passed(begin)
        } else {
            begin <= self.alarm.now()
        }
    }

    /// Returns whether a timer is due although no turn has been made for it, which only a test's clock allows.
    pub(crate) fn is_due_before_turn(&self, deadline: Moment) -> bool {
        self.source.tokio_decides() && self.is_due(deadline)
    }

    #[cold]
    fn new_wheel(&self) -> TimingWheel<Waker> {
        let settings = &self.shared.settings;
        let mut wheel = self.source.wheel(settings.ticks_per_wheel, settings.levels);
        wheel.reserve(self.capacity);
        wheel
    }

    /// Locks the shard. A thread that repeatedly has to wait for the lock moves to another shard.
    fn lock_noting_contention(&self) -> MutexGuard<'_, State> {
        // A worker meets the driver here now and then, but hardly ever another thread.
        try_lock(&self.state).unwrap_or_else(|| {
            super::number::note_contention();
            lock(&self.state)
        })
    }

    /// Plans a visit by `at`, the beginning of a tick. Returns that moment if no visit was planned so early, for
    /// the caller to move the alarm once it has released the lock. It holds the lock now, so that a visit in
    /// progress does not overwrite the plan with a later one.
    #[must_use]
    fn plan_visit(&self, at: Moment) -> Option<Moment> {
        let is_sooner = at < self.next_visit();
        is_sooner.then(|| {
            self.next_visit.store(at.0, Relaxed);
            at
        })
    }

    /// Returns the wheel if the entry that is due at `due` is still in it, so that its key is valid. The caller holds
    /// the lock.
    fn wheel_of<'a>(&self, state: &'a mut State, due: Moment) -> Option<&'a mut TimingWheel<Waker>> {
        // A shard that has ended has the last horizon of all, and no wheel.
        let has_expired = due <= self.horizon();
        state.wheel.as_mut().filter(|_| !has_expired)
    }

    /// Takes out the memory of an empty wheel that once had many entries, to be freed with no lock held.
    #[inline]
    fn release_arena(&self, wheel: &mut TimingWheel<Waker>) -> Option<impl Sized + use<>> {
        // Only an empty arena can shrink, so the memory of a burst is given back after its last timer has ended.
        let release = wheel.len() == 0 && wheel.cells() > RETAINED.max(self.capacity);
        release.then(|| wheel.release_arena(RETAINED.max(self.capacity)))
    }

    /// Puts off the next visit, which may have been for an entry that is gone. A paused clock would jump to it.
    #[cold]
    fn put_off(&self, wheel: &TimingWheel<Waker>) {
        let next = self.start_of(wheel.next_visit());
        if next > self.next_visit() {
            self.next_visit.store(next.0, Relaxed);
            // Its turn, in which nothing is due, moves the alarm.
            self.alarm.task_notify.notify_one();
        }
    }

    fn start_of(&self, tick: Option<Tick>) -> Moment {
        tick.map_or(Moment::NEVER, |tick| self.clock.start_of(tick))
    }

    /// Counts a timer as cancelled, and its entry, which is due at `due`, as spare `index` of the shard.
    /// Returns `false` if the shard has that one already, or the entry has expired.
    #[inline]
    pub(crate) fn leave_spare(&self, index: usize, due: Moment) -> bool {
        self.spares.leave(index, due, &self.horizon)
    }

    /// Returns the shard's counts, the number of pending timers and the size of the arena in bytes. Once the
    /// shard has ended, the wheel has its counts.
    pub(crate) fn usage(&self) -> Usage {
        let state = lock(&self.state);
        if self.has_ended() {
            return Usage::default();
        }
        let wheel = state.wheel.as_ref();
        Usage {
            tally: self.tally(&state),
            pending: wheel
                .map_or(0, TimingWheel::len)
                .saturating_sub(self.spares.dues().count()),
            arena_bytes: wheel.map_or(0, TimingWheel::arena_bytes),
        }
    }

    /// Returns the counts, with the timers that have left a spare or taken one over. None of them ever
    /// decreases.
    fn tally(&self, state: &State) -> Tally {
        let mut tally = state.tally;
        self.spares.add_to(&mut tally);
        tally
    }

    /// Calls `see` for each entry, with bounded work under each lock.
    pub(crate) fn walk(&self, mut see: impl FnMut(Site)) {
        let mut from = 0;
        loop {
            // For a batch, because no worker should wait while a million timers are looked at. Those that start or
            // end meanwhile may be seen or not.
            let state = lock(&self.state);
            let Some(wheel) = state.wheel.as_ref().filter(|wheel| from < wheel.cells()) else {
                return;
            };
            let sites: Vec<_> = wheel.sites(from..from + WALK).collect();
            drop(state);
            sites.into_iter().for_each(&mut see);
            from += WALK;
        }
    }

    /// Publishes the horizon and takes out the wakers of at most [`BATCH`] timers that are due at `tick`, or by the
    /// hand of the wheel.
    pub(crate) fn visit(&self, tick: Tick, due: &mut Vec<Waker>) -> Turn {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        // A timer that has started since the turn read the clock may have moved the hand on. What is due by the hand
        // expires here, and would be taken for pending beyond an earlier horizon.
        let tick = state.wheel.as_ref().map_or(tick, |wheel| tick.max(wheel.hand()));
        let begin = self.clock.start_of(tick);
        let former = self.horizon();
        // A turn that was cut short comes to the same tick again.
        if begin > former {
            // Stored before spares are voided, as `SpareCounts::leave` requires.
            self.horizon.store(begin.0, SeqCst);
            state.uncounted += self.spares.void(former, begin);
        }
        let Some(wheel) = &mut state.wheel else {
            return Turn::default();
        };
        let turn = wheel.advance(tick, BATCH, due);
        self.note_hand(wheel);
        // The entries of spares may be in a later batch, but are subtracted from the first that expire.
        let uncounted = turn.expired.min(state.uncounted);
        state.uncounted -= uncounted;
        state.tally.expired += (turn.expired - uncounted) as u64;
        if turn.more {
            return turn;
        }
        self.next_visit.store(self.start_of(turn.next).0, Relaxed);
        let arena = self.release_arena(wheel);
        drop(guard);
        drop(arena);
        turn
    }

    /// Ends the shard, because its engine ends. Returns its wheel with all wakers, for the caller to wake, so that
    /// their futures go on elsewhere.
    pub(crate) fn end(&self) -> Option<TimingWheel<Waker>> {
        let mut state = lock(&self.state);
        let horizon = self.horizon();
        if horizon == Moment::NEVER {
            return None;
        }
        // From now on every key is void, and every timer that is polled looks for another engine.
        self.horizon.store(Moment::NEVER.0, Relaxed);
        // In the middle of a turn, which leaves the next visit where it was, entries that are due by the horizon may
        // be left. They count as expired, because their timers elapse at the next poll.
        let is_mid_turn = self.next_visit.swap(Moment::NEVER.0, Relaxed) <= horizon.0;
        let wheel = state.wheel.take();
        let in_turn = wheel.as_ref().filter(|_| is_mid_turn);
        let due = in_turn.map_or(0, |wheel| wheel.due_by(self.clock.tick_at(horizon)));
        let Tally {
            registered, expired, ..
        } = self.tally(&state);
        let expired = expired + due.saturating_sub(state.uncounted) as u64;
        // What was pending counts as cancelled. Where it goes on, it is registered again.
        self.shared.add_ended(Tally {
            registered,
            expired,
            cancelled: registered - expired,
        });
        wheel
    }
}

/// The right to an entry, which a timer has while it waits, and a thread has for each spare.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) shard: Arc<Shard>,
    /// When the entry is due. It may have expired.
    pub(crate) due: Moment,
    /// The task that the waker in the entry wakes. Unknown if each poll has to take the lock.
    pub(crate) task: WakerId,
    key: Key,
    pub(crate) on_leave: OnLeave,
}

/// What becomes of the entry when the timer is dropped or its timeout completes. A timer that takes the entry
/// over keeps this, because it is of the same task and in the same runtime.
// Of four bytes, because a claim has no padding then, which takes 30 instructions of a timeout to copy.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLeave {
    Cancel,
    /// It may become a spare.
    Keep,
}

impl Claim {
    #[inline]
    pub(crate) fn new(shard: Arc<Shard>, key: Key, due: Moment, task: WakerId, on_leave: OnLeave) -> Claim {
        let task = shard.source.remembered(task);
        let on_leave = if task.is_task() { on_leave } else { OnLeave::Cancel };
        Claim {
            shard,
            due,
            task,
            key,
            on_leave,
        }
    }

    /// Returns whether the entry is gone, or is the driver's to free.
    #[inline]
    pub(crate) fn has_expired(&self) -> bool {
        self.due <= self.shard.horizon()
    }

    /// Makes the entry wake the task of `waker`. Returns `false` if the entry is gone.
    pub(crate) fn direct_to(&mut self, waker: &Waker) -> bool {
        let mut state = lock(&self.shard.state);
        // Compared in the entry, because the task is known here only once its vtable has been learnt.
        let wheel = self.shard.wheel_of(&mut state, self.due);
        let wakes_it = wheel.is_some_and(|wheel| wheel.value(&self.key).will_wake(waker));
        drop(state);
        if !wakes_it {
            let clone = waker.clone();
            // A clone at another address keeps no task alive at the waker's own, by which this would be known.
            let is_known_by_address = clone.data() == waker.data();
            let mut state = lock(&self.shard.state);
            let Some(wheel) = self.shard.wheel_of(&mut state, self.due) else {
                return false;
            };
            let former = wheel.replace(&self.key, clone);
            drop(state);
            // This may be a task of another runtime, whose memory and descriptors a spare would keep.
            (self.task, self.on_leave) = (WakerId::UNKNOWN, OnLeave::Cancel);
            // Last, because its destructor may be code of the user's, and panic.
            drop(former);
            if !is_known_by_address {
                return true;
            }
        }
        // A timer that is polled twice may be polled often, so its waker's vtable is worth a place.
        self.task = self.shard.source.remembered(WakerId::learn(waker));
        true
    }

    /// Moves the entry to tick `tick`, which begins at `due`, unless it is due earlier. Returns a waker for the caller
    /// to wake with no lock held.
    pub(crate) fn bring_forward(&mut self, tick: Tick, due: Moment, now: Moment) -> Option<Waker> {
        // With slack, two deadlines may be rounded up to the same tick.
        if due >= self.due {
            return None;
        }
        let shard = &*self.shard;
        let mut state = lock(&shard.state);
        // Otherwise a turn has just taken the entry out, and its task is woken and starts the timer again.
        let wheel = shard.wheel_of(&mut state, self.due)?;
        // As in `start`: the entry goes into another bucket.
        if now.0 >= shard.stale_at.load(Relaxed) {
            shard.catch_up(wheel);
        }
        wheel.bring_forward(&self.key, tick);
        let visit = shard.clock.start_of(wheel.visit_before(tick).unwrap_or(tick));
        let sooner = shard.plan_visit(visit);
        drop(state);
        self.due = due;
        sooner.and_then(|at| self.shard.alarm.wake_by(at))
    }

    /// Takes the entry out if it is still there, for a timer that has not elapsed. Returns its waker, whose
    /// destructor may be code of the user's.
    // Out of line, it takes 20 instructions more of each timer that finds no spare.
    #[inline(always)]
    pub(crate) fn cancel(self) -> Option<Waker> {
        // A timer that has fired and is dropped takes no lock.
        if self.has_expired() {
            return None;
        }
        self.take_out(|tally| tally.cancelled += 1)
    }

    /// Takes the entry out if it is still there, for a timer that has elapsed before the driver knows.
    pub(crate) fn expire(self) -> Option<Waker> {
        self.take_out(|tally| tally.expired += 1)
    }

    #[inline(always)]
    fn take_out(self, count: impl FnOnce(&mut Tally)) -> Option<Waker> {
        let Claim { shard, due, key, .. } = self;
        let mut guard = lock(&shard.state);
        // If the entry is gone, the driver has counted it and taken its waker.
        let wheel = shard.wheel_of(&mut guard, due)?;
        let waker = wheel.remove(key);
        let arena = shard.release_arena(wheel);
        if shard.source.jumps() {
            shard.put_off(wheel);
        }
        count(&mut guard.tally);
        drop(guard);
        drop(arena);
        // It may have been the last entry of a wheel that nobody can use any more.
        shard.alarm.notify_if_no_handle(&shard.shared);
        Some(waker)
    }

    /// Cancels the entry of spare `index`, if it is still there. Its timer has been counted already.
    pub(crate) fn give_up(self, index: usize) {
        let Claim { shard, due, key, .. } = self;
        let mut guard = lock(&shard.state);
        shard.spares.give_up(index);
        let removed = shard.wheel_of(&mut guard, due).map(|wheel| {
            let waker = wheel.remove(key);
            (waker, shard.release_arena(wheel))
        });
        drop(guard);
        drop(removed);
    }
}

/// The counts and the memory of a shard. The entry of a spare is no pending timer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) tally: Tally,
    pub(crate) pending: usize,
    pub(crate) arena_bytes: usize,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard")
            .field("wheel", &self.wheel)
            .field("runtime", &self.runtime)
            .field("index", &self.index)
            .finish_non_exhaustive()
    }
}
