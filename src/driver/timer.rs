//! Tokio's timer, on which the driver waits.
//!
//! The timer wakes no task. Its waker runs the driver at once, at the point where Tokio would wake the task of one of its own sleeps. A
//! sleep of the wheel is therefore woken when and where Tokio's would be, however many tasks are ready, whichever queue they are in, and
//! whichever worker is blocked. A thread that registers an earlier deadline moves the timer.
//!
//! # What this requires of Tokio
//!
//! All of this relies on how Tokio calls the wakers of its timers, which its documentation does not promise. The places named below are
//! those of Tokio 1.54; check them again when Tokio is updated.
//!
//! - A waker is called with no lock of the timers held, so it may register and reset timers. `Handle::process_at_time` in
//!   `runtime/time/mod.rs` collects wakers under the lock and calls them after it has released it, also when the runtime shuts down
//!   (`Driver::shutdown`, in the same file).
//! - A waker may take its time, because Tokio sets it no limit. But while it runs on a multi-thread runtime, its worker keeps the
//!   `try_lock` on Tokio's driver (`Inner::park` and `Parker::park_timeout` in `runtime/scheduler/multi_thread/park.rs`), so no other
//!   worker polls I/O or timers until the waker returns. The driver therefore lets other tasks run when it has worked for a slice of 5 ms.
//! - A waker may be called synchronously by the thread that resets the timer, if the new instant has already come: `Handle::reregister` in
//!   `runtime/time/mod.rs` fires the entry, releases its lock and calls the waker before it returns. That thread holds the alarm's lock
//!   here, which is why [`sets_timer`] exists.
//!
//! - A sleep whose millisecond has already been processed elapses when it is reset, in `Handle::reregister` too. If that changed, ticks
//!   would begin anywhere between Tokio's milliseconds, and timers would be half a millisecond later on average ([`begin_of_millisecond`]).
//!
//! The timer is an [`Interval`] because an interval keeps its sleep in a box, and so is [`Unpin`] and can be part of a plan. When it has
//! fired, `Interval::poll_tick` moves it on without registering it (`reset_without_timer` in `time/interval.rs`), so a driver that has run
//! is not woken again until it sets the timer.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    task,
    time::{Instant, Interval, MissedTickBehavior},
};

use super::{alarm::WaitsOn, waking::panics};

/// How long the driver lets other tasks run when it has more to do.
const PAUSE: Duration = Duration::from_millis(1);

/// How often to try to find the millisecond that was processed last.
const TRIES: usize = 3;

/// The unit in which Tokio counts time.
const MILLISECOND: Duration = Duration::from_millis(1);

/// How long ago a runtime may last have processed its timers.
const PROCESSED_WITHIN: Duration = Duration::from_secs(60);

/// Tokio's timer, and the waker that it wakes.
pub(super) struct Timer {
    interval: Interval,
    runtime: Handle,
    waker: Waker,
    /// On which the driver's task waits.
    task: Arc<Notify>,
}

impl Timer {
    /// Creates a timer of the runtime that the caller has entered.
    ///
    /// # Panics
    ///
    /// Panics with Tokio's message if the runtime's timers are disabled.
    pub(super) fn new(runtime: Handle, waker: Waker, task: Arc<Notify>) -> Timer {
        // The period has no meaning, because the timer is set anew whenever it has fired.
        let mut interval = tokio::time::interval(PAUSE);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Timer {
            interval,
            runtime,
            waker,
            task,
        }
    }
}

impl WaitsOn for Timer {
    type Instant = Instant;

    fn set(&mut self, at: Instant) -> bool {
        let _setting = Setting::begin();
        self.interval.reset_at(at);
        // This ignores the budget of the calling task, because without budget the timer would not be registered.
        let tick = pin!(task::unconstrained(poll_fn(|cx| self.interval.poll_tick(cx))));
        let mut has_come = false;
        // Tokio panics here if the runtime is being shut down. Every timer then hears of that by the end of the driver's task, and
        // the caller's task may belong to another runtime.
        panics(|| has_come = tick.poll(&mut Context::from_waker(&self.waker)).is_ready());
        has_come
    }

    fn set_soon(&mut self) -> Instant {
        // The caller may be in a runtime with another clock.
        let entered = self.runtime.enter();
        let soon = Instant::now() + PAUSE;
        drop(entered);
        // If this instant has come too, the thread was descheduled meanwhile, and the task continues in any case.
        self.set(soon);
        soon
    }

    fn wake_task(&self) {
        self.task.notify_one();
    }
}

/// Returns the beginning of the millisecond in which `now` lies, as Tokio counts milliseconds, or `now` itself where that cannot
/// be found. The caller has entered the runtime.
///
/// Tokio rounds every deadline up to a millisecond that it counts from a private start. But a sleep elapses when it is reset, if
/// its millisecond is not after the last one processed, so bisection finds where that one begins.
pub(super) fn begin_of_millisecond(now: Instant) -> Instant {
    let mut sleep = pin!(tokio::time::sleep_until(now));
    let mut has_come = |at| {
        sleep.as_mut().reset(at);
        sleep.is_elapsed()
    };
    // The runtime may process its timers meanwhile, in which case this is tried again.
    let processed = (0..TRIES).find_map(|_| processed_last(now, &mut has_come));
    let Some(processed) = processed else { return now };
    let since = (now - processed).subsec_nanos() % MILLISECOND.subsec_nanos();
    now - Duration::from_nanos(since.into())
}

/// Returns the last instant that has come, as far as timers have been processed.
fn processed_last(now: Instant, mut has_come: impl FnMut(Instant) -> bool) -> Option<Instant> {
    let mut span = MILLISECOND;
    let mut come = now.checked_sub(span)?;
    while !has_come(come) {
        span *= 2;
        come = now.checked_sub(span).filter(|_| span < PROCESSED_WITHIN)?;
    }
    let mut to_come = now + MILLISECOND;
    while to_come - come > Duration::from_nanos(1) {
        let between = come + (to_come - come) / 2;
        match has_come(between) {
            true => come = between,
            false => to_come = between,
        }
    }
    (!has_come(to_come)).then_some(come)
}

thread_local! {
    static SETTING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this thread is setting a timer, under an alarm's lock. If the instant has already come, Tokio calls the waker
/// at once on this thread, which learns of it by other means as well. A wake by another thread meanwhile must not be missed.
pub(super) fn sets_timer() -> bool {
    SETTING.get()
}

/// While this value lives, [`sets_timer`] is true.
struct Setting;

impl Setting {
    fn begin() -> Setting {
        SETTING.set(true);
        Setting
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        SETTING.set(false);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_millisecond_begins_where_tokios_does() {
        let start = Instant::now();
        for micros in [0, 300, 699, 1, 999_001, 70_000_000, 0] {
            tokio::time::advance(Duration::from_micros(micros)).await;
            let now = Instant::now();
            let since = (now - start).subsec_nanos() % MILLISECOND.subsec_nanos();
            assert_eq!(
                begin_of_millisecond(now),
                now - Duration::from_nanos(since.into())
            );
        }
    }

    /// This holds however long the runtime has processed no timers, since it is not driven in between.
    #[tokio::test]
    async fn on_the_real_clock_milliseconds_are_whole_ones_apart() {
        let first = begin_of_millisecond(Instant::now());
        for _ in 0..100 {
            let now = Instant::now();
            let begin = begin_of_millisecond(now);
            assert!(begin <= now && now - begin < MILLISECOND);
            assert_eq!((begin - first).subsec_nanos() % MILLISECOND.subsec_nanos(), 0);
        }
    }
}
