//! The driver: the one Tokio task that turns a wheel, and what the shards need to reach it.
//!
//! [`task`] is the task, [`alarm`] says when it comes, [`overtaking`] how it comes in a storm, [`start`] how it is started and
//! replaced, [`waking`] how it wakes many tasks, and [`shared`] is what it has in common with the shards.

mod alarm;
mod overtaking;
mod shared;
mod start;
mod task;
mod waking;

pub(crate) use shared::Shared;
