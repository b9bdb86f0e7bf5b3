//! The wheels of the soak test, and the invariants of each at a quiet point.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tickwheel::{Metrics, SleepError, Wheel};
use tokio::{
    runtime::{Handle, Id},
    time::Instant,
};

use crate::judge::{Judge, PATIENCE};

const LIMIT: usize = 300;

pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) wheel: Wheel,
    pub(crate) judge: Arc<Judge>,
    /// The runtime that lasts as long as the test.
    lasting: Id,
    /// Refusals that the tasks have seen.
    refused: AtomicU64,
}

impl Stage {
    /// The last of them is the only one that a thread of no runtime may use.
    pub(crate) fn all(judge: &Arc<Judge>) -> Vec<Stage> {
        let ms = Duration::from_millis;
        [
            ("default", Wheel::builder()),
            (
                "one level, rounds",
                Wheel::builder().levels(1).ticks_per_wheel(8).tick_duration(ms(5)),
            ),
            (
                "small, eight levels",
                Wheel::builder().levels(8).ticks_per_wheel(2).tick_duration(ms(1)),
            ),
            (
                "one shard, long tick",
                Wheel::builder().shards(1).tick_duration(ms(50)),
            ),
            ("limited", Wheel::builder().max_pending(LIMIT)),
            ("pinned", Wheel::builder().handle(Handle::current())),
        ]
        .into_iter()
        .map(|(name, builder)| Stage {
            name,
            wheel: builder.name(name).build().expect("within every limit"),
            judge: judge.clone(),
            lasting: Handle::current().id(),
            refused: AtomicU64::new(0),
        })
        .collect()
    }

    pub(crate) fn check(&self, kept: bool, promise: &str, details: impl FnOnce() -> String) {
        self.judge.check(kept, promise, || {
            format!("{}, on the wheel '{}'", details(), self.name)
        });
    }

    /// Returns whether the caller's runtime may be ending.
    pub(crate) fn is_visited(&self) -> bool {
        Handle::current().id() != self.lasting
    }

    /// Counts a refusal, which only a limited wheel may give.
    pub(crate) fn note_refusal(&self, limit: usize) {
        self.check(
            self.wheel.max_pending() == Some(limit),
            "only a full wheel refuses",
            || format!("limit {limit}"),
        );
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Checks the outcome of a sleep, an interval's tick or an idle timer that was awaited: on time, or
    /// rightly refused.
    pub(crate) fn check_sleep(&self, outcome: Result<(), SleepError>, due: Instant, what: &str) {
        if outcome.is_ok() {
            self.judge.note_lateness(due);
        }
        self.check_not_early(outcome, due, what);
    }

    /// The same for one whose deadline may have come long before it was polled.
    pub(crate) fn check_not_early(&self, outcome: Result<(), SleepError>, due: Instant, what: &str) {
        match outcome {
            Ok(()) => self.judge.check_not_early(due, what, &self.wheel),
            Err(SleepError::AtCapacity { limit, .. }) => self.note_refusal(limit),
            Err(error) => self.check(false, "a running wheel refuses nothing", || {
                format!("{what}: {error}")
            }),
        }
    }

    /// The same for what cannot be refused.
    pub(crate) fn check_due(&self, due: Instant, what: &str) {
        self.check_sleep(Ok(()), due, what);
    }

    /// Awaits `future`, but not for ever.
    pub(crate) async fn patiently<F: Future>(&self, what: &str, future: F) -> Option<F::Output> {
        let outcome = tokio::time::timeout(PATIENCE, future).await.ok();
        self.check(outcome.is_some(), "nothing hangs", || {
            format!("{what}: nothing for {PATIENCE:?}")
        });
        outcome
    }

    pub(crate) async fn check_quiet_point(&self) {
        // Detached tasks and series end a little later than those that started them.
        let quiet = async {
            // Runtimes that are shut down in the background end a little later, too.
            while self.wheel.pending() > 0 || self.wheel.metrics().engines > 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        self.patiently("timers pend at a quiet point", quiet).await;
        let metrics = self.wheel.metrics();
        let Metrics {
            pending,
            registered,
            expired,
            cancelled,
            rejected,
            panics,
            engines,
            ..
        } = metrics;
        self.check(pending == 0, "nothing pends at a quiet point", || {
            format!("{metrics:?}")
        });
        self.check(
            registered == expired + cancelled,
            "registered = expired + cancelled + pending",
            || format!("{metrics:?}"),
        );
        let refused = self.refused.load(Ordering::Relaxed);
        self.check(refused == rejected, "each refusal is counted once", || {
            format!("{refused} seen, {metrics:?}")
        });
        self.check(engines == 1, "engines end with their runtimes", || {
            format!("{metrics:?}")
        });
        self.check(panics == 0, "no waker panics", || format!("{metrics:?}"));
    }

    pub(crate) fn close(&self) {
        let unprocessed = self.wheel.shutdown();
        self.check(unprocessed.tasks.is_empty(), "nothing is left at the end", || {
            format!("{unprocessed:?}")
        });
        let Metrics { pending, .. } = self.wheel.metrics();
        self.check(pending == 0, "nothing pends at the end", || {
            format!("{pending} pending")
        });
    }
}
