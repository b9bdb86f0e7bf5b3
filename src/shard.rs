//! A shard: one lock, the wheel and the counters behind it, and the verbs by which futures and the driver use them.
//!
//! No user code runs under the lock: wakers are cloned before it is taken, woken and dropped after it is released.

mod timer;

use std::{sync::Arc, task::Waker};

use tokio::time::Instant;

use crate::{
    clock::{Clock, Deadline, Epoch},
    error::Refusal,
    metrics::Metrics,
    sync::{AtomicU32, AtomicUsize, Mutex, MutexGuard, Ordering, lock},
    timing_wheel::{Nanos, Tick, TimingWheel},
};

pub(crate) use timer::{Due, Timer};

/// Ticks in a row with fewer than [`BUSY`] registrations after which a ticking shard dozes.
const QUIET_TICKS: u32 = 16;

/// Registrations in one tick from which a shard ticks: about as many clock readings as a visit of the driver costs.
const BUSY: u32 = 64;

/// Cells an emptied arena keeps.
const RETAINED: usize = 1024;

/// The deadline of a shard that waits for nothing.
pub(crate) const NEVER: Tick = Tick::MAX;

/// What a shard asks of whoever drives it.
pub(crate) trait Driver: Send + Sync {
    /// Has the driver look again: a shard wants it earlier than it planned, or is gone.
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
    limit: Option<Arc<Limit>>,
    driver: Arc<dyn Driver>,
    retained: usize,
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// No driver: the next future polled starts one.
    Driverless,
    /// Visited at `wake_at` only. Registrations read the clock; `busy` counts those of the tick `at`.
    Dozing { at: Tick, busy: u32 },
    /// Visited at every tick. Registrations need no clock; `seen` of them had been counted at the last visit.
    Ticking { quiet: u32, seen: u64 },
    /// For good.
    Shutdown,
}

/// The one count that all shards share, and only under `max_pending`.
pub(crate) struct Limit {
    max: usize,
    pending: AtomicUsize,
}

impl Limit {
    pub(crate) fn new(max: usize) -> Limit {
        Limit {
            max,
            pending: AtomicUsize::new(0),
        }
    }

    fn admit(&self, standing: Standing) -> Result<(), Refusal> {
        if standing == Standing::Admitted {
            self.pending.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.pending
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pending| {
                (pending < self.max).then_some(pending + 1)
            })
            .map(|_| ())
            .map_err(|_| Refusal::AtCapacity { limit: self.max })
    }
}

/// Whether a timer still has to pass the limit, or did once and may pass it for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    New,
    Admitted,
}

/// What the driver finds on a visit.
pub(crate) struct Visit {
    /// When to come back; [`NEVER`] for not before a notification.
    pub(crate) wake_at: Tick,
    /// The batch was full: come back at once.
    pub(crate) more: bool,
    /// The shard has been shut down.
    pub(crate) shutdown: bool,
}

