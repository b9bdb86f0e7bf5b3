//! `Shared`: the state that the driver shares with the shards: how they reach it, which runtime drives, how it runs and how it ends.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::{
    alarm::{Alarm, NextWake},
    stats::Stats,
    timer::{Timer, whole_milliseconds_after},
    turn::{Driver, Slice},
    waking::{panics, wake_all},
};
use crate::engine::{
    clock::{self, Clock, Moment, Source},
    shard::{Shard, Wakers},
    sync::{Mutex, lock},
    timing_wheel::{Nanos, TickDuration},
};

/// What the shards know of their driver, and what a driver knows of the previous one.
pub(crate) struct Shared {
    /// Set once, when the wheel is assembled, because each shard has a reference to this value.
    pub(super) shards: OnceLock<Box<[Weak<Shard>]>>,
    /// On which the driver waits.
    pub(super) alarm: Alarm<Driver, Timer>,
    pub(super) runtimes: Mutex<Runtimes>,
    /// Whether this is the wheel of the given runtime, in whose place the one that polls comes when it has ended.
    pub(super) is_current: bool,
    /// The number and the clock of the current driver.
    pub(super) slot: Mutex<DriverSlot>,
    /// Whether every handle of the wheel has been dropped.
    handles_gone: AtomicBool,
    pub(crate) stats: Stats,
}

/// The runtimes that a wheel knows.
#[derive(Default)]
pub(super) struct Runtimes {
    /// The one given to the builder. `None` if there was none, and once it has ended and no handle of the wheel is left.
    pub(super) given: Option<Handle>,
    /// Whether a driver has found that this runtime has been shut down.
    pub(super) given_has_ended: bool,
    /// The one that drives now.
    pub(super) driving: Option<Handle>,
}

impl Runtimes {
    /// Returns the runtime whose clock the wheel uses: that of the driver, or of the next one.
    fn of_clock(&self) -> Option<&Handle> {
        let next = self.given.as_ref().filter(|_| !self.given_has_ended);
        self.driving.as_ref().or(next)
    }
}

/// The place of the one driver of a wheel.
pub(super) struct DriverSlot {
    /// The number of drivers so far. A driver that ends empties the slot only if no other has started since.
    pub(super) driver: u64,
    /// Whether there is a driver.
    pub(super) taken: bool,
    /// The clock of this driver, or of the previous one. Before the first driver, its wheel time has no meaning.
    pub(super) clock: Clock,
    /// Whether ticks of this clock begin with Tokio's milliseconds.
    pub(super) is_aligned: bool,
    /// Wheel time when the previous driver ended.
    pub(super) stopped_at: Nanos,
    /// The runtime of the last driver. If a driver starts on it again, its clock has continued in the meantime.
    pub(super) runtime: Option<runtime::Id>,
}

impl DriverSlot {
    /// Empties the slot when the driver has ended. Wheel time stops here, unless it continues by the clock of the next driver.
    fn stop(&mut self, runtime: Option<&Handle>, last_turn: Nanos) {
        self.taken = false;
        let now = match runtime.filter(|_| clock::is_within_reach()) {
            Some(runtime) => {
                let _entered = runtime.enter();
                self.clock.source = self.clock.source.recheck();
                Some(Instant::now())
            }
            None if self.clock.source == Source::Machine => Some(std::time::Instant::now().into()),
            None => None,
        };
        let now = now.map_or(Nanos::ZERO, |now| self.clock.wheel_time(now));
        // A visit may have used a later reading than the last turn.
        self.stopped_at = now.max(last_turn).max(self.stopped_at);
    }

    /// Returns the instant at which the clock of the last driver stopped, or `None` if that clock goes on, because it is the machine's or
    /// that of the runtime `here`.
    pub(super) fn stopped(&self, here: Option<runtime::Id>) -> Option<Instant> {
        let goes_on = self.clock.source.is_real() || self.runtime == here;
        let stopped_at = Moment::of_wheel(self.stopped_at);
        (self.runtime.is_some() && !goes_on).then(|| self.clock.shift.instant(stopped_at))
    }
}

impl Shared {
    pub(crate) fn new(name: String, tick: TickDuration, handle: Option<Handle>, is_current: bool) -> Shared {
        Shared {
            shards: OnceLock::new(),
            alarm: Alarm::default(),
            runtimes: Mutex::new(Runtimes {
                given: handle,
                ..Runtimes::default()
            }),
            is_current,
            slot: Mutex::new(DriverSlot {
                driver: 0,
                taken: false,
                // Nothing is registered by this clock.
                clock: Clock::new(Instant::now(), Nanos::ZERO, tick, Source::Pausable),
                is_aligned: false,
                stopped_at: Nanos::ZERO,
                runtime: None,
            }),
            handles_gone: AtomicBool::new(false),
            stats: Stats::new(name),
        }
    }

    /// Returns the clock of the driver, or of the previous one.
    pub(crate) fn clock(&self) -> Clock {
        lock(&self.slot).clock
    }

    pub(crate) fn connect(&self, shards: impl Iterator<Item = Weak<Shard>>) {
        self.shards.get_or_init(|| shards.collect());
    }

    /// Returns the runtime on which to spawn a scheduled task: the given one or, if there is none or it has ended, the caller's.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime, if the builder was given none.
    #[track_caller]
    pub(crate) fn runtime(&self) -> Handle {
        let (given, ended) = {
            let runtimes = lock(&self.runtimes);
            (runtimes.given.clone(), runtimes.given_has_ended)
        };
        let runtime = match ended {
            true => Handle::try_current().ok().or(given),
            false => given,
        };
        runtime.unwrap_or_else(current_runtime)
    }

    pub(super) fn clock_runtime(&self) -> Option<Handle> {
        lock(&self.runtimes).of_clock().cloned()
    }

