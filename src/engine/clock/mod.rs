//! `Clock` converts between instants and wheel time. `Source` distinguishes a real clock from one that a test controls.

mod moment;

use std::{mem, time::Duration};

use tokio::{
    runtime::{Builder, EnterGuard, Handle, Id, RuntimeFlavor},
    task,
    time::Instant,
};

use crate::engine::timing_wheel::{Deadline, Tick, TickDuration};

pub(crate) use crate::engine::timing_wheel::Nanos;
pub(crate) use moment::Moment;
pub(in crate::engine) use moment::Shift;

/// The source of a runtime's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The machine's time, always, because only a current-thread runtime can pause its clock, and only if Tokio has its feature
    /// `test-util`.
    Machine,
    /// The machine's time for now, but a test may pause the clock.
    Pausable,
    /// A time that a test has paused or moved.
    Test,
}

impl Source {
    /// Returns the source of a runtime's clock. This must be called in the context of that runtime.
    pub(in crate::engine) fn of(runtime: &Handle) -> Source {
        match runtime.runtime_flavor() {
            RuntimeFlavor::MultiThread => Source::Machine,
            _ if !has_test_util() => Source::Machine,
            _ => Source::Pausable.recheck(),
        }
    }

    /// Reads the clock in the same context, and checks its source again, because a test may have paused it meanwhile.
    pub(in crate::engine) fn read(self) -> (Instant, Source) {
        if self == Source::Machine {
            return (std::time::Instant::now().into(), Source::Machine);
        }
        let mut now = None;
        let source = match is_real(|| *now.insert(Instant::now())) {
            true => Source::Pausable,
            false => Source::Test,
        };
        (now.unwrap_or_else(Instant::now), source)
    }

    /// Checks the source again, in the same context.
    pub(in crate::engine) fn recheck(self) -> Source {
        self.read().1
    }

    /// Returns whether this is the machine's time, at least for now.
    pub(in crate::engine) fn is_real(self) -> bool {
        self != Source::Test
    }
}

/// Returns whether Tokio was compiled with its feature `test-util`, which any crate of the program may have asked for.
fn has_test_util() -> bool {
    struct Lacking;
    trait Otherwise {
        #[allow(dead_code, reason = "called only where Tokio lacks the feature")]
        fn start_paused(&mut self, _: bool) -> Lacking {
            Lacking
        }
    }
    impl Otherwise for Builder {}

    fn is_builder<T>(_: T) -> bool {
        mem::size_of::<T>() > mem::size_of::<Lacking>()
    }

    // Tokio's own method, if there is one, comes before that of the trait.
    is_builder(Builder::new_current_thread().start_paused(false))
}

/// A driver's clock, which maps its instants to wheel time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(in crate::engine) shift: Shift,
    pub(in crate::engine) tick: TickDuration,
    pub(in crate::engine) source: Source,
    /// Where moments end, the clock stands still. It never reaches a tick that begins after this.
    pub(in crate::engine) end: Nanos,
}

impl Clock {
    /// Creates a clock by which `now` is `time` of the wheel.
    pub(in crate::engine) fn new(now: Instant, time: Nanos, tick: TickDuration, source: Source) -> Clock {
        let shift = Shift::between(Moment::of(now), time);
        let end = shift.to_wheel(Moment::LAST_OF_CLOCK).wheel_time();
        Clock {
            shift,
            tick,
            source,
            end: end.saturating_sub(tick.nanos()),
        }
    }

    /// Returns wheel time at an instant of this clock.
    #[inline]
    pub(in crate::engine) fn wheel_time(&self, instant: Instant) -> Nanos {
        self.shift.moment(instant).wheel_time()
    }

    /// Creates a clock by which a millisecond of Tokio's begins at `begin`, and whose wheel time at `now`, within that
    /// millisecond, is `time` or less than a millisecond before it. Wheel time thus continues without making any timer early.
    pub(in crate::engine) fn aligned(
        begin: Instant,
        now: Instant,
        time: Nanos,
        tick: TickDuration,
        source: Source,
    ) -> Clock {
        let next = begin + MILLISECOND;
        let until_next = Nanos::passed(next - now);
        Clock::new(
            next,
            time.saturating_add(until_next).whole_milliseconds(),
            tick,
            source,
        )
    }

    /// Returns the first tick at which a timer for `deadline` may expire. One for a deadline beyond the end of the clock expires there.
    #[inline]
    pub(in crate::engine) fn deadline_tick(&self, deadline: Nanos) -> Tick {
        self.tick.deadline_tick(deadline.min(self.end))
    }

