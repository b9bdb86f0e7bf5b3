//! The clock of a test: which runtimes have one, and all that an engine does differently there.
//!
//! A test may pause the clock of a current-thread runtime, and move it. A paused clock stands still while any
//! task is ready, and then jumps to the next of Tokio's timers. All timers have to elapse at the very instants
//! at which Tokio's do, so, on such a clock:
//!
//! 1. *Tokio decides whether a deadline has passed.* The clock may have been moved while no turn was made: the
//!    task that calls Tokio's `advance` is polled before the engine's. So each poll takes the lock and asks
//!    ([`Alarm::has_passed`](super::driver::alarm::Alarm::has_passed)), which is why a timer remembers no task
//!    there, and no spare is kept.
//! 2. *The engine's task makes the turns*, once a test has paused or moved the clock
//!    ([`Alarm::is_turned_by_task`](super::driver::alarm::Alarm::is_turned_by_task)). Other tasks that are due
//!    at the same instant go first, such as one that sends the value for which a timeout waits.
//! 3. *Tokio's timer is never set but to the first deadline*, because the clock would jump to it. The timing
//!    wheel asks for no visit to spread a bucket ([`for_jumps`](super::timing_wheel::TimingWheel::for_jumps)),
//!    a cancelled entry puts the next visit off, and Tokio's timer is taken out when there is no entry left.
//! 4. *No timer has slack*, unless the builder was given some.
//! 5. *The driver does not wait on the kernel's timer*, which a test cannot move.

use tokio::runtime::{Builder, Handle, RuntimeFlavor};

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

/// Returns whether Tokio was compiled with its feature `test-util`, which any crate of the program may have
/// enabled. Cargo does not tell a crate which features its dependencies have, but without this one, Tokio
/// lacks a method.
pub(super) fn has_test_util() -> bool {
    struct Lacking;
    trait Otherwise {
        #[allow(dead_code, reason = "called only where Tokio lacks the feature")]
        fn start_paused(&mut self, _: bool) -> Lacking {
            Lacking
        }
    }
    impl Otherwise for Builder {}

    fn is_there<T>(_: fn(&'static mut Builder, bool) -> T) -> bool {
        size_of::<T>() > size_of::<Lacking>()
    }

    // Tokio's own method, if there is one, takes precedence over the trait's.
    is_there(|builder, paused| builder.start_paused(paused))
}
