//! `AnyConnection`: a connection with its type erased, so that only `Leases` and `DelayedJobs` are generic
//! over it.

use std::{any::Any, pin::pin, sync::Arc, time::Duration};

use futures_util::future::{BoxFuture, FutureExt};
use redis::{
    Cmd, RedisResult, Value,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
};
use tokio::time::Instant;

use super::{
    connection::{Connection, guarded},
    eviction::{Eviction, Keys, is_denied},
    reconnecting::Reconnecting,
    script::Call,
};
use crate::{
    error::Error,
    mutex::Mutex,
    timers::{sleep, until},
};

pub(crate) trait AnyConnection: Send + Sync {
    /// Sends a call once. The first one finds out whether the server may evict keys that are in use.
    fn send<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Value, Error>>;
}

struct Connected<C> {
    connection: C,
    eviction: Eviction,
    silence: Silence,
}

pub(crate) fn connected(connection: impl Connection, keys: Keys) -> Arc<dyn AnyConnection> {
    Arc::new(Connected {
        connection,
        eviction: Eviction::new(keys),
        silence: Silence::default(),
    })
}

impl<C: Connection> AnyConnection for Connected<C> {
    fn send<'a>(&'a self, call: &'a Call) -> BoxFuture<'a, Result<Value, Error>> {
        async move {
            let (connection, key) = (&self.connection, call.first_key());
            let (ask_all, ask_owner) = (|| ask_all(connection), || ask_owner(connection, key));
            self.eviction.check(key, ask_all, ask_owner).await?;
            // Within the guard, as a clone may panic, too.
            let answer = guarded(async { call.query(self.connection.clone()).await });
            let answer = self.silence.look_elsewhere(connection, key, answer);
            answer.await.map_err(|error| call.error(error))
        }
        .boxed()
    }
}

/// Asks each server that has slots for its memory settings. Returns `None` if one of a cluster does not
/// answer.
async fn ask_all(connection: &impl Connection) -> Option<RedisResult<Value>> {
    let answer = guarded(async { memory().query_async(&mut connection.clone()).await });
    if !is_cluster(connection) {
        return Some(answer.await);
    }
    let answer = until(Instant::now() + 2 * NODE_SILENCE, answer).await?;
    match answer {
        Err(error) if !is_denied(&error) => None,
        answer => Some(answer),
    }
}

/// Asks the server that has this key for its memory settings.
async fn ask_owner(connection: &impl Connection, key: &str) -> RedisResult<Value> {
    let Some(mut cluster) = cluster(connection) else {
        return guarded(async { memory().query_async(&mut connection.clone()).await }).await;
    };
    let owner = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key.as_bytes(), SlotAddr::Master));
    guarded(cluster.route_command(memory(), RoutingInfo::SingleNode(owner))).await
}

fn memory() -> Cmd {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    info
}

/// How long a call waits for its answer before another node is asked, and how long until that is asked
/// again. Shorter than most clients' response timeouts, because a call that has failed asks nobody.
const NODE_SILENCE: Duration = Duration::from_millis(250);

/// What to do about a cluster that does not answer.
///
/// A cluster client learns from an error that a slot has moved. A master that is suspended, or whose machine
/// has vanished, sends no error and leaves its connections open, so the client would keep using it for as
/// long as TCP does, long after a replica has taken over. Any other node answers that the slot has moved,
/// which makes the client read the slot map again.
///
/// One call of all that wait asks, because the client carries out nothing else while it reads the map. If
/// there are more than fifty requests to a node that it has not sent by then, it waits for a second behind
/// them before it asks the next one: a question by each of 500 calls held up a whole cluster for twenty
/// seconds.
#[derive(Debug, Default)]
struct Silence {
    /// When one of them asked another node.
    asked: Mutex<Option<Instant>>,
}

impl Silence {
    /// Waits for the answer to a call on `key`. While a cluster stays silent, one call at a time asks a
    /// random node for its key.
    async fn look_elsewhere<T>(
        &self,
        connection: &impl Connection,
        key: &str,
        answer: impl Future<Output = T>,
    ) -> T {
        if !is_cluster(connection) {
            return answer.await;
        }
        let mut answer = pin!(answer);
        loop {
            tokio::select! {
                biased;
                answer = &mut answer => return answer,
                () = self.ask_in_turn(connection, key) => {}
            }
        }
    }

    /// Waits for a while, and asks unless another call has done so meanwhile.
    async fn ask_in_turn(&self, connection: &impl Connection, key: &str) {
        sleep(NODE_SILENCE).await;
        {
            let mut asked = self.asked.lock();
            if asked.is_some_and(|asked| asked.elapsed() < NODE_SILENCE) {
                return;
            }
            *asked = Some(Instant::now());
        }
        until(Instant::now() + NODE_SILENCE, ask_any(connection, key)).await;
    }
}

/// Asks a random node for a key. Whatever the owner of the slot answers is of no interest.
async fn ask_any(connection: &impl Connection, key: &str) {
    let Some(mut cluster) = cluster(connection) else {
        return;
    };
    // The scripts use GET too, so access control permits it.
    let mut command = redis::cmd("GET");
    command.arg(key);
    let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
    let _ = guarded(cluster.route_command(command, random)).await;
}

fn is_cluster(connection: &dyn Any) -> bool {
    connection.is::<ClusterConnection>() || connection.is::<Reconnecting<ClusterConnection>>()
}

/// Returns the connection to a cluster that is there at present.
fn cluster(connection: &dyn Any) -> Option<ClusterConnection> {
    match connection.downcast_ref::<Reconnecting<ClusterConnection>>() {
        Some(reconnecting) => reconnecting.present(),
        None => connection.downcast_ref::<ClusterConnection>().cloned(),
    }
}
