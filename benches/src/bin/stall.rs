//! How long a registration waits while something walks through a million timers of its shard: `stall [--timers N] [--rounds N]`.
//!
//! - `expiry`: the million expires at once. This scene also measures how long that takes.
//! - `alone`, `snapshot`: the million only stays pending. In the second, another thread takes one snapshot after another.

use std::{
    pin::Pin,
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tickwheel::{Sleep, Wheel};
use tickwheel_benches::{
    children::{Arguments, Line, in_turn},
    stage,
};

/// How long registrations are made beside a million that waits.
const MEASURED: Duration = Duration::from_secs(3);

fn main() {
    let arguments = Arguments::read();
    let Some(scene) = arguments.rest.first() else {
        return in_turn(&arguments, &["expiry", "alone", "snapshot"]);
    };
    let timers = arguments.number("timers", 1_000_000);
    let runtime = stage::quiet(1);
    let mut builder = Wheel::builder().shards(1);
    if scene != "expiry" {
        // Where timers are counted, none is kept for reuse: each registration takes the lock that a snapshot takes.
        builder = builder.max_pending(u32::MAX as usize);
    }
    let wheel = builder.build().expect("one shard is allowed");
    let _entered = runtime.enter();
    let mut waits = Waits::new();
    let line = Line::new("stall").with("scene", scene).with("timers", timers);
    let line = match scene.as_str() {
        "expiry" => {
            let took = expire(&wheel, timers, &mut waits);
            line.with_number("all_ms", took.as_secs_f64() * 1e3)
        }
        "alone" => {
            beside(&wheel, timers, &mut waits, || {});
            line
        }
        "snapshot" => {
            let mut took = Waits::new();
            let snapshots = || {
                let start = Instant::now();
                let snapshot = wheel.snapshot();
                assert!(snapshot.pending as u64 >= timers);
                took.record(start.elapsed());
            };
            beside(&wheel, timers, &mut waits, snapshots);
            line.with("snapshots", took.0.len())
                .with_number("snapshot_ms", took.0.value_at_quantile(0.5) as f64 / 1e6)
        }
        scene => panic!("there is no {scene}: expiry, alone or snapshot"),
    };
    println!("{}", waits.add_to(line));
}

/// How long registrations took.
struct Waits(Histogram<u64>);

impl Waits {
    fn new() -> Waits {
        Waits(Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane"))
    }

    /// Registers a timer, and cancels it.
    fn register(wheel: &Wheel) -> (Instant, Duration) {
        let start = Instant::now();
        let mut sleep = wheel.sleep(Duration::from_secs(60));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut sleep).poll(&mut cx).is_pending());
        drop(sleep);
        (start, start.elapsed())
    }

    fn record(&mut self, wait: Duration) {
        self.0.saturating_record(wait.as_nanos() as u64);
    }

    fn add_to(&self, line: Line) -> Line {
        let us = |quantile| self.0.value_at_quantile(quantile) as f64 / 1e3;
        line.with("registrations", self.0.len())
            .with_number("p50_us", us(0.5))
            .with_number("p99_us", us(0.99))
            .with_number("p999_us", us(0.999))
            .with_number("p9999_us", us(0.9999))
            .with_number("max_us", self.0.max() as f64 / 1e3)
    }
}

fn sleeps(wheel: &Wheel, timers: u64, due: tokio::time::Instant) -> Vec<Sleep> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut sleeps: Vec<_> = (0..timers).map(|_| wheel.sleep_until(due)).collect();
    for sleep in &mut sleeps {
        assert!(Pin::new(sleep).poll(&mut cx).is_pending());
    }
    assert!(
        Instant::now() < due.into_std(),
        "they expire before they all wait"
    );
    sleeps
}

/// Registrations from when the first of so many timers expires until the last has; returns how long that took.
fn expire(wheel: &Wheel, timers: u64, waits: &mut Waits) -> Duration {
    let due = tokio::time::Instant::now() + Duration::from_secs(2);
    let _sleeps = sleeps(wheel, timers, due);
    thread::sleep(due.into_std() - Instant::now());
    let mut began = None;
    loop {
        let (start, wait) = Waits::register(wheel);
        let left = wheel.pending() as u64;
        if left < timers {
            waits.record(wait);
            let began = *began.get_or_insert(start);
            if left == 0 {
                return start + wait - began;
            }
        }
    }
}

/// Registrations beside so many timers that wait, while another thread does something again and again. It is busy also with nothing to do,
/// so that the machine is the same.
fn beside(wheel: &Wheel, timers: u64, waits: &mut Waits, mut something: impl FnMut() + Send) {
    let due = tokio::time::Instant::now() + Duration::from_secs(600);
    let sleeps = sleeps(wheel, timers, due);
    let over = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                something();
            }
        });
        let start = Instant::now();
        while start.elapsed() < MEASURED {
            let (_, wait) = Waits::register(wheel);
            waits.record(wait);
        }
        over.store(true, Ordering::Relaxed);
    });
    drop(sleeps);
}
