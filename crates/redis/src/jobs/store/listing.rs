//! Reads what is known of a queue and its jobs without changing them: numbers, lists, and single jobs.

use std::{
    collections::VecDeque,
    sync::Weak,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::future::{try_join, try_join_all};
use redis::{FromRedisValue, Value, from_redis_value};
use tokio::time::Instant;

use super::queue::Queue;
use crate::{
    error::Error,
    jobs::report::{Counts, DeadJob, JobInfo, JobState, QueueSample, WaitingJob},
    server::script::{Script, lossy, text, unexpected},
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
    let oldest = ask_all::<i64>(queue, &OLDEST);
    let (counts, oldest) = try_join(counts(queue), oldest).await?;
    let sample = QueueSample {
        counts,
        oldest_due: oldest
            .into_iter()
            .filter_map(|micros| u64::try_from(micros).ok())
            .max()
            .map(Duration::from_micros),
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
        let answers = queue.partitions.iter().map(async |partition| {
            let answer = queue.ask_until(script.on(&partition.tag), deadline).await?;
            from_redis_value(answer).map_err(|error| Error::Redis(error.into()))
        });
        try_join_all(answers).await
    };
    queue.limited(ask).await
}

/// The waiting jobs of one partition that have been read and not been listed, in order of due time: those that
/// workers have claimed, or the others.
struct Unlisted {
    partition: usize,
    jobs: VecDeque<WaitingJob>,
    offset: usize,
    is_complete: bool,
}

/// Returns up to `limit` waiting jobs after the first `offset` ones.
pub(crate) async fn waiting_jobs(
    queue: &Queue,
    offset: usize,
    limit: usize,
) -> Result<Vec<WaitingJob>, Error> {
    let mut unlisted = Vec::new();
    for partition in 0..queue.partitions.len() {
        // All of them, as they are in no order. There are no more than the workers prefetch.
        let mut claimed = Vec::new();
        loop {
            let page = read(queue, partition, "claimed", claimed.len()).await?;
            if page.is_empty() {
                break;
            }
            claimed.extend(page);
        }
        claimed.sort_by_key(|job: &WaitingJob| job.due);
        for (jobs, is_complete) in [(claimed.into(), true), (VecDeque::new(), false)] {
            unlisted.push(Unlisted {
                partition,
                jobs,
                offset: 0,
                is_complete,
            });
        }
    }
    let mut listed = Vec::new();
    for position in 0..offset.saturating_add(limit) {
        for unlisted in &mut unlisted {
            unlisted.fill(queue).await?;
        }
        let waiting = unlisted.iter_mut().filter(|unlisted| !unlisted.jobs.is_empty());
        let first = waiting.min_by_key(|unlisted| unlisted.jobs[0].due);
        let Some(job) = first.and_then(|unlisted| unlisted.jobs.pop_front()) else {
            break;
        };
        if position >= offset {
            listed.push(job);
        }
    }
    Ok(listed)
}

impl Unlisted {
    /// Reads the next page if all of the last one has been listed.
    async fn fill(&mut self, queue: &Queue) -> Result<(), Error> {
        if self.jobs.is_empty() && !self.is_complete {
            self.jobs = read(queue, self.partition, "due", self.offset).await?.into();
            self.offset += self.jobs.len();
            self.is_complete = self.jobs.is_empty();
        }
        Ok(())
    }
}

async fn read(queue: &Queue, partition: usize, set: &str, offset: usize) -> Result<Vec<WaitingJob>, Error> {
    let arguments = [("of", set.to_owned()), ("offset", offset.to_string())];
    let page = WAITING.on(&queue.partitions[partition].tag).named(arguments);
    let answer = queue.ask(page).await?;
    parse(&answer).ok_or_else(|| unexpected(&answer))
}

/// Parses a page. Returns `None` if the answer is malformed.
fn parse(answer: &Value) -> Option<Vec<WaitingJob>> {
    let Value::Array(values) = answer else { return None };
    let jobs = values.chunks(3).map(|job| {
        let [id, due, attempts] = job else { return None };
        Some(WaitingJob {
            id: lossy(id)?,
            due: time(due)?,
            attempt: text(attempts)?.parse::<u32>().ok()? + 1,
        })
    });
    jobs.collect()
}

/// Returns the job of that id, if there is one.
pub(crate) async fn job(queue: &Queue, id: &str) -> Result<Option<JobInfo>, Error> {
    let call = GET.on(&queue.partition(id).tag).named([("id", id.to_owned())]);
    let answer = queue.ask(call).await?;
    match &answer {
        Value::Array(values) if values.is_empty() => Ok(None),
        _ => parse_info(&answer).map(Some).ok_or_else(|| unexpected(&answer)),
    }
}

/// Parses a job. Returns `None` if the answer is malformed.
fn parse_info(answer: &Value) -> Option<JobInfo> {
    let Value::Array(values) = answer else { return None };
    let [state, due, attempts, error] = &values[..] else {
        return None;
    };
    let state = match text(state)? {
        "waiting" => JobState::Waiting,
        "running" => JobState::Running,
        "dead" => JobState::Dead,
        _ => return None,
    };
    let attempts: u32 = text(attempts)?.parse().ok()?;
    let next = u32::from(state == JobState::Waiting);
    Some(JobInfo {
        state,
        due: time(due)?,
        attempt: (attempts + next).max(1),
        error: given_error(error)?,
    })
}

/// Parses microseconds since 1970.
fn time(value: &Value) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_micros(text(value)?.parse().ok()?))
}

