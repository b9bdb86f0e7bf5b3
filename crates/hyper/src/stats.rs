//! `LimitStats`, and the counters that it is read from.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ended::Ended;

/// Counts of the connections under a [`ConnectionLimits`](crate::ConnectionLimits), read by
/// [`stats`](crate::ConnectionLimits::stats).
///
/// Every connection that a limit has ended is counted once, by the limit that ended it.
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use tickwheel_hyper::ConnectionLimits;
///
/// let stats = ConnectionLimits::new(&Wheel::new()).stats();
/// assert_eq!((stats.open, stats.idle), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitStats {
    /// How many connections are open now. One that has been upgraded is not.
    pub open: u64,
    /// How many ended as [`Ended::Header`].
    pub header: u64,
    /// How many ended as [`Ended::Idle`].
    pub idle: u64,
    /// How many ended as [`Ended::BodyProgress`].
    pub body_progress: u64,
    /// How many ended as [`Ended::Lifetime`].
    pub lifetime: u64,
    /// How many ended as [`Ended::Grace`].
    pub grace: u64,
}

/// How many connections each limit has ended.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    header: AtomicU64,
    idle: AtomicU64,
    body_progress: AtomicU64,
    lifetime: AtomicU64,
    grace: AtomicU64,
}

impl Counters {
    pub(crate) fn count(&self, ended: Ended) {
        let counter = match ended {
            Ended::Header => &self.header,
            Ended::Idle => &self.idle,
            Ended::BodyProgress => &self.body_progress,
            Ended::Lifetime => &self.lifetime,
            Ended::Grace => &self.grace,
            Ended::Done | Ended::Upgraded | Ended::Shutdown => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, open: u64) -> LimitStats {
        LimitStats {
            open,
            header: self.header.load(Ordering::Relaxed),
            idle: self.idle.load(Ordering::Relaxed),
            body_progress: self.body_progress.load(Ordering::Relaxed),
            lifetime: self.lifetime.load(Ordering::Relaxed),
            grace: self.grace.load(Ordering::Relaxed),
        }
    }
}
