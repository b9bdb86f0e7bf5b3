//! `Moment`: an instant in 8 bytes, relative to the origin of a clock or of the wheel.

use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::LazyLock,
    time::Duration,
};

use tokio::time::Instant;

use super::{Nanos, saturating_add};

/// An instant in nanoseconds, either of a clock or, in the lower half of the range, of wheel time.
///
/// Wheel time begins with the first driver and continues across all drivers, whatever their clocks read. A timer is converted to
/// wheel time once, by the [`Shift`] of the driver. While a wheel has no driver, a moment stays on the axis of the clock that it
/// was read from, and the next driver converts it.
///
/// Both axes reach 73 years back from their zero, and 219 years ahead. An instant beyond that is cut to the nearest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u64);

/// How far the driver's clock is ahead of wheel time. It changes only when a driver with another clock starts. While there is no
/// driver, it is [`Shift::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Shift(pub(in crate::engine) u64);

/// An instant of this process, from which moments are converted back into instants.
static FIRST: LazyLock<Instant> = LazyLock::new(|| std::time::Instant::now().into());

/// A hasher that records what the `Hash` of an instant passes to it, which is seconds and nanoseconds on the platforms that store
/// those.
///
/// The standard library gives access to these fields only by a subtraction, a call of sixty instructions, which is three times
/// the cost of a reset. Through this hasher, the compiler sees two loads. If an instant has other fields, `others` is set, and
/// the subtraction is used.
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
    /// The bit that is set in a moment of a clock.
    const CLOCK: u64 = 1 << 63;
    /// The distance from the start of an axis to its zero.
    const ZERO: u64 = 1 << 61;
    const LAST: u64 = Moment::CLOCK - 1;
    pub(super) const LAST_OF_CLOCK: Moment = Moment(u64::MAX);
    /// An instant with fewer seconds than this always fits.
    const SECONDS: u64 = 1 << 32;

    #[inline]
    pub(crate) fn of(instant: Instant) -> Moment {
        Moment::near(instant).unwrap_or_else(|| Moment::far(instant))
    }

    /// Returns the moment of an instant in the first 136 years of its clock, which takes no call.
    #[inline]
    fn near(instant: Instant) -> Option<Moment> {
        let mut fields = Fields::default();
        instant.hash(&mut fields);
        match fields {
            Fields {
                seconds: Some(seconds),
                nanos: Some(nanos),
                others: false,
            } if (seconds as u64) < Moment::SECONDS => Some(Moment(
                (Moment::CLOCK | Moment::ZERO) + seconds as u64 * 1_000_000_000 + u64::from(nanos),
            )),
            _ => None,
        }
    }

    /// Returns the moment of any instant, also where its fields are not seconds and nanoseconds.
    #[cold]
    fn far(instant: Instant) -> Moment {
        let first = Moment::near(*FIRST).map_or(Moment::ZERO, |first| first.0 & Moment::LAST);
        let after = Nanos::passed(instant.saturating_duration_since(*FIRST)).0;
        let before = Nanos::passed(FIRST.saturating_duration_since(instant)).0;
        let nanos = first.saturating_add(after).saturating_sub(before);
        Moment(Moment::CLOCK | nanos.min(Moment::LAST))
    }

    /// Creates a moment of wheel time.
    #[inline]
    pub(in crate::engine) fn of_wheel(time: Nanos) -> Moment {
        Moment(Moment::ZERO.saturating_add(time.0).min(Moment::LAST))
    }

    /// Recreates a moment from its [`word`](Moment::word).
    #[inline]
    pub(crate) fn from_word(word: u64) -> Moment {
        Moment(word)
    }

    #[inline]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    #[inline]
    pub(in crate::engine) fn is_wheel_time(self) -> bool {
        self.0 < Moment::CLOCK
    }

    /// Returns a moment of wheel time as the wheel counts it, or zero if it is before the wheel's first tick.
    #[inline]
    pub(in crate::engine) fn wheel_time(self) -> Nanos {
        debug_assert!(self.is_wheel_time());
        Nanos(self.0.saturating_sub(Moment::ZERO))
    }

    /// Returns the moment `span` later or, if that is beyond the end of the axis, the moment 30 years later.
    #[inline]
    pub(crate) fn after(self, span: Nanos) -> Moment {
        let (end, wrapped) = self.0.overflowing_add(span.0);
        match wrapped || !self.is_of_axis_of(Moment(end)) {
            false => Moment(end),
            true => self.after_far_future(),
        }
    }

    #[cold]
    fn after_far_future(self) -> Moment {
        let nanos = (self.0 & Moment::LAST).saturating_add(Nanos::FAR_FUTURE.0);
        Moment(self.0 & Moment::CLOCK | nanos.min(Moment::LAST))
    }

    #[inline]
    fn is_of_axis_of(self, other: Moment) -> bool {
        (self.0 ^ other.0) < Moment::CLOCK
    }

    /// Returns whether this is at or after `earlier`, by less than `span`.
    #[inline]
    pub(in crate::engine) fn is_within(self, span: Nanos, earlier: Moment) -> bool {
        self.0.wrapping_sub(earlier.0) < span.0
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later or is of the other axis.
    #[inline]
    pub(crate) fn since(self, earlier: Moment) -> Nanos {
        match self.is_of_axis_of(earlier) {
            true => Nanos(self.0).saturating_sub(Nanos(earlier.0)),
            false => Nanos::ZERO,
        }
    }
}

