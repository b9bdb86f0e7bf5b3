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
//! - With Tokio's alternative timer, a runtime that shuts down fires all timers, so that they count as elapsed, before it drops its tasks
//!   (`shutdown_local_timers` in `runtime/scheduler/util/time_alt.rs`). A timer that has elapsed before its instant therefore ends
//!   [`Shared::work`](super::shared::Shared::work).
//! - A waker may take its time, because Tokio sets it no limit. But while it runs on a multi-thread runtime, its worker keeps the
//!   `try_lock` on Tokio's driver (`Inner::park` and `Parker::park_timeout` in `runtime/scheduler/multi_thread/park.rs`), so no other
//!   worker polls I/O or timers until the waker returns. The driver therefore lets other tasks run after a slice.
//! - A waker may be called synchronously by the thread that resets the timer, if the new instant has already come: `Handle::reregister` in
//!   `runtime/time/mod.rs` fires the entry, releases its lock and calls the waker before it returns. That thread holds the alarm's lock
//!   here, which is why [`sets_timer`] exists.
//!
//! - A sleep whose millisecond has already been processed elapses when it is reset, in `Handle::reregister` too, which tells where Tokio's
//!   milliseconds begin ([`begin_of_millisecond`]). With Tokio's alternative timer it elapses only when its worker parks, so the driver's
//!   task finds the milliseconds by sleeps of its own ([`observe_millisecond`]). If neither worked, ticks would begin anywhere between
//!   Tokio's milliseconds, and timers would be up to a millisecond later.
//!
//! - A timer that is set from a waker makes Tokio's next `epoll_wait` return for nothing, unless another timer is set to an earlier instant.
//!   `Handle::process_at_time` notes the earliest instant that is left before it calls the wakers, and `Handle::reregister` writes to the
//!   runtime's eventfd if the new one comes before that, or if none is left. The instant of the turn after the next is therefore set
//!   ahead, on a second sleep. If Tokio did otherwise, that sleep would be useless, but nothing would be late.
//!
//! When the timer has fired, Tokio has taken its waker, so a driver that has run is not woken again until it sets the timer.

use std::{
    cell::Cell,
    future::Future,
    mem,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    task,
    time::{self, Instant, Sleep},
};

use super::{alarm::WaitsOn, waking::panics};
use crate::engine::clock::{self, MILLISECOND};

/// How long the driver lets other tasks run when it has more to do.
const PAUSE: Duration = Duration::from_millis(1);

/// How often to try to find the millisecond that was processed last.
const TRIES: usize = 3;

/// Into how many parts to divide a millisecond to find where it begins.
const PARTS: u32 = 16;

/// How often to double the search for a millisecond that was processed, which goes back 30 years. Only a test's clock jumps that far.
const DOUBLINGS: u32 = 40;

/// Tokio's timer, and the waker that it wakes.
pub(super) struct Timer {
    /// Set to the next turn, with `waker`.
    next: Pin<Box<Sleep>>,
    /// Set to the turn after that, with a waker that does nothing. It becomes `next` once the driver waits for its instant.
    ahead: Pin<Box<Sleep>>,
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
        Timer {
            // They are set before they are first polled.
            next: Box::pin(time::sleep(PAUSE)),
            ahead: Box::pin(time::sleep(PAUSE)),
            runtime,
            waker,
            task,
        }
    }
}

impl WaitsOn for Timer {
    type Instant = Instant;

    fn set(&mut self, at: Instant, ahead: Option<Instant>) -> bool {
        if self.ahead.deadline() == at {
            mem::swap(&mut self.next, &mut self.ahead);
        }
        SETTING.set(true);
        let has_come = unless_ended(|| {
            let has_come = set(&mut self.next, at, &self.waker);
            if let Some(ahead) = ahead {
                set(&mut self.ahead, ahead, Waker::noop());
            }
            has_come
        });
        SETTING.set(false);
        has_come
    }

    fn set_soon(&mut self) -> Instant {
        // The caller may be in a runtime with another clock.
        let entered = clock::enter(&self.runtime);
        let soon = clock::now() + PAUSE;
        drop(entered);
        // If this instant has come too, the thread was descheduled meanwhile, and the task continues in any case.
        self.set(soon, None);
        soon
    }

    fn wake_task(&self) {
        self.task.notify_one();
    }
}

/// Sets a sleep and its waker. Returns whether the sleep has elapsed.
fn set(sleep: &mut Pin<Box<Sleep>>, at: Instant, waker: &Waker) -> bool {
    if sleep.deadline() != at {
        sleep.as_mut().reset(at);
    }
    // This ignores the budget of the calling task, because without budget the timer would not be registered.
    let sleep = pin!(task::unconstrained(sleep.as_mut()));
    sleep.poll(&mut Context::from_waker(waker)).is_ready()
}

