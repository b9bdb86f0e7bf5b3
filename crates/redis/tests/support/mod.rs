//! Servers for the tests: each in a folder of its own, on free ports of 127.0.0.1, and gone when the test
//! ends, however it ends.
#![allow(dead_code, unreachable_pub)]

pub mod cluster;
pub mod faulty;
pub mod folder;
pub mod jobs;
pub mod leases;
pub mod process;
pub mod proxy;
pub mod sentinels;
pub mod server;
pub mod slow;

use std::time::Duration;

use redis::{
    Client,
    aio::{ConnectionManager, ConnectionManagerConfig},
};

/// How long a test waits for what has to happen before it says that it did not. Long, for loaded machines.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection that reconnects quickly and has no timeout of its own.
pub async fn connect(url: &str) -> ConnectionManager {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(Some(Duration::from_secs(10)))
        .set_min_delay(Duration::from_millis(10))
        .set_max_delay(Duration::from_millis(100));
    Client::open(url)
        .unwrap()
        .get_connection_manager_with_config(config)
        .await
        .unwrap()
}

/// Awaits what has to happen, and fails the test when it does not.
#[track_caller]
pub fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = std::panic::Location::caller();
    async move {
        match tokio::time::timeout(PATIENCE, future).await {
            Ok(output) => output,
            Err(_) => panic!("nothing happened within {PATIENCE:?}, at {caller}"),
        }
    }
}

/// Looks again and again until something is so.
#[track_caller]
pub fn until<F: Future<Output = bool>>(mut look: impl FnMut() -> F) -> impl Future<Output = ()> {
    soon(async move {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}
