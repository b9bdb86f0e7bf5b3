//! Time: instants and spans in eight bytes, and the clock of an engine: the ticks into which it is divided, and
//! how far deadlines are rounded up to them. All rounding happens here.
//!
//! There is one function for each reading of a clock, and of three of them one more that returns an `Instant`,
//! because to convert a moment back takes as long as to read the clock:
//!
//! | reading | clock |
//! | --- | --- |
//! | `Moment::machine_now` | the machine's |
//! | `Moment::now` | that of the caller's runtime |
//! | `Alarm::now` | that of an engine, wherever the caller is |
//! | `Shared::now` | the one from which a timer of a wheel would count here, before it is bound to an engine |
//! | `Timer::now` | that of the timer's engine or, before it is bound, its wheel's |

use std::{
    hash::{Hash, Hasher},
    num::NonZeroU64,
    sync::LazyLock,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    time::Instant,
};

use super::timing_wheel::Tick;

/// A span of time in nanoseconds, which last 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    pub(crate) const MILLISECOND: Nanos = Nanos(1_000_000);
    /// About 30 years, which Tokio takes for a duration that overflows the clock.
    pub(crate) const FAR_FUTURE: Nanos = Nanos(86_400 * 365 * 30 * 1_000_000_000);

    /// The delay of a timeout that never elapses.
    pub(crate) const NEVER: Nanos = Nanos(u64::MAX);

    /// Converts a duration, at most [`Nanos::FAR_FUTURE`]. This computes in 64 bits, while
    /// `Duration::as_nanos` takes 128.
    pub(crate) fn of(duration: Duration) -> Nanos {
        if duration.as_secs() >= Nanos::FAR_FUTURE.0 / 1_000_000_000 {
            return Nanos::FAR_FUTURE;
        }
        Nanos(duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos()))
    }

    /// Converts the duration of a timeout, which is [`Nanos::NEVER`] if it overflows the clock.
    #[inline]
    pub(crate) fn of_timeout(duration: Duration) -> Nanos {
        // The clock is read only for durations that may overflow it.
        let nanos = Nanos::of(duration);
        if nanos == Nanos::FAR_FUTURE && overflows(duration) {
            Nanos::NEVER
        } else {
            nanos
        }
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

/// Returns whether there is no instant so far from now. This reads no clock for durations of less than 30
/// years.
#[inline]
pub(crate) fn overflows(duration: Duration) -> bool {
    duration >= Nanos::FAR_FUTURE.to_duration() && Instant::now().checked_add(duration).is_none()
}

/// Returns `instant + duration` or, if that overflows the clock, an instant in the far future, as Tokio does.
pub(crate) fn after(instant: Instant, duration: Duration) -> Instant {
    let far = || instant + Nanos::FAR_FUTURE.to_duration();
    instant.checked_add(duration).unwrap_or_else(far)
}

/// Reads the clock of the caller's runtime, which is the machine's unless a test has paused it. Once the
/// thread's locals have been destroyed, Tokio cannot tell whether a test has, and this reads the machine's.
#[inline]
pub(crate) fn runtime_now() -> Instant {
    let is_lost = || Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
    if has_test_util() && is_lost() {
        machine_now()
    } else {
        Instant::now()
    }
}

/// Returns whether Tokio was compiled with its feature `test-util`, which any crate of the program may have
/// enabled. Cargo does not tell a crate which features its dependencies have, but without this one, Tokio
/// lacks a method.
pub(super) fn has_test_util() -> bool {
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

    // Tokio's own method, if there is one, takes precedence over the trait's.
    is_there(|builder, paused| builder.start_paused(paused))
}

pub(crate) fn machine_now() -> Instant {
    Instant::from_std(std::time::Instant::now())
}

/// An instant, in nanoseconds. A test's clock moves independently on the same axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(pub(crate) u64);

/// An instant of this process, from which others are counted.
static FIRST: LazyLock<Instant> = LazyLock::new(machine_now);

/// A hasher that records the fields that an instant's `Hash` passes to it: seconds and nanoseconds, on
/// platforms that store those. The standard library gives access to these fields only by a subtraction, which
/// takes three times as long.
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
    /// The last moment that stands for an instant: 511 years after zero of the axis, which leaves twice the
    /// far future before [`Moment::NEVER`].
    const LAST: Moment = Moment(u64::MAX / 8 * 7);
    /// Zero of the axis, in seconds after the zero of instants, which is the start of the machine or, where
    /// instants have no fields, of the process. Zero of the axis is 63 years earlier, because a process that
    /// starts with the machine can subtract from the time.
    const FIRST_SECOND: i64 = -2_000_000_000;
    const LAST_SECOND: i64 = (Moment::LAST.0 / 1_000_000_000) as i64 + Moment::FIRST_SECOND;
    /// The moment of the zero of instants.
    const START: Moment = Moment(Moment::FIRST_SECOND.unsigned_abs() * 1_000_000_000);

    /// Reads the clock of the caller's runtime.
    #[inline]
    pub(crate) fn now() -> Moment {
        Moment::of(runtime_now())
    }

    /// Reads the machine's clock.
    pub(crate) fn machine_now() -> Moment {
        Moment::of(machine_now())
    }

    #[inline]
    pub(crate) fn of(instant: Instant) -> Moment {
        let mut fields = Fields::default();
        // Any platform may hash its instants in another way, which falls back on the subtraction.
        instant.hash(&mut fields);
        match fields {
            Fields {
                seconds: Some(seconds),
                nanos: Some(nanos),
                others: false,
            } => match seconds {
                Moment::FIRST_SECOND..Moment::LAST_SECOND => {
                    let since_zero = (seconds - Moment::FIRST_SECOND) as u64;
                    Moment(since_zero * 1_000_000_000 + u64::from(nanos))
                }
                ..Moment::FIRST_SECOND => Moment::ZERO,
                _ => Moment::LAST,
            },
            _ => Moment::by_subtraction(instant),
        }
    }

    #[cold]
    fn by_subtraction(instant: Instant) -> Moment {
        let first = *FIRST;
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let after = nanos(instant.saturating_duration_since(first));
        let before = nanos(first.saturating_duration_since(instant));
        let moment = Moment::START.0.saturating_add(after).saturating_sub(before);
        Moment(moment).min(Moment::LAST)
    }

    /// Converts the moment back to its instant or, if the platform has no such instant, to one in the far
    /// future or to the earliest one.
    pub(crate) fn instant(self) -> Instant {
        let first = *FIRST;
        let moment = Moment::of(first);
        if self >= moment {
            return after(first, self.since(moment).to_duration());
        }
        // Not every platform has instants before their zero.
        let back_to = |earlier: Moment| first.checked_sub(moment.since(earlier).to_duration());
        back_to(self).or_else(|| back_to(Moment::START)).unwrap_or(first)
    }

    /// Converts the moment to the kernel's monotonic clock, in seconds and nanoseconds.
    #[cfg(all(feature = "precise", target_os = "linux"))]
    pub(crate) fn to_kernel(self) -> (i64, i64) {
        // Zero would unset a timer.
        let since = self.since(Moment::START).0.max(1);
        ((since / 1_000_000_000) as i64, (since % 1_000_000_000) as i64)
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

/// A reading of the clock, with which a timer starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Moment,
    /// Whether the clock has just been read. Otherwise time has passed since.
    pub(crate) is_current: bool,
}

impl Reading {
    pub(crate) fn current(at: Moment) -> Reading {
        Reading { at, is_current: true }
    }

    pub(crate) fn earlier(at: Moment) -> Reading {
        Reading {
            at,
            is_current: false,
        }
    }
}

/// How late a timer may be, beyond its tick, so that it expires with others: a part of its delay, up to a
/// bound. Deadlines are rounded up to multiples of powers of two, so that timers of different delays expire
/// together, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slack {
    /// A timer may be late by its delay divided by this.
    divisor: u64,
    most: Nanos,
}

