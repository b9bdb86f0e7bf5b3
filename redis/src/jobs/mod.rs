//! `DelayedJobs`: a handle of a queue of delayed jobs.
//!
//! `queue` is what all handles, workers and jobs of a queue share. A `partition` has its keys and two `batcher`s, which send operations
//! to Redis in batches. The scripts that run there are in `scripts/`, and `prelude.lua` describes how a job is stored. A `worker`
//! consists of a stream, an `engine` that takes, holds and renews jobs, and an `inbox` between the two, in which `demand` decides how many
//! jobs to start.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::future::try_join_all;
use redis::Value;
use tickwheel::Wheel;

use crate::{connection::Connection, error::Error, notifications::Notifications};

mod asking;
mod batcher;
mod claim;
mod demand;
mod engine;
mod inbox;
mod job;
mod partition;
mod queue;
mod server;
mod settings;
mod take;
mod waiting;
mod worker;

use asking::unexpected;
use partition::text;
use queue::{Queue, micros, micros_of, operation};
use server::Connected;

pub use job::{Counts, DeadJob, Job};
pub use worker::{Worker, WorkerBuilder};

/// The longest string that Redis accepts by default (`proto-max-bulk-len`).
const MAX_PAYLOAD: usize = 512 << 20;

/// A queue of jobs that become due later and outlive the process that scheduled them.
///
/// A job consists of an id and a payload. It is delivered at least once, when it is due by Redis' clock, to one of the queue's
/// [workers](DelayedJobs::worker). The worker gets a lease on the job, and if it does not renew the lease in time, the job is delivered to
/// another worker. See `docs/guarantees.md` for what Redis itself can lose.
///
/// A queue is identified by its name in Redis, and every handle with that name refers to the same queue. Concurrent calls on one handle
/// are batched, so share a handle by cloning it. A call that finds Redis unavailable is retried for up to 5 seconds, and one that is
/// repeated after its answer was lost gets the answer of the first.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use futures_util::StreamExt;
/// use std::time::Duration;
/// use tickwheel::Wheel;
/// use tickwheel_redis::{DelayedJobs, Notifications};
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let jobs = DelayedJobs::new(&Wheel::new(), client.get_connection_manager().await?, "reminders")
///     .notifications(&Notifications::of(client));
///
/// jobs.schedule("order-17", Duration::from_secs(3600), b"pay").await?;
///
/// let mut worker = jobs.worker().start();
/// while let Some(job) = worker.next().await {
///     let job = job?;
///     println!("{}: {:?}", job.id(), job.payload());
///     job.done().await?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct DelayedJobs<C> {
    queue: Arc<Queue>,
    connection: C,
}

impl<C: Connection> DelayedJobs<C> {
    /// Creates a handle of the queue `name`, with one partition and without notifications. It does not contact Redis before its first use.
    pub fn new(wheel: &Wheel, connection: C, name: impl Into<String>) -> DelayedJobs<C> {
        let server = Arc::new(Connected::new(connection.clone()));
        DelayedJobs {
            queue: Arc::new(Queue::new(wheel.clone(), server, name.into(), 1, None)),
            connection,
        }
    }

    /// Sets the number of partitions, from 1 to 1024. The keys of each partition are in one slot of a cluster.
    ///
    /// Jobs are ordered by due time within each partition. The number is stored with the queue at first use, and any other number is
    /// an error from then on.
    #[must_use]
    pub fn partitions(self, partitions: usize) -> DelayedJobs<C> {
        let notifications = self.queue.notifications.clone();
        self.with(partitions, notifications)
    }

    /// Notifies workers at once of a job that is due before all others, of which they may otherwise learn up to 5 seconds late.
    #[must_use]
    pub fn notifications(self, notifications: &Notifications) -> DelayedJobs<C> {
        let partitions = self.queue.given;
        self.with(partitions, Some(notifications.clone()))
    }

    fn with(self, partitions: usize, notifications: Option<Notifications>) -> DelayedJobs<C> {
        let Queue {
            wheel, server, name, ..
        } = &*self.queue;
        let queue = Queue::new(
            wheel.clone(),
            server.clone(),
            name.clone(),
            partitions,
            notifications,
        );
        DelayedJobs {
            queue: Arc::new(queue),
            ..self
        }
    }
}

impl<C> DelayedJobs<C> {
    /// Schedules a job to be due after `delay`, by Redis' clock and with a precision of one microsecond.
    ///
    /// Returns `false` and changes nothing if a job with that id is waiting, running or dead.
    ///
    /// # Cancellation
    ///
    /// The job may be scheduled even if the future is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the id is empty, if the payload is longer than 512 MiB, if Redis refuses the call or does not answer within 5
    /// seconds, or if the queue cannot be opened. If Redis did not answer, the job may have been scheduled, and it is safe to schedule it
    /// again under the same id.
    pub async fn schedule(&self, id: &str, delay: Duration, payload: &[u8]) -> Result<bool, Error> {
        self.put(id, "in", micros(delay), payload).await
    }

