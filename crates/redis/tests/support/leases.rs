//! Leases, and what Redis has of them.

use std::time::Duration;

use futures::FutureExt;
use redis::aio::ConnectionManager;
use tickwheel::Wheel;
use tickwheel_redis::{Connection, Lease, Leases};
use tokio::task::JoinHandle;

use super::{HOUR, connect, server::Server, soon, until};

impl Server {
    /// A server, and leases on it.
    pub async fn with_leases() -> (Server, Leases<ConnectionManager>) {
        let server = Server::start();
        let leases = server.leases().await;
        (server, leases)
    }

    /// A server, and leases of two processes on it.
    pub async fn with_two_leases() -> (Server, Leases<ConnectionManager>, Leases<ConnectionManager>) {
        let (server, leases) = Server::with_leases().await;
        let others = server.leases().await;
        (server, leases, others)
    }

    /// Leases on a wheel and a connection of their own.
    pub async fn leases(&self) -> Leases<ConnectionManager> {
        leases(&self.url()).await
    }
}

/// Leases of their own by this URL.
pub async fn leases(url: &str) -> Leases<ConnectionManager> {
    leases_on(connect(url).await)
}

/// Leases on a wheel of their own.
pub fn leases_on<C: Connection>(connection: C) -> Leases<C> {
    Leases::new(&Wheel::new(), connection)
}

/// Acquires a lease that lasts for longer than a test waits.
pub async fn acquire<C: Connection>(leases: &Leases<C>, name: &str) -> Lease {
    soon(leases.acquire(name, HOUR)).await.unwrap()
}

/// Acquires one if it is free.
pub async fn try_acquire<C: Connection>(leases: &Leases<C>, name: &str) -> Option<Lease> {
    soon(leases.try_acquire(name, HOUR)).await.unwrap()
}

/// A task that waits for a lease.
pub fn acquiring<C: Connection>(leases: &Leases<C>, name: &'static str) -> JoinHandle<Lease> {
    let leases = leases.clone();
    tokio::spawn(async move { leases.acquire(name, HOUR).await.unwrap() })
}

/// What such a task has acquired.
pub async fn acquired(acquiring: JoinHandle<Lease>) -> Lease {
    soon(acquiring).await.unwrap()
}

/// Releases a lease that is still its holder's.
pub async fn release(lease: Lease) {
    assert!(soon(lease.release()).await.unwrap(), "it was lost");
}

/// Acquires a lease and releases it.
pub async fn use_once<C: Connection>(leases: &Leases<C>, name: &str) {
    release(acquire(leases, name).await).await;
}

/// Waits until a lease has been renewed.
#[track_caller]
pub fn renewed(lease: &Lease) -> impl Future<Output = ()> {
    let end = lease.valid_until();
    until(move || async move { lease.valid_until() > end })
}

/// Waits until each of these has been renewed.
pub async fn all_renewed(leases: &[Lease]) {
    let ends: Vec<_> = leases.iter().map(Lease::valid_until).collect();
    until(|| async {
        let mut leases = leases.iter().zip(&ends);
        leases.all(|(lease, end)| lease.valid_until() > *end)
    })
    .await;
}

/// Whether its holder may still believe in it.
pub fn is_valid(lease: &Lease) -> bool {
    lease.lost().now_or_never().is_none()
}

/// Polls a future, which is to be pending, until something is so.
pub async fn pending_until<F: Future + Unpin>(future: &mut F, mut is_so: impl FnMut() -> bool) {
    until(|| {
        assert!((&mut *future).now_or_never().is_none());
        let is_so = is_so();
        async move { is_so }
    })
    .await;
}

/// Polls it for some time, until the request that it sent is answered, say.
pub async fn pending_for<F: Future + Unpin>(future: &mut F, time: Duration) {
    let end = tokio::time::Instant::now() + time;
    pending_until(future, || tokio::time::Instant::now() >= end).await;
}

/// A key or a channel of a lease.
pub fn lease_key(name: &str, what: &str) -> String {
    format!("tickwheel:lease:{{{name}}}:{what}")
}

/// The key of its holder.
pub fn holder(name: &str) -> String {
    lease_key(name, "holder")
}

/// Whether somebody holds it, or it is reserved for somebody.
pub fn is_held(server: &Server, name: &str) -> bool {
    server.exists(&holder(name))
}

/// Waits until nobody does.
#[track_caller]
pub fn is_free(server: &Server, name: &str) -> impl Future<Output = ()> {
    until(move || async move { !is_held(server, name) })
}

/// How many connections listen to its release.
pub fn listeners(server: &Server, name: &str) -> u64 {
    server.listeners(&lease_key(name, "released"))
}
