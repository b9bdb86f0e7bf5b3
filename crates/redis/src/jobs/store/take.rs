//! `take`: takes jobs from Redis and parses the answer.

use std::{mem, sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{call_names::CallName, change::micros, partition::Partition, queue::Queue};
use crate::{
    error::Error,
    jobs::{
        claim::{Claim, JobLease, valid_until},
        settings::WorkerSettings,
    },
    server::{
        answer::{lossy, text, unexpected},
        names::Nonce,
        retry::within,
        script::{Call, Script},
    },
};

static TAKE: Script = script!("#!lua flags=allow-oom", "scripts/take.lua");
static GIVE_BACK: Script = script!("#!lua flags=allow-oom", "scripts/give_back.lua");

/// A take of one worker on one partition.
#[derive(Clone, Debug)]
pub(in crate::jobs) struct TakeRequest {
    pub(in crate::jobs) call: CallName,
    pub(in crate::jobs) partition: usize,
    /// How many jobs may be claimed, and how many up to one that is not due yet.
    pub(in crate::jobs) wanted: usize,
    pub(in crate::jobs) wanted_ahead: usize,
    /// The name under which the worker listens.
    pub(in crate::jobs) ear: Option<Nonce>,
    /// How many bytes of payload the answer may have.
    pub(in crate::jobs) bytes: usize,
    /// Whether it has been sent before without an answer.
    pub(in crate::jobs) is_resent: bool,
}

pub(in crate::jobs) struct Taken {
    pub(in crate::jobs) claims: Vec<Claim>,
    /// Jobs that cannot be delivered, each as an error.
    pub(in crate::jobs) undeliverable: Vec<Error>,
    /// Whether Redis remembers the take.
    pub(in crate::jobs) is_stored: bool,
    /// Whether Redis knows the worker as one that has room, and as one of few that are idle.
    pub(in crate::jobs) is_listed: bool,
    pub(in crate::jobs) is_one_of_few: bool,
    /// When the next job is due, and when the next lease ends, unless others look and tell this worker.
    pub(in crate::jobs) next_due: Option<Instant>,
    pub(in crate::jobs) next_end: Option<Instant>,
}

pub(in crate::jobs) async fn take(
    queue: Arc<Queue>,
    settings: WorkerSettings,
    request: TakeRequest,
) -> (TakeRequest, Result<Taken, Error>) {
    let sent = Instant::now();
    let call = of_worker(&TAKE, &queue.partitions[request.partition], &request.call).named([
        ("wanted", request.wanted.to_string()),
        ("wanted_ahead", request.wanted_ahead.to_string()),
        ("ahead", micros(settings.look_ahead).to_string()),
        ("lease", micros(settings.lease).to_string()),
        ("limit", settings.attempts.to_string()),
        ("resent", u8::from(request.is_resent).to_string()),
        ("largest", queue.settings.max_payload.to_string()),
        ("room", request.bytes.to_string()),
        ("worker", request.ear.map_or(String::new(), |ear| ear.to_string())),
    ]);
    let limit = queue.settings.answer_within.min(settings.lease);
    let probe = call.probe();
    let answer = within(limit, async {
        // The first answer may still be filling the connection.
        if request.is_resent {
            queue.server.send(&probe).await?;
        }
        queue.server.send(&call).await
    })
    .await;
    // A take that is repeated renews the claims of the first.
    let until = valid_until(&queue.wheel, sent, settings.lease);
    let taken =
        answer.and_then(|mut answer| read(&mut answer, &request, until).ok_or_else(|| unexpected(&answer)));
    (request, taken)
}

/// Returns a call that undoes a take whose answer never arrived.
pub(in crate::jobs) fn give_back(partition: &Partition, call: &CallName) -> Call {
    of_worker(&GIVE_BACK, partition, call)
}

fn of_worker(script: &'static Script, partition: &Partition, call: &CallName) -> Call {
    let CallName { sequence, token } = call;
    script
        .on(&partition.tag)
        .named([
            ("sequence", sequence.clone()),
            ("channel", partition.channel().to_owned()),
        ])
        .named([("token", token.to_string())])
}

/// Parses an answer, and moves the payloads out of it. Returns `None` if it is malformed.
fn read(answer: &mut Value, request: &TakeRequest, until: Instant) -> Option<Taken> {
    let Value::Array(values) = answer else { return None };
    let [
        now,
        next_due,
        next_end,
        stored,
        listed,
        Value::Array(jobs),
        Value::Array(refused),
    ] = &mut values[..]
    else {
        return None;
    };
    let now: u64 = text(now)?.parse().ok()?;
    // Redis read its clock before the answer arrived, so counting from now is never early.
    let here = Instant::now();
    let instant = |micros: u64| here + Duration::from_micros(micros.saturating_sub(now));
    let next = |value: &Value| {
        let text = text(value)?;
        if text.is_empty() {
            Some(None)
        } else {
            text.parse().ok().map(|at| Some(instant(at)))
        }
    };
    let undeliverable = refused.chunks(2).map(|job| {
        let [id, reason] = job else { return None };
        let (id, reason) = (lossy(id)?, lossy(reason)?);
        Some(Error::Undeliverable { id, reason })
    });
    let undeliverable = undeliverable.collect::<Option<_>>()?;
    let mut claims = Vec::new();
    for job in jobs.chunks_mut(6) {
        let [id, Value::BulkString(payload), size, attempts, due, delivered] = job else {
            return None;
        };
        let due: u64 = text(due)?.parse().ok()?;
        let token = request.call.token.clone();
        let due_at = instant(due);
        claims.push(Claim {
            lease: JobLease::new(text(id)?.to_owned(), request.partition, token, until),
            payload: mem::take(payload),
            size: text(size)?.parse().ok()?,
            was_delivered: text(delivered)? == "1",
            attempts: text(attempts)?.parse().ok()?,
            due,
            due_at,
            overdue: Duration::from_micros(now.saturating_sub(due)),
            since: due_at,
        });
    }
    Some(Taken {
        claims,
        undeliverable,
        is_stored: text(stored)? == "1",
        is_listed: !text(listed)?.is_empty(),
        is_one_of_few: text(listed)? == "few",
        next_due: next(next_due)?,
        next_end: next(next_end)?,
    })
}
