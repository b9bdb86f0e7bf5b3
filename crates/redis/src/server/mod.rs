//! How this crate talks to Redis. It knows neither leases nor jobs.

pub(crate) mod connection;
pub(crate) mod erased;
pub(crate) mod eviction;
pub(crate) mod first_use;
pub(crate) mod names;
pub(crate) mod notifications;
pub(crate) mod reconnecting;
pub(crate) mod retry;
pub(crate) mod script;
pub mod sentinel;
