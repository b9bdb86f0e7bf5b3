//! What the driver adds to the metrics and reports as events.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::engine::{
    clock::Clock,
    events,
    lag::{LagHistogram, LagRecorder},
    timing_wheel::Nanos,
};

/// The lateness, in cadences, above which the driver reports that its runtime was stalled.
const LATE_CADENCES: u64 = 4;

/// The counts of one wheel's drivers.
#[derive(Default)]
pub(crate) struct Stats {
    /// The name of the wheel, for events.
    pub(crate) name: String,
    pub(crate) ticks: AtomicU64,
    pub(crate) wakeups: AtomicU64,
    pub(crate) panics: AtomicU64,
    /// In nanoseconds.
    pub(crate) last_lag: AtomicU64,
    /// In nanoseconds.
    pub(crate) max_lag: AtomicU64,
    lags: LagRecorder,
    /// Wheel time at the last turn.
    last_turn: AtomicU64,
}

impl Stats {
    pub(super) fn new(name: String) -> Stats {
        Stats {
            name,
            ..Stats::default()
        }
    }

    pub(super) fn last_turn(&self) -> Nanos {
        Nanos(self.last_turn.load(Ordering::Relaxed))
    }

    pub(super) fn driver_woke(&self) {
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a turn at `now`. Counts the tick in progress, which began at `begin`, if it had no turn yet.
    pub(super) fn turned_to(&self, now: Nanos, begin: Nanos) {
        if self.last_turn.swap(now.0, Ordering::Relaxed) < begin.0 {
            self.ticks.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn driver_was_late(&self, lag: Nanos, clock: &Clock) {
        let nanos = lag.0;
        self.last_lag.store(nanos, Ordering::Relaxed);
        self.max_lag.fetch_max(nanos, Ordering::Relaxed);
        self.lags.record(nanos);
        if nanos > clock.tick.cadence().0.saturating_mul(LATE_CADENCES) {
            events::driver_late(&self.name, lag.to_duration());
        }
    }

    pub(super) fn waker_panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn lag(&self) -> LagHistogram {
        let max = self.max_lag.load(Ordering::Relaxed);
        self.lags.histogram(Duration::from_nanos(max))
    }
}
