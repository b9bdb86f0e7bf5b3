//! `look_elsewhere`: what to do about a cluster that does not answer.
//!
//! A cluster client learns from an error that a slot has moved. A master that is suspended, or whose machine
//! has vanished, sends no error and leaves its connections open, so the client would keep using it for as
//! long as TCP does, long after a replica has taken over. Any other node answers that the slot has moved,
//! which makes the client read the slot map again.

use std::{any::Any, pin::pin, time::Duration};

use redis::{
    cluster_async::ClusterConnection,
    cluster_routing::{RoutingInfo, SingleNodeRoutingInfo},
};

use super::{
    connection::{Connection, guarded},
    reconnecting::Reconnecting,
};
use crate::timers::sleep;

/// How long a call waits for its answer before another node is asked. Shorter than most clients' response
/// timeouts, because a call that has failed asks nobody.
const SILENCE: Duration = Duration::from_millis(250);

/// Waits for the answer to a call on `key`. If a cluster stays silent for [`SILENCE`], asks a random node for
/// the key once.
pub(crate) async fn look_elsewhere<T>(
    connection: &impl Connection,
    key: &str,
    answer: impl Future<Output = T>,
) -> T {
    if !is_cluster(connection) {
        return answer.await;
    }
    let mut answer = pin!(answer);
    let look = async {
        sleep(SILENCE).await;
        let Some(mut cluster) = cluster(connection) else {
            return;
        };
        // The scripts use GET too, so access control permits it. Whatever the owner of the slot answers is of
        // no interest.
        let mut command = redis::cmd("GET");
        command.arg(key);
        let random = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
        let _ = guarded(cluster.route_command(command, random)).await;
    };
    tokio::select! {
        biased;
        answer = &mut answer => return answer,
        () = look => {}
    }
    answer.await
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
