//! `Clock` converts between instants and wheel time. `Source` says whether a runtime's clock is real or a test's.

mod moment;

use std::time::Duration;

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

use crate::timing_wheel::{Tick, TickDuration};

pub(crate) use crate::timing_wheel::Nanos;
pub(crate) use moment::{Base, Moment, Shift};

/// What a runtime's clock reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The machine's time, always: only a current-thread runtime can pause its clock.
    Machine,
    /// The machine's time now. A test may pause the clock.
    Pausable,
    /// A time that a test has paused or moved.
    Test,
}

impl Source {
    /// The source of a runtime. This must be called in its context.
    pub(crate) fn of(runtime: &Handle) -> Source {
        match runtime.runtime_flavor() {
            RuntimeFlavor::MultiThread => Source::Machine,
            _ => Source::Pausable.recheck(),
        }
    }

    /// Looks again, in the same context: a test may have paused the clock meanwhile.
    pub(crate) fn recheck(self) -> Source {
        match self {
            Source::Machine => Source::Machine,
            _ if is_real(Instant::now) => Source::Pausable,
            _ => Source::Test,
        }
    }

    /// Whether this is the machine's time, at least for now.
    pub(crate) fn is_real(self) -> bool {
        self != Source::Test
    }
}

/// A driver's clock: how its instants map to wheel time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: Base,
    shift: Shift,
    tick: TickDuration,
    pub(crate) source: Source,
}

impl Clock {
    /// A clock by which `now` is `time` of the wheel.
    pub(crate) fn new(now: Instant, time: Nanos, tick: TickDuration, source: Source) -> Clock {
        Clock {
            base: Base(now),
            shift: Shift::between(Moment::of(now), time),
            tick,
            source,
        }
    }

    pub(crate) fn shift(&self) -> Shift {
        self.shift
    }

    pub(crate) fn base(&self) -> Base {
        self.base
    }

    pub(crate) fn tick(&self) -> TickDuration {
        self.tick
    }

    /// Wheel time at an instant of this clock.
    #[inline]
    pub(crate) fn wheel_time(&self, instant: Instant) -> Nanos {
        self.shift.to_wheel(Moment::of(instant)).wheel_time()
    }

    /// For which instant to set Tokio's timer, if the driver is to come at `tick`. Auto-advance moves a test's clock by whole
    /// milliseconds, so the driver would come up to one millisecond late. There it comes up to one earlier, and looks again.
    pub(crate) fn approach(&self, tick: Tick) -> Instant {
        let begin = self.instant_of(tick);
        match self.source.is_real() {
            true => begin,
            false => begin.checked_sub(ROUNDING).unwrap_or(begin),
        }
    }

    /// When `tick` begins, by this clock.
    pub(crate) fn instant_of(&self, tick: Tick) -> Instant {
        let begin = Moment::of_wheel(self.tick.start_of(tick));
        self.shift.instant(begin, self.base)
    }
}

/// By how much Tokio's timer rounds a deadline up, at most. It counts in milliseconds of its own.
pub(crate) const ROUNDING: Duration = Duration::from_nanos(999_999);

/// Whether a clock is the machine's. Then a reading of it falls between two readings of the machine's clock.
pub(crate) fn is_real(read: impl FnOnce() -> Instant) -> bool {
    let before = std::time::Instant::now();
    let reading = read().into_std();
    (before..=std::time::Instant::now()).contains(&reading)
}

/// `instant + duration`. If that overflows the clock, it is 30 years after `instant`, as in Tokio.
#[inline]
pub(crate) fn saturating_add(instant: Instant, duration: Duration) -> Instant {
    instant
        .checked_add(duration)
        .unwrap_or_else(|| instant + Nanos::FAR_FUTURE.to_duration())
}
