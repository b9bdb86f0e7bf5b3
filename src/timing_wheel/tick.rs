//! Ticks and nanoseconds of wheel time. All rounding of the crate happens here.

use std::{num::NonZeroU64, time::Duration};

/// Nanoseconds of wheel time: an instant counted from the wheel's origin, or a span.
///
/// 64 bits of nanoseconds last 584 years. A [`Duration`] longer than [`Nanos::FAR_FUTURE`] is cut to that. So the sum of an instant and
/// a span does not overflow in practice. Where it would, it saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nanos(pub(crate) u64);

impl Nanos {
    pub(crate) const ZERO: Nanos = Nanos(0);
    /// About 30 years. Tokio takes this for a deadline that overflows the clock.
    pub(crate) const FAR_FUTURE: Nanos = Nanos(86_400 * 365 * 30 * 1_000_000_000);

    /// `Duration::as_nanos` computes in 128 bits, this in 64.
    #[inline]
    pub(crate) fn from_duration(duration: Duration) -> Nanos {
        if duration.as_secs() >= Nanos::FAR_FUTURE.0 / 1_000_000_000 {
            return Nanos::FAR_FUTURE;
        }
        Nanos(duration.as_secs() * 1_000_000_000 + u64::from(duration.subsec_nanos()))
    }

    /// A duration that is not cut: a test's clock may have jumped by a century.
    #[inline]
    pub(crate) fn passed(duration: Duration) -> Nanos {
        let nanos = duration.as_secs().saturating_mul(1_000_000_000);
        Nanos(nanos.saturating_add(u64::from(duration.subsec_nanos())))
    }

    pub(crate) fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    #[inline]
    pub(crate) fn saturating_add(self, span: Nanos) -> Nanos {
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
    pub(crate) const MAX: Tick = Tick(u64::MAX);
}

/// How long a tick is, and so how to round: a reading of the clock down, a deadline up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickDuration(NonZeroU64);

impl TickDuration {
    /// Takes a duration of zero as one nanosecond. The builder refuses it before.
    pub(crate) fn new(duration: Duration) -> TickDuration {
        let nanos = Nanos::from_duration(duration).0;
        TickDuration(NonZeroU64::new(nanos).unwrap_or(NonZeroU64::MIN))
    }

    #[inline]
    pub(crate) fn nanos(self) -> Nanos {
        Nanos(self.0.get())
    }

    /// The tick in progress at `now`. It is rounded down, so that a visit is never ahead of the clock.
    #[inline]
    pub(crate) fn tick_at(self, now: Nanos) -> Tick {
        Tick(now.0 / self.0)
    }

    /// The first tick that begins at or after `deadline`. It is rounded up, so that no timer is early.
    #[inline]
    pub(crate) fn deadline_tick(self, deadline: Nanos) -> Tick {
        Tick(deadline.0.div_ceil(self.0.get()))
    }

    /// Whether `tick` is no later than [`deadline_tick`](TickDuration::deadline_tick) of `deadline`. A product is cheaper than that
    /// quotient. At the end of time, where it would overflow, this says `false`.
    #[inline]
    pub(crate) fn is_due_by(self, tick: Tick, deadline: Nanos) -> bool {
        self.start_of(tick) < deadline.saturating_add(self.nanos())
    }

    /// When `tick` begins.
    #[inline]
    pub(crate) fn start_of(self, tick: Tick) -> Nanos {
        Nanos(tick.0.saturating_mul(self.0.get()))
    }

    /// How often a ticking shard gets a full visit: every 10 ms, or every tick if that is longer.
    pub(crate) fn cadence(self) -> Cadence {
        // A model has no time for more light visits than one between two full ones.
        match cfg!(loom) {
            true => Cadence(2),
            false => Cadence((10_000_000 / self.0).max(1)),
        }
    }
}

/// How many ticks pass from one full visit of a ticking shard to the next.
///
/// Full visits are at multiples of it, so those of all shards share a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cadence(u64);

impl Cadence {
    /// The first full visit after `tick`.
    #[inline]
    pub(crate) fn after(self, tick: Tick) -> Tick {
        Tick((tick.0 / self.0).saturating_add(1).saturating_mul(self.0))
    }

    /// One cadence before `tick`.
    #[inline]
    pub(crate) fn before(self, tick: Tick) -> Tick {
        Tick(tick.0.saturating_sub(self.0))
    }

    /// How long it lasts, in ticks of this duration.
    #[inline]
    pub(crate) fn nanos(self, tick: TickDuration) -> Nanos {
        tick.start_of(Tick(self.0))
    }
}
