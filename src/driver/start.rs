//! How a driver is started, replaced by another one, and let go.

use std::sync::{Arc, atomic::Ordering};

use tokio::{
    runtime::Handle,
    time::{Instant, MissedTickBehavior},
};

use super::{
    shared::Shared,
    task::{Driver, Guard},
};
use crate::{
    clock::{Clock, Source},
    error::Refusal,
    events,
    shard::Wakers,
    sync::lock,
    timing_wheel::TickDuration,
};

impl Shared {
    /// Puts a driver on the runtime that is found, unless there is one. `Err` when that runtime has been shut down.
    pub(super) fn start_on(self: &Arc<Self>, find: impl FnOnce() -> Handle) -> Result<(), Refusal> {
        let (runtime, number, _former) = {
            let mut slot = lock(&self.slot);
            if slot.taken {
                return Ok(());
            }
            let runtime = find();
            let entered = runtime.enter();
            let (now, source) = (Instant::now(), Source::of(&runtime));
            // Panics, in Tokio's own words, where the runtime's timers are disabled.
            let mut interval = tokio::time::interval(self.tick);
            interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
            drop(entered);
            // Wheel time goes on by the last driver's clock where that is this one's too, and else from where it stopped.
            let both_real = slot.clock.source.is_real() && source.is_real();
            let comes_back = slot.runtime == Some(runtime.id());
            let keeps_clock = slot.driver > 0 && (both_real || comes_back);
            if !keeps_clock {
                slot.clock = Clock::new(now, slot.stopped_at, TickDuration::new(self.tick), source);
            }
            slot.clock.source = source;
            slot.runtime = Some(runtime.id());
            slot.taken = true;
            slot.driver += 1;
            *lock(&self.runtime) = Some(runtime.clone());
            let shards: Box<[_]> = self.shards().collect();
            let driver = Driver::new(self.clone(), slot.driver, shards.clone(), slot.clock);
            let former = self.alarm.set_up(driver, interval, runtime.clone());
            for shard in &shards {
                shard.attach(slot.clock, slot.driver);
            }
            (runtime, slot.driver, former)
        };
        // From here on this tells the wheel if the driver goes, also if a subscriber panics.
        let guard = Guard::new(self.clone(), number);
        events::driver_started(&self.name, number);
        // With no lock held: a runtime that has been shut down drops the task here and now.
        drop(runtime.spawn(guard.run()));
        self.alarm.begin(number);
        match self.never_ran.load(Ordering::Relaxed) == number {
            true => Err(Refusal::Shutdown),
            false => Ok(()),
        }
    }

    /// The driver found that its clock reads something else than before.
    pub(super) fn clock_reads(&self, source: Source) {
        lock(&self.slot).clock.source = source;
    }

    /// Ends the driver's work, if no shard has a pending timer. A timer of a future not yet polled then starts another driver.
    pub(super) fn retire(&self) -> bool {
        if !self.may_retire() {
            return false;
        }
        let mut wakers = Wakers::default();
        let shards: Box<[_]> = self.shards().collect();
        let mut former = None;
        let mut slot = lock(&self.slot);
        if shards.iter().all(|shard| shard.detach_if_empty(&mut wakers)) {
            slot.taken = false;
            // Later than whatever the last visit went by, which may have read the clock after the turn began.
            slot.stopped_at = slot.clock.wheel_time(Instant::now()).max(slot.stopped_at);
            lock(&self.runtime).take();
            former = Some(self.alarm.take_down());
        } else {
            shards
                .iter()
                .for_each(|shard| shard.attach(slot.clock, slot.driver));
        }
        let retired = !slot.taken;
        drop(slot);
        drop(former);
        self.wake(&mut wakers);
        retired
    }

    /// Every handle is gone: the driver ends after the last timer.
    pub(super) fn may_retire(&self) -> bool {
        self.handles_gone.load(Ordering::Relaxed)
    }

    /// Driver number `driver` was dropped before it ran.
    pub(super) fn never_ran(&self, driver: u64) {
        self.never_ran.store(driver, Ordering::Relaxed);
    }

    /// Driver number `driver` has gone: unless another has come since, every pending future is to look for a new one.
    pub(super) fn driver_has_gone(&self, driver: u64) {
        let mut wakers = Wakers::default();
        let _former = {
            let mut slot = lock(&self.slot);
            if !slot.taken || slot.driver != driver {
                return;
            }
            slot.taken = false;
            let former = self.alarm.take_down();
            let last_turn = self.stats.last_turn();
            let runtime = lock(&self.runtime).clone();
            // In a thread whose locals are gone no clock can be read but the machine's.
            let reads = !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
            let stopped_at = match runtime.filter(|_| reads) {
                Some(runtime) => {
                    let _entered = runtime.enter();
                    slot.clock.wheel_time(Instant::now()).max(last_turn)
                }
                None if slot.clock.source.is_real() => slot
                    .clock
                    .wheel_time(std::time::Instant::now().into())
                    .max(last_turn),
                None => last_turn,
            };
            slot.stopped_at = stopped_at.max(slot.stopped_at);
            for shard in self.shards() {
                shard.detach(slot.stopped_at, &mut wakers);
            }
            // The shards' clock until here.
            lock(&self.runtime).take();
            former
        };
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
