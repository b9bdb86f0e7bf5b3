//! Tokio's alternative timer (`Builder::enable_alt_timer`), as far as it differs.
//!
//! Its timers end before the runtime's tasks (`shutdown_local_timers` in `runtime/scheduler/util/time_alt.rs` of Tokio 1.54), and what is set
//! afterwards is lost without a word. So an engine there ends as soon as its keeper's task is dropped.

use std::{pin::pin, time::Duration};

use tokio::time;

use super::tokio_timer::reset_and_look;
use crate::engine::moment::Moment;

/// How often a sleep is tried: the worker that takes one over may be so fast that it seems to elapse as it is reset.
const TRIES: u32 = 16;

/// Returns whether the current runtime has the alternative timer, where a sleep does not elapse as it is reset to the past.
pub(crate) fn is_alternative() -> bool {
    !(0..TRIES).all(|_| {
        let sleep = pin!(time::sleep(Duration::from_millis(1)));
        reset_and_look(sleep, Moment::ZERO.instant())
    })
}
