//! `Moment`: an instant in eight bytes.

use std::{
    hash::{Hash, Hasher},
    sync::OnceLock,
    time::Duration,
};

use tokio::time::Instant;

use super::{Nanos, saturating_add};

/// An instant in eight bytes: nanoseconds of the machine's monotonic clock. It reaches from 146 years before the clock's zero to 438
/// years after. An instant beyond that is cut to the nearest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

/// An instant of the clock, from which moments are turned back into instants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base(pub(super) Instant);

/// A hasher that keeps what the `Hash` of an instant passes to it: seconds and nanoseconds, on the platforms that store those.
///
/// Otherwise the standard library gives them only by a subtraction, a call of sixty instructions. That is three times the cost of a
/// reset. Through this hasher the compiler sees two loads. If an instant has other fields, `others` is set, and the subtraction is
/// used.
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
    /// An instant with fewer seconds than this always fits.
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

    /// The same for an instant whose fields are not seconds and nanoseconds.
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

    /// How long it is from this to `later`. Zero if `later` is earlier.
    #[inline]
    pub(crate) fn nanos_until(self, later: Moment) -> Nanos {
        Nanos(later.0).saturating_sub(Nanos(self.0))
    }

    #[inline]
    pub(crate) fn after(self, span: Nanos) -> Moment {
        Moment(self.0.saturating_add(span.0))
    }
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
