//! Tokio's timer, on which the driver waits: an interval that is moved from deadline to deadline.
//!
//! # What this requires of Tokio
//!
//! The driver relies on how Tokio calls the wakers of its timers, which Tokio's documentation does not
//! promise. The places named here are those of Tokio 1.54, in `runtime/time/mod.rs` unless another file is
//! named. `tests/tokio/undocumented.rs` has a test for each.
//!
//! 1. *A waker is called with no lock of the timers held*, so it may register and reset timers.
//!    `Handle::process_at_time` collects wakers under the lock and calls them after it has released it, also
//!    when the runtime shuts down (`Driver::shutdown`).
//! 2. *A waker may take its time.* But while it runs on a multi-thread runtime, its worker keeps the
//!    `try_lock` on Tokio's driver (`Inner::park` in `runtime/scheduler/multi_thread/park.rs`), so no other
//!    worker polls I/O or timers. A turn therefore lets other tasks run after a slice.
//! 3. *A timer that is set to an instant that has come calls its waker at once*, on the thread that sets it:
//!    `Handle::reregister` fires the entry, releases its lock and calls the waker before it returns. That
//!    thread holds the alarm's lock here, hence [`is_setting`].
//! 4. *A sleep elapses when it is reset to a millisecond that has been processed*, in `Handle::reregister`
//!    too. This shows where Tokio's milliseconds begin ([`begin_of_millisecond`]) and whether one has passed
//!    ([`has_passed`]). Without it, deadlines would be rounded up twice.
//! 5. *A runtime that shuts down fires all of its timers* after it has dropped its tasks, and a timer that is
//!    polled afterwards panics. So an engine goes on while its runtime's tasks are dropped, and ends with the
//!    timers. A timer that is reset afterwards elapses at once (`Handle::reregister`), which shows without a
//!    panic that the timers have ended ([`probe`]).
//! 6. *All timers of a millisecond are fired before the next one is processed* (`Wheel::poll` in
//!    `runtime/time/wheel/mod.rs`), so one that is pending then is lost. Wakers are called in batches meanwhile.
//! 7. *A timer that is polled without budget is not registered*, so the budget of the calling task is ignored
//!    here.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    task,
    time::{self, Instant, Interval, MissedTickBehavior, Sleep},
};

use crate::engine::{
    clock::{Moment, Nanos},
    sync::thread_local,
};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The first step back in search of the beginning of a millisecond.
const FIRST_STEP: Nanos = Nanos(Nanos::MILLISECOND.0 / 128);

/// How far ahead Tokio's timers are set. Up to version 1.53, Tokio keeps a timer that is 2^36 ms away, or any
/// multiple of that, among those that are due at present. When the runtime is 2^30 ms old, such a timer hides
/// all others, which are then lost (tokio #8334).
pub(crate) const FARTHEST: Nanos = Nanos((1 << 29) * Nanos::MILLISECOND.0);

pub(super) struct TokioTimer {
    interval: Interval,
    /// Whether it has been given a waker, and neither a turn nor a look has shown since that it has fired.
    pub(super) is_set: bool,
}

impl TokioTimer {
    /// Creates a timer of the current runtime that is not set.
    pub(super) fn new() -> TokioTimer {
        // Neither the instant nor the period has an effect, because the interval is always reset first.
        let mut interval = time::interval_at(Moment::ZERO.instant(), MILLISECOND);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        TokioTimer {
            interval,
            is_set: false,
        }
    }

    /// Sets the timer to wake `waker` at `at`. Returns whether it has fired, in which case the waker may have been
    /// woken.
    pub(super) fn set(&mut self, at: Moment, waker: &Waker) -> bool {
        self.reset(at);
        self.register(waker)
    }

    /// Resets the timer to `at`, whether or not the timers of the runtime have ended.
    pub(super) fn reset(&mut self, at: Moment) {
        self.is_set = false;
        self.interval.reset_at(at.instant());
    }

    /// Registers the waker that the timer wakes. Returns whether it has fired. This panics if the runtime's
    /// timers have ended.
    #[inline]
    pub(super) fn register(&mut self, waker: &Waker) -> bool {
        // The budget is that of whatever task happens to be polled on this thread.
        let tick = pin!(task::unconstrained(poll_fn(|cx| self.interval.poll_tick(cx))));
        let has_fired = tick.poll(&mut Context::from_waker(waker)).is_ready();
        self.is_set = !has_fired;
        has_fired
    }

    /// Takes the timer out of Tokio's, because a paused clock would move on to it. It is reset to the past, so that
    /// it fires at once.
    pub(super) fn unset(&mut self) {
        let _ = while_setting(|| self.reset(Moment::ZERO));
    }
}

