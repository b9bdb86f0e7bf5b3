//! Times of a connection, in eight bytes each.

use std::time::Duration;

/// A time, in nanoseconds since the connection began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

impl Moment {
    pub(crate) const START: Moment = Moment(0);
    /// Later than every time that a connection sees, which ends after 584 years.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    pub(crate) fn after(self, span: Span) -> Moment {
        Moment(self.0.saturating_add(span.0))
    }

    /// Converts the time, at most 30 years, which is as far as a wheel's timers go.
    pub(crate) fn since_start(self) -> Duration {
        const FAR_FUTURE: Duration = Duration::from_secs(86_400 * 365 * 30);
        Duration::from_nanos(self.0).min(FAR_FUTURE)
    }

    /// Returns the time since `earlier`, or zero if that is later.
    pub(crate) fn since(self, earlier: Moment) -> Span {
        Span(self.0.saturating_sub(earlier.0))
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
