//! `Connection`: the bound that a Redis connection has to meet.

use redis::aio::ConnectionLike;

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
