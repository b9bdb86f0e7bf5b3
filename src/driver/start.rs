//! How a driver is started, replaced by another one, and let go.

use std::sync::{Arc, atomic::Ordering};

use tokio::{
    runtime::Handle,
    time::{Instant, MissedTickBehavior},
};

use super::{shared::Shared, task::Driver};
use crate::{
    clock::{Clock, Epoch, Source},
    error::Refusal,
    events,
    shard::{Shard, Wakers},
    sync::lock,
    timing_wheel::TickDuration,
};

impl Shared {
    /// Puts a driver on the runtime that is found, unless there is one. `Err` when that runtime has been shut down.
    pub(super) fn start_on(self: &Arc<Self>, find: impl FnOnce() -> Handle) -> Result<(), Refusal> {
        let (runtime, driver) = {
            let mut slot = lock(&self.slot);
            if slot.taken {
                return Ok(());
            }
            let runtime = find();
            if slot.dead_runtime == Some(runtime.id()) {
                return Err(Refusal::Shutdown);
            }
            let entered = runtime.enter();
            let (now, source) = (Instant::now(), Source::of(&runtime));
            // Panics, in Tokio's own words, where the runtime's timers are disabled.
            let mut interval = tokio::time::interval(self.tick);
            interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
            drop(entered);
            let both_real = slot.clock.source.is_real() && source.is_real();
            let same_clock = both_real || slot.last_runtime == Some(runtime.id());
            if slot.epoch == Epoch::NEVER_DRIVEN || !same_clock {
                slot.clock = Clock::new(now, slot.stopped_at, TickDuration::new(self.tick), source);
                slot.epoch = slot.epoch.next();
            }
            slot.clock.source = source;
            slot.last_runtime = Some(runtime.id());
            slot.taken = true;
            slot.driver += 1;
            *lock(&self.runtime) = Some(runtime.clone());
            self.alarm.set_up(interval);
            let shards: Box<[_]> = self.shards().collect();
            for shard in &shards {
                shard.attach(slot.clock, slot.epoch);
            }
            (
                runtime,
                Driver::new(self.clone(), slot.driver, shards, slot.clock),
            )
        };
        let number = driver.number();
        events::driver_started(&self.name, number);
        // With no lock held: a runtime that has been shut down drops the driver here and now.
        drop(runtime.spawn(driver.run()));
        let mut slot = lock(&self.slot);
        if self.never_ran.load(Ordering::Relaxed) != number {
            return Ok(());
        }
        slot.dead_runtime = Some(runtime.id());
        Err(Refusal::Shutdown)
    }

    /// The driver found that its clock reads something else than before.
    pub(super) fn clock_reads(&self, source: Source) {
        lock(&self.slot).clock.source = source;
    }

    /// Ends the driver's work, if no shard has a pending timer. A timer of a future not yet polled then starts another driver.
    pub(super) fn retire(&self, shards: &[Arc<Shard>], wakers: &mut Wakers) -> bool {
        if !self.handles_gone.load(Ordering::Relaxed) {
            return false;
        }
        let mut slot = lock(&self.slot);
        if shards.iter().all(|shard| shard.detach_if_empty(wakers)) {
            slot.taken = false;
            // Later than whatever the last visit went by, which may have read the clock after the turn began.
            slot.stopped_at = slot.clock.nanos_of(Instant::now()).max(slot.stopped_at);
            lock(&self.runtime).take();
            self.alarm.take_down();
        } else {
            shards
                .iter()
                .for_each(|shard| shard.attach(slot.clock, slot.epoch));
        }
        let retired = !slot.taken;
        drop(slot);
        self.wake(wakers);
        retired
    }

    /// Driver number `driver` was dropped before it ran.
    pub(super) fn never_ran(&self, driver: u64) {
        self.never_ran.store(driver, Ordering::Relaxed);
    }

    /// Driver number `driver` has gone: unless another has come since, every pending future is to look for a new one.
    pub(super) fn driver_has_gone(&self, driver: u64) {
        let mut wakers = Wakers::default();
        {
            let mut slot = lock(&self.slot);
            if !slot.taken || slot.driver != driver {
                return;
            }
            slot.taken = false;
            self.alarm.take_down();
            let last_turn = self.stats.last_turn();
            let runtime = lock(&self.runtime).take();
            let in_context =
                Handle::try_current().is_ok_and(|here| runtime.is_some_and(|it| it.id() == here.id()));
            let stopped_at = match (in_context, slot.clock.source.is_real()) {
                (true, _) => slot.clock.nanos_of(Instant::now()).max(last_turn),
                (false, true) => slot
                    .clock
                    .nanos_of(std::time::Instant::now().into())
                    .max(last_turn),
                (false, false) => last_turn,
            };
            slot.stopped_at = stopped_at.max(slot.stopped_at);
            for shard in self.shards() {
                shard.detach(slot.stopped_at, &mut wakers);
            }
        }
        self.wake(&mut wakers);
    }
}

/// # Panics
///
/// Outside a runtime, in Tokio's own words.
#[track_caller]
pub(super) fn current_runtime() -> Handle {
    match Handle::try_current() {
        Ok(runtime) => runtime,
        Err(error) => {
            panic!(
                "{error}: call or poll this inside a runtime, or give the wheel one with `Builder::handle`"
            )
        }
    }
}
