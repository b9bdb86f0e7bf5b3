//! A shard: one lock, the wheel and the counters behind it, and the verbs by which futures and the driver use them.
//!
//! No user code runs under the lock: wakers are cloned before it is taken, woken and dropped after it is released.

mod aside;
mod countdown;
mod hold;
mod limit;
#[cfg(all(test, loom))]
mod loom;
mod timer;
mod visit;

use std::{sync::Arc, task::Waker, time::Duration};

use tokio::time::Instant;

use crate::{
    clock::{Clock, Deadline, Epoch},
    error::Refusal,
    metrics::Metrics,
    sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, lock, try_lock},
    timing_wheel::{Key, Tick, TimingWheel},
};

pub(crate) use countdown::{Countdown, Due};
pub(crate) use hold::{Hold, home};
pub(crate) use limit::{Limit, Standing};
pub(crate) use timer::Timer;
pub(crate) use visit::{Visited, Wakers};

use aside::{Aside, Word};

/// Ticks in a row with fewer than [`BUSY`] registrations after which a ticking shard dozes.
const QUIET_TICKS: u32 = if cfg!(loom) { 1 } else { 4 };

/// Registrations in one tick from which a shard ticks: between what a visit of the driver saves where the runtime is busy
/// anyway and where it has to be woken for it. docs/performance.md has what was measured for this and the other constants.
const BUSY: u32 = if cfg!(loom) { 1 } else { 128 };

/// Cells an emptied arena keeps.
const RETAINED: usize = 1024;

/// Two readings of one clock, taken one after the other, are hardly ever further apart.
const MOMENT: Duration = Duration::from_millis(1);

/// The deadline of a shard that waits for nothing.
pub(crate) const NEVER: Tick = Tick::MAX;

/// What a shard asks of whoever drives it.
pub(crate) trait Drive: Send + Sync {
    /// Has the driver look again: a shard wants it earlier than it planned, or not at all.
    fn notify(&self);

    /// Starts a driver if there is none. `Err` when its runtime is gone too.
    fn start(self: Arc<Self>) -> Result<(), Refusal>;

    /// Reads the clock of the driver's runtime.
    fn now(&self) -> Instant;
}

/// One lock and all behind it.
#[repr(align(128))]
pub(crate) struct Shard {
    state: Mutex<State>,
    /// The epoch of the driver's clock, and whether that is the real one: see [`Shard::now`].
    reading: AtomicU32,
    aside: Aside,
    /// Every handle of the wheel is gone.
    forsaken: AtomicBool,
    limit: Option<Arc<Limit>>,
    driver: Arc<dyn Drive>,
    /// Cells that an emptied arena keeps.
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
    counters: Metrics,
    /// The word of what is set aside, as far as the counters know it.
    counted: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// No driver: the next future polled starts one.
    Driverless,
    /// Visited at `wake_at` only, and nothing is incoming. Registrations read the clock; `busy` counts those of the tick `at`.
    Dozing { at: Tick, busy: u32 },
    /// Visited at every tick. Registrations need no clock; `seen` of them had been counted at the last visit.
    Ticking { quiet: u32, seen: u64 },
    /// For good.
    Shutdown,
}

impl Shard {
    pub(crate) fn new(
        wheel: TimingWheel<Waker>,
        clock: Clock,
        capacity: usize,
        limit: Option<Arc<Limit>>,
        driver: Arc<dyn Drive>,
    ) -> Shard {
        Shard {
            state: Mutex::new(State {
                wheel,
                mode: Mode::Driverless,
                wake_at: NEVER,
                clock,
                epoch: Epoch::UNDRIVEN,
                former: Vec::new(),
                counters: Metrics::default(),
                counted: Word::default(),
            }),
            reading: AtomicU32::new(Reading::UNDRIVEN),
            aside: Aside::new(),
            forsaken: AtomicBool::new(false),
            limit,
            driver,
            retained: capacity.max(RETAINED),
        }
    }

