//! The limits of each setting, and the error for a setting outside them.

use std::{error::Error, fmt, ops::RangeInclusive, time::Duration};

pub(super) const TICK_DURATION: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3600);
pub(super) const TICKS_PER_WHEEL: RangeInclusive<usize> = 1..=1 << 20;
pub(super) const LEVELS: RangeInclusive<usize> = 1..=8;
pub(super) const SHARDS: RangeInclusive<usize> = 1..=1024;
pub(super) const SLACK: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
pub(super) const TIMERS: RangeInclusive<usize> = 1..=u32::MAX as usize;

/// The error of a wheel that could not be built.
///
/// # Examples
///
/// ```
/// use tickwheel::{BuildError, Wheel};
///
/// let error = Wheel::builder().shards(0).build().unwrap_err();
/// assert!(matches!(error, BuildError::Shards { given: 0, .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The tick duration is less than 1 ms or more than 1 h.
    TickDuration {
        /// The value given.
        given: Duration,
    },
    /// The number of ticks per wheel is 0 or more than 2^20.
    TicksPerWheel {
        /// The value given.
        given: usize,
    },
    /// The number of levels is 0 or more than 8.
    Levels {
        /// The value given.
        given: usize,
    },
    /// The number of shards is 0 or more than 1024.
    Shards {
        /// The value given.
        given: usize,
    },
    /// The slack is more than 1 h.
    Slack {
        /// The value given.
        given: Duration,
    },
    /// The limit on pending timers is 0 or more than `u32::MAX`.
    MaxPending {
        /// The value given.
        given: usize,
    },
    /// The capacity is 0 or more than `u32::MAX`.
    Capacity {
        /// The value given.
        given: usize,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            BuildError::TickDuration { given } => {
                format!("a tick duration of {given:?} is not within {TICK_DURATION:?}")
            }
            BuildError::TicksPerWheel { given } => {
                format!("{given} ticks per wheel are not within {TICKS_PER_WHEEL:?}")
            }
            BuildError::Levels { given } => format!("{given} levels are not within {LEVELS:?}"),
            BuildError::Shards { given } => format!("{given} shards are not within {SHARDS:?}"),
            BuildError::Slack { given } => format!("a slack of {given:?} is not within {SLACK:?}"),
            BuildError::MaxPending { given } => {
                format!("a limit of {given} pending timers is not within {TIMERS:?}")
            }
            BuildError::Capacity { given } => {
                format!("a capacity of {given} timers is not within {TIMERS:?}")
            }
        };
        f.pad(&text)
    }
}

impl Error for BuildError {}
