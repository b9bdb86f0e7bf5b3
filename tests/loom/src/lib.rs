//! The engine under loom, which tries the orders in which threads can run.
//!
//! All of the engine's files are the real ones, except for `sync.rs`. What the engine uses of Tokio is in
//! [`stand_in`], where time is the model's own. A lost wake-up shows as a deadlock of the model, an entry
//! that is used after it has gone as a panic of the arena, a timer that completes early as a failed
//! assertion.
#![cfg(test)]
#![allow(dead_code, unused_imports)]

// `tokio` is this crate.
extern crate self as tokio;

#[path = "../../../src/engine/mod.rs"]
mod engine;
mod models;
mod stand_in;

pub use stand_in::{runtime, sync, task, time};
