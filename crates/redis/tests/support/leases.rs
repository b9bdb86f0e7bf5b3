//! Leases, and what Redis has of them.

use redis::aio::ConnectionManager;
use tickwheel::Wheel;
use tickwheel_redis::Leases;

use super::{connect, server::Server};

/// Leases on a wheel and a connection of their own.
pub async fn leases(url: &str) -> Leases<ConnectionManager> {
    Leases::new(&Wheel::new(), connect(url).await)
}

/// A key or a channel of a lease.
pub fn key(name: &str, what: &str) -> String {
    format!("tickwheel:lease:{{{name}}}:{what}")
}

/// Whether somebody holds it, or it is kept for somebody.
pub fn is_held(server: &Server, name: &str) -> bool {
    server.command(&["EXISTS", &key(name, "holder")])
}

/// How many connections listen to its release.
pub fn listeners(server: &Server, name: &str) -> u64 {
    let counts: (String, u64) = server.command(&["PUBSUB", "NUMSUB", &key(name, "released")]);
    counts.1
}