/// Parses an error, which may be missing.
fn given_error(value: &Value) -> Option<Option<String>> {
    Some(Some(lossy(value)?).filter(|error| !error.is_empty()))
}

/// A dead job as a partition lists it, possibly without its payload.
struct Buried {
    partition: usize,
    size: usize,
    job: DeadJob,
}

/// Returns up to `limit` dead jobs in the order in which they died.
pub(crate) async fn dead_jobs(queue: &Queue, limit: usize) -> Result<Vec<DeadJob>, Error> {
    let mut dead: Vec<Buried> = Vec::new();
    for (number, partition) in queue.partitions.iter().enumerate() {
        let mut offset = 0;
        while offset < limit {
            let page = DEAD.on(&partition.tag).named([
                ("offset", offset.to_string()),
                ("wanted", (limit - offset).to_string()),
                ("bytes", PAGE.to_string()),
            ]);
            let answer = queue.ask(page).await?;
            let page = parse_dead(&answer, number).ok_or_else(|| unexpected(&answer))?;
            if page.is_empty() {
                break;
            }
            offset += page.len();
            dead.extend(page);
        }
        dead.sort_by_key(|buried| buried.job.died_at);
        dead.truncate(limit);
    }
    let mut jobs = Vec::with_capacity(dead.len());
    for Buried {
        partition,
        size,
        mut job,
    } in dead
    {
        if job.payload.len() < size && size <= queue.settings.max_payload {
            let fetched = queue.fetch(partition, &job.id, "-").await;
            job.payload = fetched.ok().flatten().unwrap_or_default();
        }
        jobs.push(job);
    }
    Ok(jobs)
}

/// Parses a page of dead jobs. Returns `None` if the answer is malformed.
fn parse_dead(answer: &Value, partition: usize) -> Option<Vec<Buried>> {
    let Value::Array(values) = answer else { return None };
    let jobs = values.chunks(6).map(|job| {
        let [id, Value::BulkString(payload), size, attempts, died, error] = job else {
            return None;
        };
        Some(Buried {
            partition,
            size: text(size)?.parse().ok()?,
            job: DeadJob {
                id: lossy(id)?,
                payload: payload.clone(),
                attempts: text(attempts)?.parse().ok()?,
                died_at: time(died)?,
                error: given_error(error)?,
            },
        })
    });
    jobs.collect()
}
