//! What does it cost to register and cancel a timer while many others are pending?

use std::{cell::OnceCell, env};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tickwheel_benches::{Peer, Stage, work::Durations};

const PENDING: [usize; 4] = [1_000, 100_000, 1_000_000, 10_000_000];

fn scale(c: &mut Criterion) {
    let most =
        env::var("SCALE_MOST").map_or(usize::MAX, |most| most.parse().expect("SCALE_MOST is a number"));
    let stage = Stage::new(1);
    for durations in [Durations::Equal, Durations::Random] {
        let mut group = c.benchmark_group(format!("scale-{}", durations.name()));
        for pending in PENDING.into_iter().filter(|pending| *pending <= most) {
            for peer in Peer::all() {
                // Filled when it is first run, which a filter may spare it.
                let held = OnceCell::new();
                group.bench_function(BenchmarkId::new(peer.name(), pending), |b| {
                    let held = held.get_or_init(|| stage.hold(peer, pending, durations));
                    b.iter_custom(|times| held.churn(times, durations));
                });
            }
        }
    }
}

criterion_group!(benches, scale);
criterion_main!(benches);
