//! Wakes many tasks with no lock held, whatever their wakers do.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use super::stats::Stats;
use crate::engine::{events, shard::Wakers};

/// Wakes and drops the wakers that were taken out of shards. The caller holds no lock. If a waker panics, the panic is counted
/// and the other wakers are still woken.
pub(super) fn wake_all(wakers: &mut Wakers, stats: &Stats) {
    catch_panics(&mut wakers.due, Waker::wake, stats);
    catch_panics(&mut wakers.spent, drop, stats);
}

fn catch_panics(wakers: &mut Vec<Waker>, act: impl Fn(Waker), stats: &Stats) {
    if wakers.is_empty() {
        return;
    }
    let mut wakers = wakers.drain(..);
    while wakers.len() > 0 && panics(|| wakers.by_ref().for_each(&act)) {
        stats.waker_panicked();
        // A subscriber that panics must not keep the other wakers from being woken.
        panics(|| events::waker_panicked(&stats.name));
    }
}

/// Returns whether `act` panics. The panic does not propagate.
pub(super) fn panics(act: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    // The payload of a panic may itself panic when it is dropped.
    outcome.map_err(mem::forget).is_err()
}
