//! `DelayedJobs`: a handle of a queue of delayed jobs.
//!
//! `store` is what is in Redis, and `worker` what delivers jobs. `store` knows no worker.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tickwheel::Wheel;
use tickwheel_exported::Source;

use crate::{
    error::{Error, check_name},
    exported::WeakSource,
    server::{connection::Connection, erased::connected, eviction::Keys, notifications::Notifications},
};

mod report;
mod settings;
mod stats;
mod store;
mod worker;

use settings::{HandleSettings, wrong};
use store::{
    batcher::BATCH,
    change::{self, Change, When},
    listing,
    nearby::Nearby,
    queue::Queue,
};

/// The longest id of a job that is repeated, to which its deaths add when it was due.
const LONGEST_REPEATED: usize = 1000;

pub use report::{Cancelled, Counts, DeadJob, JobInfo, JobState, QueueSample, Repeated, WaitingJob};
pub use worker::{Job, JobError, Run, Worker, WorkerBuilder};

/// A queue of jobs that become due later and outlive the process that scheduled them.
///
/// A job consists of an id and a payload. It is delivered at least once, when it is due by Redis' clock, to
/// one of the queue's [workers](DelayedJobs::worker). The worker gets a lease on the job, and if it does not
/// renew the lease in time, the job is delivered to another worker. See `docs/guarantees.md` for what Redis
/// itself can lose.
///
/// A queue is identified by its name in Redis, and every handle with that name refers to the same queue.
/// Concurrent calls on one handle are batched by a task on the runtime of the callers, so share a handle by
/// cloning it, also with other runtimes: each has a task of its own, and none waits for another. A call that
/// finds Redis unavailable is retried for up to 5 seconds, and one that is repeated after its answer was lost
/// gets the answer of the first.
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
    /// The queue keeps the connection, with its type erased.
    connection: PhantomData<fn() -> C>,
}

impl<C: Connection> DelayedJobs<C> {
    /// Creates a handle of the queue `name`, with one partition and without notifications. It does not
    /// contact Redis before its first use.
    pub fn new(wheel: &Wheel, connection: C, name: impl Into<String>) -> DelayedJobs<C> {
        let server = connected(connection, Keys::Stay);
        DelayedJobs::with(Queue::new(
            wheel.clone(),
            server,
            name.into(),
            HandleSettings::default(),
            Arc::new(Nearby::default()),
        ))
    }

    /// Sets the number of partitions, from 1 to 1024. The keys of each partition are in one slot of a
    /// cluster.
    ///
    /// Jobs are ordered by due time within each partition. The number is stored with the queue at first use,
    /// and any other number is an error from then on.
    #[must_use]
    pub fn partitions(self, partitions: usize) -> DelayedJobs<C> {
        self.set(|settings| settings.partitions = partitions)
    }

    /// Notifies workers at once of a job that is due before all others, of which they may otherwise learn up
    /// to 5 seconds late.
    ///
    /// Without notifications, a worker learns at once only of what this handle and its clones schedule.
    #[must_use]
    pub fn notifications(self, notifications: &Notifications) -> DelayedJobs<C> {
        self.set(|settings| settings.notifications = Some(notifications.clone()))
    }

    /// Sets the size in bytes of the largest payload that this handle schedules and its workers deliver, 1
    /// MiB unless set and at most 16 MiB.
    ///
    /// `schedule` refuses a larger payload. A larger one that is in the queue already, because another
    /// program stored it, is not sent to a worker. Each attempt to take it counts, a second apart, and after
    /// the worker's `attempts` the job is dead and says why.
    ///
    /// A payload is scheduled by a single request and fetched as a single answer, and holds up the other
    /// requests on the connection for as long as that takes. Store large payloads elsewhere, and let the job
    /// carry a reference to them.
    #[must_use]
    pub fn max_payload(self, bytes: usize) -> DelayedJobs<C> {
        self.set(|settings| settings.max_payload = bytes)
    }

