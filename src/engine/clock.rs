//! The clock of an engine: its source, the ticks into which it is divided, and how far deadlines are rounded up to them. All rounding
//! happens here.

use std::{num::NonZeroU64, time::Duration};

use tokio::runtime::{Builder, Handle, RuntimeFlavor};

use super::{
    moment::{Moment, Nanos},
    timing_wheel::Tick,
    waker_id::WakerId,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The machine's clock.
    Machine,
    /// The clock of a runtime that a test may pause and move.
    Test,
}

/// Returns whether a test may pause the clock of the current runtime. That takes a current-thread runtime, and Tokio's feature `test-util`.
pub(crate) fn may_be_paused() -> bool {
    has_test_util() && Handle::try_current().is_ok_and(|runtime| may_be_paused_in(&runtime))
}

/// Returns whether a test may pause the clock of a runtime.
pub(crate) fn may_be_paused_in(runtime: &Handle) -> bool {
    has_test_util() && runtime.runtime_flavor() == RuntimeFlavor::CurrentThread
}

/// Reads the clock of the caller's runtime or, once the thread's locals have been destroyed, the machine's, because Tokio then cannot tell whether a test
/// has paused its clock.
pub(crate) fn now() -> Moment {
    let is_lost = || Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
    if has_test_util() && is_lost() {
        Moment::of_machine()
    } else {
        Moment::now()
    }
}

/// Returns whether Tokio was compiled with its feature `test-util`, which any crate of the program may have asked for. Cargo tells a crate
/// nothing of the features of its dependencies, but without this one a method is lacking.
fn has_test_util() -> bool {
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

    // Tokio's own method, if there is one, comes before that of the trait.
    is_there(|builder, paused| builder.start_paused(paused))
}

/// How late a timer may be, beyond its tick, so that it expires in company: a part of its delay, up to a bound. Deadlines are rounded up to multiples
/// of powers of two, so that timers of different delays meet too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slack {
    /// A timer may be late by its delay divided by this.
    divisor: u64,
    most: Nanos,
    /// Whether it holds on a clock that a test controls, because somebody asked for it.
    holds_in_tests: bool,
}

impl Slack {
    /// A thousandth of the delay, up to 100 ms, as `epoll` itself allows.
    pub(crate) const DEFAULT: Slack = Slack {
        divisor: 1_000,
        most: Nanos(100_000_000),
        holds_in_tests: false,
    };

    /// A hundredth of the delay, up to `most`.
    pub(crate) fn up_to(most: Duration) -> Slack {
        Slack {
            divisor: 100,
            most: Nanos::of(most),
            holds_in_tests: true,
        }
    }

    pub(crate) fn most(self) -> Nanos {
        self.most
    }
}

/// A clock whose ticks begin with Tokio's milliseconds. A reading is rounded down, and a deadline up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    source: Source,
    /// When tick 0 begins.
    origin: Moment,
    tick: NonZeroU64,
    /// The last tick that a clock reaches, in some centuries.
    last: Tick,
    /// Delays from here on have a resolution of two ticks or more.
    coarse_from: u64,
    /// Delays from here on have the slack's bound.
    coarsest_from: u64,
}

impl Clock {
    /// Creates the clock of an engine in the current runtime.
    pub(crate) fn new(origin: Moment, tick: Duration, slack: Slack) -> Clock {
        let source = if may_be_paused() {
            Source::Test
        } else {
            Source::Machine
        };
        Clock::with(source, origin, tick, slack)
    }

    /// Creates a clock that no test moves.
    pub(crate) fn of_machine(origin: Moment, tick: Duration, slack: Slack) -> Clock {
        Clock::with(Source::Machine, origin, tick, slack)
    }

    fn with(source: Source, origin: Moment, tick: Duration, slack: Slack) -> Clock {
        let tick = NonZeroU64::new(Nanos::of(tick).0).unwrap_or(NonZeroU64::MIN);
        let two_ticks = tick.get().saturating_mul(2);
        let is_coarse = slack.most.0 >= two_ticks && (source == Source::Machine || slack.holds_in_tests);
        Clock {
            source,
            origin,
            tick,
            last: Tick(Moment::LAST.since(origin).0 / tick),
            coarse_from: two_ticks.saturating_mul(if is_coarse { slack.divisor } else { u64::MAX }),
            coarsest_from: slack.most.0.saturating_mul(slack.divisor),
        }
    }

    /// Returns whether a test may move this clock, so that a deadline may have passed before the driver knows.
    pub(crate) fn may_be_paused(&self) -> bool {
        self.source == Source::Test
    }

    /// Returns what a timer may remember of its task: nothing on a clock that a test may move, where each poll has to look whether the deadline has
    /// passed.
    pub(crate) fn known(&self, task: WakerId) -> WakerId {
        if self.may_be_paused() {
            WakerId::UNKNOWN
        } else {
            task
        }
    }

    /// Returns whether a test has paused or moved this clock, because then it is not the machine's. This must be called in its runtime.
    pub(crate) fn is_moved(&self) -> bool {
        if !self.may_be_paused() {
            return false;
        }
        let before = Moment::of_machine();
        let here = self.now();
        here < before || here > Moment::of_machine()
    }

