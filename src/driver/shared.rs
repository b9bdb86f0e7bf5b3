//! `Shared`: what the driver shares with the shards. How to reach it, which runtime drives, how it runs and how it ends.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::{
    alarm::Alarm,
    stats::Stats,
    timer::Timer,
    turn::{Driver, Slice},
    waking::{panics, wake_all},
};
use crate::{
    clock::{Clock, Source},
    labels::Labels,
    shard::{Shard, Wakers},
    sync::{Mutex, lock},
    timing_wheel::{Nanos, TickDuration},
};

/// What the shards know of their driver, and what a driver knows of the last one.
pub(crate) struct Shared {
    /// Set once, as the wheel is assembled. A shard has a reference to this.
    shards: OnceLock<Box<[Weak<Shard>]>>,
    /// On which the driver sleeps.
    pub(super) alarm: Alarm<Driver, Timer>,
    pub(super) tick: Duration,
    /// The runtime that the builder was given; none once a current wheel's has gone.
    handle: Mutex<Option<Handle>>,
    /// That runtime has been shut down, as a driver found.
    pub(super) handle_has_ended: AtomicBool,
    /// Who drives, and by which clock.
    pub(super) slot: Mutex<DriverSlot>,
    /// The runtime that drives now: whose clock counts.
    pub(super) runtime: Mutex<Option<Handle>>,
    /// Every handle of the wheel is gone.
    handles_gone: AtomicBool,
    pub(crate) stats: Stats,
    pub(crate) labels: Labels,
}

/// The place of the one driver of a wheel.
pub(super) struct DriverSlot {
    /// Counts drivers. A driver that goes empties the slot only if no other has come since.
    pub(super) driver: u64,
    /// Whether there is a driver.
    pub(super) taken: bool,
    /// The clock of this driver, or of the last one. Before the first one, its wheel time means nothing.
    pub(super) clock: Clock,
    /// Wheel time when the last driver went.
    pub(super) stopped_at: Nanos,
    /// The runtime of that driver: for one that comes back, its clock has gone on.
    pub(super) runtime: Option<runtime::Id>,
}

impl DriverSlot {
    /// The driver has gone. Wheel time stops here, unless it goes on by the clock of the next one.
    fn stop(&mut self, runtime: Option<&Handle>, last_turn: Nanos) {
        self.taken = false;
        // In a thread whose locals are gone no clock can be read but the machine's.
        let reads = !Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
        let now = match runtime.filter(|_| reads) {
            Some(runtime) => {
                let _entered = runtime.enter();
                self.clock.source = self.clock.source.recheck();
                Some(Instant::now())
            }
            None if self.clock.source == Source::Machine => Some(std::time::Instant::now().into()),
            None => None,
        };
        let now = now.map_or(Nanos::ZERO, |now| self.clock.wheel_time(now));
        // A visit may have gone by a later reading than the last turn.
        self.stopped_at = now.max(last_turn).max(self.stopped_at);
    }
}

impl Shared {
    pub(crate) fn new(name: String, tick: Duration, handle: Option<Handle>) -> Shared {
        Shared {
            shards: OnceLock::new(),
            alarm: Alarm::default(),
            tick,
            handle: Mutex::new(handle),
            handle_has_ended: AtomicBool::new(false),
            slot: Mutex::new(DriverSlot {
                driver: 0,
                taken: false,
                clock: Shared::initial_clock(tick),
                stopped_at: Nanos::ZERO,
                runtime: None,
            }),
            runtime: Mutex::new(None),
            handles_gone: AtomicBool::new(false),
            stats: Stats::new(name),
            labels: Labels::new(),
        }
    }

    /// The clock of a wheel before its first driver. Nothing is registered by it.
    fn initial_clock(tick: Duration) -> Clock {
        Clock::new(
            Instant::now(),
            Nanos::ZERO,
            TickDuration::new(tick),
            Source::Pausable,
        )
    }

    /// The clock that a wheel's shards start with.
    pub(crate) fn first_clock(&self) -> Clock {
        Shared::initial_clock(self.tick)
    }

    pub(crate) fn connect(&self, shards: impl Iterator<Item = Weak<Shard>>) {
        self.shards.get_or_init(|| shards.collect());
    }

    /// The runtime that a driver is to be started on, or a scheduled task spawned on.
    ///
    /// # Panics
    ///
    /// Outside a runtime, when the builder was given none.
    #[track_caller]
    pub(crate) fn runtime(&self) -> Handle {
        match self.handle() {
            Some(handle) => handle,
            None => current_runtime(),
        }
    }

    pub(super) fn handle(&self) -> Option<Handle> {
        lock(&self.handle).clone()
    }

    /// The runtime by whose clock the wheel goes: that of the driver, or of the next.
    pub(super) fn clock_runtime(&self) -> Option<Handle> {
        let driving = lock(&self.runtime).clone();
        driving.or_else(|| self.handle())
    }

    /// The runtime that the wheel was given has gone for good.
    pub(crate) fn forget_handle(&self) {
        let handle = lock(&self.handle).take();
        drop(handle);
    }

    /// Every handle is gone: the driver is to end after the last timer.
    pub(crate) fn release_handles(&self) {
        self.handles_gone.store(true, Ordering::Relaxed);
        self.shards().for_each(|shard| shard.release_handles());
        self.alarm.wake_task();
    }

    /// Every handle is gone: the driver ends after the last timer.
    pub(super) fn may_retire(&self) -> bool {
        self.handles_gone.load(Ordering::Relaxed)
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// The shard for the thread with this number.
    pub(super) fn shard(&self, number: usize) -> Option<Arc<Shard>> {
        let shards = self.shards.get()?;
        shards[number & (shards.len() - 1)].upgrade()
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shards().all(|shard| shard.is_shutdown())
    }

    /// Wakes and drops what was taken out of shards. The caller holds no lock.
    pub(crate) fn wake(&self, wakers: &mut Wakers) {
        wake_all(wakers, &self.stats);
    }

    /// Runs driver number `number` until it waits, for a slice at most, unless somebody else runs it. Must be called in its runtime. Returns
    /// whether it has more to do once others have run.
    pub(super) fn work(&self, number: u64) -> bool {
        let mut slice = Slice::begin();
        let mut pauses = false;
        // Tokio's time driver, which may have called, is not to hear of a panic.
        let panicked = panics(|| {
            while let Some((mut driver, planned)) = self.alarm.take(number) {
                let next = driver.turn(planned, &mut slice, &self.stats);
                let exhausted = driver.is_exhausted(&slice);
                if !self.alarm.give_back(number, driver, next) {
                    return;
                }
                if exhausted {
                    self.alarm.pause(number);
                    pauses = true;
                    return;
                }
            }
        });
        if panicked {
            self.alarm.end(number);
        }
        pauses
    }

    /// Driver number `number` has gone: unless another has come since, every pending future is to look for a new one.
    pub(super) fn driver_has_gone(&self, number: u64) {
        let mut wakers = Wakers::default();
        let _plan = {
            let mut slot = lock(&self.slot);
            if !slot.taken || slot.driver != number {
                return;
            }
            let plan = self.alarm.take_down(number);
            let runtime = lock(&self.runtime).clone();
            slot.stop(runtime.as_ref(), self.stats.last_turn());
            for shard in self.shards() {
                shard.detach(slot.stopped_at, &mut wakers);
            }
            // The shards' clock until here.
            lock(&self.runtime).take();
            plan
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
