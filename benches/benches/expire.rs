//! What does a timer that expires cost, in CPU time from its creation to its expiry?

use std::{hint::black_box, time::Duration};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use tickwheel_benches::{Peer, Stage};

const TIMERS: usize = 100_000;

fn expire(c: &mut Criterion) {
    let stage = Stage::new(1);
    for (name, spread) in [("expire-equal", 0), ("expire-random", 200)] {
        let mut group = c.benchmark_group(name);
        group
            .sampling_mode(SamplingMode::Flat)
            .sample_size(10)
            .throughput(Throughput::Elements(TIMERS as u64));
        for peer in Peer::all() {
            group.bench_function(peer.name(), |b| {
                b.iter_custom(|times| {
                    let spread = Duration::from_millis(spread);
                    (0..times)
                        .map(|_| stage.expire(black_box(peer), TIMERS, spread))
                        .sum()
                });
            });
        }
    }
}

criterion_group!(benches, expire);
criterion_main!(benches);
