//! Times of a connection, in eight bytes each.

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// A time, in nanoseconds since the connection began, and one more, so that an `Option` takes no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(NonZeroU64);

impl Moment {
    pub(crate) const START: Moment = Moment(NonZeroU64::MIN);
    /// Later than every time that a connection sees, which ends after 584 years.
    pub(crate) const NEVER: Moment = Moment(NonZeroU64::MAX);

    pub(crate) fn after(self, span: Span) -> Moment {
        Moment(self.0.saturating_add(span.0))
    }

    /// Converts the time, at most 30 years, which is as far as a wheel's timers go.
    pub(crate) fn since_start(self) -> Duration {
        const FAR_FUTURE: Duration = Duration::from_secs(86_400 * 365 * 30);
        Duration::from_nanos(self.since(Moment::START).0).min(FAR_FUTURE)
    }

    /// Returns the time since `earlier`, or zero if that is later.
    pub(crate) fn since(self, earlier: Moment) -> Span {
        Span(self.0.get().saturating_sub(earlier.0.get()))
    }
}

/// The latest of the moments that any task has stored.
#[derive(Debug)]
pub(crate) struct LatestMoment(AtomicU64);

impl LatestMoment {
    pub(crate) fn new(moment: Moment) -> LatestMoment {
        LatestMoment(AtomicU64::new(moment.0.get()))
    }

    pub(crate) fn store(&self, moment: Moment) {
        self.0.fetch_max(moment.0.get(), Ordering::Relaxed);
    }

    pub(crate) fn load(&self) -> Moment {
        // It is never zero.
        NonZeroU64::new(self.0.load(Ordering::Relaxed)).map_or(Moment::START, Moment)
    }
}

/// A span of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span(u64);

impl Span {
    pub(crate) const ZERO: Span = Span(0);
    /// Ends [never](Moment::NEVER), whenever it begins: that of a limit which is not set.
    pub(crate) const UNLIMITED: Span = Span(u64::MAX);

    pub(crate) const fn from_millis(millis: u64) -> Span {
        Span(millis * 1_000_000)
    }

    pub(crate) fn of(duration: Duration) -> Span {
        let nanos = u64::from(duration.subsec_nanos());
        Span(
            duration
                .as_secs()
                .saturating_mul(1_000_000_000)
                .saturating_add(nanos),
        )
    }

    pub(crate) fn plus(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }

    pub(crate) fn minus(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }

    /// Returns `numerator` parts of `1 << 16`.
    pub(crate) fn fraction(self, numerator: u16) -> Span {
        Span(((u128::from(self.0) * u128::from(numerator)) >> 16) as u64)
    }
}
