//! How long can one visit of the data structure take on its own: when 100,000 timers expire at one tick, and when a million cascade?
//! `cargo bench -p tickwheel-benches --bench tail [-- --rounds N]` prints a line for each.
//!
//! A visit is the smallest unit of work that the structure offers: a batch of 256 where it has bounds, one timer of a `DelayQueue`, and
//! otherwise all the work of a tick.

#[path = "timing_wheel/structures.rs"]
#[allow(dead_code)]
mod structures;

use std::{mem, time::Instant};

use hdrhistogram::Histogram;
use structures::{Bit, Nexus, Ours, Queue, Structure, paused};
use tickwheel_benches::children::{Arguments, Line};

fn main() {
    let rounds = Arguments::read().number("rounds", 20);
    let runtime = paused();
    // All due at one tick of the finest level.
    let burst = Scene {
        name: "burst",
        timers: 100_000,
        delay: 60,
        ticks: 64,
        rounds,
    };
    burst.play("levels(4)", || Ours::new(4));
    burst.play("nexus-timer", Nexus::default);
    burst.play("bitwheel", Bit::<1, 131_072>::default);
    burst.play("DelayQueue", || Queue::new(&runtime));
    // All in one bucket of a coarser level, whichever its size: due long after it comes down.
    let cascade = Scene {
        name: "cascade",
        timers: 1_000_000,
        delay: 4_000,
        ticks: 4_100,
        rounds: rounds.div_ceil(4),
    };
    cascade.play("levels(4)", || Ours::new(4));
    cascade.play("nexus-timer", Nexus::default);
    cascade.play("DelayQueue", || Queue::new(&runtime));
}

struct Scene {
    name: &'static str,
    timers: usize,
    delay: u64,
    ticks: u64,
    rounds: u64,
}

impl Scene {
    /// Counts the visits that have something to do; those of empty ticks would hide them.
    fn play<S: Structure>(&self, name: &str, new: impl Fn() -> S) {
        let mut visits =
            Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
        let mut idle = Histogram::<u64>::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are sane");
        let mut total = 0;
        for _ in 0..self.rounds {
            let mut structure = new();
            for _ in 0..self.timers {
                mem::forget(structure.insert(self.delay));
            }
            let mut left = self.timers;
            for _ in 0..self.ticks {
                structure.begin();
                let mut more = true;
                while more {
                    let start = Instant::now();
                    let (expired, unfinished) = structure.visit();
                    let took = (start.elapsed().as_nanos() as u64).max(1);
                    left -= expired;
                    more = unfinished;
                    total += took;
                    match expired > 0 || unfinished || took > 2_000 {
                        true => visits.saturating_record(took),
                        false => idle.saturating_record(took),
                    }
                }
            }
            assert_eq!(left, 0, "{name}: all have expired");
        }
        let us = |nanos: u64| nanos as f64 / 1e3;
        let line = Line::new("tail")
            .with("peer", name)
            .with("scene", self.name)
            .with("visits", visits.len() / self.rounds);
        let line = line
            .with_number("p50_us", us(visits.value_at_quantile(0.5)))
            .with_number("p999_us", us(visits.value_at_quantile(0.999)))
            .with_number("max_us", us(visits.max()))
            .with_number("all_ms", us(total) / 1e3 / self.rounds as f64);
        println!("{line}");
    }
}
