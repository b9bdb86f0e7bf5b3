//! The driver turns a wheel: it visits the shards and wakes the tasks whose timers are due.
//!
//! - [`stats`]: counts its work.
//! - [`waking`]: wakes many tasks.
//! - [`alarm`]: decides which thread runs the driver, and when it runs next.
//! - [`timer`]: Tokio's timer, on which the driver waits.
//! - [`turn`]: a turn of the driver.
//! - [`shared`]: the state that it shares with the shards, and its end.
//! - [`task`]: runs the driver, from Tokio's timer or from its task.
//! - [`start`]: starts and replaces the driver.

mod alarm;
mod shared;
mod start;
mod stats;
mod task;
mod timer;
mod turn;
mod waking;

pub(crate) use {shared::Shared, task::spawn};
