//! Tokio's alternative timer (`Builder::enable_alt_timer`), as far as it differs.
//!
//! Its timers end before the runtime's tasks (`shutdown_local_timers` in `runtime/scheduler/util/time_alt.rs`
//! of Tokio 1.54), and timers that are set afterwards are silently lost. So an engine there ends as soon as
//! its task is dropped.

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
/// A sleep on the alternative timer does not elapse when it is reset to the past. But a worker that takes the
/// sleep over may fire it before it is looked at, so its `Debug` output counts as well. Resetting such a
/// sleep on a worker of another runtime panics, which happens with no other timer.
pub(crate) fn is_alternative() -> bool {
    let mut sleep = pin!(time::sleep(Duration::from_millis(1)));
    let reset = AssertUnwindSafe(|| reset_and_look(sleep.as_mut(), Moment::ZERO.instant()));
    let has_elapsed = catch_unwind(reset).unwrap_or(false);
    !has_elapsed || format!("{sleep:?}").contains("Alternative")
}
