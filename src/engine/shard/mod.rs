//! `Shard`: one lock, and the wheel and counters behind it. Futures and the driver use it through its methods.
//!
//! Rules:
//!
//! 1. No user code runs under a lock of this crate. Wakers are cloned before a lock is taken, and woken and dropped after it is released.
//!    The only exception is a scheduled task's own lock, which its handle and its waker share (`schedule/task.rs`).
//! 2. Locks are taken in this order: a scheduled task's or an idle timer's, `closing` of a shutdown, a roster's, the driver's slot, a
//!    shard's, and last either the driver's runtime, to read its clock, or the alarm's. Under these two, only Tokio's own locks are taken. No
//!    thread holds the locks of two shards.
//! 3. A waker that is taken out of a shard is woken after the lock is released. A future that read an older value without the lock is
//!    therefore polled again.

mod claim;
mod counters;
mod drive;
mod generation;
mod limit;
mod local;
#[cfg(all(test, loom))]
mod loom;
mod mode;
mod planning;
mod register;
mod removal;
mod reset;
mod reuse;
mod slack;
mod state;
mod status;
mod tasks;
mod timer;
mod visit;
mod walk;

use std::{
    sync::{Arc, OnceLock},
    task::Waker,
};

use tokio::runtime::Id;

use crate::{
    engine::{
        clock::{Clock, Shift},
        labels::Stripe,
        sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock, planted, try_lock},
        timing_wheel::{Nanos, Tick, TickDuration, TimingWheel},
    },
    error::SleepError,
};

pub(in crate::engine) use counters::{Counters, Usage};
pub(crate) use drive::Drive;
pub(in crate::engine) use limit::Admission;
pub(crate) use limit::Limit;
pub(crate) use local::{ShardRef, shard_number, visited_by_other_runtime};
pub use mode::Mode;
pub(crate) use tasks::learn_vtable;
pub(crate) use timer::Timer;
pub(in crate::engine) use visit::Reading;
pub(crate) use visit::Wakers;

use generation::Generation;
use mode::Cadence;
use removal::Removal;
use reuse::{Ledger, Reuse};
use state::State;
use status::Status;

/// An empty arena keeps at least this many cells, or its share of the wheel's capacity if that is more.
const RETAINED: usize = 1024;

/// The next visit to a shard that needs none.
pub(in crate::engine) const NEVER: Tick = Tick::MAX;

/// One lock, the state behind it, and the values that can be read without it.
#[repr(align(128))]
pub(crate) struct Shard {
    state: Mutex<State>,
    /// A [`Status`], readable without the lock.
    status: AtomicU32,
    /// The [`Shift`] from moments of the driver's clock to wheel time, readable without the lock.
    shift: AtomicU64,
    /// The tick at which the driver visits next, written under the lock. [`NEVER`] if no visit is needed.
    wake_at: AtomicU64,
    /// The tick of the visit after that, as far as the last visit knew, or [`NEVER`].
    visit_after: AtomicU64,
    /// The timers kept for reuse, and the generation.
    reuse: Reuse,
    labels: Stripe,
    /// The duration of a tick.
    tick: TickDuration,
    /// Whether every handle of the wheel has been dropped.
    handles_gone: AtomicBool,
    /// The runtime whose current wheel this is, once that is known to have timers.
    runtime: OnceLock<Id>,
    /// The `max_pending` that all shards share.
    limit: Option<Arc<Limit>>,
    /// The driver, whether it runs now or not.
    driver: Arc<dyn Drive>,
    /// The shard's index among the shards of the wheel, and the number of shards less one.
    number: usize,
    mask: usize,
    /// The number of cells that an empty arena keeps while the wheel has a handle.
    retained: usize,
}

impl Shard {
    pub(crate) fn new(
        wheel: TimingWheel<Waker>,
        clock: Clock,
        capacity: usize,
        limit: Option<Arc<Limit>>,
        labels: Stripe,
        driver: Arc<dyn Drive>,
        (number, mask): (usize, usize),
    ) -> Shard {
        Shard {
            state: Mutex::new(State {
                wheel,
                mode: Mode::Driverless,
                cadence: Cadence::default(),
                first: Tick::ZERO,
                clock,
                incoming_from: Nanos::ZERO,
                driver: 0,
                counters: Counters::default(),
                ledger: Ledger::default(),
            }),
            status: AtomicU32::new(Status::Driverless.pack()),
            shift: AtomicU64::new(Shift::NONE.0),
            wake_at: AtomicU64::new(NEVER.0),
            visit_after: AtomicU64::new(NEVER.0),
            reuse: Reuse::new(limit.is_none()),
            labels,
            tick: clock.tick,
            handles_gone: AtomicBool::new(false),
            runtime: OnceLock::new(),
            limit,
            driver,
            number,
            mask,
            retained: capacity.max(RETAINED),
        }
    }

