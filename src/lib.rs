//! A hashed timing wheel for Tokio, with `sleep`, `timeout` and `interval` that are cheap to start and to
//! cancel.
//!
//! A server has a timer for nearly everything it waits for: a timeout around each request, an idle deadline
//! on each connection, a heartbeat to each peer. Almost all of them are cancelled or pushed back, and few
//! ever fire. A [`Wheel`] is built for that load. Time is divided into ticks, of 1 ms by default, each timer
//! is stored in the bucket of its tick, and one driver in each runtime wakes the tasks whose timers are due.
//! Starting and cancelling a timer is O(1), and hardly ever touches what another worker touches.
//!
//! Names and behaviour are those of [`tokio::time`]. The module [`time`] is a drop-in replacement on one
//! global wheel: change `use tokio::time` to `use tickwheel::time`. A wheel that you create yourself has the
//! same functions as methods, with the same outputs. None of them is ever refused:
//! [`max_pending`](Builder::max_pending) and [`shutdown`](Wheel::shutdown) concern only `try_sleep`,
//! `try_timeout`, `schedule` and `periodic`, whose errors say so.
//!
//! ```
//! use tickwheel::Wheel;
//! use std::time::Duration;
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() {
//!     let wheel = Wheel::new(); // one per process; clones are cheap handles to the same wheel
//!
//!     wheel.sleep(Duration::from_millis(20)).await;
//!
//!     let (reply, request) = tokio::sync::oneshot::channel();
//!     tokio::spawn(async { reply.send("pong") });
//!     match wheel.timeout(Duration::from_secs(1), request).await {
//!         Ok(answer) => println!("{}", answer.unwrap()),
//!         Err(error) => println!("no answer: {error}"),
//!     }
//! }
//! ```
//!
//! # Where to start
//!
//! | you want | use |
//! | --- | --- |
//! | a timeout around a call | [`time::timeout`], or [`Wheel::timeout`]; around a service, [`tower::TimeoutLayer`] |
//! | to close connections that are idle | [`time::idle_timer`]; [`io::TimeoutStream`] around any stream of bytes; the package `tickwheel-hyper` for an HTTP server |
//! | a heartbeat to each peer | [`Wheel::periodic`] |
//! | to retry a call within a budget | [`deadline::within`] around all attempts, and [`deadline::timeout`] around each |
//! | to run something later, or not at all | [`Wheel::schedule`], whose handle cancels it |
//! | a test that does not wait | Tokio's paused clock, `#[tokio::test(start_paused = true)]`: every timer here goes by it |
//! | to know which timeouts are set wrongly | [`time::Label`], or [`Wheel::labelled`]; [`Wheel::snapshot`] has the outcomes |
//!
//! The [guide](https://docs.rs/crate/tickwheel/latest/source/docs/guide.md) has a section for each.
//!
//! # Overview
//!
//! | | |
//! | --- | --- |
//! | [`time`] | all of [`tokio::time`], on the [global wheel](Wheel::global) |
//! | [`sleep`](Wheel::sleep), [`sleep_until`](Wheel::sleep_until) | waits; a [move](Sleep::reset_at) to a later instant costs one store |
//! | [`timeout`](Wheel::timeout), [`timeout_at`](Wheel::timeout_at) | limits the time of a future; one that is ready immediately costs no timer, and a running one [can be moved](Timeout::reset_at) |
//! | [`try_sleep`](Wheel::try_sleep), [`try_timeout`](Wheel::try_timeout) | the same, but they fail when the wheel is full or shut down |
//! | [`interval`](Wheel::interval), [`interval_at`](Wheel::interval_at) | ticks, also as a `Stream` |
//! | [`idle_timer`](Wheel::idle_timer) | completes when nothing has touched it for a given time |
//! | [`schedule`](Wheel::schedule), [`schedule_at`](Wheel::schedule_at) | runs a task later, without a Tokio task until then |
//! | [`periodic`](Wheel::periodic) | runs again and again, at a fixed rate or with a fixed delay, with jitter |
//! | [`deadline`] | a time budget for a whole request, which the calls inside can query and pass on |
//! | [`DelayQueue`] | values that one task waits for, each with its own deadline, as in tokio-util |
//! | [`shutdown`](Wheel::shutdown) | ends the timers that may be refused, and hands back the tasks that never ran |
//! | [`metrics`](Wheel::metrics), [`pending`](Wheel::pending) | counters of the wheel's work, and the number of pending timers |
//! | [`snapshot`](Wheel::snapshot) | pending timers by deadline and bucket, and a histogram of the driver's lag |
//! | [`labelled`](Wheel::labelled) | timeouts counted under a label, with the time they had left |
//!
//! # Precision
//!
//! No timer is ever early, and every timer is less than one tick late, plus its slack and the runtime's own
//! delay: the time that it takes to fire its own timer and to poll the woken task. The slack is a thousandth
//! of a timer's duration, up to 100 ms, so that timers fire in company: nothing for timers of less than two
//! seconds, 16 ms for 30 s. [`Builder::slack`] sets it, to zero if you wish.
//!
//! On a clock that a test pauses and moves, every timer with the default tick ends at the instant at which
//! Tokio's would, and auto-advance jumps straight to the next deadline. There is no slack on such a clock
//! unless it was asked for.
//!
//! # Runtimes
//!
//! A wheel may be used from any number of runtimes, such as one for each thread or test. Each turns a part of
//! its own, its engine, so what one blocks, ends or pauses is not felt by another. A future waits on the
//! runtime that first polls it. When that ends, the future is woken, and goes on for the same instant on the
//! one that polls it next.
//!
//! # When not to use it
//!
//! Do not use a wheel for precision below 20 µs, for jobs that have to outlive the process, or for calendar
//! (cron) times.
//!
//! # Features
//!
//! No feature is on by default. `full` enables all of them except `test-util` and `precise`.
//!
//! | feature | |
//! | --- | --- |
//! | `hyper` | `hyper::rt::Timer` for [`Wheel`] |
//! | `tower` | timeouts and deadlines as layers and services, and for bodies |
//! | `io` | read, write and idle timeouts for any `AsyncRead` and `AsyncWrite` |
//! | `hyper-util` | hyper-util's `Connection` for [`io::TimeoutStream`], so that a client's connections can be wrapped |
//! | `stream` | timeout, throttle and timed chunks for any `Stream` |
//! | `aws` | the AWS SDK's `AsyncSleep` for [`Wheel`] |
//! | `console` | sleeps and timeouts show as resources in tokio-console |
//! | `precise` | on Linux, a timer of the kernel instead of Tokio's, and ticks from 20 µs on; not part of `full`, because it needs Tokio's `net` and, at run time, `enable_io` |
//! | `serde` | [`Snapshot`] and [`Metrics`] serialize |
//! | `test-util` | `pause`, `resume` and `advance` in [`time`], for tests; not part of `full` |
//! | `tracing` | events about engines and late turns; none about single timers |
//!
//! With `console`, each sleep and timeout is 8 bytes larger. If a subscriber enables the level `TRACE`, each
//! also creates three spans, and two more when it is reset, and each poll of its timer an event, so use it
//! for debugging rather than in production. console-subscriber itself requires `--cfg tokio_unstable` or, to
//! see only resources, `--cfg console_without_tokio_unstable`.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// Documentation links to items that a build without their features does not have.
#![cfg_attr(not(feature = "full"), allow(rustdoc::broken_intra_doc_links))]

pub mod deadline;
mod engine;
mod error;
mod integrations;
mod observe;
pub mod time;
mod timers;
mod wheel;

pub use engine::labels::LabelStats;
pub use error::{ScheduleError, SleepError, TimeoutError};
#[cfg(feature = "io")]
pub use integrations::io;
#[cfg(feature = "stream")]
pub use integrations::stream;
#[cfg(feature = "tower")]
pub use integrations::tower;
pub use observe::{
    labelled::{Labelled, LabelledTimeout},
    lag::LagHistogram,
    metrics::Metrics,
    snapshot::{BucketSnapshot, EngineSnapshot, LevelSnapshot, ShardSnapshot, Snapshot},
};
pub use timers::{
    delay_queue::{self, DelayQueue},
    idle::{Busy, IdleHandle, IdleTimer},
    interval::Interval,
    limit::TrySleep,
    periodic::{Periodic, PeriodicBuilder},
    schedule::Scheduled,
    sleep::Sleep,
    timeout::{Timeout, TryTimeout},
};
pub use wheel::{
    WeakWheel, Wheel,
    builder::{BuildError, Builder},
    global::GlobalError,
    roster::ScheduledTask,
    shutdown::Unprocessed,
};

/// Runs every example in the documents as a test.
#[cfg(doctest)]
mod docs {
    #[doc = include_str!("../docs/guide.md")]
    struct Guide;

    #[doc = include_str!("../docs/migrating.md")]
    struct Migrating;

    #[doc = include_str!("../README.md")]
    struct Readme;
}
