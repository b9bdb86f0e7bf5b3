//! When the driver runs, and what wakes it: [`alarm`] has the rules, and [`tokio_timer`] has everything that
//! relies on Tokio's undocumented behaviour.

pub(crate) mod alarm;
#[cfg(tokio_unstable)]
mod alternative;
pub(crate) mod tokio_timer;

/// Which timers a runtime has. The alternative ones require `tokio_unstable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(tokio_unstable), allow(dead_code))]
pub(crate) enum TokioTimers {
    Usual,
    Alternative,
}

#[cfg(tokio_unstable)]
pub(crate) use alternative::timers_of;

#[cfg(not(tokio_unstable))]
pub(crate) fn timers_of(_: &tokio::runtime::Handle) -> TokioTimers {
    TokioTimers::Usual
}
