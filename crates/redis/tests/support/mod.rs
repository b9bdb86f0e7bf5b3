//! What the tests share: servers, each in a folder of its own, on free ports of 127.0.0.1, and gone when the test
//! ends, however it ends; connections that meet faults; and words for what most tests do.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)]

pub mod cluster;
pub mod faulty;
pub mod folder;
pub mod jobs;
pub mod leases;
pub mod process;
pub mod proxy;
pub mod sentinels;
pub mod server;

use std::{panic::Location, thread, time::Duration};

use redis::{
    Client,
    aio::{ConnectionManager, ConnectionManagerConfig},
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

pub mod prelude {
    pub use std::{
        collections::{BTreeMap, BTreeSet},
        sync::{
            Arc, Mutex,
            atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        },
        thread,
        time::{Duration, SystemTime, UNIX_EPOCH},
    };

    pub use futures::{FutureExt, StreamExt, future::join_all};
    pub use redis::{Client, aio::ConnectionManager};
    pub use tickwheel::Wheel;
    pub use tickwheel_redis::*;
    pub use tokio::{
        sync::oneshot,
        task::JoinSet,
        time::{Instant, sleep, timeout},
    };

    pub(crate) use super::assert_is;
    pub use super::{
        HOUR, MINUTE, MS, NOW, PATIENCE, SECOND, assert_says, background,
        cluster::Cluster,
        connect,
        faulty::{Fault, Faults, Faulty, Gate, PANIC, says},
        folder::Folder,
        jobs::*,
        leases::*,
        process::*,
        proxy::{Network, Proxy},
        runtime,
        sentinels::Sentinels,
        server::{Node, Server, compile},
        soon, until, until_blocking,
    };
}

pub const NOW: Duration = Duration::ZERO;
pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3600);

/// How long a test waits for what has to happen before it says that it did not. Long, for loaded machines.
pub const PATIENCE: Duration = MINUTE;

/// A connection that reconnects quickly and has no timeout of its own.
pub async fn connect(url: &str) -> ConnectionManager {
    let config = ConnectionManagerConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(Some(10 * SECOND))
        .set_min_delay(10 * MS)
        .set_max_delay(100 * MS);
    let client = Client::open(url).unwrap();
    client.get_connection_manager_with_config(config).await.unwrap()
}

/// A runtime that runs only while somebody calls `block_on`.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime with a thread of its own. A connection that is made there is served for as long as it lives.
pub fn background() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
}

/// Fails unless an error is one of these, and says which it is.
macro_rules! assert_is {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {
        match &$error {
            $pattern $(if $guard)? => {}
            other => panic!("{other}"),
        }
    };
}
pub(crate) use assert_is;

/// Fails unless the text of an error has all of these words.
#[track_caller]
pub fn assert_says(error: &tickwheel_redis::Error, words: &[&str]) {
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

/// Awaits what has to happen, and fails the test when it does not.
#[track_caller]
pub fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let caller = Location::caller();
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
            sleep(5 * MS).await;
        }
    })
}

/// The same, for tests without a runtime.
#[track_caller]
pub fn until_blocking(look: impl FnMut() -> bool) {
    assert!(becomes(look), "nothing happened within {PATIENCE:?}");
}

/// Looks again and again whether something becomes so.
pub fn becomes(mut look: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if look() {
            return true;
        }
        thread::sleep(5 * MS);
    }
    false
}