    /// Reads the clock. If a test may pause it, this must be called in its runtime.
    pub(crate) fn now(&self) -> Moment {
        match self.source {
            Source::Machine => Moment::of_machine(),
            Source::Test => Moment::now(),
        }
    }

    /// Returns a moment that has passed.
    pub(crate) fn past(&self) -> Moment {
        self.origin
    }

    pub(crate) fn tick(&self) -> Nanos {
        Nanos(self.tick.get())
    }

    /// Returns the number of ticks, a power of two, to whose multiples the deadline of a timer with this delay is rounded up: the greatest
    /// within its slack. This takes no division.
    pub(crate) fn resolution(&self, delay: Nanos) -> u64 {
        if delay.0 < self.coarse_from {
            return 1;
        }
        let delay = delay.0.min(self.coarsest_from);
        // The binary logarithm of `delay / self.coarse_from`, rounded down, or one more than that.
        let power = delay.ilog2() - self.coarse_from.ilog2();
        if self.coarse_from << power > delay {
            1 << power
        } else {
            2 << power
        }
    }

    /// Returns the tick in progress, rounded down so that a turn is never ahead of the clock.
    pub(crate) fn tick_at(&self, now: Moment) -> Tick {
        Tick(now.since(self.origin).0 / self.tick)
    }

    /// Returns the first tick that begins at or after `deadline`, rounded up so that no timer is early, and to a multiple of `resolution`.
    pub(crate) fn due(&self, deadline: Moment, resolution: u64) -> Tick {
        let tick = deadline.since(self.origin).0.div_ceil(self.tick.get());
        Tick((tick + (resolution - 1)) & !(resolution - 1)).min(self.last)
    }

    pub(crate) fn start_of(&self, tick: Tick) -> Moment {
        self.origin.after(Nanos(tick.0.saturating_mul(self.tick.get())))
    }

    /// Returns whether `until`, the start of a tick, is no later than that of the first tick that begins at or after `deadline`.
    pub(crate) fn is_due_by(&self, until: Moment, deadline: Moment) -> bool {
        until.0 < deadline.0 + self.tick.get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slack() -> impl Strategy<Value = Slack> {
        prop_oneof![
            Just(Slack::DEFAULT),
            Just(Slack::up_to(Duration::ZERO)),
            (0..3_600_000_000_001_u64).prop_map(|nanos| Slack::up_to(Duration::from_nanos(nanos))),
        ]
    }

    proptest! {
        #[test]
        fn no_timer_is_early_nor_later_than_its_tick_and_its_slack(
            tick in prop_oneof![Just(1_000_000), 1..3_600_000_000_001_u64],
            slack in slack(),
            origin in 0..1_u64 << 62,
            now in 0..1_u64 << 60,
            delay in prop_oneof![0..10_000_000_000_u64, 0..1_u64 << 60],
        ) {
            let clock = Clock::new(Moment(origin), Duration::from_nanos(tick), slack);
            let when = Moment(origin + now).after(Nanos(delay));
            let resolution = clock.resolution(Nanos(delay));
            prop_assert!(resolution.is_power_of_two());
            let until = clock.start_of(clock.due(when, resolution));
            prop_assert!(until >= when, "early");
            let late = until.since(when).0;
            let most = (delay / slack.divisor).min(slack.most.0);
            prop_assert!(late < tick + most, "{late} ns late of {delay}");
            prop_assert!(resolution * 2 * tick > most || resolution == 1, "it could have had more company");
        }

        #[test]
        fn is_due_by_agrees_with_due(tick in 1..3_600_000_000_001_u64, when in 0..1_u64 << 62, off in 0..3_u64) {
            let clock = Clock::new(Moment(7), Duration::from_nanos(tick), Slack::DEFAULT);
            let (when, due) = (Moment(when), clock.due(Moment(when), 1));
            for other in [Tick(due.0.saturating_sub(off)), Tick(due.0 + off)] {
                prop_assert_eq!(clock.is_due_by(clock.start_of(other), when), other <= due || when < clock.origin && other.0 == 0);
            }
        }
    }

    #[test]
    fn short_timers_and_wheels_without_slack_are_exact() {
        let clock = |slack| Clock::new(Moment::ZERO, Duration::from_millis(1), slack);
        let second = 1_000_000_000;
        assert_eq!(
            [1, 2, 4, 100, 10_000].map(|s| clock(Slack::DEFAULT).resolution(Nanos(s * second))),
            [1, 2, 4, 64, 64]
        );
        let up_to = |millis| clock(Slack::up_to(Duration::from_millis(millis)));
        assert_eq!(
            [0, 1, 10, 10_000].map(|s| up_to(0).resolution(Nanos(s * second))),
            [1; 4]
        );
        assert_eq!(
            [0, 1, 10, 10_000].map(|s| up_to(300).resolution(Nanos(s * second))),
            [1, 8, 64, 256]
        );
    }
}
