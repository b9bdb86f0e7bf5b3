//! Instants to wheel time and back, and whether the clock they are read from is the real one or a test's.

use std::{cmp::Ordering, time::Duration};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    time::Instant,
};

use crate::timing_wheel::{Tick, TickDuration};

pub(crate) use crate::timing_wheel::Nanos;

/// Which driver's clock an instant was read from: drivers are counted as their clocks change, from 1.
///
/// A wheel that outlives a runtime goes on under another, whose clock may be a day ahead (a paused one that jumped). An
/// instant keeps its meaning by the clock of its own epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(pub(crate) u32);

impl Epoch {
    /// That of a wheel which never had a driver. What is read before the first one comes is of epoch 1, for it counts by
    /// the clock of whichever comes next.
    pub(crate) const UNDRIVEN: Epoch = Epoch(0);

    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

/// An instant that knows by which clock it was read. Those of different clocks do not compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Deadline {
    pub(crate) instant: Instant,
    pub(crate) epoch: Epoch,
}

impl Deadline {
    /// So long after this, by the same clock.
    #[inline]
    pub(crate) fn after(self, duration: Duration) -> Deadline {
        Deadline {
            instant: saturating_add(self.instant, duration),
            epoch: self.epoch,
        }
    }

    /// How long after `earlier` this is, zero where it is before that; `None` where they are of different clocks.
    #[inline]
    pub(crate) fn since(self, earlier: Deadline) -> Option<Duration> {
        (self.epoch == earlier.epoch).then(|| self.instant.saturating_duration_since(earlier.instant))
    }

    /// Of two that were read from clocks, the one that was read later.
    #[cfg(feature = "io")]
    pub(crate) fn later(self, other: Deadline) -> Deadline {
        let age = |deadline: &Deadline| (deadline.epoch.0, deadline.instant);
        if age(&self) < age(&other) { other } else { self }
    }
}

impl PartialOrd for Deadline {
    #[inline]
    fn partial_cmp(&self, other: &Deadline) -> Option<Ordering> {
        (self.epoch == other.epoch).then(|| self.instant.cmp(&other.instant))
    }
}

/// What a runtime's clock reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The machine's time, for good: only a current-thread runtime can pause its clock.
    Machine,
    /// The machine's time, until a test pauses the clock.
    Pausable,
    /// A time that a test has paused or moved.
    Test,
}

impl Source {
    /// That of the runtime whose context this is called in.
    pub(crate) fn of(runtime: &Handle) -> Source {
        match runtime.runtime_flavor() {
            RuntimeFlavor::MultiThread => Source::Machine,
            _ => Source::Pausable.recheck(),
        }
    }

    /// What has become of it, in the same context: a test may have paused the clock.
    pub(crate) fn recheck(self) -> Source {
        match self {
            Source::Machine => Source::Machine,
            _ if is_real(Instant::now) => Source::Pausable,
            _ => Source::Test,
        }
    }

    /// Whether it is the machine's time, now at least.
    pub(crate) fn is_real(self) -> bool {
        self != Source::Test
    }
}

/// How instants of a driver's clock map to wheel time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    anchor: Instant,
    /// What wheel time it was at the anchor.
    elapsed: Nanos,
    tick: TickDuration,
    pub(crate) source: Source,
}

impl Clock {
    pub(crate) fn new(anchor: Instant, elapsed: Nanos, tick: TickDuration, source: Source) -> Clock {
        Clock {
            anchor,
            elapsed,
            tick,
            source,
        }
    }

    pub(crate) fn nanos_of(&self, instant: Instant) -> Nanos {
        let after = Nanos::passed(instant.saturating_duration_since(self.anchor));
        if after > Nanos::ZERO {
            return self.elapsed.saturating_add(after);
        }
        let before = Nanos::passed(self.anchor.saturating_duration_since(instant));
        self.elapsed.saturating_sub(before)
    }

    /// The tick in progress at `now`.
    pub(crate) fn tick_at(&self, now: Nanos) -> Tick {
        self.tick.tick_at(now)
    }

    /// The first tick at which a timer for `deadline` may expire.
    pub(crate) fn deadline_tick(&self, deadline: Nanos) -> Tick {
        self.tick.deadline_tick(deadline)
    }

    /// When to come for `tick`, if Tokio's timer is asked. On a test's clock, which it moves by whole milliseconds, it would be
    /// one after the tick; the driver comes up to one before, and looks again.
    pub(crate) fn approach(&self, tick: Tick) -> Instant {
        let begin = self.instant_of(tick);
        match self.source.is_real() {
            true => begin,
            false => begin.checked_sub(ROUNDING).unwrap_or(begin),
        }
    }

    /// When `tick` begins, by this clock.
    pub(crate) fn instant_of(&self, tick: Tick) -> Instant {
        let start = self.tick.start_of(tick);
        let after = start.saturating_sub(self.elapsed).to_duration();
        let before = self.elapsed.saturating_sub(start).to_duration();
        saturating_add(self.anchor.checked_sub(before).unwrap_or(self.anchor), after)
    }
}

/// What Tokio's timer rounds a deadline up by, at most: it counts in milliseconds of its own.
pub(crate) const ROUNDING: Duration = Duration::from_nanos(999_999);

/// Whether a clock is the machine's: its reading falls between two of the machine's.
pub(crate) fn is_real(read: impl FnOnce() -> Instant) -> bool {
    let before = std::time::Instant::now();
    let reading = read().into_std();
    (before..=std::time::Instant::now()).contains(&reading)
}

/// `instant + duration`, or 30 years from it where that overflows the clock, as Tokio does.
#[inline]
pub(crate) fn saturating_add(instant: Instant, duration: Duration) -> Instant {
    instant
        .checked_add(duration)
        .unwrap_or_else(|| instant + Nanos::FAR_FUTURE.to_duration())
}
