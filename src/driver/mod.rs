//! The driver turns a wheel: it visits the shards and wakes what is due.
//!
//! - [`task`]: the driver's work, and the Tokio task that lives as long as the driver.
//! - [`alarm`]: when the driver works, and who has it do so.
//! - [`start`]: how a driver is started and replaced.
//! - [`waking`]: how it wakes many tasks.
//! - [`shared`]: what it has in common with the shards.

mod alarm;
mod shared;
mod start;
mod task;
mod waking;

pub(crate) use shared::Shared;
