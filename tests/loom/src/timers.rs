//! The futures that may be refused, whose files are the real ones.

#[path = "../../../src/timers/console.rs"]
pub(crate) mod console;
#[path = "../../../src/timers/limit.rs"]
pub(crate) mod limit;
#[path = "../../../src/timers/sleep.rs"]
pub(crate) mod sleep;
