//! Instants to wheel time and back, and whether the clock they are read from is the real one or a test's.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::OnceLock,
    time::Duration,
};

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
pub(crate) struct Epoch(pub(crate) u16);

impl Epoch {
    /// That of a wheel which never had a driver. What is read before the first one comes is of epoch 1, for it counts by
    /// the clock of whichever comes next.
    pub(crate) const NEVER_DRIVEN: Epoch = Epoch(0);

    /// The last of 65,535 is that of all who come after: instants of two of those are taken to be of one clock.
    pub(crate) fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// An instant in eight bytes: nanoseconds of the machine's monotonic clock, from 146 years before its zero to 438 after. One beyond
/// is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

/// An instant, and the moment that it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base(Instant);

/// What the `Hash` of an instant tells: its seconds and nanoseconds, on every platform that keeps those.
///
/// The standard library gives them in no other way but by a subtraction, a call of sixty instructions, three times what a reset
/// takes. Here the compiler sees two fields. Where they are others, it sees that too, and leaves the subtraction.
#[derive(Default)]
struct Fields {
    seconds: Option<i64>,
    nanos: Option<u32>,
    others: bool,
}

impl Hasher for Fields {
    #[inline]
    fn write_i64(&mut self, seconds: i64) {
        self.others |= self.seconds.replace(seconds).is_some();
    }

    #[inline]
    fn write_u64(&mut self, seconds: u64) {
        self.write_i64(seconds as i64);
    }

    #[inline]
    fn write_u32(&mut self, nanos: u32) {
        self.others |= self.nanos.replace(nanos).is_some();
    }

    #[inline]
    fn write(&mut self, _: &[u8]) {
        self.others = true;
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Moment {
    const ZERO: u64 = 1 << 62;
    /// Seconds that certainly fit.
    const SECONDS: u64 = 1 << 33;

    #[inline]
    pub(crate) fn of(instant: Instant) -> Moment {
        let mut fields = Fields::default();
        instant.hash(&mut fields);
        match fields {
            Fields {
                seconds: Some(seconds),
                nanos: Some(nanos),
                others: false,
            } if (seconds as u64) < Moment::SECONDS => {
                Moment(Moment::ZERO + seconds as u64 * 1_000_000_000 + u64::from(nanos))
            }
            Fields {
                seconds: Some(seconds),
                nanos: Some(nanos),
                others: false,
            } => Moment::cut(seconds, nanos),
            _ => Moment::counted(instant),
        }
    }

    #[cold]
    fn cut(seconds: i64, nanos: u32) -> Moment {
        let nanos = i128::from(seconds) * 1_000_000_000 + i128::from(nanos) + i128::from(Moment::ZERO);
        Moment(nanos.clamp(0, u64::MAX.into()) as u64)
    }

    /// The same from an instant that does not tell its fields.
    #[cold]
    fn counted(instant: Instant) -> Moment {
        static FIRST: OnceLock<Instant> = OnceLock::new();
        let first = *FIRST.get_or_init(Instant::now);
        let after = Nanos::passed(instant.saturating_duration_since(first)).0;
        let before = Nanos::passed(first.saturating_duration_since(instant)).0;
        Moment(Moment::ZERO.saturating_add(after).saturating_sub(before))
    }

    pub(crate) fn instant(self, base: Base) -> Instant {
        let zero = Moment::of(base.0).0;
        match self.0.checked_sub(zero) {
            Some(after) => saturating_add(base.0, Duration::from_nanos(after)),
            None => base
                .0
                .checked_sub(Duration::from_nanos(zero - self.0))
                .unwrap_or(base.0),
        }
    }

    /// Zero when `later` is earlier.
    #[inline]
    pub(crate) fn nanos_until(self, later: Moment) -> Nanos {
        Nanos(later.0).saturating_sub(Nanos(self.0))
    }

    #[inline]
    pub(crate) fn after(self, span: Nanos) -> Moment {
        Moment(self.0.saturating_add(span.0))
    }
}

/// An instant that knows by which clock it was read. Those of different clocks do not compare.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EpochInstant {
    pub(crate) instant: Instant,
    pub(crate) epoch: Epoch,
}

impl EpochInstant {
    /// So long after this, by the same clock.
    #[inline]
    pub(crate) fn after(self, duration: Duration) -> EpochInstant {
        EpochInstant {
            instant: saturating_add(self.instant, duration),
            epoch: self.epoch,
        }
    }

