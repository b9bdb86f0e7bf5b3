//! Tokio's timer, on which the driver waits.
//!
//! It wakes no task. It wakes a waker that runs the driver there and then, in the place where Tokio would wake the task of a sleep of its
//! own. So a sleep of the wheel's is woken when and where Tokio's would be, however many tasks are ready, whichever queue they are in, and
//! whichever worker is blocked. A thread that registers an earlier deadline moves the timer.
//!
//! # What this needs of Tokio
//!
//! All of this rests on how Tokio calls the wakers of its timers, which its documentation does not promise. These places are those of Tokio
//! 1.54; look at them again when it is updated.
//!
//! - A waker is called with no lock of the timers held, so it may register and reset timers. `Handle::process_at_time` in
//!   `runtime/time/mod.rs` collects wakers under the lock and calls them after it has released it, also when the runtime shuts down
//!   (`Driver::shutdown`, in the same file).
//! - A waker may take its time: Tokio sets it no limit. But while it runs on a multi-thread runtime, its worker keeps the
//!   `try_lock` on Tokio's driver (`Inner::park` and `Parker::park_timeout` in `runtime/scheduler/multi_thread/park.rs`), so no other worker
//!   polls I/O or timers until it returns. The driver therefore lets others run when it has worked for a slice of 5 ms.
//! - A waker may be called synchronously by the thread that resets the timer, if the new instant has come already: `Handle::reregister` in
//!   `runtime/time/mod.rs` fires the entry, releases its lock and calls the waker before it returns. That thread holds the alarm's lock
//!   here, which is why [`sets_timer`] exists.
//!
//! The timer is an [`Interval`] because it keeps its sleep in a box, and so is [`Unpin`] and can be part of a plan. When it has fired,
//! `Interval::poll_tick` moves it on without registering it (`reset_without_timer` in `time/interval.rs`), so a driver that has come is not
//! woken again until it sets the timer.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    pin::pin,
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    task,
    time::{Instant, Interval, MissedTickBehavior},
};

use super::alarm::WaitsOn;

/// How long the driver lets others run, where it has more to do.
const PAUSE: Duration = Duration::from_millis(1);

/// Tokio's timer, and what it wakes.
pub(super) struct Timer {
    interval: Interval,
    runtime: Handle,
    waker: Waker,
}

impl Timer {
    /// A timer of the runtime that the caller has entered.
    ///
    /// # Panics
    ///
    /// In Tokio's own words, if the runtime's timers are disabled.
    pub(super) fn new(runtime: Handle, waker: Waker) -> Timer {
        // Its period means nothing: it is set anew whenever it has fired.
        let mut interval = tokio::time::interval(PAUSE);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Timer {
            interval,
            runtime,
            waker,
        }
    }
}

impl WaitsOn for Timer {
    type Instant = Instant;

    fn set(&mut self, at: Instant) -> bool {
        let _setting = Setting::begin();
        self.interval.reset_at(at);
        // This ignores the calling task's budget: without budget, the timer would not be registered.
        let tick = pin!(task::unconstrained(poll_fn(|cx| self.interval.poll_tick(cx))));
        tick.poll(&mut Context::from_waker(&self.waker)).is_ready()
    }

    fn set_soon(&mut self) -> Instant {
        // The caller may be in a runtime with another clock.
        let entered = self.runtime.enter();
        let soon = Instant::now() + PAUSE;
        drop(entered);
        // If this has come too, the thread was kept from running meanwhile. The task goes on all the same.
        self.set(soon);
        soon
    }
}

thread_local! {
    static SETTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is setting a timer, under an alarm's lock. If the instant has come already, Tokio calls the waker there and then, and
/// the thread learns of it otherwise too. What another thread wakes meanwhile is not to be missed.
pub(super) fn sets_timer() -> bool {
    SETTING.get()
}

/// While this lives, [`sets_timer`] holds: also if Tokio panics, because its runtime is shutting down.
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
