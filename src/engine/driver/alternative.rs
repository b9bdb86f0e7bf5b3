//! Tokio's alternative timer (`Builder::enable_alt_timer`), as far as it differs. The places named here are
//! those of Tokio 1.54.
//!
//! - Each worker has timers of its own, and ends them before it drops the runtime's tasks
//!   (`shutdown_local_timers` in `runtime/scheduler/util/time_alt.rs`). It fires all of them, and a timer that
//!   is set there afterwards panics (`Timer::new` in `runtime/time_alt/timer.rs`). So only the engine's task
//!   sets the engine's timer, because a worker polls no task after that.
//! - The engine ends when its task is dropped, because nothing tells it when the last timers end.
//! - Until then Tokio's pending sleeps have fired, so a timer that waits in such an engine elapses, if it is
//!   polled where it cannot go on. A timer that another task polls first meanwhile elapses if its deadline has
//!   passed. Otherwise it stays pending and does not start, because that task is about to be dropped, too.

/// Which timers a runtime has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(tokio_unstable), allow(dead_code))]
pub(crate) enum TokioTimers {
    Usual,
    Alternative,
}

// Without `tokio_unstable`, no runtime has others.
#[cfg(not(tokio_unstable))]
pub(crate) fn timers_of(_: &tokio::runtime::Handle) -> TokioTimers {
    TokioTimers::Usual
}

#[cfg(tokio_unstable)]
pub(crate) use detection::timers_of;

#[cfg(tokio_unstable)]
mod detection {
    use std::{future::pending, panic::resume_unwind, pin::pin, thread, time::Duration};

    use tokio::{
        runtime::{Handle, RuntimeFlavor},
        time,
    };

    use super::TokioTimers;
    use crate::engine::{clock::Moment, driver::tokio_timer::reset_and_look};

    /// Returns which timers a runtime has. One that has ended, and is not the current one, counts as one with the
    /// usual timers.
    ///
    /// # Panics
    ///
    /// Panics with Tokio's message if the runtime shuts down, has alternative timers, and the caller is none of
    /// its workers.
    pub(crate) fn timers_of(runtime: &Handle) -> TokioTimers {
        // Only a multi-thread runtime can have the others.
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return TokioTimers::Usual;
        }
        let handle = runtime.clone();
        let look = move || {
            let _entered = handle.enter();
            current_timers()
        };
        if is_worker_of(runtime) {
            return look();
        }
        let task = runtime.spawn(pending::<()>());
        // A runtime that has ended accepts no task.
        let has_ended = task.is_finished();
        task.abort();
        if has_ended && Handle::try_current().is_ok_and(|here| here.id() != runtime.id()) {
            return TokioTimers::Usual;
        }
        // On a thread of its own, because a worker of another runtime that has entered this one would register
        // the timer there, or panic.
        thread::spawn(look)
            .join()
            .unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Returns whether this thread is a worker of the runtime, and not only in its context.
    fn is_worker_of(runtime: &Handle) -> bool {
        let (metrics, this) = (runtime.metrics(), thread::current().id());
        (0..metrics.num_workers()).any(|worker| metrics.worker_thread_id(worker) == Some(this))
    }

    /// Returns which timers the current runtime has. A sleep on the alternative timer does not elapse when it is
    /// reset to the past. But a worker that takes the sleep over may fire it before it is looked at, so its
    /// `Debug` output counts as well.
    fn current_timers() -> TokioTimers {
        let mut sleep = pin!(time::sleep(Duration::from_millis(1)));
        let has_elapsed = reset_and_look(sleep.as_mut(), Moment::ZERO.instant());
        if !has_elapsed || format!("{sleep:?}").contains("Alternative") {
            TokioTimers::Alternative
        } else {
            TokioTimers::Usual
        }
    }
}