    /// Called when the runtime of the driver has been shut down.
    pub(super) fn driving_runtime_has_ended(&self) {
        let driving = lock(&self.runtimes).driving.as_ref().map(Handle::id);
        driving.into_iter().for_each(|id| self.runtime_has_ended(id));
    }

    /// Called when a runtime has been shut down, which may be the one that the wheel was given.
    pub(super) fn runtime_has_ended(&self, runtime: runtime::Id) {
        let mut runtimes = lock(&self.runtimes);
        runtimes.given_has_ended |= runtimes.given.as_ref().map(Handle::id) == Some(runtime);
        drop(runtimes);
        self.forget_ended_runtime();
    }

    /// Forgets the runtime that the wheel was given if it has been shut down and the wheel has no handle any more. Otherwise the
    /// threads that used the wheel last would keep the resources of that runtime.
    fn forget_ended_runtime(&self) {
        if lock(&self.runtimes).given_has_ended && self.may_retire() {
            self.forget_handle();
        }
    }

    /// Forgets the runtime that the wheel was given, which has ended for good.
    pub(crate) fn forget_handle(&self) {
        let given = lock(&self.runtimes).given.take();
        drop(given);
    }

    /// Lets the driver end after the last timer, because every handle has been dropped.
    pub(crate) fn release_handles(&self) {
        self.handles_gone.store(true, Ordering::Relaxed);
        self.shards().for_each(|shard| shard.release_handles());
        self.forget_ended_runtime();
        self.alarm.wake_task();
    }

    /// Returns whether the driver may end after the last timer, because every handle has been dropped.
    pub(super) fn may_retire(&self) -> bool {
        self.handles_gone.load(Ordering::Relaxed)
    }

    /// Returns whether a handle is left, or a timer is pending.
    pub(super) fn is_needed(&self) -> bool {
        !self.may_retire() || self.shards().any(|shard| shard.pending() > 0)
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        let mut shards = self.shards.get().map_or(&[][..], |shards| shards).iter();
        std::iter::from_fn(move || next_alive(&mut shards))
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shards().all(|shard| shard.is_shutdown())
    }

    /// Wakes and drops the wakers that were taken out of shards. The caller holds no lock.
    pub(crate) fn wake(&self, wakers: &mut Wakers) {
        wake_all(wakers, &self.stats);
    }

    /// Runs driver number `number` until it waits, for a slice at most, unless another thread runs it. The first turn uses this
    /// `reading` of the clock. This must be called in the driver's runtime, unless its clock is the machine's. Returns `true` if
    /// the driver has more to do once other tasks have run.
    pub(super) fn work(&self, number: u64, mut reading: (Instant, Source)) -> bool {
        let mut slice = Slice::begin(reading.1);
        let mut pauses = false;
        // The caller may be Tokio's time driver, which must not see a panic.
        let panicked = panics(|| {
            while let Some((mut driver, planned)) = self.alarm.take(number) {
                let next = driver.turn(planned, reading, &mut slice, &self.stats);
                pauses = next == NextWake::Soon;
                let Some(at) = self.alarm.give_back(number, driver, next) else {
                    return;
                };
                reading = reading.1.read();
                if reading.0 < at {
                    // Only a runtime that shuts down fires a timer early, and drops the driver's task next. Any other one runs that task.
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

    /// Tells the shards that a test controls the clock of driver number `number`, whose task runs after others that are due.
    pub(super) fn clock_is_of_a_test(&self, number: u64) {
        let mut wakers = Wakers::default();
        for shard in self.shards() {
            shard.follow_source(Source::Test, number, &mut wakers);
        }
        self.wake(&mut wakers);
    }

    /// Lets ticks begin with Tokio's milliseconds, one of which began at `begin`. Wheel time goes back by less than one. Returns
    /// `false` if driver number `number` is running on another thread, and so cannot be given another clock now.
    pub(super) fn align(&self, number: u64, begin: Instant) -> bool {
        let mut slot = lock(&self.slot);
        let Some((mut driver, _)) = self.alarm.take(number) else {
            return !self.alarm.is_set_up(number);
        };
        let Clock { tick, source, .. } = slot.clock;
        let now = Instant::now();
        let begin = whole_milliseconds_after(begin, now);
        slot.clock = Clock::aligned(begin, now, slot.clock.wheel_time(now), tick, source);
        slot.is_aligned = true;
        driver.clock = slot.clock;
        for shard in self.shards() {
            shard.follow(slot.clock, now);
        }
        // The caller runs the driver next, which then plans its next turn.
        self.alarm.give_back(number, driver, NextWake::Soon);
        true
    }

    /// Records that driver number `number` has ended. Unless another driver has started since, every pending future is woken to
    /// start one.
    pub(super) fn driver_has_gone(&self, number: u64) {
        let mut wakers = Wakers::default();
        let _plan = {
            let mut slot = lock(&self.slot);
            if !slot.taken || slot.driver != number {
                return;
            }
            let plan = self.alarm.take_down(number);
            let runtime = lock(&self.runtimes).driving.clone();
            slot.stop(runtime.as_ref(), self.stats.last_turn());
            for shard in self.shards() {
                shard.detach(slot.stopped_at, &mut wakers);
            }
            // Until here, this runtime's clock was that of the shards.
            lock(&self.runtimes).driving = None;
            plan
        };
        self.wake(&mut wakers);
    }
}

/// Not inlined, because a loop over shards would otherwise hold it twice.
#[inline(never)]
fn next_alive(shards: &mut std::slice::Iter<'_, Weak<Shard>>) -> Option<Arc<Shard>> {
    shards.find_map(Weak::upgrade)
}

/// # Panics
///
/// Panics outside a runtime, with Tokio's message.
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
