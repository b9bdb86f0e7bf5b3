//! Faults: what panics, stalls, storms or misbehaves costs nobody else a timer; and what reviews have found.

#[path = "../support/mod.rs"]
mod support;

mod bad_day;
mod contained;
mod hostile_wakers;
mod regressions;
