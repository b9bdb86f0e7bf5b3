//! What the engine uses of Tokio, as its version 1.54 does it: see `src/engine/driver/tokio_timer.rs`.

pub mod runtime;
pub mod sync;
pub mod task;
pub mod time;
