//! `Alarm`: when the driver of an engine runs next, and what changes that moment.
//!
//! On the machine's clock, the waker of Tokio's timer makes the turn itself, at the point where Tokio would
//! wake the task of one of its own sleeps. A task would run later. The worker that wakes it puts it into its
//! LIFO slot, from which no other worker steals, so the engine would stand still if that worker then blocked.
//! On a current-thread runtime, the task would wait behind all tasks that are ready.
//!
//! On a clock that a test has paused or moved, the engine's task makes the turn (`test_clock.rs`).
//!
//! The alarm's seat owns the idle driver.
//!
//! ```text
//!                        take: Tokio's timer has fired
//!   idle, in the seat -----------------------------------> with the thread that makes the turn
//!      |     ^  ^                                                         |
//!      `-----'  `---------------------------------------------------------'
//!   wake_by: moves            give_back: sets Tokio's timer to the next turn
//!   Tokio's timer             or to the moment that wake_by has left here, whichever is earlier
//! ```
//!
//! 1. A thread that takes the driver runs it with no lock held, and gives it back. A thread that finds it
//!    taken has nothing to do, because `at` keeps the earliest deadline registered meanwhile, and is read
//!    when the driver is given back.
//! 2. While the seat owns the driver, Tokio's timer is set to `at` or earlier, or the kernel's in its place.
//!    Setting Tokio's is repeated until it succeeds: a thread that is descheduled for a millisecond may set it
//!    to a moment that has come by then, which wakes nobody, because the engine's waker ignores a call by a
//!    thread that is setting a timer. Where it cannot be set, the engine's task is notified, and makes a turn.
//!    Tokio's timer is never set further ahead than [`FARTHEST`].
//! 3. An engine that has ended has no seat.
//! 4. Once the engine is closing, because its runtime is shutting down, Tokio's timer is always set, to the
//!    far future if to nothing else. Tokio fires it when the runtime's timers end, before its moment, which
//!    ends the engine. A timer that can no longer be set ends it, too.
//! 5. A thread that finds, while it sets the timer, that the engine has to end does not end it under the lock
//!    of the seat. It returns a waker that ends the engine, for its caller to wake with no lock held.
//! 6. A timer that starts and finds the driver [`OVERDUE`] sets Tokio's timer anew, because Tokio has lost or
//!    delayed a wake-up. It makes no turn itself, because its caller may hold locks that other wakers take.

use std::{mem, task::Waker};

use tokio::{runtime::Handle, sync::Notify};

use super::{
    alternative::TokioTimers,
    kernel_timer::KernelTimer,
    tokio_timer::{self, FARTHEST, TokioTimer, while_setting},
};
use crate::engine::{
    clock::{Clock, Moment, Nanos},
    shared::Shared,
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock},
    test_clock::{Source, in_runtime, is_moved},
};

/// How long a driver that has more to do lets other tasks run.
const PAUSE: Nanos = Nanos::MILLISECOND;

/// How late the driver may be before a timer that starts sets Tokio's timer anew.
const OVERDUE: Nanos = Nanos(100 * Nanos::MILLISECOND.0);

pub(crate) struct Alarm {
    pub(crate) source: Source,
    pub(crate) clock: Clock,
    /// Alternative ones are set by the engine's task alone, which therefore makes all turns, too.
    timers: TokioTimers,
    /// When the driver will be overdue: [`OVERDUE`] after the seat's `at`, or after [`Alarm::set_anew`] has last
    /// looked. A timer that starts takes one comparison. Written under the lock of the seat.
    overdue_from: AtomicU64,
    seat: Mutex<Option<Seat>>,
    /// Whether the runtime has dropped the engine's task. [`Alarm::close`] stores it before it locks the
    /// seat, and [`Alarm::set`] reads it under that lock, so that whichever comes second knows of the other.
    is_closing: AtomicBool,
    /// Tells the engine's task that a turn is due on a test's clock, that the driver has more to do, or that
    /// the engine may not be needed any more.
    pub(crate) task_notify: Notify,
    /// The runtime, until the engine ends.
    runtime: Mutex<Option<Handle>>,
}