    /// How long after `earlier` this is, zero where it is before that; `None` where they are of different clocks.
    #[inline]
    pub(crate) fn since(self, earlier: EpochInstant) -> Option<Duration> {
        (self.epoch == earlier.epoch).then(|| self.instant.saturating_duration_since(earlier.instant))
    }

    /// Of two that were read from clocks, the one that was read later.
    #[cfg(feature = "io")]
    pub(crate) fn later(self, other: EpochInstant) -> EpochInstant {
        let age = |deadline: &EpochInstant| (deadline.epoch.0, deadline.instant);
        if age(&self) < age(&other) { other } else { self }
    }
}

impl PartialOrd for EpochInstant {
    #[inline]
    fn partial_cmp(&self, other: &EpochInstant) -> Option<Ordering> {
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

/// How moments of a driver's clock map to wheel time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    base: Base,
    /// When tick zero began, or would have.
    origin: Moment,
    tick: TickDuration,
    pub(crate) source: Source,
}

impl Clock {
    /// By this clock it is `elapsed` of wheel time at `anchor`.
    pub(crate) fn new(anchor: Instant, elapsed: Nanos, tick: TickDuration, source: Source) -> Clock {
        Clock {
            base: Base(anchor),
            origin: Moment(Moment::of(anchor).0.saturating_sub(elapsed.0)),
            tick,
            source,
        }
    }

    pub(crate) fn origin(&self) -> Moment {
        self.origin
    }

    pub(crate) fn base(&self) -> Base {
        self.base
    }

    pub(crate) fn tick(&self) -> TickDuration {
        self.tick
    }

    #[inline]
    pub(crate) fn nanos_of(&self, instant: Instant) -> Nanos {
        self.nanos_at(Moment::of(instant))
    }

    #[inline]
    pub(crate) fn nanos_at(&self, moment: Moment) -> Nanos {
        self.origin.nanos_until(moment)
    }

    /// The tick in progress at `now`.
    #[inline]
    pub(crate) fn tick_at(&self, now: Nanos) -> Tick {
        self.tick.tick_at(now)
    }

    /// The first tick at which a timer for `deadline` may expire.
    #[inline]
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
    pub(crate) fn moment_of(&self, tick: Tick) -> Moment {
        self.origin.after(self.tick.start_of(tick))
    }

    /// The same as an instant.
    pub(crate) fn instant_of(&self, tick: Tick) -> Instant {
        self.moment_of(tick).instant(self.base)
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

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_instant_comes_back_as_it_was(nanos in any::<i64>()) {
            let base = Instant::now();
            let by = Duration::from_nanos(nanos.unsigned_abs() / 3);
            let instant = if nanos < 0 { base.checked_sub(by) } else { base.checked_add(by) };
            let instant = instant.unwrap_or(base);
            prop_assert_eq!(Moment::of(instant).instant(Base(base)), instant);
        }

        #[test]
        fn moments_are_as_far_apart_as_their_instants(one in 0..u64::MAX / 4, other in 0..u64::MAX / 4) {
            let base = Instant::now();
            let (one, other) = (one.min(other), one.max(other));
            let at = |nanos| base + Duration::from_nanos(nanos);
            prop_assert_eq!(
                Moment::of(at(one)).nanos_until(Moment::of(at(other))).to_duration(),
                at(other) - at(one)
            );
            prop_assert_eq!(
                Moment::counted(at(one)).nanos_until(Moment::counted(at(other))).to_duration(),
                at(other) - at(one)
            );
        }
    }

    #[test]
    fn an_instant_beyond_all_moments_is_cut() {
        let base = Instant::now();
        let Some(far) = base.checked_add(Duration::from_secs(1 << 40)) else {
            return;
        };
        assert_eq!(Moment::of(far), Moment(u64::MAX));
        assert!(Moment::of(far).instant(Base(base)) > base + Duration::from_secs(1 << 33));
        assert_eq!(Moment::cut(i64::MIN, 0), Moment(0));
    }
}
