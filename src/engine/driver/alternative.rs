//! Tokio's alternative timer (`Builder::enable_alt_timer`), as far as it differs.
//!
//! Its timers end before the runtime's tasks (`shutdown_local_timers` in `runtime/scheduler/util/time_alt.rs`
//! of Tokio 1.54), and what is set afterwards is lost without a word. So an engine there ends as soon as its
//! task is dropped.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    time::Duration,
};

use tokio::time;

use super::tokio_timer::reset_and_look;
use crate::engine::clock::Moment;

/// Returns whether the current runtime has the alternative timer.
///
/// A sleep does not elapse there as it is reset to the past, but a worker that takes it over may fire it
/// before it is looked at. Its `Debug` output then says which timer it has. To reset one on a worker of
/// another runtime panics, which happens with no other timer.
pub(crate) fn is_alternative() -> bool {
    let mut sleep = pin!(time::sleep(Duration::from_millis(1)));
    let reset = AssertUnwindSafe(|| reset_and_look(sleep.as_mut(), Moment::ZERO.instant()));
    let has_elapsed = catch_unwind(reset).unwrap_or(false);
    !has_elapsed || format!("{sleep:?}").contains("Alternative")
}
