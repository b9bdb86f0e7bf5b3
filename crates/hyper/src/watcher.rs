//! `Watcher`: puts a connection under limits.

use std::sync::Arc;

use hyper_util::server::graceful::GracefulConnection;

use crate::{connection::Connection, served::Served, watch::Watch};

/// Puts the connection that was made of a [`LimitedIo`](crate::LimitedIo) and a
/// [`LimitedService`](crate::LimitedService) under their limits.
///
/// [`ConnectionLimits::wrap`](crate::ConnectionLimits::wrap) returns it together with them, and has an
/// example.
#[must_use = "the limits apply only to a connection that is watched"]
#[derive(Debug)]
pub struct Watcher {
    connection: Arc<Connection>,
}

impl Watcher {
    pub(crate) fn new(connection: Arc<Connection>) -> Watcher {
        Watcher { connection }
    }

    /// Watches `connection`, which has to be made of the IO and the service that this watcher came with.
    ///
    /// Any [`GracefulConnection`] will do: those of hyper-util's `auto::Builder`, hyper's
    /// `http1::Connection` and `http2::Connection`. hyper's `http1::UpgradeableConnection` is none; use
    /// [`serve`](crate::ConnectionLimits::serve) with a builder that is
    /// [`http1_only`](hyper_util::server::conn::auto::Builder::http1_only) instead.
    ///
    /// The limits count from the call of [`wrap`](crate::ConnectionLimits::wrap).
    pub fn watch<C: GracefulConnection>(self, connection: C) -> Served<C> {
        Served::new(connection, Watch::new(self.connection))
    }
}
