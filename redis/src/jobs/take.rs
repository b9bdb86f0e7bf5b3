//! `take`: takes jobs from Redis and parses the answer.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    asking::{ATTEMPT, unexpected},
    claim::{Claim, JobLease, valid_until},
    partition::{text, token},
    queue::{Queue, micros},
    settings::Settings,
    waiting::within,
};
use crate::{error::Error, nonce::Nonce};

/// A take of one worker on one partition, where takes are numbered.
#[derive(Clone, Copy, Debug)]
pub(super) struct TakeRequest {
    pub(super) worker: Nonce,
    pub(super) partition: usize,
    pub(super) number: u64,
    pub(super) limit: usize,
    /// Whether it has been sent before without an answer.
    pub(super) again: bool,
}

pub(super) struct Taken {
    /// Claims, each with the instant from which it may be delivered.
    pub(super) claims: Vec<(Instant, Claim)>,
    /// When the next job is due, and when the next lease ends.
    pub(super) next_due: Option<Instant>,
    pub(super) next_end: Option<Instant>,
}

pub(super) async fn take(
    queue: Arc<Queue>,
    settings: Settings,
    request: TakeRequest,
) -> (TakeRequest, Result<Taken, Error>) {
    let sent = Instant::now();
    let call = queue.partitions[request.partition]
        .take(request.worker, request.number)
        .arg(request.limit)
        .arg(micros(settings.look_ahead))
        .arg(micros(settings.lease))
        .arg(settings.attempts)
        .arg(if request.again { "again" } else { "" });
    let limit = ATTEMPT.min(settings.lease);
    let answer = within(&queue.wheel, limit, queue.server.send(Arc::new(call))).await;
    // A take that is repeated renews the claims of the first.
    let until = valid_until(&queue.wheel, sent, settings.lease);
    let taken = answer.and_then(|answer| read(&answer, request, until).ok_or_else(|| unexpected(&answer)));
    (request, taken)
}

/// Parses an answer. Returns `None` if it is malformed.
fn read(answer: &Value, request: TakeRequest, until: Instant) -> Option<Taken> {
    let Value::Array(values) = answer else { return None };
    let (head, jobs) = values.split_at_checked(3)?;
    let now: u64 = text(&head[0])?.parse().ok()?;
    // Redis read its clock before the answer arrived, so counting from now is never early.
    let here = Instant::now();
    let instant = |micros: u64| here + Duration::from_micros(micros.saturating_sub(now));
    let next = |value| {
        let text = text(value)?;
        if text.is_empty() {
            Some(None)
        } else {
            text.parse().ok().map(|at| Some(instant(at)))
        }
    };
    let token: Arc<str> = token(request.worker, request.number).into();
    let claims = jobs
        .chunks(4)
        .map(|job| {
            let [id, Value::BulkString(payload), attempts, due] = job else {
                return None;
            };
            let due = text(due)?.parse().ok()?;
            let claim = Claim {
                lease: JobLease::new(text(id)?.to_owned(), request.partition, token.clone(), until),
                payload: payload.clone(),
                attempts: text(attempts)?.parse().ok()?,
                due,
            };
            Some((instant(due), claim))
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Taken {
        claims,
        next_due: next(&head[1])?,
        next_end: next(&head[2])?,
    })
}
