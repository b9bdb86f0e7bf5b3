//! Durations and times as scripts are told them: whole microseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The largest number that scripts are sent, because Lua represents it exactly.
pub(in crate::jobs) const LARGEST_NUMBER: u64 = 9_000_000_000_000_000;

/// Returns microseconds, rounded up so that nothing is early.
pub(in crate::jobs) fn micros(duration: Duration) -> u64 {
    let micros = duration.as_nanos().div_ceil(1000);
    micros.min(u128::from(LARGEST_NUMBER)) as u64
}

/// Returns microseconds since 1970, rounded up, and zero for an earlier time.
pub(in crate::jobs) fn micros_of(time: SystemTime) -> u64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}
