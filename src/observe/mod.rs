//! What a user can see of a wheel: its counters, a snapshot of its timers, and limits counted under labels.

#[cfg(any(feature = "metrics", feature = "prometheus-client"))]
mod exported;
pub(crate) mod labelled;
pub(crate) mod metrics;
#[cfg(feature = "prometheus-client")]
pub mod prometheus;
#[cfg(feature = "metrics")]
pub(crate) mod reporter;
pub(crate) mod snapshot;
