//! The promises of the public API, one file for each public noun, in one program so that they are built once.
//!
//! A test that needs a process of its own, because it counts allocations or sets a default, is a file beside
//! this folder.
#![allow(
    clippy::async_yields_async,
    reason = "futures are made in one runtime and polled in another"
)]

#[path = "../support/mod.rs"]
mod support;

mod batches;
mod budget;
mod builder;
mod clocks;
mod deadline;
mod delay_queue;
mod errors;
mod every_kind;
mod handle;
mod idle;
mod interval;
mod labelled;
mod max_pending;
mod metrics;
mod panics;
mod periodic;
mod precision;
mod quiet;
mod runtime_ends;
mod schedule;
mod shutdown;
mod slack;
mod sleep;
mod snapshot;
mod time;
mod time_in_runtimes;
mod timeout;
mod turns;
mod wheel;

#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "io")]
mod io;
#[cfg(all(feature = "hyper", feature = "io", feature = "tower"))]
mod io_under_hyper;
#[cfg(all(feature = "precise", target_os = "linux"))]
mod kernel_timer;
#[cfg(feature = "serde")]
mod serde;
#[cfg(feature = "stream")]
mod stream;
#[cfg(feature = "tower")]
mod tower;
#[cfg(feature = "tower")]
mod tower_bodies;
#[cfg(feature = "tower")]
mod tower_deadline;
