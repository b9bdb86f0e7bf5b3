//! `AnyConnection`: a connection with its type erased, so that only `DelayedJobs` is generic over it.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use redis::Value;

use crate::{
    error::Error,
    server::{connection::Connection, policy::Policy, script::Call},
};

pub(in crate::jobs) trait AnyConnection: Send + Sync {
    fn send(&self, call: Arc<Call>) -> BoxFuture<'static, Result<Value, Error>>;
    /// Returns an error if the server may evict jobs.
    fn check_policy(&self) -> BoxFuture<'_, Result<(), Error>>;
}

pub(in crate::jobs) struct Connected<C> {
    connection: C,
    policy: Policy,
}

impl<C> Connected<C> {
    pub(in crate::jobs) fn new(connection: C) -> Connected<C> {
        Connected {
            connection,
            policy: Policy::for_keys_that_stay(),
        }
    }
}

impl<C: Connection> AnyConnection for Connected<C> {
    fn send(&self, call: Arc<Call>) -> BoxFuture<'static, Result<Value, Error>> {
        let connection = self.connection.clone();
        async move { call.send(&connection).await }.boxed()
    }

    fn check_policy(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.policy.check(&self.connection).boxed()
    }
}
