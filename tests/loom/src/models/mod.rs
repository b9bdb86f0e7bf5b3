//! The models, each of which tries every order with a bounded number of preemptions.

mod alarm;
mod end;
mod horizon;
mod per_runtime;
mod refusal;
mod spares;
mod task;
mod unreliable;
mod world;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::engine::{clock::Moment, sync};

/// Checks every order with at most `preemptions`. One more often takes ten times as long, and known bugs of
/// this kind need no more than two or three.
fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    // It reads the clock once in the process, which loom would take for a model that changes.
    loom::model(|| _ = Moment::ZERO.instant());
    task::learn_wakers();
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = orders.clone();
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        sync::forget_threads();
        check();
        sync::drop_locals();
    });
    println!("{} orders", orders.load(Relaxed));
}

/// Checks one order of one thread, which may take very many steps.
fn simulate(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_permutations = Some(1);
    builder.max_branches = 1_000_000;
    task::learn_wakers();
    builder.check(move || {
        sync::forget_threads();
        check();
        sync::drop_locals();
    });
}
