//! Ticks and nanoseconds of wheel time. All rounding of the crate happens here.

use std::{num::NonZeroU64, time::Duration};

/// The time between full visits of a ticking shard, in nanoseconds, unless a tick is longer.
const CADENCE: u64 = 10_000_000;

/// The number of cadences from which on a delay is long. Loom has no time for so many ticks.
const LONG: u64 = if cfg!(loom) { 0 } else { 100 };

/// A timer may be late by this fraction of its delay, to expire in company, if the wheel has slack.
const SHARE: u64 = 100;

/// Nanoseconds of wheel time: an instant counted from the wheel's origin, or a span.
///
/// 64 bits of nanoseconds last 584 years. A [`Duration`] longer than [`Nanos::FAR_FUTURE`] is cut to that, so the sum of an
/// instant and a span does not overflow in practice. Where it would, it saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    pub(crate) const ZERO: Nanos = Nanos(0);
    /// About 30 years, which Tokio uses for a deadline that overflows the clock.
    pub(in crate::engine) const FAR_FUTURE: Nanos = Nanos(86_400 * 365 * 30 * 1_000_000_000);

    /// Converts a duration, cut to [`Nanos::FAR_FUTURE`], in 64 bits, whereas `Duration::as_nanos` computes in 128.
    #[inline]
    pub(crate) fn from_duration(duration: Duration) -> Nanos {
        if duration.as_secs() >= Nanos::FAR_FUTURE.0 / 1_000_000_000 {
            return Nanos::FAR_FUTURE;
        }
        Nanos(duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos()))
    }

    /// Converts a duration without cutting it, because a test's clock may have jumped by a century.
    #[inline]
    pub(crate) fn passed(duration: Duration) -> Nanos {
        let nanos = duration.as_secs().saturating_mul(1_000_000_000);
        Nanos(nanos.saturating_add(u64::from(duration.subsec_nanos())))
    }

    pub(crate) fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Rounds down to whole milliseconds, in which Tokio counts.
    pub(in crate::engine) fn whole_milliseconds(self) -> Nanos {
        Nanos(self.0 - self.0 % 1_000_000)
    }

    #[inline]
    pub(in crate::engine) fn saturating_add(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(span.0))
    }

    #[inline]
    pub(crate) fn saturating_sub(self, span: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(span.0))
    }
}

/// One tick of wheel time. Tick `n` begins `n` tick durations after the wheel's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tick(pub(crate) u64);

impl Tick {
    pub(crate) const ZERO: Tick = Tick(0);
    pub(in crate::engine) const MAX: Tick = Tick(u64::MAX);
}

/// A deadline, and how far it is rounded up so that timers expire in company.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Deadline {
    pub(super) tick: Tick,
    /// The timer is due at a multiple of two to this power ticks.
    pub(in crate::engine) power: u8,
}

impl Deadline {
    /// Rounds `tick` up to a multiple of two to this power, unless that would be beyond the end of time.
    #[inline]
    pub(in crate::engine) fn rounded(tick: Tick, power: u8) -> Deadline {
        match tick.0.checked_add(1 << power) {
            Some(_) => Deadline { tick, power },
            None => tick.into(),
        }
    }

    /// Returns the tick at which the timer expires.
    #[inline]
    pub(in crate::engine) fn due(self) -> Tick {
        let below = (1 << self.power) - 1;
        Tick((self.tick.0 + below) & !below)
    }
}

/// A deadline without slack.
impl From<Tick> for Deadline {
    #[inline]
    fn from(tick: Tick) -> Deadline {
        Deadline { tick, power: 0 }
    }
}

/// The duration of a tick, which determines all rounding: a reading of the clock is rounded down, and a deadline up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickDuration {
    nanos: NonZeroU64,
    /// The number of ticks from one full visit of a ticking shard to the next. Full visits are at multiples of it, so those of
    /// all shards share a wake-up.
    cadence: u64,
    /// A timer with at least this delay may be late by a cadence, which is a hundredth of the delay at most.
    long: Nanos,
    /// How late, beyond its tick, a timer may be at most so that it expires in company.
    slack: Nanos,
}

impl TickDuration {
    /// Creates a tick duration. A duration of zero, which the builder refuses, is taken as one nanosecond.
    pub(crate) fn new(duration: Duration) -> TickDuration {
        let nanos = NonZeroU64::new(Nanos::from_duration(duration).0).unwrap_or(NonZeroU64::MIN);
        // Loom can explore no more than one light visit between two full ones in reasonable time.
        let cadence = match cfg!(all(test, loom)) {
            true => 2,
            false => (CADENCE / nanos).max(1),
        };
        let long = nanos.get().saturating_mul(cadence).saturating_mul(LONG);
        TickDuration {
            nanos,
            cadence,
            long: Nanos(long),
            slack: Nanos::ZERO,
        }
    }

