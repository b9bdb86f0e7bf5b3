//! The experiments that need no network, one a file. Two of them share `pending`, two share `lateness`.

pub(crate) mod blocked_worker;
pub(crate) mod keepalives;
pub(crate) mod lateness;
pub(crate) mod memory;
pub(crate) mod pending;
#[cfg(all(feature = "precise", target_os = "linux"))]
pub(crate) mod precise;
pub(crate) mod push_back;
pub(crate) mod thread_per_core;
pub(crate) mod timeouts;
