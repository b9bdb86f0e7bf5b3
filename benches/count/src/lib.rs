//! The work of the counted program, which other benchmarks also measure by the clock.

pub mod fired;
pub mod nested;
pub mod polled;
pub mod queue;
pub mod runtimes;
pub mod server;
pub mod tasks;
pub mod timers;
