//! What does a timeout cost around a future that is ready at once, and around one that is pending once, on 1 to 8 workers?

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tickwheel_benches::{Peer, Stage};

fn ready(c: &mut Criterion) {
    let stage = Stage::new(1);
    let mut group = c.benchmark_group("timeout-ready");
    for peer in Peer::all().filter(|peer| peer.is_shared()) {
        group.bench_function(peer.name(), |b| {
            b.iter_custom(|times| stage.ready(black_box(peer), times))
        });
    }
}

/// An iteration is one timeout on each of the workers: where all have a core to themselves, what one timeout costs.
fn once(c: &mut Criterion) {
    let mut group = c.benchmark_group("timeout-once");
    for workers in [1, 2, 4, 8] {
        let stage = Stage::new(workers);
        for peer in Peer::all().filter(|peer| workers == 1 || peer.is_shared()) {
            group.bench_function(BenchmarkId::new(peer.name(), workers), |b| {
                b.iter_custom(|times| stage.churn(black_box(peer), workers, times));
            });
        }
    }
}

criterion_group!(benches, ready, once);
criterion_main!(benches);
