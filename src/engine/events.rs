//! The events that a wheel reports to `tracing`, about its engines and never about single timers. Without the
//! feature `tracing`, there are none.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

#[cfg(feature = "tracing")]
macro_rules! event {
    // A subscriber that panics must not keep a turn from waking tasks, nor an engine from ending.
    ($level:ident, $($event:tt)*) => { catch_panic(|| tracing::$level!($($event)*)) };
}
#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($field:ident,)* $message:literal) => {
        let _ = ($($field,)* format_args!($message));
    };
}

/// Calls `act`, and catches a panic. Returns whether there was one.
pub(in crate::engine) fn catch_panic(act: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    // The payload of a panic may itself panic when it is dropped.
    outcome.map_err(mem::forget).is_err()
}

pub(in crate::engine) fn engine_changed(wheel: &str, change: &str) {
    event!(debug, wheel, "timing wheel engine {change}");
}

pub(in crate::engine) fn driver_late(wheel: &str, lag: Duration) {
    let lag_ms = lag.as_millis() as u64;
    // A warning, because every timer of the runtime was as late as this turn.
    event!(
        warn,
        wheel,
        lag_ms,
        "timing wheel driver came late: its runtime was stalled"
    );
}

pub(in crate::engine) fn waker_panicked(wheel: &str) {
    event!(error, wheel, "a waker panicked; the timing wheel goes on");
}

pub(crate) fn too_many_wheels(wheels: usize) {
    event!(
        warn,
        wheels,
        "so many timing wheels are nearly always a mistake: share one, by cloning it"
    );
}
