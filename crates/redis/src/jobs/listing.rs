//! `waiting_jobs`: lists the waiting jobs of all partitions in order of due time.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::Value;

use super::{
    asking::unexpected,
    partition::{lossy, text},
    queue::OpenQueue,
};
use crate::error::Error;

/// A job that waits, as [`DelayedJobs::waiting`](super::DelayedJobs::waiting) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WaitingJob {
    /// The id that the job was scheduled under.
    pub id: String,
    /// When the job is due by Redis' clock, with a precision of one microsecond.
    pub due: SystemTime,
    /// Which attempt its next delivery is, from 1 on.
    pub attempt: u32,
}

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
pub(super) async fn waiting_jobs(
    mut queue: OpenQueue<'_>,
    offset: usize,
    limit: usize,
) -> Result<Vec<WaitingJob>, Error> {
    let mut partitions = Vec::new();
    for partition in 0..queue.queue.partitions.len() {
        partitions.push(Pages::begin(&mut queue, partition).await?);
    }
    let mut jobs = Vec::new();
    for place in 0..offset.saturating_add(limit) {
        for pages in &mut partitions {
            pages.fill(&mut queue).await?;
        }
        let first = partitions
            .iter_mut()
            .filter(|pages| pages.first_due().is_some())
            .min_by_key(|pages| pages.first_due());
        let Some(job) = first.and_then(Pages::pop) else {
            break;
        };
        if place >= offset {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

impl Pages {
    /// Reads which jobs are claimed, of which there are no more than the workers prefetch.
    async fn begin(queue: &mut OpenQueue<'_>, partition: usize) -> Result<Pages, Error> {
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
    async fn fill(&mut self, queue: &mut OpenQueue<'_>) -> Result<(), Error> {
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

async fn read(
    queue: &mut OpenQueue<'_>,
    partition: usize,
    set: &str,
    offset: usize,
) -> Result<Vec<WaitingJob>, Error> {
    let page = queue.queue.partitions[partition].waiting(set, offset);
    let answer = queue.ask_next(page).await?;
    parse(&answer).ok_or_else(|| unexpected(&answer))
}

/// Parses a page. Returns `None` if the answer is malformed.
fn parse(answer: &Value) -> Option<Vec<WaitingJob>> {
    let Value::Array(values) = answer else { return None };
    let jobs = values.chunks(3).map(|job| {
        let [id, due, attempts] = job else { return None };
        Some(WaitingJob {
            id: lossy(id)?,
            due: UNIX_EPOCH + Duration::from_micros(text(due)?.parse().ok()?),
            attempt: text(attempts)?.parse::<u32>().ok()? + 1,
        })
    });
    jobs.collect()
}
