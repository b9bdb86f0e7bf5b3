//! `Connection`: what is asked of a connection.

use redis::aio::ConnectionLike;

/// A connection to Redis that can be shared: any of the `redis` crate's asynchronous ones.
///
/// Implemented for all that is `ConnectionLike + Clone + Send + Sync + 'static`. Requests are sent on clones, several at once, so
/// clones should share one multiplexed connection, as all of the `redis` crate's do. Reconnecting is the connection's own affair:
/// a plain `MultiplexedConnection` stays broken once its server has gone; `ConnectionManager` and the cluster's do reconnect.
pub trait Connection: ConnectionLike + Clone + Send + Sync + 'static {}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {}
