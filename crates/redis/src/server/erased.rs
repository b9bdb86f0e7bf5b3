//! `AnyConnection`: a connection with its type erased, so that only `Leases` and `DelayedJobs` are generic over it.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use redis::Value;

use super::{connection::Connection, policy::Policy, script::Call, silence::Silence};
use crate::error::Error;

pub(crate) trait AnyConnection: Send + Sync {
    fn send(&self, call: Arc<Call>) -> BoxFuture<'static, Result<Value, Error>>;
    /// Returns an error if the server may evict keys that are in use.
    fn check_policy(&self) -> BoxFuture<'_, Result<(), Error>>;
}

struct Connected<C> {
    connection: C,
    policy: Policy,
    silence: Arc<Silence>,
}

pub(crate) fn connected(connection: impl Connection, policy: Policy) -> Arc<dyn AnyConnection> {
    Arc::new(Connected {
        connection,
        policy,
        silence: Arc::default(),
    })
}

impl<C: Connection> AnyConnection for Connected<C> {
    fn send(&self, call: Arc<Call>) -> BoxFuture<'static, Result<Value, Error>> {
        let (connection, silence) = (self.connection.clone(), self.silence.clone());
        async move { call.send(&connection, &silence).await }.boxed()
    }

    fn check_policy(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.policy.check(&self.connection).boxed()
    }
}
