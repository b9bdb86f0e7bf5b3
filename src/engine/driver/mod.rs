//! When the driver runs, and what wakes it: [`alarm`] has the rules, and [`tokio_timer`] has everything that
//! relies on Tokio's undocumented behaviour.

pub(crate) mod alarm;
#[cfg(tokio_unstable)]
mod alternative;
pub(crate) mod tokio_timer;

/// Returns whether the current runtime has Tokio's alternative timer, which requires `tokio_unstable`.
#[cfg(tokio_unstable)]
pub(crate) use alternative::is_alternative;

#[cfg(not(tokio_unstable))]
pub(crate) fn is_alternative() -> bool {
    false
}