struct Seat {
    /// Set to the next turn in place of Tokio's timer, where the wheel has asked for it, until the engine is
    /// closing.
    kernel_timer: Option<KernelTimer>,
    /// Set to the next turn.
    timer: TokioTimer,
    /// Makes a turn, or ends the engine.
    waker: Waker,
    /// `None` while it is running.
    driver: Option<Driver>,
    /// When the driver runs next, or never.
    at: Moment,
}

/// The right to make a turn, and the buffer for it.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) wakers: Vec<Waker>,
    /// The shard with which the next turn begins, so that a turn which is cut short favours none.
    pub(crate) first: usize,
}

/// When the driver has to run after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    At(Moment),
    /// Once other tasks have run, because the turn was cut short.
    More,
}

/// The outcome of setting Tokio's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetOutcome {
    /// The driver waits. If this thread could not set the timer, because its locals have been destroyed or the
    /// timers are about to end, the engine's task does.
    Waits,
    /// The moment has come, so the driver has to be taken again.
    HasPassed,
    /// The engine is closing, and the runtime's timers have ended, so it has to be ended.
    Ended,
}

impl Alarm {
    /// Creates an alarm without a seat.
    pub(crate) fn new(source: Source, clock: Clock, timers: TokioTimers) -> Alarm {
        Alarm {
            source,
            clock,
            timers,
            overdue_from: AtomicU64::new(Moment::NEVER.0),
            seat: Mutex::new(None),
            is_closing: AtomicBool::new(false),
            task_notify: Notify::new(),
            runtime: Mutex::new(None),
        }
    }

    /// Sets the alarm up in the current runtime. `waker` makes the turns.
    pub(crate) fn set_up(&self, runtime: &Handle, kernel_timer: Option<KernelTimer>, waker: Waker) {
        *lock(&self.seat) = Some(Seat {
            kernel_timer,
            timer: TokioTimer::new(),
            waker,
            driver: Some(Driver::default()),
            at: Moment::NEVER,
        });
        *lock(&self.runtime) = Some(runtime.clone());
    }

