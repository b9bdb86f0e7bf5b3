//! Faults: whatever panics, stalls, storms or misbehaves costs no other task a timer. Also the bugs that
//! reviews have found.

#[path = "../support/mod.rs"]
mod support;

mod bad_day;
mod contained;
mod hostile_wakers;
mod regressions;