impl Shard {
    pub(crate) fn new(
        wheel: TimingWheel<Waker>,
        clock: Clock,
        capacity: usize,
        limit: Option<Arc<Limit>>,
        driver: Arc<dyn Driver>,
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
            }),
            reading: AtomicU32::new(Reading::UNDRIVEN),
            limit,
            driver,
            retained: capacity.max(RETAINED),
        }
    }

    /// Reads the driver's clock; with no driver, that of the current context.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self.reading.load(Ordering::Relaxed) & Reading::KIND {
            Reading::REAL => Instant::from_std(std::time::Instant::now()),
            Reading::TEST => self.driver.now(),
            _ => Instant::now(),
        }
    }

    /// Notes by which clock an instant was just read.
    #[inline]
    pub(crate) fn stamp(&self, instant: Instant) -> Deadline {
        Deadline {
            instant,
            epoch: Epoch(self.reading.load(Ordering::Relaxed) >> Reading::BITS),
        }
    }

    #[inline]
    pub(crate) fn is_shutdown(&self) -> bool {
        self.reading.load(Ordering::Relaxed) & Reading::KIND == Reading::SHUTDOWN
    }

    /// How many timers wait here.
    pub(crate) fn pending(&self) -> usize {
        lock(&self.state).wheel.len()
    }

    /// Adds this shard's figures to a total.
    pub(crate) fn add_metrics(&self, total: &mut Metrics) {
        let state = lock(&self.state);
        total.pending += state.wheel.len();
        total.registered += state.counters.registered;
        total.expired += state.counters.expired;
        total.cancelled += state.counters.cancelled;
        total.rejected += state.counters.rejected;
        total.cascaded += state.counters.cascaded;
        total.dozes += state.counters.dozes;
        total.arena_bytes += state.wheel.arena_bytes();
    }

    // What the driver does.

    /// A driver has come, with its clock.
    pub(crate) fn drive(&self, clock: Clock, epoch: Epoch) {
        let mut state = lock(&self.state);
        if state.mode != Mode::Driverless {
            return;
        }
        if epoch != state.epoch && state.epoch != Epoch::UNDRIVEN {
            let former = state.clock;
            state.former.push(former);
        }
        state.clock = clock;
        state.epoch = epoch;
        state.doze();
        self.publish(&state);
    }

    /// The driver has gone, at `stood`: every pending future is to be polled, so that one starts another driver.
    pub(crate) fn undrive(&self, stood: Nanos, wakers: &mut Vec<Waker>) {
        let mut state = lock(&self.state);
        if matches!(state.mode, Mode::Driverless | Mode::Shutdown) {
            return;
        }
        let clock = state.clock;
        state.wheel.settle_incoming(usize::MAX, |delay| {
            clock.deadline_tick(stood.saturating_add(delay))
        });
        wakers.reserve(state.wheel.len());
        wakers.extend(
            state
                .wheel
                .values_mut()
                .map(|waker| std::mem::replace(waker, Waker::noop().clone())),
        );
        state.mode = Mode::Driverless;
        self.publish(&state);
    }

    /// Ends every timer, and the shard, for good; returns how many timers there were.
    pub(crate) fn shutdown(&self, wakers: &mut Vec<Waker>) -> usize {
        let mut state = lock(&self.state);
        let pending = state.wheel.len();
        state.wheel.abandon_all(wakers);
        state.counters.cancelled += pending as u64;
        state.mode = Mode::Shutdown;
        self.release(pending);
        self.publish(&state);
        pending
    }

    /// Moves the shard on to `now` and takes up to `batch` wakers of due timers, to be woken by the caller.
    pub(crate) fn visit(&self, now: Nanos, real: bool, batch: usize, wakers: &mut Vec<Waker>) -> Visit {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if matches!(state.mode, Mode::Driverless | Mode::Shutdown) {
            return Visit {
                wake_at: NEVER,
                more: false,
                shutdown: state.mode == Mode::Shutdown,
            };
        }
        if state.clock.real != real {
            state.clock.real = real;
            self.publish(state);
        }
        let now = match state.mode {
            // Under the lock: a registration that is here was made before this reading, so counting from it is never early.
            Mode::Ticking { .. } => state.clock.nanos_of(self.now()).max(now),
            _ => now,
        };
        let tick = state.clock.tick_at(now);
        if tick < state.wake_at {
            return Visit {
                wake_at: state.wake_at,
                more: false,
                shutdown: false,
            };
        }
        let clock = state.clock;
        let settled = state
            .wheel
            .settle_incoming(batch, |delay| clock.deadline_tick(now.saturating_add(delay)));
        let turn = state.wheel.advance(tick, batch, wakers);
        state.counters.expired += turn.expired as u64;
        state.counters.cascaded += turn.cascaded as u64;
        self.release(turn.expired);
        if turn.more || !settled {
            state.wake_at = tick;
            return Visit {
                wake_at: tick,
                more: true,
                shutdown: false,
            };
        }
        state.settle_mode(tick);
        let visit = Visit {
            wake_at: state.wake_at,
            more: false,
            shutdown: false,
        };
        let arena = state.wheel.release_arena(self.retained);
        drop(guard);
        drop(arena);
        visit
    }

    /// Tells [`Shard::now`] and [`Shard::stamp`] what the state says.
    fn publish(&self, state: &State) {
        let kind = match state.mode {
            Mode::Shutdown => Reading::SHUTDOWN,
            Mode::Driverless => Reading::UNDRIVEN,
            _ if state.clock.real => Reading::REAL,
            _ => Reading::TEST,
        };
        let epoch = if kind == Reading::UNDRIVEN {
            Epoch::UNDRIVEN
        } else {
            state.epoch
        };
        self.reading
            .store(epoch.0 << Reading::BITS | kind, Ordering::Relaxed);
    }

    /// Locks a shard that has a driver, starting one if need be.
    fn driven(&self) -> Result<MutexGuard<'_, State>, Refusal> {
        loop {
            let state = lock(&self.state);
            match state.mode {
                Mode::Shutdown => return Err(Refusal::Shutdown),
                Mode::Driverless => drop(state),
                _ => return Ok(state),
            }
            self.driver.clone().start()?;
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
            state.wake_at = tick;
            drop(state);
            self.driver.notify();
        }
    }

    /// Counts `timers` out of the limit.
    #[inline]
    fn release(&self, timers: usize) {
        if let Some(limit) = &self.limit {
            limit.pending.fetch_sub(timers, Ordering::Relaxed);
        }
    }

    #[inline]
    fn admit(&self, state: &mut State, standing: Standing) -> Result<(), Refusal> {
        if let Some(limit) = &self.limit {
            limit.admit(standing).inspect_err(|_| state.counters.rejected += 1)?;
        }
        state.counters.registered += 1;
        Ok(())
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.driver.notify();
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

    /// Counts a clock reading at `tick`; true when there have been so many of late that ticking is cheaper.
    fn is_busy(&mut self, tick: Tick) -> bool {
        let Mode::Dozing { at, busy } = &mut self.mode else {
            return false;
        };
        *busy = if *at == tick { *busy + 1 } else { 1 };
        *at = tick;
        *busy >= BUSY && self.clock.real
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
    const BITS: u32 = 2;
    const KIND: u32 = (1 << Self::BITS) - 1;
    const UNDRIVEN: u32 = 0;
    const REAL: u32 = 1;
    const TEST: u32 = 2;
    const SHUTDOWN: u32 = 3;
}