    /// Records that every handle of the wheel has been dropped. The driver may now end after the last timer, and retained memory
    /// is freed.
    pub(in crate::engine) fn release_handles(&self) {
        self.handles_gone.store(true, Ordering::Relaxed);
        self.reuse.close();
        self.unlock(lock(&self.state));
    }

    /// Records that this is the current wheel of a runtime with timers.
    pub(crate) fn belongs_to(&self, runtime: Id) {
        self.runtime.get_or_init(|| runtime);
    }

    /// Returns whether this is the current wheel of a runtime with timers. Another runtime may get the id of one that has ended,
    /// but then this wheel has no handle.
    #[inline]
    fn is_of(&self, runtime: Id) -> bool {
        self.runtime.get() == Some(&runtime) && !self.may_retire()
    }

    /// Returns whether somebody has shut the wheel down. A current wheel is also shut down when it outlives its runtime with no handle.
    pub(crate) fn was_shut_down(&self) -> bool {
        let outlived = self.may_retire() && self.runtime.get().is_some();
        self.is_shutdown() && !outlived
    }

    /// Returns whether every handle has been dropped, so that the driver may end after the last timer.
    #[inline]
    pub(crate) fn may_retire(&self) -> bool {
        self.handles_gone.load(Ordering::Relaxed)
    }

    /// Returns the number of pending timers in this shard.
    pub(crate) fn pending(&self) -> usize {
        self.usage().pending
    }

    /// Returns the shard's counters and sizes, all of one moment.
    pub(crate) fn usage(&self) -> Usage {
        let mut guard = lock(&self.state);
        let State {
            wheel,
            ledger,
            counters,
            ..
        } = &mut *guard;
        let reached = self.reuse.generation().tick();
        let kept = ledger.look(reached, wheel, counters).len();
        Usage {
            pending: wheel.len() - kept,
            arena_bytes: wheel.arena_bytes(),
            counters: Counters {
                cancelled: counters.cancelled + kept as u64,
                ..*counters
            },
        }
    }

    /// Returns this shard's counters of labels.
    #[inline]
    pub(crate) fn labels(&self) -> &Stripe {
        &self.labels
    }

    /// Ensures that a locked shard has a driver, and starts one if there is none.
    #[inline]
    fn ensure_driven<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> Result<MutexGuard<'a, State>, SleepError> {
        while state.mode == Mode::Driverless {
            drop(state);
            self.driver.clone().start()?;
            state = lock(&self.state);
        }
        if state.mode == Mode::Shutdown {
            Err(SleepError::Shutdown)
        } else {
            Ok(state)
        }
    }

    /// Returns the tick up to which timers are due: that of the last visit or, under a test's clock, the current one.
    fn reached(&self, state: &State) -> Tick {
        if state.clock.source.is_real() || matches!(state.mode, Mode::Driverless) {
            return state.wheel.now();
        }
        self.current(state)
    }

    /// Returns the current tick of a shard that has a driver.
    fn current(&self, state: &State) -> Tick {
        let now = state.clock.wheel_time(self.read_clock());
        self.tick.tick_at(now).max(state.wheel.now())
    }

    /// Returns the duration of a tick.
    pub(crate) fn tick(&self) -> Nanos {
        self.tick.nanos()
    }

    /// Locks for a registration. A thread that often finds the lock taken creates its next timers in another shard.
    #[inline]
    fn lock_to_register(&self) -> MutexGuard<'_, State> {
        try_lock(&self.state).unwrap_or_else(|| {
            local::contended(self.reuse.generation().tick());
            lock(&self.state)
        })
    }

    /// Unlocks, and only then frees the memory of an empty arena, so that no thread waits for that.
    #[inline]
    fn unlock(&self, mut state: MutexGuard<'_, State>) {
        let retained = match self.may_retire() {
            true => RETAINED,
            false => self.retained,
        };
        let arena = state.wheel.release_arena(retained);
        drop(state);
        drop(arena);
    }

    /// Subtracts `timers` from the count of the limit.
    #[inline]
    fn release(&self, timers: usize) {
        if let Some(limit) = &self.limit {
            limit.release(timers);
        }
    }

    #[inline]
    fn admit(&self, state: &mut State, admission: Admission) -> Result<(), SleepError> {
        if let Some(limit) = &self.limit {
            limit
                .admit(admission)
                .inspect_err(|_| state.counters.rejected += 1)?;
        }
        state.counters.registered += 1;
        Ok(())
    }

    /// Ends every timer that is kept for reuse, and the generation in which it could be taken, at tick `now`.
    fn end_generation(&self, state: &mut State, next: Generation, now: Tick, spent: &mut Vec<Waker>) {
        let State {
            ledger,
            wheel,
            counters,
            ..
        } = state;
        if !planted("endless_generation") {
            self.reuse.begin_generation(next);
        }
        ledger.empty(now, wheel, counters, spent);
    }
}
