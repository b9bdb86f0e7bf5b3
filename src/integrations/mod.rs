//! Other crates' traits, implemented on a wheel, each behind its feature.

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
