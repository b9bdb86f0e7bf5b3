//! The engine under loom, which tries the orders in which threads can run.
//!
//! All of the engine's files are the real ones, except for `sync.rs`, and so are those of refusal, in
//! [`timers`] and [`wheel`], and `per_runtime.rs` of tickwheel-redis. What they use of Tokio is in [`stand_in`],
//! where time is the model's own. A lost wake-up shows as a deadlock of the model, an entry that is used after it
//! has gone as a panic of the arena, a timer that completes early as a failed assertion.
#![cfg(test)]
#![allow(dead_code, unused_imports)]

// `tokio` is this crate.
extern crate self as tokio;

#[path = "../../../src/engine/mod.rs"]
mod engine;
#[path = "../../../src/error.rs"]
mod error;
mod models;
mod mutex;
#[path = "../../../crates/redis/src/per_runtime.rs"]
mod per_runtime;
mod stand_in;
mod timers;
mod wheel;

pub use stand_in::{runtime, sync, task, time};
