//! Races on real threads and the real clock.

#[path = "../support/mod.rs"]
mod support;

mod lifecycle;
mod random;
mod start;
