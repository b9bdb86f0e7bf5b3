//! What does the data structure cost on its own, without locks, clocks and futures: insert, remove, reset, advance, cascade? And how does
//! `levels(1)`, as in Netty, compare with `levels(4)`, as in Kafka, when timers are far away?

mod structures;

use std::hint::black_box;

use criterion::{
    BatchSize, BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
    measurement::WallTime,
};

use fastrand::Rng;
use structures::{Bit, Delays, Nexus, Ours, Queue, Structure, paused};

const TIMERS: usize = 100_000;

/// Within the finest level.
const NEAR: Delays = Delays { least: 1, most: 255 };
/// Within four minutes: on the second level, or hundreds of rounds away.
const FAR: Delays = Delays {
    least: 1,
    most: 240_000,
};
const SOONER: Delays = Delays {
    least: 1,
    most: 120_000,
};
const LATER: Delays = Delays {
    least: 120_001,
    most: 240_000,
};

type Group<'a> = BenchmarkGroup<'a, WallTime>;

/// Timers, and their keys in random order.
fn filled<S: Structure>(mut structure: S, delays: Delays) -> (S, Vec<S::Key>) {
    let mut random = Rng::with_seed(7);
    let mut keys: Vec<S::Key> = (0..TIMERS)
        .map(|_| structure.insert(delays.draw(&mut random)))
        .collect();
    for last in (1..keys.len()).rev() {
        keys.swap(last, random.usize(..=last));
    }
    (structure, keys)
}

fn filled_in_order<S: Structure>(mut structure: S, delays: Delays) -> S {
    let mut random = Rng::with_seed(7);
    for _ in 0..TIMERS {
        // What a key owns, if it owns anything, stays with the structure.
        std::mem::forget(black_box(structure.insert(delays.draw(&mut random))));
    }
    structure
}

/// One more timer, started and cancelled beside 100,000; a tick for every thousand, so that a peer can clear up.
fn churn<S: Structure>(new: &dyn Fn() -> S, group: &mut Group<'_>, name: &str) {
    let (mut structure, keys) = filled(new(), FAR);
    std::mem::forget(keys);
    let mut random = Rng::with_seed(7);
    let mut count = 0;
    group.bench_function(name, |b| {
        b.iter(|| {
            let key = structure.insert(FAR.draw(&mut random));
            structure.remove(black_box(key));
            count += 1;
            if count % 1_000 == 0 {
                structure.advance();
            }
        });
    });
}

/// 100,000 timers started.
fn insert<S: Structure>(new: &dyn Fn() -> S, group: &mut Group<'_>, name: &str) {
    group.bench_function(name, |b| {
        b.iter_batched(
            new,
            |structure| filled_in_order(structure, FAR),
            BatchSize::PerIteration,
        );
    });
}

/// 100,000 timers cancelled, in random order.
fn remove<S: Structure>(new: &dyn Fn() -> S, group: &mut Group<'_>, name: &str) {
    group.bench_function(name, |b| {
        b.iter_batched(
            || filled(new(), FAR),
            |(mut structure, keys)| {
                keys.into_iter().for_each(|key| structure.remove(key));
                structure
            },
            BatchSize::PerIteration,
        );
    });
}

/// 100,000 timers moved once each, in random order.
fn reset<S: Structure>(new: &dyn Fn() -> S, group: &mut Group<'_>, name: &str, (from, to): (Delays, Delays)) {
    group.bench_function(name, |b| {
        b.iter_batched(
            || filled(new(), from),
            |(mut structure, keys)| {
                let mut random = Rng::with_seed(7);
                for key in keys {
                    std::mem::forget(black_box(structure.reset(key, to.draw(&mut random))));
                }
                structure
            },
            BatchSize::PerIteration,
        );
    });
}

/// 100,000 timers to their end, tick by tick.
fn advance<S: Structure>(new: &dyn Fn() -> S, group: &mut Group<'_>, name: &str, delays: Delays) {
    group.bench_function(name, |b| {
        b.iter_batched(
            || filled_in_order(new(), delays),
            |mut structure| {
                let expired: usize = (0..=delays.most).map(|_| structure.advance()).sum();
                assert_eq!(expired, TIMERS);
                structure
            },
            BatchSize::PerIteration,
        );
    });
}

/// Runs a generic function with each structure.
macro_rules! for_each {
    ($c:expr, $group:literal, $function:ident($($argument:expr),*)) => {{
        let mut group = $c.benchmark_group($group);
        if $group != "wheel-churn" {
            group
                .sampling_mode(SamplingMode::Flat)
                .sample_size(10)
                .throughput(Throughput::Elements(TIMERS as u64));
        }
        let group = &mut group;
        let runtime = paused();
        $function(&|| Ours::new(4), group, "levels(4)" $(, $argument)*);
        $function(&|| Ours::new(1), group, "levels(1)" $(, $argument)*);
        $function(&Nexus::default, group, "nexus-timer" $(, $argument)*);
        // Of fixed room: none where a slot would have to hold them all.
        if !$group.starts_with("wheel-advance") {
            $function(&Bit::<3, 8192>::default, group, "bitwheel" $(, $argument)*);
        }
        $function(&|| Queue::new(&runtime), group, "DelayQueue" $(, $argument)*);
    }};
}

fn structure(c: &mut Criterion) {
    for_each!(c, "wheel-churn", churn());
    for_each!(c, "wheel-insert", insert());
    for_each!(c, "wheel-remove", remove());
    for_each!(c, "wheel-reset-earlier", reset((LATER, SOONER)));
    for_each!(c, "wheel-reset-later", reset((SOONER, LATER)));
    for_each!(c, "wheel-advance-near", advance(NEAR));
    for_each!(c, "wheel-advance-far", advance(FAR));
}

/// A jump over a million empty ticks, and one over a single tick.
fn jump(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel-jump");
    for ticks in [1, 1_000_000] {
        group.bench_function(format!("levels(4)/{ticks}"), |b| {
            let mut ours = Ours::new(4);
            let _far = ours.insert(1 << 40);
            b.iter(|| ours.jump(black_box(ticks)));
        });
    }
}

criterion_group!(benches, structure, jump);
criterion_main!(benches);
