//! Distributed leases and delayed jobs on Redis, timed by a [`tickwheel::Wheel`].
//!
//! - [`Leases`]: named leases, each held by at most one process of a fleet at a time and renewed for as long
//!   as its holder lives. A lease has a fencing token, and a future that completes when it is lost.
//! - [`DelayedJobs`]: a queue of jobs that become due later, outlive the process that scheduled them, and are
//!   delivered at least once.
//!
//! The crate works with Redis 7.0 or Valkey 7.2 and later, standalone or as a cluster, through any connection
//! of the `redis` crate that can be cloned: `MultiplexedConnection`, `ConnectionManager` (which reconnects by
//! itself), or `cluster_async::ClusterConnection`. [`sentinel::Connection`] follows the master of a set-up
//! with Redis Sentinel.
//!
//! ```no_run
//! # async fn example(connection: redis::aio::ConnectionManager) -> Result<(), tickwheel_redis::Error> {
//! use std::time::Duration;
//! use tickwheel::Wheel;
//! use tickwheel_redis::{DelayedJobs, Leases};
//!
//! let wheel = Wheel::global();
//! let lease = Leases::new(&wheel, connection.clone()).acquire("reports", Duration::from_secs(30)).await?;
//! tokio::select! {
//!     () = async { /* write the reports, with lease.token() */ } => {}
//!     () = lease.lost() => {} // another process may hold it now, so stop
//! }
//! lease.release().await?;
//!
//! let jobs = DelayedJobs::new(&wheel, connection, "reminders");
//! jobs.schedule("order-17", Duration::from_secs(3600), b"remind").await?;
//! # Ok(())
//! # }
//! ```
//!
//! Start with [`Leases::acquire`] or [`DelayedJobs::worker`]; the README has a program for each, and
//! `docs/guarantees.md` in the repository says what holds when processes, networks and servers fail.
//!
//! # Metrics
//!
//! [`DelayedJobs::source`], [`Leases::source`] and [`Notifications::source`] report to the exporters of a
//! wheel, the packages `tickwheel-prometheus` and `tickwheel-metrics`:
//!
//! ```no_run
//! # async fn example(wheel: tickwheel::Wheel, connection: redis::aio::ConnectionManager) {
//! use std::time::Duration;
//! use tickwheel_prometheus::WheelCollector;
//! use tickwheel_redis::{DelayedJobs, Leases};
//!
//! let jobs = DelayedJobs::new(&wheel, connection.clone(), "reminders");
//! let leases = Leases::new(&wheel, connection);
//! let collector = WheelCollector::new(&wheel).and_source(jobs.source()).and_source(leases.source());
//! // In one process of the fleet:
//! tokio::spawn(jobs.sample_every(Duration::from_secs(10)));
//! # }
//! ```
//!
//! | name | kind | labels | |
//! | --- | --- | --- | --- |
//! | `tickwheel_redis_jobs_waiting` | gauge | | jobs in the queue that wait, at the last sample |
//! | `tickwheel_redis_jobs_running` | gauge | | jobs in the queue that were delivered and are not finished, at the last sample |
//! | `tickwheel_redis_jobs_dead` | gauge | | dead jobs in the queue, at the last sample |
//! | `tickwheel_redis_jobs_paused` | gauge | | 1 if the queue was paused at the last sample, else 0 |
//! | `tickwheel_redis_jobs_oldest_due_seconds` | gauge | | for how long the oldest due job had been due that no worker had claimed, at the last sample; 0 if none was due |
//! | `tickwheel_redis_jobs_sample_age_seconds` | gauge | | time since that sample |
//! | `tickwheel_redis_jobs_deliveries_total` | counter | `attempt` | jobs that this process's workers yielded: in the `first` attempt or a `later` one, also after one that was put off |
//! | `tickwheel_redis_jobs_lateness_seconds` | histogram | | time from when a job was due to its delivery, at most a day |
//! | `tickwheel_redis_jobs_renewals_total` | counter | `outcome` | renewals of jobs that this process has claimed: `renewed`, or `failed` without an answer |
//! | `tickwheel_redis_jobs_lost_total` | counter | | jobs whose lease this process lost before it was done with them, those that it had not delivered yet included |
//! | `tickwheel_redis_leases_held` | gauge | | leases that this process holds |
//! | `tickwheel_redis_leases_acquired_total` | counter | | leases that this process acquired |
//! | `tickwheel_redis_leases_renewals_total` | counter | `outcome` | renewals: `renewed`, or `failed` without an answer and tried again |
//! | `tickwheel_redis_leases_lost_total` | counter | | leases that this process lost before it released them |
//! | `tickwheel_redis_notifications_reconnects_total` | counter | | connections for notifications that took the place of one that had ended |
//! | `tickwheel_redis_notifications_failures_total` | counter | | connections for notifications that ended or could not be made |
//!
//! The values of a queue have the labels `wheel`, the name of its wheel, and `queue`, and those of leases
//! `wheel` and `prefix`. Several handles of one queue are one series: what each counted is added up, and what
//! only Redis knows is not. For handles of the same name on several servers, add a label to each source:
//! `jobs.source().with_label("server", "north")`, by the trait `Source` of the package `tickwheel-exported`.
//! What a process counts by itself is exact, and costs a relaxed atomic addition each, or two for a delivery.
//! What only Redis knows is sampled by [`DelayedJobs::sample`] and
//! [`sample_every`](DelayedJobs::sample_every), so that an exporter never waits for Redis, and is missing
//! before the first sample. Every process that samples a queue reports the whole queue: take the greatest
//! over the fleet (`max by (queue)`), not the sum.
#![forbid(unsafe_code)]

// `server` knows neither `leases` nor `jobs`, and neither of those knows the other. docs/architecture.md
// describes each.
mod error;
mod exported;
mod jobs;
mod leases;
mod mutex;
mod per_runtime;
mod server;
mod timers;
mod validity;

pub use error::Error;
pub use jobs::{
    Cancelled, Counts, DeadJob, DelayedJobs, Job, JobError, JobInfo, JobState, QueueSample, Repeated, Run,
    WaitingJob, Worker, WorkerBuilder,
};
pub use leases::{Holder, Lease, Leases};
pub use redis;
pub use server::{
    connection::Connection, notifications::Notifications, reconnecting::Reconnecting, sentinel,
};
pub use validity::Lost;

/// Runs the examples of README.md as doctests.
#[cfg(doctest)]
mod docs {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