/// Returns the beginning of the millisecond in which `now` lies, as Tokio counts milliseconds, or `None` where a reset does not tell.
///
/// Tokio rounds every deadline up to a millisecond that it counts from a private start. But a sleep elapses when it is reset, if
/// its millisecond is not after the last one processed, so bisection finds where that one begins.
pub(super) fn begin_of_millisecond(runtime: &Handle, now: Instant) -> Option<Instant> {
    // The runtime may process its timers meanwhile, in which case this is tried again.
    let processed = (0..TRIES).find_map(|_| processed_last(runtime, now));
    processed.map(|processed| whole_milliseconds_after(processed, now))
}

/// Returns the last instant up to `now` that is whole milliseconds after `begin`.
pub(super) fn whole_milliseconds_after(begin: Instant, now: Instant) -> Instant {
    let since = (now - begin).subsec_nanos() % MILLISECOND.subsec_nanos();
    now - Duration::from_nanos(since.into())
}

/// Finds where one of Tokio's milliseconds begins, to a [`PARTS`]th of one, on a runtime with Tokio's alternative timer. A reset
/// sleep tells nothing there, but of sleeps that are part of a millisecond apart, those for the same millisecond elapse together.
pub(super) async fn observe_millisecond() -> Option<Instant> {
    for _ in 0..TRIES {
        let first = Instant::now() + MILLISECOND;
        let mut sleeps: Vec<_> = (0..=PARTS)
            .map(|part| Box::pin(time::sleep_until(first + MILLISECOND * part / PARTS)))
            .collect();
        let mut poll_all = || {
            let mut cx = Context::from_waker(Waker::noop());
            let elapsed = sleeps
                .iter_mut()
                .map(|sleep| sleep.as_mut().poll(&mut cx).is_ready());
            elapsed.collect::<Vec<_>>()
        };
        // This registers all of them.
        poll_all();
        time::sleep_until(first).await;
        // The worker may not have processed all of them yet.
        task::yield_now().await;
        let elapsed = poll_all();
        let before = elapsed.iter().take_while(|elapsed| **elapsed).count();
        // If all have elapsed, the worker was late by a millisecond or more.
        if (1..elapsed.len()).contains(&before) && !elapsed[before..].contains(&true) {
            return Some(sleeps[before - 1].deadline());
        }
    }
    None
}

/// Returns whether an instant has come by a runtime's timer, as far as timers have been processed.
pub(super) fn has_come(runtime: &Handle, instant: Instant) -> bool {
    let entered = runtime.enter();
    let mut sleep = pin!(time::sleep_until(instant));
    // Tokio's alternative timer panics if it is set by a thread of one runtime that has entered another.
    drop(entered);
    unless_ended(|| {
        sleep.as_mut().reset(instant);
        sleep.is_elapsed()
    })
}

/// Returns whether an instant `has_come`, or `false` if the runtime is shutting down. A timer that is set then panics, with Tokio's
/// alternative timer even before the tasks of the runtime have been dropped. The driver's task is among these.
fn unless_ended(has_come: impl FnOnce() -> bool) -> bool {
    let mut come = false;
    panics(|| come = has_come());
    come
}

/// Returns the last instant that has come, as far as timers have been processed.
fn processed_last(runtime: &Handle, now: Instant) -> Option<Instant> {
    let has_come = |at| has_come(runtime, at);
    let mut spans = (0..DOUBLINGS).map(|doublings| Duration::from_millis(1 << doublings));
    let mut come = spans.find_map(|span| now.checked_sub(span).filter(|at| has_come(*at)))?;
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_millisecond_begins_where_tokios_does() {
        let start = Instant::now();
        for micros in [0, 300, 699, 1, 999_001, 70_000_000, 0] {
            time::advance(Duration::from_micros(micros)).await;
            let now = Instant::now();
            let since = (now - start).subsec_nanos() % MILLISECOND.subsec_nanos();
            assert_eq!(
                begin_of_millisecond(&Handle::current(), now),
                Some(now - Duration::from_nanos(since.into()))
            );
        }
    }

    /// This holds however long the runtime has processed no timers, since it is not driven in between.
    #[tokio::test]
    async fn on_the_real_clock_milliseconds_are_whole_ones_apart() {
        let first = begin_of_millisecond(&Handle::current(), Instant::now()).unwrap();
        for _ in 0..100 {
            let now = Instant::now();
            let begin = begin_of_millisecond(&Handle::current(), now).unwrap();
            assert!(begin <= now && now - begin < MILLISECOND);
            assert_eq!((begin - first).subsec_nanos() % MILLISECOND.subsec_nanos(), 0);
        }
    }

    /// What a reset tells, sleeps that elapse together tell to a part of a millisecond.
    #[tokio::test]
    async fn observed_milliseconds_begin_at_most_a_part_early() {
        let begin = begin_of_millisecond(&Handle::current(), Instant::now()).unwrap();
        for _ in 0..20 {
            // Other tests may have kept the machine busy.
            let Some(observed) = observe_millisecond().await else {
                continue;
            };
            let next = whole_milliseconds_after(begin, observed + MILLISECOND);
            let early = (next - observed).subsec_nanos() % MILLISECOND.subsec_nanos();
            assert!(early <= MILLISECOND.subsec_nanos() / PARTS, "{early} ns early");
        }
    }
}
