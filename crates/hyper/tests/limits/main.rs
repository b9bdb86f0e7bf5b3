//! Each limit, by clients that write their bytes and frames by hand.

mod attacks;
mod bodies;
mod heads;
mod idle;
mod lifetime;
mod settings;
mod shutdown;
mod support;
mod upgrades;
