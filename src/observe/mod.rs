//! What a user can see of a wheel: its counters, a snapshot of its timers, and timeouts counted under labels.

pub(crate) mod labelled;
pub(crate) mod lag;
pub(crate) mod metrics;
pub(crate) mod snapshot;
