//! A shard: one lock, the wheel and the counters behind it, and the verbs by which futures and the driver use them.
//!
//! Ground rules:
//!
//! 1. No user code runs under a lock of this crate: wakers are cloned before it is taken, woken and dropped after it is released.
//!    (The one exception is a scheduled task's own lock, which its handle and its waker share.)
//! 2. The order in which locks are taken: a scheduled task's, `closing` of a shutdown, a roster's, the driver's slot, its runtime, a
//!    shard's, the alarm. Under the alarm only Tokio's own locks are taken; under a shard's lock no other.
//! 3. Whoever takes a waker out of a shard wakes it after the lock is released. A future that read something older without the
//!    lock is then polled again.

mod accounts;
mod aside;
mod countdown;
mod hold;
mod limit;
#[cfg(all(test, loom))]
mod loom;
mod mode;
mod published;
mod shelf;
mod timer;
mod visit;

use std::{sync::Arc, task::Waker};

use tokio::time::Instant;

use crate::{
    clock::{Clock, Deadline, Epoch},
    error::Refusal,
    metrics::Metrics,
    sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, lock, try_lock},
    timing_wheel::{Key, Nanos, Tick, TimingWheel},
};

pub(crate) use countdown::{Countdown, Due};
pub(crate) use hold::{Hold, home};
pub(crate) use limit::{Limit, Standing};
pub(crate) use timer::Timer;
pub(crate) use visit::{Visited, Wakers};

use accounts::Account;
use aside::Aside;
use mode::Mode;
use published::Published;

/// Cells that an emptied arena keeps at least: its part of the wheel's capacity, where that is more.
const RETAINED: usize = 1024;

/// The deadline of a shard that waits for nothing.
pub(crate) const NEVER: Tick = Tick::MAX;

/// What a shard asks of whoever drives it.
pub(crate) trait Drive: Send + Sync {
    /// Has the driver come at `at`, unless it means to come earlier. It never wakes the driver on the calling thread.
    fn come_by(&self, at: Instant);

    /// Has the driver look again at once: it may have nothing left to do.
    fn come_now(&self);

    /// Starts a driver if there is none. `Err` when its runtime is gone too.
    fn start(self: Arc<Self>) -> Result<(), Refusal>;

    /// Reads the clock of the driver's runtime.
    fn now(&self) -> Instant;

    /// Whether a driver that was started now would go by the clock of the one that has gone.
    fn would_keep_clock(&self) -> bool;

    /// The shard, of the same wheel, of the thread with this number.
    fn sibling(&self, number: usize) -> Option<Arc<Shard>>;
}

/// One lock and all behind it.
#[repr(align(128))]
pub(crate) struct Shard {
    state: Mutex<State>,
    /// What can be known without the lock: see [`Published`].
    published: AtomicU32,
    aside: Aside,
    /// Every handle of the wheel is gone.
    handles_gone: AtomicBool,
    limit: Option<Arc<Limit>>,
    driver: Arc<dyn Drive>,
    /// Its place among the shards of the wheel, and how many those are, less one.
    number: usize,
    mask: usize,
    /// How many cells an emptied arena keeps, as long as the wheel has a handle.
    retained: usize,
}

/// How a pending timer comes to give its cell back.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    Cancelled,
    Expired,
}

struct State {
    wheel: TimingWheel<Waker>,
    mode: Mode,
    /// The tick at which the driver looks next; [`NEVER`] while it need not.
    wake_at: Tick,
    clock: Clock,
    epoch: Epoch,
    /// The clocks of epochs 1 to `epoch`, exclusive.
    former: Vec<Clock>,
    /// Wheel time from which the turn in progress counts what was incoming when it began.
    settles_from: Nanos,
    counters: Metrics,
    /// The shelves of the threads that have one here.
    accounts: Vec<Account>,
}

impl Shard {
    pub(crate) fn new(
        wheel: TimingWheel<Waker>,
        clock: Clock,
        capacity: usize,
        limit: Option<Arc<Limit>>,
        driver: Arc<dyn Drive>,
        (number, mask): (usize, usize),
    ) -> Shard {
        Shard {
            state: Mutex::new(State {
                wheel,
                mode: Mode::Driverless,
                wake_at: NEVER,
                clock,
                epoch: Epoch::UNDRIVEN,
                former: Vec::new(),
                settles_from: Nanos::ZERO,
                counters: Metrics::default(),
                accounts: Vec::new(),
            }),
            published: AtomicU32::new(Published::UNDRIVEN),
            aside: Aside::new(),
            handles_gone: AtomicBool::new(false),
            limit,
            driver,
            number,
            mask,
            retained: capacity.max(RETAINED),
        }
    }

    /// Every handle of the wheel is gone: the driver may go when the last timer has, and what was retained before.
    pub(crate) fn release_handles(&self) {
        self.handles_gone.store(true, Ordering::Relaxed);
        self.leave(lock(&self.state));
    }

