//! The clock of a test: which runtimes have one, and all that an engine does differently there.
//!
//! A test may pause the clock of a current-thread runtime, and move it. A paused clock stands still while any
//! task is ready, and then jumps to the next of Tokio's timers. All timers have to elapse at the very instants
//! at which Tokio's do, so, on such a clock:
//!
//! 1. *Tokio decides whether a deadline has passed* ([`Source::tokio_decides`]). The clock may have been moved
//!    while no turn was made: the task that calls Tokio's `advance` is polled before the engine's. So each poll
//!    takes the lock and asks, which is why a timer remembers no task there ([`Source::remembered`]), and no
//!    spare is kept.
//! 2. *The engine's task makes the turns*, once a test has paused or moved the clock ([`is_moved`]).
//!    Other tasks that are due at the same instant go first, such as one that sends the value for which a
//!    timeout waits, and so does what waits on Tokio's own timers
//!    ([`Alarm::expires_by`](super::driver::alarm::Alarm::expires_by)).
//! 3. *While all tasks wait, Tokio's timer is set to no moment but the first deadline*, because the clock jumps
//!    to it ([`Source::jumps`]). The timing wheel asks for no visit to spread a bucket ([`Source::wheel`]), a cancelled
//!    entry puts the next visit off, and the driver does not wait for an engine to stay unused.
//! 4. *Ticks begin exactly with Tokio's milliseconds* ([`Source::precision`]), and no timer has slack unless the
//!    builder was given some ([`Source::slack`]).
//! 5. *The driver does not wait on the kernel's timer*, which a test cannot move ([`Source::is_kernels`]).

use std::{task::Waker, time::Duration};

use tokio::runtime::{Handle, RuntimeFlavor};

use super::{
    clock::{Moment, Nanos, Slack, has_test_util},
    timing_wheel::TimingWheel,
    waker_id::WakerId,
};

/// The clock by which an engine goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The machine's clock.
    Machine,
    /// The clock of a runtime that a test may pause and move. It is asked in its runtime only.
    Test,
}

impl Source {
    pub(crate) fn of(runtime: &Handle) -> Source {
        if may_be_paused_in(runtime) {
            Source::Test
        } else {
            Source::Machine
        }
    }

    /// Returns whether the clock is that of one runtime, and has to be asked there.
    pub(crate) fn is_of_runtime(self) -> bool {
        self == Source::Test
    }

    /// Returns whether Tokio decides that a deadline has passed, so that each poll has to ask.
    #[inline]
    pub(crate) fn tokio_decides(self) -> bool {
        self == Source::Test
    }

    /// Returns whether the clock may jump to the moment to which one of Tokio's timers is set.
    #[inline]
    pub(crate) fn jumps(self) -> bool {
        self == Source::Test
    }

    /// Returns whether the kernel's timer goes by this clock.
    pub(crate) fn is_kernels(self) -> bool {
        self == Source::Machine
    }

    /// Returns the slack of timers, given that of the builder.
    pub(crate) fn slack(self, given: Option<Duration>) -> Slack {
        match (given, self) {
            (Some(most), _) => Slack::up_to(most),
            (None, Source::Machine) => Slack::DEFAULT,
            (None, Source::Test) => Slack::up_to(Duration::ZERO),
        }
    }

    /// Returns how precisely ticks begin with one of Tokio's milliseconds. On the machine's clock, at most one
    /// timer in 64 is a millisecond late because of it.
    pub(crate) fn precision(self) -> Nanos {
        match self {
            Source::Machine => Nanos(Nanos::MILLISECOND.0 / 64),
            Source::Test => Nanos(1),
        }
    }

    /// Returns the task that a timer remembers, for polls that take no lock.
    #[inline]
    pub(crate) fn remembered(self, task: WakerId) -> WakerId {
        match self {
            Source::Machine => task,
            Source::Test => WakerId::UNKNOWN,
        }
    }

    /// Creates the timing wheel of a shard.
    pub(crate) fn wheel(self, ticks_per_wheel: usize, levels: usize) -> TimingWheel<Waker> {
        let wheel = TimingWheel::new(ticks_per_wheel, levels);
        match self {
            Source::Machine => wheel,
            Source::Test => wheel.for_jumps(),
        }
    }
}

/// Returns whether a test has paused or moved the clock of the current runtime, so that it differs from the
/// machine's.
pub(crate) fn is_moved() -> bool {
    // Between two readings of the machine's clock, one that has not been moved shows a time between theirs.
    let before = Moment::machine_now();
    let here = Moment::now();
    here < before || here > Moment::machine_now()
}

/// Calls `act` in a runtime, unless this thread's locals have been destroyed.
pub(crate) fn in_runtime<R>(runtime: &Handle, act: impl FnOnce() -> R) -> Option<R> {
    let _entered = match Handle::try_current() {
        // Mostly the caller is there, and entering again would take a reference count.
        Ok(here) if here.id() == runtime.id() => None,
        // Tokio has no context left that could be entered, and `enter` would panic.
        Err(error) if !error.is_missing_context() => return None,
        _ => Some(runtime.enter()),
    };
    Some(act())
}

/// Returns whether a test may pause the clock of the current runtime. That takes a current-thread runtime,
/// and Tokio's feature `test-util`.
pub(crate) fn may_be_paused() -> bool {
    has_test_util() && Handle::try_current().is_ok_and(|runtime| may_be_paused_in(&runtime))
}

/// Returns whether a test may pause the clock of a runtime.
pub(crate) fn may_be_paused_in(runtime: &Handle) -> bool {
    has_test_util() && runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}
