//! Each runtime has an engine of its own on a wheel. What one runtime does, blocks on or ends with, no other
//! notices, and no timer is lost or early.

#[path = "../support/mod.rs"]
mod support;

mod apart;
mod ending;
mod handles;
mod leaks;
mod nesting;
mod play;
mod spares;
mod storm;
mod tokio_alike;