    /// Returns the deadline of a timer whose delay counts from `now`, with its slack unless this is a test's clock.
    #[inline]
    pub(in crate::engine) fn deadline_after(&self, delay: Nanos, now: Nanos) -> Deadline {
        let tick = self.deadline_tick(now.saturating_add(delay));
        match self.source.is_real() {
            // The delay counts from up to a cadence after its start, which is a hundredth of the long delay that is left out here.
            true => self.tick.slack_until(tick, now.saturating_add(self.tick.long())),
            false => tick.into(),
        }
    }

    /// Returns the beginning of `tick` by this clock.
    pub(in crate::engine) fn instant_of(&self, tick: Tick) -> Instant {
        let begin = Moment::of_wheel(self.tick.start_of(tick));
        self.shift.instant(begin)
    }
}

/// The unit in which Tokio counts time.
pub(in crate::engine) const MILLISECOND: Duration = Duration::from_millis(1);

/// Two readings of the machine's clock that are less than this apart tell a paused clock that is a little ahead.
const CLOSE: Duration = Duration::from_micros(20);

/// How often to read the clocks again if they are further apart, as on a machine that is very slow.
const READINGS: usize = 8;

/// Returns whether this thread can enter a runtime and read its clock. In the destructors of thread-locals, Tokio's own may be gone.
pub(in crate::engine) fn is_within_reach() -> bool {
    !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Returns the runtime of the caller.
pub(crate) fn runtime_here() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// Enters a runtime, unless that is out of reach.
pub(crate) fn enter(runtime: &Handle) -> Option<EnterGuard<'_>> {
    is_within_reach().then(|| runtime.enter())
}

/// Reads the clock of the current runtime or, if that is out of reach, the machine's.
pub(in crate::engine) fn now() -> Instant {
    // Inside a task, Tokio's thread-locals are there. Asking costs less than a clone of the runtime's handle.
    match task::try_id().is_some() || is_within_reach() {
        true => Instant::now(),
        false => std::time::Instant::now().into(),
    }
}

/// Returns the instant that is as far from `now_there` as `instant` is from `now`, which is of another clock.
pub(in crate::engine) fn carried_over(instant: Instant, now: Instant, now_there: Instant) -> Instant {
    match instant.checked_duration_since(now) {
        Some(left) => saturating_add(now_there, left),
        None => now_there.checked_sub(now - instant).unwrap_or(now_there),
    }
}

/// Returns whether a clock is the machine's, in which case a reading of it falls between two readings of the machine's clock.
///
/// Between two readings that are far apart, because the thread was preempted, that of a paused clock may fall too, so they are repeated.
pub(crate) fn is_real(mut read: impl FnMut() -> Instant) -> bool {
    let mut is_between = false;
    for _ in 0..READINGS {
        let before = std::time::Instant::now();
        let reading = read().into_std();
        let after = std::time::Instant::now();
        is_between = (before..=after).contains(&reading);
        if !is_between || after - before < CLOSE {
            break;
        }
    }
    is_between
}

/// Returns `instant + duration` or, if that overflows the clock, an instant 30 years after `instant`, as Tokio does.
#[inline]
pub(crate) fn saturating_add(instant: Instant, duration: Duration) -> Instant {
    instant
        .checked_add(duration)
        .unwrap_or_else(|| instant + Nanos::FAR_FUTURE.to_duration())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    /// A thread that is preempted between the readings makes them lie far apart.
    #[test]
    fn a_paused_clock_a_little_ahead_is_not_taken_for_the_machines() {
        let paused = Instant::now() + MILLISECOND;
        let mut was_preempted = false;
        let read = || {
            if !mem::replace(&mut was_preempted, true) {
                thread::sleep(MILLISECOND * 2);
            }
            paused
        };
        assert!(!is_real(read));
        assert!(is_real(Instant::now));
    }

    /// In `.ci/instructions`, where Tokio lacks it, a timeout of the rows `quiet` would take the instructions of another reading.
    #[test]
    fn tests_have_the_feature_that_pauses_a_clock() {
        assert!(has_test_util());
    }

    /// A timeout may have been registered a cadence before the visit from which its delay counts.
    #[test]
    fn a_cadence_and_the_slack_are_together_a_hundredth_of_the_delay() {
        let tick = TickDuration::new(MILLISECOND).with_slack(Duration::from_millis(300));
        let clock = Clock::new(Instant::now(), Nanos::ZERO, tick, Source::Machine);
        let visit = Nanos(1_000_000_000_007);
        for delay in (1_000..60_000).step_by(7).map(|millis| Nanos(millis * 1_000_000)) {
            let deadline = visit.saturating_sub(tick.cadence()).saturating_add(delay);
            let due = tick.start_of(clock.deadline_after(delay, visit).due());
            let late = due.saturating_sub(deadline);
            assert!(
                late.0 < delay.0 / 100 + tick.nanos().0,
                "{late:?} after {delay:?}"
            );
        }
    }
}
