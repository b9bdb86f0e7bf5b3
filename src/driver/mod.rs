//! The driver turns a wheel: it visits the shards and wakes the tasks whose timers are due.
//!
//! - [`stats`]: what it counts.
//! - [`waking`]: how it wakes many tasks.
//! - [`alarm`]: who has the driver, and when it runs next.
//! - [`timer`]: Tokio's timer, on which the driver waits.
//! - [`turn`]: what it does when it runs.
//! - [`shared`]: what it shares with the shards, and its end.
//! - [`task`]: what runs it: Tokio's timer, or its task.
//! - [`start`]: how it is started and replaced.

mod alarm;
mod shared;
mod start;
mod stats;
mod task;
mod timer;
mod turn;
mod waking;

pub(crate) use shared::Shared;