/// Creates a sleep that has elapsed if the timers of the current runtime have ended. Setting a timer then
/// panics, which not every process survives. The caller keeps the sleep until it has set its timer, because
/// dropping the sleep waits for Tokio's lock, and the timers may end meanwhile.
pub(super) fn probe() -> Pin<Box<Sleep>> {
    let far = FARTHEST.to_duration();
    let mut sleep = Box::pin(time::sleep(far));
    // A new sleep is not registered, and does not tell. A reset takes Tokio's lock and looks.
    sleep.as_mut().reset(Instant::now() + far);
    sleep
}

thread_local! {
    // Kept for the thread and not for the timer, because the timer may fire on another thread at the same
    // moment, which must not be ignored.
    static SETTING: Cell<bool> = const { Cell::new(false) };
}

/// Calls `set`, during which this thread's timers wake nobody. Returns `None` if it panics, as Tokio does where
/// this thread's locals have been destroyed, or the timers have ended.
pub(super) fn while_setting<R>(set: impl FnOnce() -> R) -> Option<R> {
    SETTING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(set));
    SETTING.set(false);
    outcome.ok()
}

/// Returns whether this thread is setting a timer, under an alarm's lock, and so learns from the result that
/// the instant has come.
pub(crate) fn is_setting() -> bool {
    SETTING.get()
}

/// Panics with Tokio's message, because the timers of the current runtime have ended.
#[cold]
#[track_caller]
pub(crate) fn panic_as_ended() -> ! {
    let sleep = pin!(task::unconstrained(time::sleep(MILLISECOND)));
    let _ = sleep.poll(&mut Context::from_waker(Waker::noop()));
    // Not reached, unless a newer Tokio does not panic.
    panic!("A Tokio 1.x context was found, but it is being shutdown.")
}

/// Returns whether the current runtime has processed the millisecond at which a timer of Tokio's for
/// `deadline` fires. Once its timers have ended, this is unknown, and the result is `false`.
pub(crate) fn has_passed(deadline: Moment) -> bool {
    // Such a sleep may hide others. It has not elapsed in any case.
    let farthest = Moment::now().after(FARTHEST);
    if deadline > farthest {
        return false;
    }
    let deadline = deadline.instant();
    let mut sleep = pin!(time::sleep_until(deadline));
    // Once the timers have ended, every sleep elapses at once. This is checked last, because they may be
    // about to end.
    reset_and_look(sleep.as_mut(), deadline) && !reset_and_look(sleep, farthest.instant())
}

/// Resets a sleep. Returns whether the millisecond of `at` has been processed, because then the sleep elapses
/// at once.
pub(super) fn reset_and_look(mut sleep: Pin<&mut Sleep>, at: Instant) -> bool {
    sleep.as_mut().reset(at);
    sleep.is_elapsed()
}

/// Returns the beginning of the last millisecond that the current runtime has processed, or a moment up to
/// `precision` before it, or any moment if its timers have ended.
///
/// Tokio rounds every deadline up to a millisecond that it counts from a private start. If ticks began
/// elsewhere, deadlines would be rounded up twice.
///
/// # Panics
///
/// Panics with Tokio's message if the runtime's timers are disabled.
#[track_caller]
pub(crate) fn begin_of_millisecond(precision: Nanos) -> Moment {
    let mut sleep = pin!(time::sleep_until(Moment::ZERO.instant()));
    // A turn of the runtime's driver during the search makes it fail, which hardly happens twice.
    let mut tries = (0..4).map(|_| last_processed(sleep.as_mut(), precision.to_duration()));
    tries.find_map(|begin| begin).map_or_else(Moment::now, Moment::of)
}

/// Returns the beginning of the millisecond that was processed last, or a moment up to `precision` before it,
/// or `None` if others are processed meanwhile. It is found by steps back, each eight times as long as the
/// one before, and by bisection. A runtime that has just begun takes one step.
fn last_processed(mut sleep: Pin<&mut Sleep>, precision: Duration) -> Option<Instant> {
    let now = Instant::now();
    let (mut to_come, mut has_passed) = (now + MILLISECOND, |at| reset_and_look(sleep.as_mut(), at));
    let mut come = (0..15).find_map(|step| {
        let at = now.checked_sub(Duration::from_nanos(FIRST_STEP.0 << (3 * step)))?;
        if has_passed(at) {
            return Some(at);
        }
        // The driver has not come to this one either. It may have been busy, or nothing has been due for long.
        to_come = at;
        None
    })?;
    if Instant::now() <= come + precision {
        // No millisecond that is still to come has been processed, and looking at one would register the
        // sleep, which wakes the runtime.
        return Some(come);
    }
    while to_come - come > precision {
        let between = come + (to_come - come) / 2;
        if has_passed(between) {
            come = between;
        } else {
            to_come = between;
        }
    }
    // If others have been processed meanwhile, what has been found is not the last one.
    (!has_passed(to_come)).then_some(come)
}
