//! Random programs beside a model of what the documentation says.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "io")]
mod io_scripts;
mod properties;
mod uptime;
mod watched;
