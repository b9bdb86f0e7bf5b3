//! What does it cost to move a pending timer to a later instant: a single one that is in the cache, and a random one of a million?

use std::cell::OnceCell;

use criterion::{Criterion, criterion_group, criterion_main};
use tickwheel_benches::{Peer, Stage, work::Durations};

fn reset(c: &mut Criterion) {
    let stage = Stage::new(1);
    for (name, timers, at_random) in [("reset-hot", 1, false), ("reset-random", 1_000_000, true)] {
        let mut group = c.benchmark_group(name);
        for peer in Peer::all().filter(|peer| peer.resets()) {
            let mut held = OnceCell::new();
            group.bench_function(peer.name(), |b| {
                held.get_or_init(|| stage.hold(peer, timers, Durations::Random));
                let held = held.get_mut().expect("it has just been filled");
                b.iter_custom(|times| held.reset(times, at_random));
            });
        }
    }
}

criterion_group!(benches, reset);
criterion_main!(benches);
