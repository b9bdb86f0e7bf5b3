//! `Connection`: the bound that a Redis connection has to meet, and what its requests end with.

use std::{any::Any, io, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use redis::{ErrorKind, RedisError, RedisResult, aio::ConnectionLike};
use tokio::time::timeout;

/// A shareable connection to Redis: any asynchronous connection of the `redis` crate.
///
/// The trait is implemented for every type that is `ConnectionLike + Clone + Send + Sync + 'static`. Requests
/// are sent concurrently on clones, so clones should share one multiplexed connection, as all of the `redis`
/// crate's do. Reconnecting is left to the connection: `ConnectionManager` and `ClusterConnection` reconnect,
/// but a plain `MultiplexedConnection` stays broken once its server has gone.
/// [`Reconnecting`](crate::Reconnecting) is also made anew when its other end has vanished without a word,
/// and for each runtime.
pub trait Connection: ConnectionLike + Clone + Send + Sync + 'static {}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {}

/// Turns a panic in a connection into an error, because many calls share the task that polls it.
pub(crate) async fn guarded<T>(answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    match AssertUnwindSafe(answer).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => Err(RedisError::from((
            ErrorKind::Client,
            "the connection panicked",
            panic_text(&*panic).unwrap_or("without a message").to_owned(),
        ))),
    }
}

/// Waits for an answer for as long as `limit`. The error of one that does not come says `why`.
pub(crate) async fn in_time<T>(
    limit: Duration,
    why: &'static str,
    answer: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    let answer = timeout(limit, guarded(answer)).await;
    answer.unwrap_or_else(|_| Err(broken(io::ErrorKind::TimedOut, why)))
}

/// Returns the error of a connection that is given up.
pub(crate) fn broken(kind: io::ErrorKind, why: &'static str) -> RedisError {
    io::Error::new(kind, why).into()
}

/// Returns what a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}
