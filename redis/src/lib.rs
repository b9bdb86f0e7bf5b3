//! Leases and delayed jobs across machines, on Redis and a [`tickwheel::Wheel`].
//!
//! - [`Leases`]: a named lease that one holder in the whole fleet has at a time. It is renewed for as long as the holder lives. It
//!   has a fencing token, and a future that says when it is lost.
//! - [`DelayedJobs`]: a queue of jobs that come due later, outlive their process, and are delivered at least once.
//!
//! It runs on Redis 7.0 or Valkey 7.2 and later, alone or as a cluster, through any connection of the `redis` crate that can be
//! cloned: `MultiplexedConnection`, `ConnectionManager` (which reconnects by itself), `cluster_async::ClusterConnection`.
//!
//! What is promised, and what Redis itself can lose, is said in `docs/guarantees.md` of the repository.
//!
//! # Layout
//!
//! `connection` is the bound on a connection. `keys` names keys: one hash tag each. `script` runs a Lua script by EVALSHA and
//! sends its text where it is missing; `nonce` makes the names of calls and the jitter. `policy` asks once whether Redis evicts.
//! `lost` is what a holder knows of its claim, shared by leases and jobs. `notifications` is the one subscription of a process.
//! `lease/` has the leases: `state` is the pure state machine of renewing and releasing, `keeper` the one task that drives them all.
//! `jobs/` has the delayed jobs, and their Lua scripts.
#![forbid(unsafe_code)]

mod connection;
mod error;
mod jobs;
mod keys;
mod lease;
mod lost;
mod nonce;
mod notifications;
mod policy;
mod script;

pub use connection::Connection;
pub use error::Error;
pub use jobs::{Counts, DeadJob, DelayedJobs, Job, Worker, WorkerBuilder};
pub use lease::{Lease, Leases};
pub use lost::Lost;
pub use notifications::Notifications;
pub use redis;

/// Every example in the documents is a test.
#[cfg(doctest)]
mod docs {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