impl Slack {
    /// A thousandth of the delay, up to 100 ms, as `epoll` itself allows.
    pub(crate) const DEFAULT: Slack = Slack {
        divisor: 1_000,
        most: Nanos(100_000_000),
    };

    /// A hundredth of the delay, up to `most`.
    pub(crate) fn up_to(most: Duration) -> Slack {
        Slack {
            divisor: 100,
            most: Nanos::of(most),
        }
    }

    pub(crate) fn most(self) -> Nanos {
        self.most
    }
}

/// A clock whose ticks begin with Tokio's milliseconds. A reading is rounded down, and a deadline up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// When tick 0 begins.
    origin: Moment,
    tick: NonZeroU64,
    /// 2^64 divided by the tick, rounded down.
    ticks_in_range: u64,
    /// The last tick that a clock reaches, in some centuries.
    last: Tick,
    /// Delays from here on have the greatest slack.
    coarsest_from: u64,
    /// 2^64 divided by the delay that has a slack of one tick, rounded up.
    slacks_in_range: u64,
}

impl Clock {
    pub(crate) fn new(origin: Moment, tick: Duration, slack: Slack) -> Clock {
        let tick = NonZeroU64::new(Nanos::of(tick).0).unwrap_or(NonZeroU64::MIN);
        Clock {
            origin,
            tick,
            ticks_in_range: u64::MAX / tick,
            last: Tick(Moment::LAST.since(origin).0 / tick),
            coarsest_from: slack.most.0.saturating_mul(slack.divisor),
            slacks_in_range: u64::MAX / tick.get().saturating_mul(slack.divisor) + 1,
        }
    }

