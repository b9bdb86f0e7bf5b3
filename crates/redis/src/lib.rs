//! Distributed leases and delayed jobs on Redis, timed by a [`tickwheel::Wheel`].
//!
//! - [`Leases`]: named leases, each held by at most one process of a fleet at a time and renewed for as long as its holder lives. A
//!   lease has a fencing token, and a future that completes when it is lost.
//! - [`DelayedJobs`]: a queue of jobs that become due later, outlive the process that scheduled them, and are delivered at least once.
//!
//! The crate works with Redis 7.0 or Valkey 7.2 and later, standalone or as a cluster, through any connection of the `redis` crate that
//! can be cloned: `MultiplexedConnection`, `ConnectionManager` (which reconnects by itself), or `cluster_async::ClusterConnection`.
//!
//! `docs/guarantees.md` in the repository lists what is promised and what Redis itself can lose.
//!
//! # Layout
//!
//! `connection` is the bound on a connection, and `reconnecting` one that is made anew when it is silent. `keys` builds key names, with one hash tag each. `script` runs a Lua script with EVALSHA
//! and falls back to EVAL where the server does not have it; `silence` asks another node of a cluster that does not answer. `nonce`
//! draws call names and jitter. `policy` checks whether Redis evicts keys, at `first_use`. `local` has timers that belong to whichever
//! runtime polls them. `lost` tracks the validity of a lease or a job, for both. `notifications` is the subscription of a process.
//! `lease/` contains the leases: `state` is the pure state machine of renewal and release, and `keeper` the task of each runtime that
//! drives its leases. `jobs/` contains the delayed jobs and their Lua scripts.
#![forbid(unsafe_code)]

mod connection;
mod error;
mod first_use;
mod jobs;
mod keys;
mod lease;
mod local;
mod lost;
mod nonce;
mod notifications;
mod policy;
mod reconnecting;
mod script;
mod silence;

pub use connection::Connection;
pub use error::Error;
pub use jobs::{Counts, DeadJob, DelayedJobs, Job, JobError, Run, WaitingJob, Worker, WorkerBuilder};
pub use lease::{Holder, Lease, Leases};
pub use lost::Lost;
pub use notifications::Notifications;
pub use reconnecting::Reconnecting;
pub use redis;

/// Runs the examples of README.md as doctests.
#[cfg(doctest)]
mod docs {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
