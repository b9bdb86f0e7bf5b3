//! `Take`: a worker's call by which it takes jobs from Redis.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    claim::{Claim, JobLease},
    queue::Queue,
};
use crate::{
    error::Error,
    jobs::settings::WorkerSettings,
    server::{
        names::{CallName, Nonce},
        retry::within,
        script::{Call, Script, lossy, micros, parse},
    },
    validity::valid_for,
};

static TAKE: Script = script!("#!lua flags=allow-oom", "scripts/take.lua");
static UNDO_TAKE: Script = script!("#!lua flags=allow-oom", "scripts/undo_take.lua");

/// A take of one worker on one partition.
#[derive(Clone, Debug)]
pub(crate) struct Take {
    pub(crate) call: CallName,
    pub(crate) partition: usize,
    /// How many jobs may be claimed, and how many up to one that is not due yet.
    pub(crate) wanted: usize,
    pub(crate) wanted_ahead: usize,
    /// The name of the worker, if it listens.
    pub(crate) worker: Option<Nonce>,
    /// How many bytes of payload the answer may have.
    pub(crate) bytes: usize,
    /// Whether it has been sent before without an answer.
    pub(crate) is_resent: bool,
}

pub(crate) struct Taken {
    pub(crate) claims: Vec<Claim>,
    /// Jobs that cannot be delivered, each as an error.
    pub(crate) undeliverable: Vec<Error>,
    /// Whether Redis remembers the take.
    pub(crate) is_stored: bool,
    /// Whether Redis knows the worker as one that has room, and as one of few that are idle.
    pub(crate) is_listed: bool,
    pub(crate) is_one_of_few: bool,
    /// When the next job is due, and when the next lease ends, unless others look and tell this worker.
    pub(crate) next_due: Option<Instant>,
    pub(crate) next_end: Option<Instant>,
}

/// Sends a take. Returns it with what became of it.
pub(crate) async fn send(
    queue: Arc<Queue>,
    settings: WorkerSettings,
    take: Take,
) -> (Take, Result<Taken, Error>) {
    let sent = Instant::now();
    let call = of_worker(&TAKE, &queue, take.partition, &take.call).named([
        ("wanted", take.wanted.to_string()),
        ("wanted_ahead", take.wanted_ahead.to_string()),
        ("ahead", micros(settings.look_ahead).to_string()),
        ("lease", micros(settings.lease).to_string()),
        ("own_max_attempts", settings.max_attempts.to_string()),
        ("resent", u8::from(take.is_resent).to_string()),
        ("largest", queue.settings.max_payload.to_string()),
        ("bytes_left", take.bytes.to_string()),
        (
            "worker",
            take.worker.map_or(String::new(), |worker| worker.to_string()),
        ),
    ]);
    let limit = queue.settings.answer_within.min(settings.lease);
    let probe = call.probe();
    let answer = within(limit, async {
        // The first answer may still be filling the connection.
        if take.is_resent {
            queue.server.send(&probe).await?;
        }
        queue.server.send(&call).await
    })
    .await;
    // A take that is repeated renews the claims of the first.
    let until = sent + valid_for(settings.lease, queue.wheel.tick_duration());
    let taken = answer.and_then(|answer| read(answer, &take, until));
    (take, taken)
}

/// Undoes a take whose answer never came. A job that cannot be given back is delivered again when its lease
/// has expired.
pub(crate) fn undo(queue: Arc<Queue>, partition: usize, call: &CallName) -> impl Future<Output = ()> + use<> {
    let call = of_worker(&UNDO_TAKE, &queue, partition, call);
    async move {
        if queue.ask(call).await.is_ok() {
            queue.expect_job(partition, Duration::ZERO);
        }
    }
}

fn of_worker(script: &'static Script, queue: &Queue, partition: usize, call: &CallName) -> Call {
    let partition = &queue.partitions[partition];
    script.on(&partition.tag).named([
        ("sequence", call.sequence.clone()),
        ("channel", partition.channel.clone()),
    ])
}

/// What the script answers: Redis' time; when the next job is due and when the next lease ends; whether it
/// remembers the take, and whether it lists the worker; the claims, each with its id, payload, the size of
/// that, attempts, due time, and whether it was tried; and the jobs that cannot be delivered, each with its
/// id and the reason.
type TakeAnswer = (
    u64,
    Option<u64>,
    Option<u64>,
    bool,
    String,
    Vec<(String, Vec<u8>, usize, u32, u64, bool)>,
    Vec<(Vec<u8>, Vec<u8>)>,
);

fn read(answer: Value, take: &Take, until: Instant) -> Result<Taken, Error> {
    let (now, next_due, next_end, is_stored, listed, jobs, refused): TakeAnswer = parse(answer)?;
    // Redis read its clock before the answer arrived, so counting from now is never early.
    let here = Instant::now();
    let instant = |micros: u64| here + Duration::from_micros(micros.saturating_sub(now));
    let claims = jobs
        .into_iter()
        .map(|(id, payload, size, attempts, due, was_tried)| Claim {
            lease: JobLease::new(id, take.partition, take.call.name.clone(), until),
            payload,
            size,
            attempts,
            was_tried,
            due,
            due_at: instant(due),
            late_by: Duration::from_micros(now.saturating_sub(due)),
            since: instant(due),
        });
    let undeliverable = refused.iter().map(|(id, reason)| Error::Undeliverable {
        id: lossy(id),
        reason: lossy(reason),
    });
    Ok(Taken {
        claims: claims.collect(),
        undeliverable: undeliverable.collect(),
        is_stored,
        is_listed: !listed.is_empty(),
        is_one_of_few: listed == "few",
        next_due: next_due.map(instant),
        next_end: next_end.map(instant),
    })
}
