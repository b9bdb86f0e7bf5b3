//! A hashed timing wheel timer for Tokio.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod clock;
mod driver;
mod error;
mod events;
mod idle;
mod interval;
mod link;
mod metrics;
mod periodic;
mod schedule;
mod shard;
mod sleep;
mod sync;
mod timeout;
mod timing_wheel;
mod wheel;

pub use builder::{BuildError, Builder};
pub use error::{ScheduleError, SleepError, TimeoutError};
pub use idle::{IdleHandle, IdleTimer};
pub use interval::Interval;
pub use metrics::Metrics;
pub use periodic::{Periodic, PeriodicBuilder};
pub use schedule::{Scheduled, ScheduledTask, Unprocessed};
pub use sleep::Sleep;
pub use timeout::Timeout;
pub use wheel::Wheel;
