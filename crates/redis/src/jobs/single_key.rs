//! `renew_by_single_keys`: renews leases while scripts of several keys cannot run.
//!
//! While a slot of a cluster moves to another node, some keys of a partition are on one node and some on the
//! other. Redis then answers TRYAGAIN to every script that names keys of both, and runs a script that names
//! one key where that key is. So nobody can take a job from its holder, but the holder has to renew its
//! lease, in case the migration takes longer than that.
//!
//! When a lease ends stands in `running` or `claimed`, and who holds it in `state`. The end is read first,
//! then the holder, and then the end is moved unless it has changed. That is as good as a single step,
//! because a change of the holder changes the end, too.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::Value;
use tokio::time::Instant;

use super::{
    asking::unexpected,
    claim::{JobLease, valid_until},
    partition::{Set, text},
    queue::Queue,
};
use crate::error::Error;

/// The largest number of jobs that a script looks at.
const BATCH: usize = 100;

/// Renews leases of one partition. Those that cannot be renewed are left as they are.
pub(super) async fn renew_by_single_keys(
    queue: Arc<Queue>,
    partition: usize,
    leases: Vec<Arc<JobLease>>,
    duration: Duration,
) {
    let renewals = leases.chunks(BATCH).flat_map(|leases| {
        let queue = &queue;
        [Set::Running, Set::Claimed].map(move |set| renew(queue, partition, set, leases, duration))
    });
    for renewed in join_all(renewals).await {
        if let Err(error) = renewed {
            tracing::debug!(%error, "leases of jobs could not be renewed; they are tried again");
        }
    }
}

async fn renew(
    queue: &Queue,
    partition: usize,
    set: Set,
    leases: &[Arc<JobLease>],
    duration: Duration,
) -> Result<(), Error> {
    let now = Instant::now();
    let last = leases.iter().map(|lease| lease.validity.until()).max();
    let last = last.unwrap_or(now);
    let partition = &queue.partitions[partition];

    let ids = leases.iter().map(|lease| &*lease.id);
    let ends = values(queue.ask_until(partition.ends(set, ids), last).await?)?;
    let found: Vec<(&JobLease, &str)> = leases
        .iter()
        .zip(&ends)
        .filter_map(|(lease, end)| Some((&**lease, text(end)?)))
        .collect();
    if found.is_empty() {
        return Ok(());
    }
    let ids = found.iter().map(|(lease, _)| &*lease.id);
    let states = values(queue.ask_until(partition.states(ids), last).await?)?;
    let held: Vec<(&JobLease, &str)> = found
        .into_iter()
        .zip(&states)
        .filter(|((lease, _), state)| holder(state) == Some(&*lease.token))
        .map(|(found, _)| found)
        .collect();
    if held.is_empty() {
        return Ok(());
    }
    let sent = Instant::now();
    let ends = held.iter().map(|(lease, end)| (&*lease.id, *end));
    let answer = queue
        .ask_until(partition.extend(set, duration, ends), last)
        .await?;
    let moved = text(&answer).ok_or_else(|| unexpected(&answer))?;
    for ((lease, _), moved) in held.into_iter().zip(moved.bytes()) {
        if moved == b'1' {
            lease.validity.extend(valid_until(&queue.wheel, sent, duration));
            queue.workers.stats.renewals.renewed.increment();
        }
    }
    Ok(())
}

fn values(answer: Value) -> Result<Vec<Value>, Error> {
    match answer {
        Value::Array(values) => Ok(values),
        other => Err(unexpected(&other)),
    }
}

/// Returns the token of who holds a job.
fn holder(state: &Value) -> Option<&str> {
    text(state)?.split(' ').next()
}
