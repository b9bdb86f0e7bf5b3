//! `Server`: a connection with its type erased, so that only `DelayedJobs` is generic over it.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use redis::Value;

use crate::{connection::Connection, error::Error, policy::Policy, script::Call};

pub(super) trait Server: Send + Sync {
    fn send(&self, call: Arc<Call>) -> BoxFuture<'static, Result<Value, Error>>;
    /// Returns an error if the server may evict jobs.
    fn check_policy(&self) -> BoxFuture<'_, Result<(), Error>>;
}

pub(super) struct Connected<C> {
    connection: C,
    policy: Policy,
}

impl<C> Connected<C> {
    pub(super) fn new(connection: C) -> Connected<C> {
        Connected {
            connection,
            policy: Policy::for_keys_that_stay(),
        }
    }
}

impl<C: Connection> Server for Connected<C> {
    fn send(&self, call: Arc<Call>) -> BoxFuture<'static, Result<Value, Error>> {
        let connection = self.connection.clone();
        async move { call.send(&connection).await }.boxed()
    }

    fn check_policy(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.policy.check(&self.connection).boxed()
    }
}
