//! What the counted program does, and others measure by the clock.

pub mod polled;
pub mod server;
pub mod timers;
