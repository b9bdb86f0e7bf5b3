//! Random programs, compared with a model of the documentation.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "io")]
mod io_scripts;
mod properties;
mod twins;
mod uptime;
mod watched;
