//! Counts the checks, and reports broken promises.

use std::{
    process,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use hdrhistogram::Histogram;
use tickwheel::Wheel;
use tokio::time::Instant;

use crate::stage::Stage;

/// No wait is planned for more than a second: one that takes so long has been forgotten.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Counts what was done and writes down what was broken.
#[derive(Default)]
pub(crate) struct Judge {
    checks: AtomicU64,
    broken: AtomicUsize,
    late_micros: Mutex<Vec<u64>>,
    all_late_micros: Mutex<Option<Histogram<u64>>>,
}

impl Judge {
    pub(crate) fn check(&self, kept: bool, promise: &str, details: impl FnOnce() -> String) {
        self.checks.fetch_add(1, Ordering::Relaxed);
        if kept {
            return;
        }
        const SHOWN: usize = 20;
        if self.broken.fetch_add(1, Ordering::Relaxed) < SHOWN {
            println!("BROKEN: {promise}: {}", details());
        }
    }

    pub(crate) fn check_not_early(&self, due: Instant, what: &str, wheel: &Wheel) {
        let early = due.saturating_duration_since(Instant::now());
        self.check(early.is_zero(), "never early", || {
            format!("{what}: {early:?} early, on {wheel:?}")
        });
    }

    pub(crate) fn note_lateness(&self, due: Instant) {
        let late = Instant::now().saturating_duration_since(due);
        self.late_micros.lock().unwrap().push(late.as_micros() as u64);
    }

    pub(crate) fn show_progress(&self, started: Instant, stages: &[Arc<Stage>]) {
        let mut all = self.all_late_micros.lock().unwrap();
        let all = all.get_or_insert_with(|| Histogram::new(3).unwrap());
        let mut second = Histogram::<u64>::new(3).unwrap();
        for late in self.late_micros.lock().unwrap().drain(..) {
            second.record(late).unwrap();
            all.record(late).unwrap();
        }
        println!(
            "{:>5} s  {:>10} checks  {:>6} pending  {:>7} done this second, late by {}  {} broken",
            started.elapsed().as_secs(),
            self.checks.load(Ordering::Relaxed),
            stages.iter().map(|stage| stage.wheel.pending()).sum::<usize>(),
            second.len(),
            percentiles(&second),
            self.broken.load(Ordering::Relaxed),
        );
    }

    /// Fails the test when a promise was broken.
    pub(crate) fn give_verdict(&self) {
        if let Some(all) = &*self.all_late_micros.lock().unwrap() {
            println!(
                "\nlate, over all wheels and whatever else the machine did: {}",
                percentiles(all)
            );
        }
        let checks = self.checks.load(Ordering::Relaxed);
        let broken = self.broken.load(Ordering::Relaxed);
        assert_eq!(broken, 0, "of {checks} checks so many found a promise broken");
        println!("verdict: every promise was kept, in {checks} checks");
    }
}

fn percentiles(micros: &Histogram<u64>) -> String {
    let ms = |micros: u64| micros as f64 / 1000.0;
    format!(
        "{:.1} / {:.1} / {:.1} ms (p50 / p99 / max)",
        ms(micros.value_at_quantile(0.5)),
        ms(micros.value_at_quantile(0.99)),
        ms(micros.max())
    )
}

/// From outside the runtime: a runtime that hangs can no longer say so.
pub(crate) fn watch_for_a_standstill(judge: Arc<Judge>) {
    thread::spawn(move || {
        loop {
            let before = judge.checks.load(Ordering::Relaxed);
            thread::sleep(PATIENCE * 2);
            if judge.checks.load(Ordering::Relaxed) == before {
                println!("BROKEN: nothing hangs: no check was made for {:?}", PATIENCE * 2);
                process::exit(1);
            }
        }
    });
}
