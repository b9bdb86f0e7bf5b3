//! Reads what is known of a queue and its jobs without changing them: numbers, lists, and single jobs.

use std::{
    sync::Weak,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::{try_join, try_join_all};
use redis::{FromRedisValue, Value};
use tokio::time::Instant;

use super::queue::Queue;
use crate::{
    error::Error,
    jobs::report::{Counts, DeadJob, JobInfo, JobState, QueueSample, WaitingJob},
    server::script::{Script, lossy, parse, unexpected},
    timers,
};

static COUNTS: Script = Script::new(include_str!("scripts/counts.lua"));
static OLDEST: Script = Script::new(include_str!("scripts/oldest.lua"));
static WAITING: Script = Script::new(include_str!("scripts/waiting.lua"));
static GET: Script = Script::new(include_str!("scripts/get.lua"));
static DEAD: Script = Script::new(include_str!("scripts/dead.lua"));

/// How many bytes of payload a page of dead jobs may have. The connection is shared, so every other answer
/// waits behind it: for 22 ms at 12 MB/s.
const PAGE: usize = 256 << 10;

/// Returns the numbers of jobs in a queue.
pub(crate) async fn counts(queue: &Queue) -> Result<Counts, Error> {
    let mut counts = Counts::default();
    for [waiting, running, dead, paused] in ask_all::<[u64; 4]>(queue, &COUNTS).await? {
        counts.waiting += waiting;
        counts.running += running;
        counts.dead += dead;
        counts.paused |= paused > 0;
    }
    Ok(counts)
}

/// Samples a queue, and keeps the sample for its exporters.
pub(crate) async fn sample(queue: &Queue) -> Result<QueueSample, Error> {
    let asked = Instant::now();
    let oldest = ask_all::<Option<u64>>(queue, &OLDEST);
    let (counts, oldest) = try_join(counts(queue), oldest).await?;
    let sample = QueueSample {
        counts,
        oldest_due: oldest.into_iter().flatten().max().map(Duration::from_micros),
    };
    queue.nearby.stats.sampled(asked, sample);
    Ok(sample)
}

/// Samples a queue at once and then every `period`, until nothing else uses it or its wheel is shut down.
pub(crate) async fn sample_every(queue: Weak<Queue>, period: Duration) {
    while let Some(used) = queue.upgrade().filter(|queue| !queue.wheel.is_shutdown()) {
        let next = timers::after(period);
        let sampled = sample(&used).await;
        drop(used);
        if let Err(error) = sampled {
            tracing::debug!(%error, "a queue could not be sampled; it is tried again");
        }
        timers::sleep_until(next).await;
    }
}

/// Asks all partitions at once.
async fn ask_all<T: FromRedisValue>(queue: &Queue, script: &'static Script) -> Result<Vec<T>, Error> {
    let ask = async |deadline| {
        let answers = queue
            .partitions
            .iter()
            .map(async |partition| parse(queue.ask_until(script.on(&partition.tag), deadline).await?));
        try_join_all(answers).await
    };
    queue.limited(ask).await
}

/// Returns up to `count` waiting jobs after the first `offset` ones.
pub(crate) async fn waiting_jobs(
    queue: &Queue,
    offset: usize,
    count: usize,
) -> Result<Vec<WaitingJob>, Error> {
    let end = offset.saturating_add(count);
    let mut jobs = Vec::new();
    for partition in 0..queue.partitions.len() {
        // All of those that are claimed, as they are in no order. There are no more than the workers prefetch.
        for (set, first) in [("claimed", usize::MAX), ("due", end)] {
            jobs.extend(read(queue, partition, set, first).await?);
        }
        jobs.sort_by_key(|job: &WaitingJob| job.due);
        jobs.truncate(end);
    }
    Ok(jobs.split_off(offset.min(jobs.len())))
}

/// Reads the first jobs of a set by pages, and what else is on the last page.
async fn read(queue: &Queue, partition: usize, set: &str, first: usize) -> Result<Vec<WaitingJob>, Error> {
    let mut jobs = Vec::new();
    while jobs.len() < first {
        let arguments = [("of", set.to_owned()), ("offset", jobs.len().to_string())];
        let call = WAITING.on(&queue.partitions[partition].tag).named(arguments);
        let page: Vec<(Vec<u8>, u64, u32)> = parse(queue.ask(call).await?)?;
        if page.is_empty() {
            break;
        }
        jobs.extend(page.into_iter().map(|(id, due, attempts)| WaitingJob {
            id: lossy(&id),
            due: time(due),
            attempt: attempts + 1,
        }));
    }
    Ok(jobs)
}

/// Returns the job of that id, if there is one.
pub(crate) async fn job(queue: &Queue, id: &str) -> Result<Option<JobInfo>, Error> {
    let call = GET.on(&queue.partition(id).tag).named([("id", id.to_owned())]);
    let found: Vec<(String, u64, u32, Vec<u8>)> = parse(queue.ask(call).await?)?;
    let Some((state, due, attempts, error)) = found.into_iter().next() else {
        return Ok(None);
    };
    let (state, attempt) = match &*state {
        "waiting" => (JobState::Waiting, attempts + 1),
        "running" => (JobState::Running, attempts.max(1)),
        "dead" => (JobState::Dead, attempts.max(1)),
        _ => return Err(unexpected(&Value::BulkString(state.into()))),
    };
    Ok(Some(JobInfo {
        state,
        due: time(due),
        attempt,
        error: given(&error),
    }))
}

/// Returns a time from microseconds since 1970.
fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}

/// Returns an error, which may be missing.
fn given(error: &[u8]) -> Option<String> {
    (!error.is_empty()).then(|| lossy(error))
}

/// The id of a dead job, its payload, the size of that, its attempts, when it died, and its last error.
type Buried = (Vec<u8>, Vec<u8>, usize, u32, u64, Vec<u8>);

/// Returns up to `count` dead jobs in the order in which they died.
pub(crate) async fn dead_jobs(queue: &Queue, count: usize) -> Result<Vec<DeadJob>, Error> {
    // Each with its partition, and the size of its payload, which may be missing.
    let mut dead: Vec<(usize, usize, DeadJob)> = Vec::new();
    for (number, partition) in queue.partitions.iter().enumerate() {
        let mut offset = 0;
        while offset < count {
            let page = DEAD.on(&partition.tag).named([
                ("offset", offset.to_string()),
                ("wanted", (count - offset).to_string()),
                ("bytes_left", PAGE.to_string()),
            ]);
            let page: Vec<Buried> = parse(queue.ask(page).await?)?;
            if page.is_empty() {
                break;
            }
            offset += page.len();
            dead.extend(
                page.into_iter()
                    .map(|(id, payload, size, attempts, died, error)| {
                        let job = DeadJob {
                            id: lossy(&id),
                            payload,
                            attempts,
                            died_at: time(died),
                            error: given(&error),
                        };
                        (number, size, job)
                    }),
            );
        }
        dead.sort_by_key(|(_, _, job)| job.died_at);
        dead.truncate(count);
    }
    let mut jobs = Vec::with_capacity(dead.len());
    for (partition, size, mut job) in dead {
        if job.payload.len() < size && size <= queue.settings.max_payload {
            let fetched = queue.fetch(partition, &job.id, "-").await;
            job.payload = fetched.ok().flatten().unwrap_or_default();
        }
        jobs.push(job);
    }
    Ok(jobs)
}
