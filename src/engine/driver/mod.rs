//! When the driver runs, and what wakes it: [`alarm`] has the rules, [`tokio_timer`] has everything that
//! relies on Tokio's undocumented behaviour, and [`kernel_timer`] is more precise, where there is one.

pub(crate) mod alarm;
#[cfg(tokio_unstable)]
mod alternative;
pub(crate) mod kernel_timer;
#[cfg_attr(tickwheel_loom, path = "../../../tests/loom/src/timer_fd.rs")]
#[cfg_attr(
    not(any(tickwheel_loom, all(feature = "precise", target_os = "linux"))),
    path = "no_timer_fd.rs"
)]
pub(crate) mod timer_fd;
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

// Without `tokio_unstable`, no runtime has others.
#[cfg(not(tokio_unstable))]
pub(crate) fn timers_of(_: &tokio::runtime::Handle) -> TokioTimers {
    TokioTimers::Usual
}
