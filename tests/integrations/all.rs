//! The integrations against the real clients and servers that use them, which take long to build.

#[path = "../support/mod.rs"]
mod support;

mod aws;
mod axum;
mod turmoil;