    pub(crate) fn with_slack(self, slack: Duration) -> TickDuration {
        let slack = Nanos::from_duration(slack);
        TickDuration { slack, ..self }
    }

    #[inline]
    pub(in crate::engine) fn has_slack(self) -> bool {
        self.slack != Nanos::ZERO
    }

    /// Returns the time from `deadline` until a timer expires that is rounded to `power`.
    pub(in crate::engine) fn rounding(self, deadline: Nanos, power: u8) -> Nanos {
        let due = Deadline::rounded(self.deadline_tick(deadline), power).due();
        self.start_of(due).saturating_sub(deadline)
    }

    /// Returns how late, beyond its tick, a timer with this delay may be so that it expires in company.
    #[inline]
    pub(in crate::engine) fn slack_of(self, delay: Nanos) -> Nanos {
        match self.has_slack() {
            true => Nanos(delay.0 / SHARE).min(self.slack),
            false => Nanos::ZERO,
        }
    }

    /// Returns the deadline, with its slack, of a timer that waits for `tick` from `now` on.
    ///
    /// The rounding adds at least a tick less than the slack. That makes up for a delay of up to [`SHARE`] ticks too many, so
    /// `now` may be a cadence behind the clock.
    #[inline]
    pub(in crate::engine) fn slack_until(self, tick: Tick, now: Nanos) -> Deadline {
        Deadline::rounded(tick, self.power_of(self.start_of(tick).saturating_sub(now)))
    }

    /// Returns the power to which the deadline of a timer with this delay may be rounded.
    #[inline]
    pub(in crate::engine) fn power_of(self, delay: Nanos) -> u8 {
        self.power_within(self.slack_of(delay))
    }

    /// Returns the power to which a deadline may be rounded at most, however long the delay.
    #[inline]
    pub(in crate::engine) fn most_power(self) -> u8 {
        self.power_within(self.slack)
    }

    #[inline]
    fn power_within(self, slack: Nanos) -> u8 {
        let ticks = slack.0 / self.nanos;
        ticks.checked_ilog2().unwrap_or(0) as u8
    }

    #[inline]
    pub(crate) fn nanos(self) -> Nanos {
        Nanos(self.nanos.get())
    }

    /// Returns the tick in progress at `now`, rounded down so that a visit is never ahead of the clock.
    #[inline]
    pub(crate) fn tick_at(self, now: Nanos) -> Tick {
        Tick(now.0 / self.nanos)
    }

    /// Returns the first tick that begins at or after `deadline`, rounded up so that no timer is early.
    #[inline]
    pub(in crate::engine) fn deadline_tick(self, deadline: Nanos) -> Tick {
        Tick(deadline.0.div_ceil(self.nanos.get()))
    }

    /// Returns whether `tick` is no later than [`deadline_tick`](TickDuration::deadline_tick) of `deadline`. This takes a
    /// product, which is cheaper than that quotient. At the end of time, where the product would overflow, this returns `false`.
    #[inline]
    pub(in crate::engine) fn is_due_by(self, tick: Tick, deadline: Nanos) -> bool {
        self.start_of(tick) < deadline.saturating_add(self.nanos())
    }

    /// Returns the beginning of `tick`.
    #[inline]
    pub(crate) fn start_of(self, tick: Tick) -> Nanos {
        Nanos(tick.0.saturating_mul(self.nanos.get()))
    }

    /// Returns the tick of the first full visit after `tick`.
    #[inline]
    pub(in crate::engine) fn full_visit_after(self, tick: Tick) -> Tick {
        Tick(
            (tick.0 / self.cadence)
                .saturating_add(1)
                .saturating_mul(self.cadence),
        )
    }

    /// Returns whether a timer with this delay may be late by a cadence.
    #[inline]
    pub(in crate::engine) fn is_long(self, delay: Nanos) -> bool {
        delay >= self.long
    }

    /// Returns the least [long](TickDuration::is_long) delay.
    pub(in crate::engine) fn long(self) -> Nanos {
        self.long
    }

    /// Returns the time between full visits of a ticking shard: 10 ms rounded down to whole ticks, or one tick.
    #[inline]
    pub(in crate::engine) fn cadence(self) -> Nanos {
        self.start_of(Tick(self.cadence))
    }
}
