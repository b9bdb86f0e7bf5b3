//! When the driver runs, and what wakes it: [`alarm`] has the rules, [`tokio_timer`] has everything that
//! relies on Tokio's undocumented behaviour, [`alternative`] what is different with
//! Tokio's alternative timer, and [`kernel_timer`] is more precise, where there is one.

pub(crate) mod alarm;
pub(crate) mod alternative;
#[cfg_attr(
    not(any(tickwheel_loom, all(feature = "precise", target_os = "linux"))),
    path = "no_kernel_timer.rs"
)]
pub(crate) mod kernel_timer;
#[cfg(any(tickwheel_loom, all(feature = "precise", target_os = "linux")))]
#[cfg_attr(tickwheel_loom, path = "../../../tests/loom/src/timer_fd.rs")]
mod timer_fd;
pub(crate) mod tokio_timer;