    /// Reads the driver's clock; with no driver, that of the current context.
    ///
    /// A driver on the real clock may not know yet that a test has stopped it, and the current context may have another
    /// clock: only a reading that is the machine's is taken as it is.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self.reading.load(Ordering::Relaxed) & Reading::KIND {
            // A model's time is its own.
            Reading::REAL if cfg!(not(loom)) => {
                let machine = std::time::Instant::now();
                let reading = Instant::now();
                match reading.into_std().checked_duration_since(machine) {
                    Some(between) if between < MOMENT => reading,
                    _ => self.driver.now(),
                }
            }
            _ => self.driver.now(),
        }
    }

    /// The same, and which clock that is.
    #[inline]
    pub(crate) fn read_clock(&self) -> Deadline {
        self.stamped(|| self.now())
    }

    /// The same by one reading of the current context's clock, where the driver's is the real one.
    #[inline]
    pub(crate) fn glance_at_clock(&self) -> Deadline {
        self.stamped(|| match self.reading.load(Ordering::Relaxed) & Reading::KIND {
            Reading::REAL if cfg!(not(loom)) => Instant::now(),
            _ => self.driver.now(),
        })
    }

    #[inline]
    fn stamped(&self, read: impl Fn() -> Instant) -> Deadline {
        loop {
            let reading = self.reading.load(Ordering::Acquire);
            let instant = read();
            // Another driver may have come in between, with another clock.
            if self.reading.load(Ordering::Relaxed) == reading {
                return self.stamp_by(reading, instant);
            }
        }
    }

    /// Takes an instant to be of the clock that the wheel goes by now.
    #[inline]
    pub(crate) fn stamp(&self, instant: Instant) -> Deadline {
        self.stamp_by(self.reading.load(Ordering::Relaxed), instant)
    }

    #[inline]
    fn stamp_by(&self, reading: u32, instant: Instant) -> Deadline {
        let epoch = Epoch(reading >> Reading::BITS);
        let epoch = match reading & Reading::KIND {
            Reading::UNDRIVEN => epoch.next(),
            // Two drivers on the real clock share an epoch.
            Reading::UNDRIVEN_SINCE_REAL if !self.would_be_real() => epoch.next(),
            _ => epoch,
        };
        Deadline { instant, epoch }
    }

    /// Whether the clock of a driver started here and now would be the real one.
    fn would_be_real(&self) -> bool {
        let before = std::time::Instant::now();
        let reading = self.driver.now().into_std();
        (before..=std::time::Instant::now()).contains(&reading)
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        self.reading.load(Ordering::Relaxed) & Reading::KIND == Reading::SHUTDOWN
    }

    /// Every handle of the wheel is gone: the driver may go when the last timer has.
    pub(crate) fn forsake(&self) {
        self.forsaken.store(true, Ordering::Relaxed);
    }

    /// How many timers wait here.
    pub(crate) fn pending(&self) -> usize {
        let state = lock(&self.state);
        state.wheel.len() - usize::from(self.aside.word().is_occupied())
    }

    /// Adds this shard's figures to a total.
    pub(crate) fn add_metrics(&self, total: &mut Metrics) {
        let state = lock(&self.state);
        let aside = self.aside.word();
        let taken_over = aside.steps_since(state.counted);
        total.pending += state.wheel.len() - usize::from(aside.is_occupied());
        total.registered += state.counters.registered + taken_over;
        total.expired += state.counters.expired;
        total.cancelled += state.counters.cancelled + taken_over + u64::from(aside.is_occupied());
        total.rejected += state.counters.rejected;
        total.cascaded += state.counters.cascaded;
        total.dozes += state.counters.dozes;
        total.arena_bytes += state.wheel.arena_bytes();
    }

    /// Tells [`Shard::now`] and [`Shard::stamp`] what the state says.
    fn publish(&self, state: &State) {
        let kind = match state.mode {
            Mode::Shutdown => Reading::SHUTDOWN,
            Mode::Driverless if state.clock.real && state.epoch != Epoch::UNDRIVEN => {
                Reading::UNDRIVEN_SINCE_REAL
            }
            Mode::Driverless => Reading::UNDRIVEN,
            _ if state.clock.real => Reading::REAL,
            _ => Reading::TEST,
        };
        self.reading
            .store(state.epoch.0 << Reading::BITS | kind, Ordering::Release);
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

    /// The tick whose timers are due: the one last visited or, under a test's clock, the one in progress.
    fn reached(&self, state: &State) -> Tick {
        if state.clock.real || matches!(state.mode, Mode::Driverless) {
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
            drop(state);
            self.driver.notify();
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

    /// Enters into the counters what was set aside and taken over until `word` was changed, and ends the timer that nobody
    /// took over. Its waker is for the caller to drop with no lock held.
    fn count(&self, state: &mut State, word: Word) -> Option<Waker> {
        let taken_over = word.steps_since(state.counted);
        state.counted = word.without();
        state.counters.registered += taken_over;
        state.counters.cancelled += taken_over;
        let left = word.key()?;
        state.counters.cancelled += 1;
        state.wheel.remove(left)
    }

    /// After the last cell was given back: a grown arena goes back to the machine, and a driver that nobody else needs
    /// hears of it.
    #[inline]
    fn vacated(&self, state: MutexGuard<'_, State>) {
        self.leave(state);
        if self.forsaken.load(Ordering::Relaxed) {
            self.driver.notify();
        }
    }

    /// Unlocks; the memory of an arena that was emptied goes back, now that nobody has to wait for it.
    #[inline]
    fn leave(&self, mut state: MutexGuard<'_, State>) {
        let arena = state.wheel.release_arena(self.retained);
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
    /// From now on the driver comes at the next deadline only.
    fn doze(&mut self) {
        self.mode = Mode::Dozing {
            at: Tick::ZERO,
            busy: 0,
        };
        self.wake_at = self.wheel.next_deadline().unwrap_or(NEVER);
    }

    /// After a visit at `tick`: goes on ticking while it is worth it.
    fn settle_mode(&mut self, tick: Tick) {
        let Mode::Ticking { quiet, seen } = self.mode else {
            self.wake_at = self.wheel.next_deadline().unwrap_or(NEVER);
            return;
        };
        let registered = self.counters.registered;
        let quiet = if registered - seen < u64::from(BUSY) {
            quiet + 1
        } else {
            0
        };
        if quiet == QUIET_TICKS || !self.clock.real {
            self.counters.dozes += 1;
            self.doze();
        } else {
            self.mode = Mode::Ticking {
                quiet,
                seen: registered,
            };
            self.wake_at = tick.next();
        }
    }

    /// Counts a registration that had to read the clock, at `tick`; true when there have been so many in this tick that the
    /// shard, from now on, ticks.
    fn ticks_from_now_on(&mut self, tick: Tick) -> bool {
        let Mode::Dozing { at, busy } = &mut self.mode else {
            return false;
        };
        *busy = if *at == tick { *busy + 1 } else { 1 };
        *at = tick;
        let ticks = *busy >= BUSY && self.clock.real;
        if ticks {
            self.mode = Mode::Ticking {
                quiet: 0,
                seen: self.counters.registered,
            };
        }
        ticks
    }

    /// The first tick at which a timer for `deadline` may expire.
    fn tick_of(&self, deadline: Deadline) -> Tick {
        let clock = match deadline.epoch {
            Epoch::UNDRIVEN => &self.clock,
            Epoch(epoch) => self.former.get(epoch as usize - 1).unwrap_or(&self.clock),
        };
        clock.deadline_tick(clock.nanos_of(deadline.instant))
    }
}

/// What [`Shard::now`] and [`Shard::stamp`] go by: an epoch and one of these.
struct Reading;

impl Reading {
    const BITS: u32 = 3;
    const KIND: u32 = (1 << Self::BITS) - 1;
    /// The epoch is that of the last driver; an instant belongs to the next.
    const UNDRIVEN: u32 = 0;
    /// The same, but the last driver's clock was the real one.
    const UNDRIVEN_SINCE_REAL: u32 = 4;
    const REAL: u32 = 1;
    const TEST: u32 = 2;
    const SHUTDOWN: u32 = 3;
}
