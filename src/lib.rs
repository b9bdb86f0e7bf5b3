//! A hashed timing wheel timer for Tokio.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "backon", feature = "hyper", feature = "stream"))]
mod assured;
#[cfg(feature = "backon")]
mod backon;
mod builder;
mod clock;
mod driver;
mod error;
mod events;
#[cfg(feature = "hyper")]
mod hyper;
mod idle;
mod interval;
#[cfg(feature = "io")]
#[cfg_attr(docsrs, doc(cfg(feature = "io")))]
pub mod io;
mod link;
mod metrics;
mod periodic;
mod schedule;
mod shard;
mod sleep;
#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
pub mod stream;
mod sync;
mod timeout;
mod timing_wheel;
#[cfg(feature = "tower")]
#[cfg_attr(docsrs, doc(cfg(feature = "tower")))]
pub mod tower;
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

/// Every example in the documents is a test.
#[cfg(doctest)]
mod docs {
    #[doc = include_str!("../docs/guide.md")]
    struct Guide;

    #[doc = include_str!("../docs/migrating.md")]
    struct Migrating;
}
