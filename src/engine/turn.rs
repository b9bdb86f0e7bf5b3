//! One turn of an engine: the driver visits the shards that have something due, and wakes their tasks.

use std::task::Waker;

use super::{
    clock::{Moment, Nanos},
    driver::alarm::{Alarm, Driver, Next},
    events::{self, catch_panic},
    shard::Shard,
    shared::Shared,
    sync::{Arc, OnceLock, Ordering::Relaxed},
};

/// After waking this many tasks, or after [`SLICE_TIME`], a turn lets other tasks run. Until then no worker
/// polls I/O, because the worker that makes the turn holds Tokio's driver.
const SLICE: usize = 1024;
const SLICE_TIME: Nanos = Nanos::MILLISECOND;

/// Makes a turn for the tick in progress at `now`, a moment that has come. Entries that become due meanwhile are left
/// to the next turn, because in a storm a turn would otherwise never end, except in a shard whose hand a timer has
/// moved on.
pub(crate) fn turn(
    shards: &[OnceLock<Arc<Shard>>],
    alarm: &Alarm,
    shared: &Shared,
    driver: &mut Driver,
    now: Moment,
) -> Next {
    // One reading serves the whole turn. An entry is due if its tick has begun, so the horizon is the
    // beginning of this tick and not `now`.
    let tick = alarm.clock.tick_at(now);
    let begin = alarm.clock.start_of(tick);
    let mut woken = 0;
    loop {
        let mut next = Moment::NEVER;
        // Shards are visited in rotation, a batch at a time, so that none waits for the storm of another.
        for index in 0..shards.len() {
            // Their number is a power of two.
            let Some(shard) = shards[(driver.first + index) & (shards.len() - 1)].get() else {
                continue;
            };
            // Read without the lock. A timer that has just started here is either seen now, or its thread has
            // found the driver away, and left its moment with the alarm.
            if shard.next_visit() <= begin {
                let advanced = shard.visit(tick, &mut driver.wakers);
                if advanced.cascaded > 0 {
                    shared.stats.cascaded.fetch_add(advanced.cascaded as u64, Relaxed);
                }
                // With no lock held, and before the next batch, so that the buffer stays small and those that
                // are due first are not woken last.
                wake_all(&mut driver.wakers, shared);
                woken += advanced.expired;
                // The clock is read only where the shard has more, which is rare.
                let is_spent = woken >= SLICE || (advanced.more && alarm.now().since(now) >= SLICE_TIME);
                if is_spent && existing(shards).any(|shard| shard.next_visit() <= begin) {
                    driver.first = driver.first.wrapping_add(1);
                    return Next::More;
                }
            }
            next = next.min(shard.next_visit());
        }
        // A shard that has more is left in the middle of its due timers, or of its share to be spread.
        if next > begin {
            return Next::At(next);
        }
    }
}

/// Returns the shards that have been made.
pub(crate) fn existing(shards: &[OnceLock<Arc<Shard>>]) -> impl Iterator<Item = &Arc<Shard>> {
    shards.iter().filter_map(OnceLock::get)
}

/// Wakes the tasks of wakers, with no lock held. If a waker panics, the others are still woken.
pub(crate) fn wake_all(wakers: &mut Vec<Waker>, shared: &Shared) {
    let mut wakers = wakers.drain(..);
    // A panic ends the loop, and leaves those behind the waker that panicked to the next one.
    while wakers.len() > 0 && catch_panic(|| wakers.by_ref().for_each(Waker::wake)) {
        shared.stats.panics.fetch_add(1, Relaxed);
        events::waker_panicked(shared.name());
    }
}
