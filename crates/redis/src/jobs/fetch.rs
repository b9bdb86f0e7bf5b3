//! `fetch`: fetches a large payload in parts, so that other answers on the connection need not wait for all of it.

use redis::Value;
use tokio::time::Instant;

use super::{asking::unexpected, queue::Queue};
use crate::{error::Error, nonce::Nonce};

/// Fetches a payload of `size` bytes, a few at a time for all workers of a queue. Returns `None` if the job is no longer held under that
/// token.
pub(super) async fn fetch(
    queue: &Queue,
    partition: usize,
    id: &str,
    token: &str,
    size: usize,
) -> Result<Option<Vec<u8>>, Error> {
    let _permit = queue.fetches.acquire().await;
    let (name, limit) = (Nonce::new(), queue.limits.answer_within);
    let began = Instant::now();
    let last = began + limit;
    let mut payload = Vec::with_capacity(size);
    while payload.len() < size {
        if Instant::now() >= last {
            return Err(Error::NoAnswer {
                waited: began.elapsed(),
            });
        }
        let call = queue.partitions[partition].fetch(name, limit, id, token, payload.len());
        match queue.ask_until(call, last).await? {
            Value::BulkString(part) if !part.is_empty() => payload.extend_from_slice(&part),
            Value::BulkString(_) | Value::Nil => return Ok(None),
            other => return Err(unexpected(&other)),
        }
    }
    Ok(Some(payload))
}