    /// How many timers wait here.
    pub(crate) fn pending(&self) -> usize {
        let mut state = lock(&self.state);
        state.wheel.len() - state.aside().0
    }

    /// Adds this shard's figures to a total.
    pub(crate) fn add_metrics(&self, total: &mut Metrics) {
        let mut state = lock(&self.state);
        let (aside, taken) = state.aside();
        total.pending += state.wheel.len() - aside;
        total.registered += state.counters.registered + taken;
        total.expired += state.counters.expired;
        total.cancelled += state.counters.cancelled + taken + aside as u64;
        total.rejected += state.counters.rejected;
        total.cascaded += state.counters.cascaded;
        total.dozes += state.counters.dozes;
        total.arena_bytes += state.wheel.arena_bytes();
    }

    /// Makes sure that a locked shard has a driver, starting one if need be.
    fn driven<'a>(&'a self, mut state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, Refusal> {
        while state.mode == Mode::Driverless {
            drop(state);
            self.driver.clone().start()?;
            state = lock(&self.state);
        }
        if state.mode == Mode::Shutdown {
            Err(Refusal::Shutdown)
        } else {
            Ok(state)
        }
    }

    /// The earlier of two deadlines, also where they are of different clocks.
    #[cfg(feature = "io")]
    pub(crate) fn earlier(&self, one: Deadline, other: Deadline) -> Deadline {
        let order = one.partial_cmp(&other).unwrap_or_else(|| {
            let state = lock(&self.state);
            state.tick_of(one).cmp(&state.tick_of(other))
        });
        if order.is_le() { one } else { other }
    }

    /// The tick whose timers are due: the one last visited or, under a test's clock, the one in progress.
    fn reached(&self, state: &State) -> Tick {
        if state.clock.source.is_real() || matches!(state.mode, Mode::Driverless) {
            return state.wheel.now();
        }
        state
            .clock
            .tick_at(state.clock.nanos_of(self.driver.now()))
            .max(state.wheel.now())
    }

    /// Has the driver come by `tick`.
    fn wake_by(&self, mut state: MutexGuard<'_, State>, tick: Tick) {
        if tick < state.wake_at {
            if cfg!(not(plant_wake_at)) {
                state.wake_at = tick;
            }
            let at = state.clock.approach(tick);
            drop(state);
            self.driver.come_by(at);
        }
    }

    /// Locks for a registration. A thread that meets others here again and again makes its next timers elsewhere.
    #[inline]
    fn lock_to_register(&self) -> MutexGuard<'_, State> {
        try_lock(&self.state).unwrap_or_else(|| {
            hold::met_another();
            lock(&self.state)
        })
    }

    /// Gives a timer's cell back, and counts the timer out if it was pending. The waker, if there was one, is for the caller
    /// to drop, now that the lock is released.
    #[inline]
    fn remove(&self, mut state: MutexGuard<'_, State>, key: Key, leaving: Leaving) -> Option<Waker> {
        let waker = state.wheel.remove(key);
        if waker.is_some() {
            self.release(1);
            match leaving {
                Leaving::Expired => state.counters.expired += 1,
                Leaving::Cancelled => state.counters.cancelled += 1,
            }
        }
        if state.wheel.is_vacant() {
            self.vacated(state);
        }
        waker
    }

    /// After the last cell was given back: a grown arena goes back to the machine, and a driver that nobody else needs
    /// hears of it.
    #[inline]
    fn vacated(&self, state: MutexGuard<'_, State>) {
        self.leave(state);
        if self.handles_gone.load(Ordering::Relaxed) {
            self.driver.come_now();
        }
    }

    /// Unlocks; the memory of an arena that was emptied goes back, now that nobody has to wait for it.
    #[inline]
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let retained = match self.handles_gone.load(Ordering::Relaxed) {
            true => RETAINED,
            false => self.retained,
        };
        let arena = state.wheel.release_arena(retained);
        drop(state);
        drop(arena);
    }

    /// Counts `timers` out of the limit.
    #[inline]
    fn release(&self, timers: usize) {
        if let Some(limit) = &self.limit {
            limit.release(timers);
        }
    }

    #[inline]
    fn admit(&self, state: &mut State, standing: Standing) -> Result<(), Refusal> {
        if let Some(limit) = &self.limit {
            limit
                .admit(standing)
                .inspect_err(|_| state.counters.rejected += 1)?;
        }
        state.counters.registered += 1;
        Ok(())
    }
}

impl State {
    /// The first tick at which a timer for `deadline` may expire.
    fn tick_of(&self, deadline: Deadline) -> Tick {
        let clock = match deadline.epoch {
            Epoch::UNDRIVEN => &self.clock,
            Epoch(epoch) => self.former.get(epoch as usize - 1).unwrap_or(&self.clock),
        };
        clock.deadline_tick(clock.nanos_of(deadline.instant))
    }
}
