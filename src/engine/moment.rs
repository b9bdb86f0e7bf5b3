//! `Moment` and `Nanos`: an instant and a span in eight bytes, on one axis for the whole process.

use std::{
    hash::{Hash, Hasher},
    sync::LazyLock,
    time::Duration,
};

use tokio::time::Instant;

/// A span of time in nanoseconds, which last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    pub(crate) const MILLISECOND: Nanos = Nanos(1_000_000);
    /// About 30 years, which Tokio takes for a duration that overflows the clock.
    pub(crate) const FAR_FUTURE: Nanos = Nanos(86_400 * 365 * 30 * 1_000_000_000);

    /// Converts a duration, cut to [`Nanos::FAR_FUTURE`], in 64 bits, whereas `Duration::as_nanos` computes in 128.
    pub(crate) fn of(duration: Duration) -> Nanos {
        if duration.as_secs() >= Nanos::FAR_FUTURE.0 / 1_000_000_000 {
            return Nanos::FAR_FUTURE;
        }
        Nanos(duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos()))
    }

    pub(crate) fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Rounds down.
    pub(crate) fn to_multiple_of(self, span: Nanos) -> Nanos {
        Nanos(self.0 - self.0 % span.0.max(1))
    }

    pub(crate) fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

/// Returns `instant + duration` or, if that overflows the clock, an instant in the far future, as Tokio does.
pub(crate) fn after(instant: Instant, duration: Duration) -> Instant {
    let far = || instant + Nanos::FAR_FUTURE.to_duration();
    instant.checked_add(duration).unwrap_or_else(far)
}

/// An instant. A test's clock goes its own way on the same axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

/// An instant of this process, from which moments are converted back into instants.
static FIRST: LazyLock<(Instant, Moment)> = LazyLock::new(|| {
    let now = Instant::from_std(std::time::Instant::now());
    (now, Moment::of(now))
});

/// A hasher that records what the `Hash` of an instant passes to it, which is seconds and nanoseconds on the platforms that store
/// those. The standard library gives access to these fields only by a subtraction, which takes three times as long.
#[derive(Default)]
struct Fields {
    seconds: Option<i64>,
    nanos: Option<u32>,
    others: bool,
}

impl Hasher for Fields {
    fn write_i64(&mut self, seconds: i64) {
        self.others |= self.seconds.replace(seconds).is_some();
    }

    fn write_u64(&mut self, seconds: u64) {
        self.write_i64(seconds as i64);
    }

    fn write_u32(&mut self, nanos: u32) {
        self.others |= self.nanos.replace(nanos).is_some();
    }

    fn write(&mut self, _: &[u8]) {
        self.others = true;
    }

    fn finish(&self) -> u64 {
        0
    }
}

impl Moment {
    pub(crate) const ZERO: Moment = Moment(0);
    /// Later than every moment that a timer waits for.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);
    /// The last moment that stands for an instant: 511 years after zero, with twice the far future left before [`Moment::NEVER`].
    pub(crate) const LAST: Moment = Moment(u64::MAX / 8 * 7);
    /// Zero of the axis, where instants have no fields, is this much before the first instant of the process.
    const BEFORE_FIRST: u64 = 1 << 61;

    /// Reads the clock of the caller's runtime, which is the machine's unless a test has paused it.
    pub(crate) fn now() -> Moment {
        Moment::of(Instant::now())
    }

    /// Reads the machine's clock.
    pub(crate) fn of_machine() -> Moment {
        Moment::of(Instant::from_std(std::time::Instant::now()))
    }

    pub(crate) fn of(instant: Instant) -> Moment {
        let mut fields = Fields::default();
        instant.hash(&mut fields);
        match fields {
            Fields {
                seconds: Some(seconds),
                nanos: Some(nanos),
                others: false,
            } => match u64::try_from(seconds) {
                Ok(seconds) if seconds < Moment::LAST.0 / 1_000_000_000 => {
                    Moment(seconds * 1_000_000_000 + u64::from(nanos))
                }
                Ok(_) => Moment::LAST,
                Err(_) => Moment::ZERO,
            },
            _ => Moment::by_subtraction(instant),
        }
    }

    #[cold]
    fn by_subtraction(instant: Instant) -> Moment {
        static ZERO: LazyLock<Instant> = LazyLock::new(|| Instant::from_std(std::time::Instant::now()));
        let zero = *ZERO;
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let after = nanos(instant.saturating_duration_since(zero));
        let before = nanos(zero.saturating_duration_since(instant));
        let moment = Moment::BEFORE_FIRST.saturating_add(after).saturating_sub(before);
        Moment(moment).min(Moment::LAST)
    }

    /// Returns the instant or, if that overflows the clock, one in the far future.
    pub(crate) fn instant(self) -> Instant {
        let (first, moment) = *FIRST;
        match self.0.checked_sub(moment.0) {
            Some(span) => after(first, Duration::from_nanos(span)),
            None => first
                .checked_sub(Duration::from_nanos(moment.0 - self.0))
                .unwrap_or(first),
        }
    }

    pub(crate) fn after(self, span: Nanos) -> Moment {
        Moment(self.0.saturating_add(span.0))
    }

    pub(crate) fn before(self, span: Nanos) -> Moment {
        Moment(self.0.saturating_sub(span.0))
    }

    /// Returns the span from `earlier` until this moment, or zero if `earlier` is the later one.
    pub(crate) fn since(self, earlier: Moment) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_instant_comes_back_from_its_moment() {
        let now = Instant::now();
        for span in [0, 1, 999_999_999, 1_000_000_000, 86_400_000_000_000_000] {
            let span = Duration::from_nanos(span);
            assert_eq!(Moment::of(now + span).instant(), now + span);
            if let Some(before) = now.checked_sub(span / 1_000_000) {
                assert_eq!(Moment::of(before).instant(), before);
            }
        }
    }

    /// On platforms whose instants have other fields.
    #[test]
    fn moments_by_subtraction_are_as_far_apart_as_their_instants() {
        let now = Instant::now();
        let [first, later] = [now, now + Duration::from_millis(7)].map(Moment::by_subtraction);
        assert_eq!(later.since(first), Nanos(7_000_000));
    }

    #[test]
    fn centuries_can_be_told_apart() {
        let now = Instant::now();
        for years in [100, 300, 400] {
            let later = now + Duration::from_secs(86_400 * 365 * years);
            assert_eq!(Moment::of(later).instant(), later);
            let passed = Moment::by_subtraction(later).since(Moment::by_subtraction(now));
            assert_eq!(passed.to_duration(), later - now);
        }
        let end = Moment::of(now + Duration::from_secs(86_400 * 365 * 1_000));
        assert_eq!(end, Moment::LAST);
        assert!(end.after(Nanos::FAR_FUTURE).after(Nanos::FAR_FUTURE) < Moment::NEVER);
    }

    #[test]
    fn what_overflows_the_clock_is_the_far_future() {
        assert_eq!(Nanos::of(Duration::MAX), Nanos::FAR_FUTURE);
        let now = Instant::now();
        assert_eq!(after(now, Duration::MAX), now + Nanos::FAR_FUTURE.to_duration());
    }
}
