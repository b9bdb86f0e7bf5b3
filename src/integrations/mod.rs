//! Other crates' traits, implemented on a wheel. Each integration is behind a feature, and knows the futures
//! and, where it needs one, a shard's clock.

#[cfg(feature = "aws")]
mod aws;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "io")]
pub mod io;
#[cfg(feature = "stream")]
pub mod stream;
#[cfg(feature = "tower")]
pub mod tower;
