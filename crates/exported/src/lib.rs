//! What a [`Wheel`] reports, as a list that any metrics exporter can read.
//!
//! [`exported`] returns the list of a wheel. The packages `tickwheel-prometheus` and `tickwheel-metrics` export
//! it to the Prometheus client library and to the `metrics` facade. For another library, write a loop over the
//! list: it has a name, a description, a unit, a kind, labels and a value for each series.
//!
//! ```
//! use tickwheel::Wheel;
//! use tickwheel_exported::{ExportedKind, ExportedValue, exported};
//!
//! let wheel = Wheel::builder().name("requests").build()?;
//! let list = exported(&wheel);
//! let pending = list.iter().find(|exported| exported.name == "tickwheel_pending").unwrap();
//! assert_eq!(pending.kind, ExportedKind::Gauge);
//! assert_eq!(pending.labels, [("wheel", "requests".to_owned())]);
//! assert_eq!(pending.value, ExportedValue::Count(0));
//! # Ok::<(), tickwheel::BuildError>(())
//! ```
//!
//! # What a wheel reports
//!
//! Names, units and labels are the same in every exporter:
//!
//! | name | kind | labels | |
//! | --- | --- | --- | --- |
//! | `tickwheel_pending` | gauge | | pending timers |
//! | `tickwheel_due` | gauge | `within` | pending timers, by the first of `tick`, `10ms`, `100ms`, `1s`, `10s`, `1m`, `10m`, `1h` and `later` that their deadline is within |
//! | `tickwheel_registered_total` | counter | | timers that entered the wheel |
//! | `tickwheel_expired_total` | counter | | timers whose deadline came while they were pending |
//! | `tickwheel_cancelled_total` | counter | | timers that left the wheel before their deadline |
//! | `tickwheel_rejected_total` | counter | | timers rejected because the wheel was full |
//! | `tickwheel_cascaded_total` | counter | | moves of a timer from a coarser level to a finer one |
//! | `tickwheel_turns_total` | counter | | turns of the drivers |
//! | `tickwheel_panics_total` | counter | | panics caught in wakers |
//! | `tickwheel_engines` | gauge | | runtimes in which the wheel has a part |
//! | `tickwheel_arena_bytes` | gauge | | memory held by the arenas, used or not |
//! | `tickwheel_tick_seconds` | gauge | | duration of a tick |
//! | `tickwheel_lag_seconds` | histogram | | lateness of the turns |
//! | `tickwheel_lag_max_seconds` | gauge | | greatest lateness of a turn since the wheel was created |
//! | `tickwheel_timeouts_started_total` | counter | `label` | [labelled](Wheel::labelled) timeouts that were polled |
//! | `tickwheel_timeouts_total` | counter | `label`, `outcome` | labelled timeouts that ended: `completed`, `elapsed`, `cancelled` |
//! | `tickwheel_timeouts_pending` | gauge | `label` | pending labelled timeouts |
//! | `tickwheel_timeouts_headroom_ratio` | histogram | `label` | part of its time that a completed timeout had left, each tenth as its middle |
//!
//! Each also has the label `wheel`, the [name](tickwheel::Builder::name) of the wheel, which is empty for one
//! without a name. Wheels of the same name are one series.
//!
//! # Other sources
//!
//! A [`Source`] is anything else that is to be reported beside a wheel: a queue of `tickwheel-redis`, the
//! connections of a server, or a closure. Exporters hold their sources in [`Sources`], which reads all of them
//! into one list without duplicates.
#![forbid(unsafe_code)]

mod exported;
mod source;
mod sources;
mod wheel;

pub use exported::{Exported, ExportedKind, ExportedUnit, ExportedValue};
pub use source::{Source, WithLabel};
pub use sources::Sources;
pub use wheel::exported;

#[cfg(doc)]
use tickwheel::Wheel;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