    /// Sets how long to wait for an answer of Redis before a call is sent again: 2 seconds unless set, from 10 ms
    /// to an hour.
    ///
    /// A call is repeated until 5 seconds have passed, or this time if it is longer. A job whose payload
    /// could not be fetched in this time is tried again a second later, and after the worker's `attempts` it
    /// is dead and says why.
    #[must_use]
    pub fn answer_within(self, limit: Duration) -> DelayedJobs<C> {
        self.set(|settings| settings.answer_within = limit)
    }

    /// Sets how many dead jobs the queue keeps, and for how long: 10,000 and half a year unless set.
    ///
    /// The setting is stored with the queue at the first use of this handle, for all programs: the last one
    /// stored holds, and a handle without one changes nothing. The number is divided by the partitions and
    /// rounded up. What is too old or too much is removed as jobs die and as workers look for jobs, oldest
    /// first.
    #[must_use]
    pub fn keep_dead(self, count: u64, time: Duration) -> DelayedJobs<C> {
        self.set(|settings| settings.keep_dead = Some((count, time)))
    }

    /// Sets how many jobs of the queue run at once, over all workers of the fleet: any number unless set, and
    /// again with `u64::MAX`.
    ///
    /// A job that is claimed or running counts, until it is finished or its lease has ended: the jobs of a
    /// worker that has died count for that long. When one ends, the next is started by whichever
    /// worker asks first, in the order in which they are due. Of jobs that run already, none ends.
    ///
    /// The setting is stored with the queue at the first use of this handle, for all programs: the last one
    /// stored holds, and a handle without one changes nothing. The number is divided by the partitions and
    /// rounded down, so that a queue of several partitions may run less than that at once: use one partition
    /// unless the number is large. With a smaller number than there are partitions, calls return
    /// [`Error::InvalidSetting`].
    ///
    /// Use it to spare what the jobs use, and not for mutual exclusion: a worker that was suspended for
    /// longer than its lease may still work on a job that does not count any more. The fewer may run, the
    /// less is hidden of the round trips between two jobs; see `docs/max_running.md` for what it costs.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(wheel: tickwheel::Wheel, connection: redis::aio::ConnectionManager) -> Result<(), tickwheel_redis::Error> {
    /// use tickwheel_redis::DelayedJobs;
    ///
    /// // Their provider takes ten requests at a time.
    /// let invoices = DelayedJobs::new(&wheel, connection, "invoices").max_running(10);
    /// let worker = invoices.worker().start();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_running(self, jobs: u64) -> DelayedJobs<C> {
        self.set(|settings| settings.max_running = Some(jobs))
    }

    fn set(self, change: impl FnOnce(&mut HandleSettings)) -> DelayedJobs<C> {
        let mut settings = self.queue.settings.clone();
        change(&mut settings);
        DelayedJobs::with(self.queue.with(settings))
    }

    fn with(queue: Queue) -> DelayedJobs<C> {
        DelayedJobs {
            queue: Arc::new(queue),
            connection: PhantomData,
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
    /// Returns [`Error::InvalidSetting`], with nothing stored, if the payload is larger than
    /// [`max_payload`](DelayedJobs::max_payload). Returns an error if the id is empty or longer than 1,024
    /// bytes, if Redis refuses the call or does not answer within 5 seconds, or if the queue cannot be
    /// opened. If Redis did not answer, the job may have been scheduled, and it is safe to schedule it again
    /// under the same id.
    pub async fn schedule(&self, id: &str, delay: Duration, payload: &[u8]) -> Result<bool, Error> {
        let scheduled = self.put(id, When::In(delay), payload).await? == Repeated::New;
        self.expect_job(scheduled, id, delay);
        Ok(scheduled)
    }

    /// Schedules a job to be due when Redis' clock shows `at`, with a precision of one microsecond. A time in
    /// the past is due now.
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
        let scheduled = self.put(id, When::At(at), payload).await? == Repeated::New;
        // By the clock of this machine, which may be another than Redis'. What that gets wrong, the sweep
        // finds.
        let delay = at.duration_since(SystemTime::now()).unwrap_or_default();
        self.expect_job(scheduled, id, delay);
        Ok(scheduled)
    }

    /// Tells this handle's workers that a job is due after that time, if it was scheduled.
    fn expect_job(&self, scheduled: bool, id: &str, delay: Duration) {
        if scheduled {
            self.queue.expect_job(self.queue.number_of(id), delay);
        }
    }

    /// Schedules a job to be due after `first`, and again and again at the points of a grid that lie `every`
    /// apart from then on, until it is [cancelled](DelayedJobs::cancel).
    ///
    /// When the job is done it is due at the next point of its grid, so it is delivered at least once for
    /// each point, but never while another delivery of it runs. Points that pass while it waits for a worker
    /// are made up by that one delivery, and points that pass while it runs by one more, at once. If it dies,
    /// the dead job has an id of its own, which is the job's id, an `@` and when it was due in microseconds,
    /// and the job goes on at the next point with its first attempt.
    ///
    /// Every process may ask for its recurring jobs when it starts. If the job is there already with another
    /// period or payload, it gets the new ones: the next point stays where it is, and those after it lie the
    /// new `every` apart, counted from it. `first` counts only for an id that is new. A delivery that runs
    /// meanwhile has the old payload. If a job that does not repeat has the id, nothing is changed.
    ///
    /// `cancel` also ends the job while it runs. For times of a calendar, schedule the next job when one is
    /// done, as the README shows.
    ///
    /// # Cancellation
    ///
    /// The job may be scheduled even if the future is dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidSetting`] if `every` is less than a millisecond or more than a hundred years,
    /// [`Error::InvalidName`] if the id is longer than 1,000 bytes, and the errors of
    /// [`schedule`](DelayedJobs::schedule).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use std::time::Duration;
    /// use tickwheel_redis::Repeated;
    ///
    /// let hour = Duration::from_secs(3600);
    /// let repeated = jobs.repeat("clean-up", Duration::ZERO, hour, b"").await?;
    /// assert_ne!(repeated, Repeated::Taken);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn repeat(
        &self,
        id: &str,
        first: Duration,
        every: Duration,
        payload: &[u8],
    ) -> Result<Repeated, Error> {
        const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        if !(Duration::from_millis(1)..=LONGEST).contains(&every) {
            return wrong("every", format!("{every:?}"), "1 ms to 100 years");
        }
        if id.len() > LONGEST_REPEATED {
            return Err(Error::InvalidName {
                name: id.chars().take(64).collect(),
                reason: "the id of a job that is repeated has at most 1000 bytes",
            });
        }
        let repeated = self.put(id, When::Every { first, every }, payload).await?;
        match repeated {
            Repeated::New => self.expect_job(true, id, first),
            // It may have been claimed with its old payload.
            Repeated::Changed => self.expect_job(true, id, Duration::ZERO),
            Repeated::Same | Repeated::Taken => {}
        }
        Ok(repeated)
    }

    async fn put(&self, id: &str, when: When, payload: &[u8]) -> Result<Repeated, Error> {
        let (size, largest) = (payload.len(), self.queue.settings.max_payload);
        if size > largest {
            let bytes = format!("{size} bytes, where max_payload is {largest} bytes,");
            return wrong("payload", bytes, "up to max_payload, which is at most 16 MiB");
        }
        self.change(id, change::schedule(id, when, payload)).await
    }

    /// Changes the due time of a waiting job to `delay` from now, whether that is earlier or later than
    /// before. Returns `false` if the job is not waiting: it is running, dead or unknown.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn reschedule(&self, id: &str, delay: Duration) -> Result<bool, Error> {
        let moved = self.change(id, change::reschedule(id, delay)).await?;
        self.expect_job(moved, id, delay);
        Ok(moved)
    }

    /// Removes a waiting job, so that it is not delivered, or takes a running one from its worker.
    ///
    /// A running job's [`lost`](Job::lost) completes within a second if its worker reaches Redis, and by the
    /// end of its lease otherwise; [`run`](Worker::run) drops its handler then. The job is not delivered
    /// again, and what its handler returns is disregarded. Its id stays taken until its worker has confirmed
    /// that the handler has ended, or its lease has. A [`repeat`](DelayedJobs::repeat) with that id in the
    /// meantime is first due after that.
    ///
    /// A dead job is [`Absent`](Cancelled::Absent): remove it with [`purge`](DelayedJobs::purge).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// use tickwheel_redis::Cancelled;
    ///
    /// match jobs.cancel("order-17").await? {
    ///     Cancelled::Waiting => println!("it will not be delivered"),
    ///     Cancelled::Running => println!("its handler is being stopped"),
    ///     _ => println!("it is done, dead or unknown"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn cancel(&self, id: &str) -> Result<Cancelled, Error> {
        self.change(id, change::cancel(id)).await
    }

    /// Makes a dead job wait again, due now and with no attempts counted. Returns `false` if it is not dead.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn revive(&self, id: &str) -> Result<bool, Error> {
        let revived = self.change(id, change::revive(id)).await?;
        self.expect_job(revived, id, Duration::ZERO);
        Ok(revived)
    }

    /// Makes up to `count` dead jobs wait again, the oldest of a partition first, and returns how many they
    /// were.
    ///
    /// They are revived in batches of 100 of a partition. If a batch fails, those before it remain revived.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn revive_dead(&self, count: usize) -> Result<u64, Error> {
        let revived = self.change_dead(count, change::revive_dead).await;
        self.queue.expect_jobs();
        revived
    }

    /// Removes a dead job permanently. Returns `false` if it is not dead.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn purge(&self, id: &str) -> Result<bool, Error> {
        self.change(id, change::purge(id)).await
    }

    /// Removes up to `count` dead jobs permanently, the oldest of a partition first, and returns how many
    /// they were.
    ///
    /// They are removed in batches of 100 of a partition. If a batch fails, those before it remain removed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn purge_dead(&self, count: usize) -> Result<u64, Error> {
        self.change_dead(count, change::purge_dead).await
    }

    /// Pauses the queue for all programs. Returns `true` unless it was paused already.
    ///
    /// No job starts once this returns, and what workers have claimed goes back to the queue within a second,
    /// or within a third of the lease if the user who pauses may not publish. Jobs that run go on and may be
    /// finished, and all other calls work.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule). Some partitions may be paused then, and it
    /// is safe to call it again.
    pub async fn pause(&self) -> Result<bool, Error> {
        self.queue.change_all(change::pause()).await
    }

    /// Lets a [paused](DelayedJobs::pause) queue go on. Returns `true` if it was paused.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule). Some partitions may go on then, and it is
    /// safe to call it again.
    pub async fn resume(&self) -> Result<bool, Error> {
        let resumed = self.queue.change_all(change::resume()).await?;
        self.queue.expect_jobs();
        Ok(resumed)
    }

    async fn change<A: Send + 'static>(&self, id: &str, change: Change<A>) -> Result<A, Error> {
        check_id(id)?;
        self.queue.change(self.queue.partition(id), change).await
    }

    /// Makes a change to up to `count` dead jobs, in the order of the partitions.
    async fn change_dead(&self, count: usize, change: fn(u64) -> Change<u64>) -> Result<u64, Error> {
        let mut left = count as u64;
        for partition in &self.queue.partitions {
            let mut is_empty = false;
            while left > 0 && !is_empty {
                let batch = left.min(BATCH as u64);
                let changed = self.queue.change(partition, change(batch)).await?;
                left -= changed;
                is_empty = changed < batch;
            }
        }
        Ok(count as u64 - left)
    }

    /// Returns what is known of a job, or `None` if there is no job with that id.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// if let Some(job) = jobs.get("order-17").await? {
    ///     println!("{:?}, due {:?}, attempt {}, {:?}", job.state, job.due, job.attempt, job.error);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, id: &str) -> Result<Option<JobInfo>, Error> {
        check_id(id)?;
        listing::job(&self.queue, id).await
    }

    /// Returns the numbers of waiting, running and dead jobs, and whether the queue is paused, in constant
    /// time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn counts(&self) -> Result<Counts, Error> {
        listing::counts(&self.queue).await
    }

    /// Asks Redis how many jobs wait, run and are dead, and how late the oldest due one is, in constant time.
    ///
    /// The sample is kept, so that [`source`](DelayedJobs::source) reports it to exporters until there is a
    /// newer one.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// let sample = jobs.sample().await?;
    /// println!("{} jobs wait, the oldest due one for {:?}", sample.counts.waiting, sample.oldest_due);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn sample(&self) -> Result<QueueSample, Error> {
        listing::sample(&self.queue).await
    }

    /// Samples the queue at once, and then every `period`.
    ///
    /// A sample that fails is tried again after `period`. The future does not keep the queue: it completes
    /// when all handles, workers and jobs of this handle and its clones have been dropped, or the wheel has
    /// been shut down, within `period`. One process of a fleet that samples a queue is enough; each sample
    /// costs two commands for each partition.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the samples.
    ///
    /// # Panics
    ///
    /// Panics if `period` is zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) {
    /// use std::time::Duration;
    ///
    /// tokio::spawn(jobs.sample_every(Duration::from_secs(10)));
    /// # }
    /// ```
    #[track_caller]
    pub fn sample_every(&self, period: Duration) -> impl Future<Output = ()> + Send + use<C> {
        assert!(!period.is_zero(), "a queue cannot be sampled all the time");
        listing::sample_every(Arc::downgrade(&self.queue), period)
    }

    /// Returns what an exporter reports of this queue, as a source for `WheelCollector::and_source` of
    /// `tickwheel-prometheus` and `Reporter::and_source` of `tickwheel-metrics`.
    ///
    /// It asks nothing of Redis. Deliveries, renewals and losses are those of the workers of this handle and
    /// its clones, and exact. What only Redis knows is as old as the last [sample](DelayedJobs::sample), and
    /// is missing before the first one. See the [crate documentation](crate#metrics) for the names.
    ///
    /// The source does not keep the queue, and reports nothing once all handles, workers and jobs of this
    /// handle and its clones have been dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>, wheel: tickwheel::Wheel) {
    /// use tickwheel_metrics::Reporter;
    /// use std::time::Duration;
    ///
    /// tokio::spawn(jobs.sample_every(Duration::from_secs(10)));
    /// let reporter = Reporter::new(&wheel).and_source(jobs.source());
    /// tokio::spawn(reporter.run(Duration::from_secs(10)));
    /// # }
    /// ```
    pub fn source(&self) -> impl Source + Clone + use<C> {
        let wheel = self.queue.wheel.name().unwrap_or_default().to_owned();
        let labels = vec![("wheel", wheel), ("queue", self.queue.name.clone())];
        WeakSource::new(&self.queue.nearby, move |workers| {
            workers.stats.exported(labels.clone())
        })
    }

    /// Returns up to `count` dead jobs, in the order in which they died.
    ///
    /// A payload that is larger than [`max_payload`](DelayedJobs::max_payload), or that cannot be fetched in
    /// time, is left empty. An id that another program stored and that is not UTF-8 is shown with replacement
    /// characters, and at most 1,024 bytes of it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    pub async fn dead(&self, count: usize) -> Result<Vec<DeadJob>, Error> {
        listing::dead_jobs(&self.queue, count).await
    }

    /// Returns up to `count` waiting jobs in order of due time, after the first `offset` ones, without their
    /// payloads.
    ///
    /// Those that a worker has claimed are among them, because they can still be cancelled. The list is read
    /// in pages of 100 jobs for each partition, and jobs move meanwhile, so one may be missing or appear
    /// twice. Time and memory for each partition grow with `offset + count`, and not with the length of the
    /// queue.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`schedule`](DelayedJobs::schedule).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(jobs: tickwheel_redis::DelayedJobs<redis::aio::ConnectionManager>) -> Result<(), tickwheel_redis::Error> {
    /// for job in jobs.waiting(0, 10).await? {
    ///     println!("{} is due at {:?}, attempt {}", job.id, job.due, job.attempt);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn waiting(&self, offset: usize, count: usize) -> Result<Vec<WaitingJob>, Error> {
        listing::waiting_jobs(&self.queue, offset, count).await
    }

    /// Returns a builder for a worker on this queue.
    pub fn worker(&self) -> WorkerBuilder {
        WorkerBuilder::new(self.queue.clone())
    }
}

impl<C> Clone for DelayedJobs<C> {
    fn clone(&self) -> DelayedJobs<C> {
        DelayedJobs {
            queue: self.queue.clone(),
            connection: PhantomData,
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

fn check_id(id: &str) -> Result<(), Error> {
    check_name(id, "a job's id has at least one character")
}