    /// Removes the seat, because the engine ends, unless it has ended before. The caller drops it with no
    /// lock held.
    pub(crate) fn take_down(&self) -> Option<impl Sized> {
        let mut guard = lock(&self.seat);
        let mut seat = guard.take()?;
        // No timer that starts finds the driver overdue from here on.
        self.store_at(&mut seat, Moment::NEVER);
        drop(guard);
        // The handle may be the last one of its runtime, which would then end under the lock.
        Some((seat, lock(&self.runtime).take()))
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.seat).is_none()
    }

    /// Reads the clock, wherever the caller is, or that of the caller's runtime if this one cannot be asked.
    pub(crate) fn now(&self) -> Moment {
        self.own_now().unwrap_or_else(Moment::now)
    }

    /// Reads the clock, unless it is a test's whose runtime cannot be entered.
    pub(crate) fn own_now(&self) -> Option<Moment> {
        // The clock of the caller's runtime may be another one.
        if self.source.is_of_runtime() {
            self.in_runtime(Moment::now)
        } else {
            Some(Moment::machine_now())
        }
    }

    /// Returns whether Tokio has processed the millisecond of a moment, as far as it can be asked.
    pub(crate) fn tokio_has_passed(&self, at: Moment) -> bool {
        self.in_runtime(|| tokio_timer::has_passed(at)) == Some(true)
    }

    /// Returns whether a test has moved the clock, so that the engine's task has to make the turns.
    fn is_moved(&self) -> bool {
        self.source.is_of_runtime() && self.in_runtime(is_moved) == Some(true)
    }

    /// Calls `act` in the runtime, unless the engine has ended or this thread's locals have been destroyed.
    #[cold]
    fn in_runtime<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        let runtime = lock(&self.runtime).clone()?;
        in_runtime(&runtime, act)
    }

    /// Returns whether no turn is in progress, and `holds`, which is asked while none can begin.
    pub(crate) fn is_idle_and(&self, holds: impl FnOnce() -> bool) -> bool {
        let guard = lock(&self.seat);
        guard.as_ref().is_some_and(|seat| seat.driver.is_some()) && holds()
    }

    pub(crate) fn has_kernel_timer(&self) -> bool {
        lock(&self.seat)
            .as_ref()
            .is_some_and(|seat| seat.kernel_timer.is_some())
    }

    pub(crate) fn has_alternative_timers(&self) -> bool {
        self.timers == TokioTimers::Alternative
    }

    /// Returns whether the engine's task makes the turns: on Tokio's alternative timer, because no other task
    /// may set it, and on a clock that a test has moved.
    pub(crate) fn is_turned_by_task(&self) -> bool {
        (self.has_alternative_timers() && !self.has_kernel_timer()) || (self.is_moved() && !self.is_closing())
    }

    /// Returns the moment by which a turn at `now` expires timers, which was to come at `at`. On a clock that a test
    /// has moved, the engine's task may run before Tokio has come to its own timers of that moment, which go first.
    pub(crate) fn expires_by(&self, now: Moment, at: Moment) -> Moment {
        let begin = || self.clock.start_of(self.clock.tick_at(now));
        if !self.is_moved() || self.is_closing() || self.tokio_has_passed(begin()) {
            return now;
        }
        // Where the clock runs, it has gone on since Tokio came to the moment that was asked for. Otherwise nothing
        // expires, and Tokio's timer is set again.
        let has_come = at <= now && self.tokio_has_passed(at);
        if has_come { at } else { self.clock.origin() }
    }

    /// Returns whether the runtime has dropped the engine's task.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Makes the engine's task check whether the engine is still needed, if the wheel has no handle left.
    pub(crate) fn notify_if_no_handle(&self, shared: &Shared) {
        if shared.has_no_handle() {
            self.task_notify.notify_one();
        }
    }

    /// Stores when the driver runs next.
    fn store_at(&self, seat: &mut Seat, at: Moment) {
        seat.at = at;
        self.overdue_from.store(at.after(OVERDUE).0, Ordering::Relaxed);
    }

    /// Returns whether the driver should have run long before `now`. A load that returns what was there
    /// before may make this wrong, and so may another clock than the alarm's. So [`Alarm::set_anew`] looks
    /// again.
    #[inline]
    pub(crate) fn is_overdue(&self, now: Moment) -> bool {
        now.0 > self.overdue_from.load(Ordering::Relaxed)
    }

    /// Takes the driver, and the moment when it was to run.
    #[inline]
    pub(crate) fn take(&self) -> Option<(Driver, Moment)> {
        let mut guard = lock(&self.seat);
        let seat = guard.as_mut()?;
        // Without one, another thread makes a turn, and reads `at` when it gives the driver back.
        let driver = seat.driver.take()?;
        // It may have fired.
        seat.timer.is_set = false;
        let at = seat.at;
        // From here on, `at` collects what is registered during the turn.
        self.store_at(seat, Moment::NEVER);
        Some((driver, at))
    }

    /// Gives the driver back after a turn.
    #[inline]
    pub(crate) fn give_back(&self, driver: Driver, next: Next) -> SetOutcome {
        let mut guard = lock(&self.seat);
        let Some(seat) = guard.as_mut() else {
            // The engine has ended meanwhile. The driver owns a buffer, which is freed after the lock is released,
            // as all arguments are.
            return SetOutcome::Waits;
        };
        seat.driver = Some(driver);
        let next = match next {
            Next::At(next) => next,
            Next::More => {
                // The engine's task goes on once other tasks have run. Tokio's timer is set as well, because
                // the task may be behind very many others.
                self.task_notify.notify_one();
                self.now().after(PAUSE)
            }
        };
        // A timer may have started in a shard after the turn had looked at that shard.
        let at = seat.at.min(next);
        self.store_at(seat, at);
        self.set(seat, at)
    }

    /// Makes the driver run at `at` or earlier, but not within this call. Returns a waker for the caller to
    /// wake with no lock held.
    #[must_use]
    pub(crate) fn wake_by(&self, at: Moment) -> Option<Waker> {
        let mut guard = lock(&self.seat);
        // Another thread may have registered an earlier one since the caller read its shard's next visit.
        let seat = guard.as_mut().filter(|seat| at < seat.at)?;
        self.store_at(seat, at);
        self.set_until_it_waits(seat)
    }

    /// Records that the runtime is shutting down. Returns a waker as [`Alarm::wake_by`] does.
    /// An engine on the alternative timer is then ended by its caller.
    #[must_use]
    pub(crate) fn close(&self) -> Option<Waker> {
        self.is_closing.store(true, Ordering::Relaxed);
        // A thread that had this lock before did not know, and set the timer to the next turn or to nothing.
        let mut guard = lock(&self.seat);
        let seat = guard.as_mut()?;
        // On the machine's clock, a timer that is set makes a turn, after which it is set again.
        if seat.timer.is_set && !self.source.jumps() {
            return None;
        }
        // On another one, it may have fired, and the task that it notified is gone.
        seat.timer.is_set = false;
        self.set_until_it_waits(seat)
    }

    /// Sets the timer anew, and notifies the engine's task, if the driver is overdue. On a clock that a test has
    /// moved, Tokio comes to a timer later, so only a lost one is set. An engine that is closing ends with Tokio's
    /// timers, and needs none.
    #[cold]
    pub(crate) fn set_anew(&self) {
        let now = self.now();
        // The caller has compared with a word that may be old, and with the clock of its own runtime.
        let is_overdue =
            |seat: &&mut Seat| seat.driver.is_some() && self.is_overdue(now) && !self.is_closing();
        let mut guard = lock(&self.seat);
        let Some(seat) = guard.as_mut().filter(is_overdue) else {
            return;
        };
        // Tokio fires all timers of a millisecond before it goes on to the next, so one that is pending then is lost.
        // It was last set to this moment or to an earlier one, or to a millisecond from then.
        let set_to = Moment(self.overdue_from.load(Ordering::Relaxed)).before(OVERDUE);
        let gone_on = set_to.after(PAUSE).after(PAUSE);
        let is_lost = !self.has_alternative_timers()
            && seat.kernel_timer.is_none()
            && seat.timer.is_set
            && self.tokio_has_passed(gone_on)
            && while_setting(|| seat.timer.register(&seat.waker)) == Some(false);
        // At most once in this time, because the runtime may be so busy that it comes to no timer.
        self.overdue_from.store(now.after(OVERDUE).0, Ordering::Relaxed);
        // One that has fired may have called its waker on this thread just now, which ignores that.
        self.task_notify.notify_one();
        if self.is_set_by_task(seat) || (!is_lost && self.is_moved()) {
            return;
        }
        if is_lost {
            // To reset a lost timer does not bring it back. To drop it would corrupt Tokio's lists: it is still
            // linked into one of them, but Tokio would look for it in another one.
            if let Some(timer) = self.in_runtime(TokioTimer::new) {
                mem::forget(mem::replace(&mut seat.timer, timer));
            }
        }
        // As in `set_until_it_waits`: this thread may be held up until that moment has come, too.
        while self.set(seat, self.now().after(PAUSE)) == SetOutcome::HasPassed {}
    }

    /// Returns whether only the engine's task can set the timer.
    fn is_set_by_task(&self, seat: &Seat) -> bool {
        self.has_alternative_timers() && seat.kernel_timer.is_none()
    }

    /// Sets Tokio's timer to `at`, unless the driver is running. If `at` has come by then, the timer is set
    /// to a millisecond from now instead.
    #[inline]
    fn set_until_it_waits(&self, seat: &mut Seat) -> Option<Waker> {
        // Whoever makes a turn sets the timer afterwards.
        seat.driver.as_ref()?;
        if self.is_set_by_task(seat) {
            self.task_notify.notify_one();
            return None;
        }
        loop {
            match self.set(seat, seat.at) {
                SetOutcome::Waits => return None,
                // The thread that takes the driver finds that the engine is closing, and ends it.
                SetOutcome::Ended => return Some(seat.waker.clone()),
                // No turn is made here, because the caller may hold locks that wakers take. The clock has gone
                // on since `at` was computed, and may do so again.
                SetOutcome::HasPassed => {
                    // A paused clock may stand still for as long as this thread runs, so the task looks now.
                    if self.source.jumps() {
                        self.task_notify.notify_one();
                    }
                    self.store_at(seat, self.now().after(PAUSE));
                }
            }
        }
    }

    /// Sets the kernel's timer to `at` or, if there is none, Tokio's to `at` or earlier.
    fn set(&self, seat: &mut Seat, mut at: Moment) -> SetOutcome {
        let is_closing = self.is_closing();
        if is_closing {
            if self.has_alternative_timers() {
                // To set one panics once its runtime has begun to shut down.
                return SetOutcome::Ended;
            }
            // Nobody promises that the kernel's timer fires as a runtime ends, and Tokio's does.
            seat.kernel_timer = None;
        } else if at == Moment::NEVER {
            // On the machine's clock it has mostly fired. A paused clock would jump to it.
            if self.source.jumps() {
                seat.timer.unset();
            }
            return SetOutcome::Waits;
        }
        if let Some(timer) = &seat.kernel_timer {
            if timer.set(at, &seat.waker) {
                return SetOutcome::Waits;
            }
            // The runtime's I/O is shutting down, or the kernel refuses. Tokio's timer takes over, for good.
            seat.kernel_timer = None;
        }
        // A turn that comes before `at` sets the timer again. The clock is read only in an engine of some days' age,
        // and for what is so far ahead.
        if at.since(self.clock.origin()) > FARTHEST {
            at = at.min(self.now().after(FARTHEST));
        }
        let (timer, waker) = (&mut seat.timer, &seat.waker);
        let has_fired = while_setting(|| {
            if is_closing {
                self.set_as_it_closes(timer, at, waker)
            } else {
                timer.set(at, waker)
            }
        });
        match has_fired {
            Some(false) => SetOutcome::Waits,
            Some(true) if at <= self.now() => SetOutcome::HasPassed,
            // It cannot be set, or Tokio fires it before its moment: the timers of the runtime have ended.
            _ if is_closing => SetOutcome::Ended,
            _ => {
                self.task_notify.notify_one();
                SetOutcome::Waits
            }
        }
    }

    /// Sets Tokio's timer while the runtime shuts down. Returns whether it has fired.
    #[cold]
    fn set_as_it_closes(&self, timer: &mut TokioTimer, at: Moment, waker: &Waker) -> bool {
        let had_waker = timer.is_set;
        // Registering a waker panics if the runtime's timers have ended since they were probed. So they are
        // probed last, after the reset has waited for Tokio's lock, and a timer that has a waker is given
        // none, unless its moment may have come.
        timer.reset(at);
        let probe = self.in_runtime(tokio_timer::probe);
        if probe.as_ref().is_some_and(|probe| probe.is_elapsed()) {
            return true;
        }
        if had_waker && at > self.now() {
            timer.is_set = true;
            return false;
        }
        timer.register(waker)
    }
}