/// Moments of different axes cannot be compared.
impl PartialOrd for Moment {
    #[inline]
    fn partial_cmp(&self, other: &Moment) -> Option<Ordering> {
        self.is_of_axis_of(*other).then(|| self.0.cmp(&other.0))
    }
}

impl Shift {
    /// Moments of a clock stay as they are.
    pub(in crate::engine) const NONE: Shift = Shift(0);

    /// Returns the shift by which `now`, a moment of the driver's clock, is `time` of the wheel.
    pub(super) fn between(now: Moment, time: Nanos) -> Shift {
        Shift(now.0.wrapping_sub(Moment::of_wheel(time).0))
    }

    /// Returns the moment of wheel time of an instant, unless that takes more than a subtraction.
    #[inline]
    pub(in crate::engine) fn near(self, instant: Instant) -> Option<Moment> {
        let time = Moment(Moment::near(instant)?.0.wrapping_sub(self.0));
        time.is_wheel_time().then_some(time)
    }

    /// Returns the moment of an instant, which is of wheel time unless there is no driver.
    #[inline]
    pub(in crate::engine) fn moment(self, instant: Instant) -> Moment {
        self.near(instant).unwrap_or_else(|| self.far(instant))
    }

    #[cold]
    fn far(self, instant: Instant) -> Moment {
        self.to_wheel(Moment::of(instant))
    }

    /// Converts a moment of either axis to wheel time, unless there is no driver.
    #[inline]
    pub(in crate::engine) fn to_wheel(self, moment: Moment) -> Moment {
        match moment.is_wheel_time() || self == Shift::NONE {
            true => moment,
            false => Moment(moment.0.saturating_sub(self.0).min(Moment::LAST)),
        }
    }

    /// Converts a moment of either axis to an instant of the driver's clock.
    pub(in crate::engine) fn instant(self, moment: Moment) -> Instant {
        let nanos = match moment.is_wheel_time() {
            true => moment.0.saturating_add(self.0),
            false => moment.0,
        };
        let first = *FIRST;
        let start = Moment::of(first).0;
        match nanos.checked_sub(start) {
            Some(after) => saturating_add(first, Duration::from_nanos(after)),
            None => first
                .checked_sub(Duration::from_nanos(start - nanos))
                .unwrap_or(first),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A time far from the ends of both axes.
    const FAR: u64 = 1 << 60;

    proptest! {
        #[test]
        fn an_instant_comes_back_as_it_was(nanos in any::<i64>(), time in 0..FAR) {
            let base = Instant::now();
            let by = Duration::from_nanos(nanos.unsigned_abs() / 8);
            let instant = if nanos < 0 { base.checked_sub(by) } else { base.checked_add(by) };
            let instant = instant.unwrap_or(base);
            let moment = Moment::of(instant);
            let shift = Shift::between(Moment::of(base), Nanos(time));
            prop_assert_eq!(shift.instant(moment), instant);
            prop_assert_eq!(shift.instant(shift.to_wheel(moment)), instant);
        }

        #[test]
        fn moments_are_as_far_apart_as_their_instants(one in 0..FAR, other in 0..FAR, time in 0..FAR) {
            let base = Instant::now();
            let (one, other) = (one.min(other), one.max(other));
            let at = |nanos| base + Duration::from_nanos(nanos);
            let apart = Nanos(other - one);
            let shift = Shift::between(Moment::of(base), Nanos(time));
            let wheel = |instant| shift.to_wheel(Moment::of(instant));
            for moment in [&Moment::of as &dyn Fn(_) -> _, &Moment::far, &wheel] {
                prop_assert_eq!(moment(at(other)).since(moment(at(one))), apart);
                prop_assert_eq!(moment(at(one)).after(apart), moment(at(other)));
            }
            prop_assert_eq!(shift.to_wheel(Moment::of(at(one))).wheel_time(), Nanos(time + one));
        }
    }

    #[test]
    fn an_instant_beyond_all_moments_is_cut() {
        let base = Instant::now();
        let shift = Shift::between(Moment::of(base), Nanos::ZERO);
        let last = Moment(u64::MAX);
        let Some(far) = base.checked_add(Duration::from_secs(1 << 40)) else {
            return;
        };
        assert_eq!(Moment::of(far), last);
        assert!(shift.instant(last) > base + Duration::from_secs(1 << 32));
        assert!(shift.to_wheel(last).wheel_time() > Nanos::FAR_FUTURE);
        let near = Instant::now() - Duration::from_secs(1);
        assert_eq!(Moment::far(near), Moment::of(near));
        assert!(shift.to_wheel(Moment(Moment::CLOCK)).is_wheel_time());
        assert_eq!(Moment::of_wheel(Nanos(u64::MAX)), Moment(Moment::LAST));
    }

    #[test]
    fn a_span_beyond_the_axis_is_thirty_years() {
        for moment in [Moment::of(Instant::now()), Moment::of_wheel(Nanos(7))] {
            assert_eq!(moment.after(Nanos(u64::MAX)), moment.after(Nanos::FAR_FUTURE));
            assert_eq!(moment.after(Nanos(u64::MAX)).since(moment), Nanos::FAR_FUTURE);
        }
    }

    #[test]
    fn moments_of_different_axes_do_not_compare() {
        let (clock, wheel) = (Moment::of(Instant::now()), Moment::of_wheel(Nanos(7)));
        assert_eq!(clock.partial_cmp(&wheel), None);
        assert_eq!(
            (clock.since(wheel), wheel.since(clock)),
            (Nanos::ZERO, Nanos::ZERO)
        );
    }
}