    /// Schedules a job to be due when Redis' clock shows `at`, with a precision of one microsecond. A time in the past is due now.
    ///
    /// Returns `false` and changes nothing if a job with that id is waiting, running or dead.
    ///
    /// # Cancellation
    ///
    /// The job may be scheduled even if the future is dropped.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn schedule_at(&self, id: &str, at: SystemTime, payload: &[u8]) -> Result<bool, Error> {
        self.put(id, "at", micros_of(at), payload).await
    }

    async fn put(&self, id: &str, kind: &str, micros: u64, payload: &[u8]) -> Result<bool, Error> {
        if payload.len() > MAX_PAYLOAD {
            return Err(Error::InvalidSetting {
                setting: "payload",
                value: format!("{} bytes", payload.len()),
                allowed: "up to 512 MiB, the longest string of Redis",
            });
        }
        let arguments = vec![
            id.into(),
            kind.into(),
            micros.to_string().into(),
            payload.to_vec(),
        ];
        self.queue
            .on_job(id, |partition| &partition.schedules, arguments)
            .await
    }

    /// Changes the due time of a waiting job to `delay` from now, whether that is earlier or later than before. Returns `false` if the
    /// job is not waiting: it is running, dead or unknown.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn reschedule(&self, id: &str, delay: Duration) -> Result<bool, Error> {
        self.update(id, "reschedule", micros(delay)).await
    }

    /// Removes a waiting job, so that it is not delivered. Returns `false` if the job is not waiting: it is running, dead or unknown.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn cancel(&self, id: &str) -> Result<bool, Error> {
        self.update(id, "cancel", 0).await
    }

    /// Makes a dead job wait again, due now and with no attempts counted. Returns `false` if it is not dead.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn revive(&self, id: &str) -> Result<bool, Error> {
        self.update(id, "revive", 0).await
    }

    /// Removes a dead job permanently. Returns `false` if it is not dead.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn purge(&self, id: &str) -> Result<bool, Error> {
        self.update(id, "purge", 0).await
    }

    async fn update(&self, id: &str, name: &str, number: u64) -> Result<bool, Error> {
        let arguments = operation(name, id, "-", number, 0);
        self.queue
            .on_job(id, |partition| &partition.updates, arguments)
            .await
    }

    /// Returns the numbers of waiting, running and dead jobs, in constant time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn counts(&self) -> Result<Counts, Error> {
        self.queue.open().await?;
        let asked = self
            .queue
            .partitions
            .iter()
            .map(|partition| async { self.queue.ask(partition.counts()).await });
        let mut counts = Counts::default();
        for answer in try_join_all(asked).await? {
            let [waiting, running, dead]: [u64; 3] =
                redis::from_redis_value(answer).map_err(|error| Error::Redis(error.into()))?;
            counts.waiting += waiting;
            counts.running += running;
            counts.dead += dead;
        }
        Ok(counts)
    }

    /// Returns up to `limit` dead jobs, in the order in which they died.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn dead(&self, limit: usize) -> Result<Vec<DeadJob>, Error> {
        self.queue.open().await?;
        let mut dead = Vec::new();
        for partition in &self.queue.partitions {
            let mut offset = 0;
            while offset < limit {
                let answer = self.queue.ask(partition.dead(offset, limit - offset)).await?;
                let page = dead_jobs(&answer).ok_or_else(|| unexpected(&answer))?;
                if page.is_empty() {
                    break;
                }
                offset += page.len();
                dead.extend(page);
            }
        }
        dead.sort_by_key(|(died, _)| *died);
        dead.truncate(limit);
        Ok(dead.into_iter().map(|(_, job)| job).collect())
    }

    /// Returns a builder for a worker on this queue.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.queue.clone())
    }
}

/// Parses dead jobs, each with its time of death. Returns `None` if the answer is malformed.
fn dead_jobs(answer: &Value) -> Option<Vec<(u64, DeadJob)>> {
    let Value::Array(values) = answer else { return None };
    values
        .chunks(4)
        .map(|job| {
            let [id, Value::BulkString(payload), attempts, died] = job else {
                return None;
            };
            let job = DeadJob {
                id: text(id)?.to_owned(),
                payload: payload.clone(),
                attempts: text(attempts)?.parse().ok()?,
            };
            Some((text(died)?.parse().ok()?, job))
        })
        .collect()
}

impl<C: Clone> Clone for DelayedJobs<C> {
    fn clone(&self) -> DelayedJobs<C> {
        DelayedJobs {
            queue: self.queue.clone(),
            connection: self.connection.clone(),
        }
    }
}

impl<C> fmt::Debug for DelayedJobs<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedJobs")
            .field("name", &self.queue.name)
            .field("partitions", &self.queue.partitions.len())
            .finish_non_exhaustive()
    }
}
