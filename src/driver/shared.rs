//! `Shared`: what the driver shares with the shards. How to reach it, which runtime drives, and what it counts.

use std::{
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    time::Instant,
};

use super::{alarm::Alarm, start::current_runtime};
use crate::{
    clock::{self, Clock, Source},
    error::Refusal,
    labels::Labels,
    lag::{LagHistogram, LagRecorder},
    metrics::Metrics,
    shard::{Drive, Shard},
    sync::{Mutex, lock},
    timing_wheel::{Nanos, TickDuration},
};

/// What the shards know of their driver, and what a driver knows of the last one.
pub(crate) struct Shared {
    /// Set once, as the wheel is assembled. A shard has a reference to this.
    shards: OnceLock<Box<[Weak<Shard>]>>,
    /// On which the driver sleeps.
    pub(super) alarm: Alarm,
    pub(crate) name: String,
    pub(super) tick: Duration,
    /// The runtime that the builder was given; none once a current wheel's has gone.
    handle: Mutex<Option<Handle>>,
    /// That runtime has been shut down, as a driver found.
    handle_has_ended: AtomicBool,
    /// Who drives, and by which clock.
    pub(super) slot: Mutex<DriverSlot>,
    /// The runtime that drives now: whose clock counts.
    pub(super) runtime: Mutex<Option<Handle>>,
    /// The last driver that was dropped before it ran.
    pub(super) never_ran: AtomicU64,
    /// Every handle of the wheel is gone.
    pub(super) handles_gone: AtomicBool,
    pub(super) stats: Stats,
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

/// What the driver adds to the metrics.
#[derive(Default)]
pub(super) struct Stats {
    ticks: AtomicU64,
    wakeups: AtomicU64,
    panics: AtomicU64,
    last_lag: AtomicU64,
    max_lag: AtomicU64,
    lags: LagRecorder,
    /// Wheel time at the last turn.
    last_turn: AtomicU64,
}

impl Stats {
    pub(super) fn last_turn(&self) -> Nanos {
        Nanos(self.last_turn.load(Ordering::Relaxed))
    }

    pub(super) fn driver_woke(&self) {
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn turned_to(&self, now: Nanos, clock: &Clock) {
        let before = self.last_turn.swap(now.0, Ordering::Relaxed);
        if clock.tick().tick_at(now) > clock.tick().tick_at(Nanos(before)) {
            self.ticks.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn driver_was_late(&self, lag: Duration) {
        let lag = Nanos::from_duration(lag).0;
        self.last_lag.store(lag, Ordering::Relaxed);
        self.max_lag.fetch_max(lag, Ordering::Relaxed);
        self.lags.record(lag);
    }

    pub(super) fn waker_panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn new(name: String, tick: Duration, handle: Option<Handle>) -> Shared {
        Shared {
            shards: OnceLock::new(),
            alarm: Alarm::default(),
            name,
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
            never_ran: AtomicU64::new(0),
            handles_gone: AtomicBool::new(false),
            stats: Stats::default(),
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

    pub(crate) fn add_metrics(&self, total: &mut Metrics) {
        let nanos = |lag: &AtomicU64| Duration::from_nanos(lag.load(Ordering::Relaxed));
        total.ticks = self.stats.ticks.load(Ordering::Relaxed);
        total.wakeups = self.stats.wakeups.load(Ordering::Relaxed);
        total.panics = self.stats.panics.load(Ordering::Relaxed);
        total.last_lag = nanos(&self.stats.last_lag);
        total.max_lag = nanos(&self.stats.max_lag);
    }

    pub(crate) fn lag(&self) -> LagHistogram {
        let max = self.stats.max_lag.load(Ordering::Relaxed);
        self.stats.lags.histogram(Duration::from_nanos(max))
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

    fn handle(&self) -> Option<Handle> {
        lock(&self.handle).clone()
    }

    /// The runtime by whose clock the wheel goes: that of the driver, or of the next.
    fn clock_runtime(&self) -> Option<Handle> {
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
        self.alarm.wake_now();
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.get().into_iter().flatten().filter_map(Weak::upgrade)
    }
}

impl Drive for Shared {
    fn wake_by(&self, at: Instant) {
        self.alarm.wake_by(at);
    }

    fn wake_now(&self) {
        self.alarm.wake_now();
    }

    fn start(self: Arc<Self>) -> Result<(), Refusal> {
        let Some(handle) = self.handle() else {
            return self.start_on(current_runtime);
        };
        if !self.handle_has_ended.load(Ordering::Relaxed) {
            let started = self.start_on(|| handle);
            if started.is_ok() {
                return started;
            }
            self.handle_has_ended.store(true, Ordering::Relaxed);
        }
        match Handle::try_current() {
            Ok(current) => self.start_on(|| current),
            Err(_) => Err(Refusal::Shutdown),
        }
    }

    fn now(&self) -> Instant {
        let runtime = self.clock_runtime();
        let _entered = runtime.as_ref().map(Handle::enter);
        Instant::now()
    }

    fn instant_here(&self, instant: Instant) -> Instant {
        let here = Handle::try_current().ok();
        let other = |runtime: &Handle| here.as_ref().is_none_or(|here| here.id() != runtime.id());
        let Some(runtime) = self.clock_runtime().filter(other) else {
            return instant;
        };
        let now = {
            let _entered = runtime.enter();
            Instant::now()
        };
        clock::saturating_add(Instant::now(), instant.saturating_duration_since(now))
    }

    fn sibling(&self, number: usize) -> Option<Arc<Shard>> {
        let shards = self.shards.get()?;
        shards[number & (shards.len() - 1)].upgrade()
    }

    fn labels(&self) -> Option<&Labels> {
        Some(&self.labels)
    }
}
