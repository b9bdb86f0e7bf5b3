//! `waiting_jobs`, `dead_jobs` and `job`: read what is known of jobs without changing them.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::Value;

use super::queue::Queue;
use crate::{
    error::Error,
    jobs::report::{DeadJob, JobInfo, JobState, WaitingJob},
    server::{
        answer::{lossy, text, unexpected},
        script::Script,
    },
};

static WAITING: Script = Script::new(include_str!("scripts/waiting.lua"));
static GET: Script = Script::new(include_str!("scripts/get.lua"));
static DEAD: Script = Script::new(include_str!("scripts/dead.lua"));

/// How many bytes of payload a page of dead jobs may have. The connection is shared, so every other answer
/// waits behind it: for 22 ms at 12 MB/s.
const PAGE: usize = 256 << 10;

/// The waiting jobs of one partition that have been read and not been listed.
struct Pages {
    partition: usize,
    /// In order of due time.
    read: VecDeque<WaitingJob>,
    /// Those that a worker has claimed, in order of due time.
    claimed: VecDeque<WaitingJob>,
    offset: usize,
    is_complete: bool,
}

/// Returns up to `limit` waiting jobs after the first `offset` ones.
pub(in crate::jobs) async fn waiting_jobs(
    queue: &Queue,
    offset: usize,
    limit: usize,
) -> Result<Vec<WaitingJob>, Error> {
    let mut partitions = Vec::new();
    for partition in 0..queue.partitions.len() {
        partitions.push(Pages::begin(queue, partition).await?);
    }
    let mut jobs = Vec::new();
    for position in 0..offset.saturating_add(limit) {
        for pages in &mut partitions {
            pages.fill(queue).await?;
        }
        let first = partitions
            .iter_mut()
            .filter(|pages| pages.first_due().is_some())
            .min_by_key(|pages| pages.first_due());
        let Some(job) = first.and_then(Pages::pop) else {
            break;
        };
        if position >= offset {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

impl Pages {
    /// Reads which jobs are claimed, of which there are no more than the workers prefetch.
    async fn begin(queue: &Queue, partition: usize) -> Result<Pages, Error> {
        let mut claimed = Vec::new();
        loop {
            let page = read(queue, partition, "claimed", claimed.len()).await?;
            if page.is_empty() {
                break;
            }
            claimed.extend(page);
        }
        claimed.sort_by_key(|job: &WaitingJob| job.due);
        Ok(Pages {
            partition,
            read: VecDeque::new(),
            claimed: claimed.into(),
            offset: 0,
            is_complete: false,
        })
    }

    /// Reads the next page if all of the last one has been listed.
    async fn fill(&mut self, queue: &Queue) -> Result<(), Error> {
        if !self.read.is_empty() || self.is_complete {
            return Ok(());
        }
        let page = read(queue, self.partition, "due", self.offset).await?;
        self.offset += page.len();
        self.is_complete = page.is_empty();
        self.read = page.into();
        Ok(())
    }

    fn first_due(&self) -> Option<SystemTime> {
        let heads = [self.read.front(), self.claimed.front()];
        heads.into_iter().flatten().map(|job| job.due).min()
    }

    fn pop(&mut self) -> Option<WaitingJob> {
        let is_claimed = match (self.read.front(), self.claimed.front()) {
            (Some(read), Some(claimed)) => claimed.due <= read.due,
            (read, _) => read.is_none(),
        };
        if is_claimed {
            self.claimed.pop_front()
        } else {
            self.read.pop_front()
        }
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
pub(in crate::jobs) async fn job(queue: &Queue, id: &str) -> Result<Option<JobInfo>, Error> {
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
pub(in crate::jobs) async fn dead_jobs(queue: &Queue, limit: usize) -> Result<Vec<DeadJob>, Error> {
    let mut dead: Vec<Buried> = Vec::new();
    for (number, partition) in queue.partitions.iter().enumerate() {
        let mut offset = 0;
        while offset < limit {
            let page = DEAD.on(&partition.tag).named([
                ("offset", offset.to_string()),
                ("wanted", (limit - offset).to_string()),
                ("room", PAGE.to_string()),
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
