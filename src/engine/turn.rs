//! A turn of the driver: visits the shards that have due entries, and wakes the tasks of those entries.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Waker,
};

use super::{
    clock::{Moment, Nanos},
    driver::alarm::{Alarm, Driver, Next},
    events,
    shard::Shard,
    shared::Shared,
    sync::{Arc, OnceLock, Ordering::Relaxed},
};

/// The number of timers handled under one lock. With fewer, threads that register timers get the lock in between again and again, and a storm takes
/// longer. With more, a thread that waits for the lock waits for milliseconds.
const BATCH: usize = 256;

/// After waking this many tasks, or after [`SLICE_TIME`], a turn lets other tasks run. Until then no worker polls I/O, because this one holds Tokio's
/// driver.
const SLICE: usize = 1024;
const SLICE_TIME: Nanos = Nanos::MILLISECOND;

/// Makes a turn for the tick in progress at `now`. Entries that become due meanwhile are left to the next turn, because in a storm a turn would otherwise
/// never end.
pub(crate) fn turn(
    shards: &[OnceLock<Arc<Shard>>],
    alarm: &Alarm,
    shared: &Shared,
    driver: &mut Driver,
    now: Moment,
) -> Next {
    let tick = alarm.clock.tick_at(now);
    let begin = alarm.clock.start_of(tick);
    let is_due = |shard: &&Arc<Shard>| shard.wake_at() <= begin;
    let (last, first) = shards.split_at(driver.first % shards.len());
    let mut woken = 0;
    let mut has_more = true;
    while has_more {
        has_more = false;
        // Shards take turns by the batch, so that none waits for the storm of another.
        for shard in made(first).chain(made(last)).filter(is_due) {
            let advanced = shard.visit(tick, begin, BATCH, &mut driver.wakers);
            shared.stats.cascaded.fetch_add(advanced.cascaded as u64, Relaxed);
            wake_all(&mut driver.wakers, shared);
            has_more |= advanced.more;
            woken += advanced.expired;
            let is_spent = woken >= SLICE || advanced.more && alarm.now().since(now) >= SLICE_TIME;
            if is_spent && made(shards).any(|shard| is_due(&shard)) {
                driver.first = driver.first.wrapping_add(1);
                return Next::More;
            }
        }
    }
    let next = made(shards).map(|shard| shard.wake_at()).min();
    let next = next.unwrap_or(Moment::NEVER);
    let after = made(shards).map(|shard| shard.wake_after(next)).min();
    Next::At(next, after.unwrap_or(Moment::NEVER))
}

/// Returns the shards that have been made.
pub(crate) fn made(shards: &[OnceLock<Arc<Shard>>]) -> impl Iterator<Item = &Arc<Shard>> {
    shards.iter().filter_map(OnceLock::get)
}

/// Wakes the tasks of wakers, with no lock held. If a waker panics, the others are still woken.
pub(crate) fn wake_all(wakers: &mut Vec<Waker>, shared: &Shared) {
    let mut wakers = wakers.drain(..);
    while wakers.len() > 0 && panics(|| wakers.by_ref().for_each(Waker::wake)) {
        shared.stats.panics.fetch_add(1, Relaxed);
        // A subscriber that panics must not keep the other wakers from being woken.
        panics(|| events::waker_panicked(shared.name()));
    }
}

/// Returns whether `act` panics. The panic does not propagate.
pub(crate) fn panics(act: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    // The payload of a panic may itself panic when it is dropped.
    outcome.map_err(mem::forget).is_err()
}