    /// Returns when tick 0 begins, a moment that has passed.
    pub(crate) fn origin(&self) -> Moment {
        self.origin
    }

    pub(crate) fn tick(&self) -> Nanos {
        Nanos(self.tick.get())
    }

    /// Returns the number of ticks to a multiple of which the deadline of a timer with this delay is rounded
    /// up: the greatest power of two within its slack, for which the delay may lack some nanoseconds. This takes
    /// no division.
    pub(crate) fn resolution(&self, delay: Nanos) -> u64 {
        let delay = delay.0.min(self.coarsest_from);
        // By multiplication, as in `due`. Rounded up, the reciprocal adds less than a tick to the slack.
        let slack = ((u128::from(delay) * u128::from(self.slacks_in_range)) >> 64) as u64;
        1 << (slack | 1).ilog2()
    }

    /// Returns the tick in progress, rounded down so that a turn is never ahead of the clock.
    pub(crate) fn tick_at(&self, now: Moment) -> Tick {
        Tick(now.since(self.origin).0 / self.tick)
    }

    /// Returns the tick at which the entry is due of a timer whose deadline is `wait` from now, rounded up by
    /// its slack, and the beginning of that tick.
    #[inline]
    pub(crate) fn round_up(&self, deadline: Moment, wait: Nanos) -> (Tick, Moment) {
        let tick = self.due(deadline, self.resolution(wait));
        // The last tick of the clock begins before its last moment, so this does not overflow.
        (tick, Moment(self.origin.0 + tick.0 * self.tick.get()))
    }

    /// Returns the first tick that begins at or after `deadline`, rounded up so that no timer is early, and
    /// to a multiple of `resolution`.
    #[inline]
    pub(crate) fn due(&self, deadline: Moment, resolution: u64) -> Tick {
        let since = deadline.since(self.origin).0;
        // By multiplication, because a division takes as long as a lock. The product is at most one tick short,
        // because the reciprocal is rounded down by less than one, which makes `since` / 2^64 of a tick.
        let begun = ((u128::from(since) * u128::from(self.ticks_in_range)) >> 64) as u64;
        let rest = since - begun * self.tick.get();
        let tick = begun + u64::from(rest > 0) + u64::from(rest > self.tick.get());
        Tick((tick + (resolution - 1)) & !(resolution - 1)).min(self.last)
    }

    pub(crate) fn start_of(&self, tick: Tick) -> Moment {
        self.origin.after(Nanos(tick.0.saturating_mul(self.tick.get())))
    }

    /// Returns whether an entry that is due at `due` is in time for a timer whose deadline is `wait` from now:
    /// it is due no later than an entry of the timer's own would be.
    #[inline]
    pub(crate) fn is_in_time(&self, due: Moment, deadline: Moment, wait: Nanos) -> bool {
        due.0 < deadline.0 + self.tick.get() || self.is_within_slack(due, deadline, wait)
    }

    #[inline(never)]
    fn is_within_slack(&self, due: Moment, deadline: Moment, wait: Nanos) -> bool {
        due <= self.round_up(deadline, wait).1
    }
}

#[cfg(all(test, not(tickwheel_loom)))]
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
            let entry_deadline = clock.start_of(clock.due(when, resolution));
            prop_assert!(entry_deadline >= when, "early");
            let late = entry_deadline.since(when).0;
            let most = (delay / slack.divisor).min(slack.most.0);
            prop_assert!(late < tick + most, "{late} ns late of {delay}");
            prop_assert!(resolution * 2 * tick > most || resolution == 1, "it could have been with more others");
        }

        #[test]
        fn is_in_time_agrees_with_due(tick in 1..3_600_000_000_001_u64, when in 0..1_u64 << 62, off in 0..3_u64) {
            let clock = Clock::new(Moment(7), Duration::from_nanos(tick), Slack::DEFAULT);
            let (when, due) = (Moment(when), clock.due(Moment(when), 1));
            for other in [Tick(due.0.saturating_sub(off)), Tick(due.0 + off)] {
                prop_assert_eq!(clock.is_in_time(clock.start_of(other), when, Nanos(0)), other <= due || when < clock.origin && other.0 == 0);
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

    /// Platforms whose instants have other fields convert in this way.
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
