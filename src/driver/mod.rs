//! The driver: it turns a wheel, and one Tokio task stands for it. And what the shards need to reach it.
//!
//! [`task`] is the task and its work, [`alarm`] says when it works and who has it do so, [`start`] how it is started and replaced,
//! [`waking`] how it wakes many tasks, and [`shared`] is what it has in common with the shards.

mod alarm;
mod shared;
mod start;
mod task;
mod waking;

pub(crate) use shared::Shared;
