//! What the shards of a wheel and its driver share: how a driver is started, notified, replaced and let go.

use std::{
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, Weak},
    task::Waker,
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    time::{Instant, MissedTickBehavior},
};

use crate::{
    clock::{Clock, Epoch, Source},
    driver::Driver,
    error::Refusal,
    events,
    metrics::Metrics,
    shard::{self, Shard, Wakers},
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock},
    timing_wheel::{Nanos, TickDuration},
};

/// What shards and driver share: how to reach, start and replace the one from the other.
pub(crate) struct Link {
    shards: OnceLock<Box<[Weak<Shard>]>>,
    pub(crate) notify: Notify,
    pub(crate) name: String,
    pub(crate) tick: Duration,
    /// The runtime that the builder was given.
    handle: Option<Handle>,
    seat: Mutex<Seat>,
    /// The runtime that drives now: whose clock counts.
    runtime: Mutex<Option<Handle>>,
    /// The last driver that was dropped before it ran.
    stillborn: AtomicU64,
    /// Every handle of the wheel is gone.
    forsaken: AtomicBool,
    pub(crate) figures: Figures,
}

/// Who drives.
struct Seat {
    /// Counts drivers; the one who left last clears `taken` only if nobody has come since.
    driver: u64,
    taken: bool,
    epoch: Epoch,
    clock: Clock,
    /// Wheel time when the last driver left.
    stood: Nanos,
    /// The runtime of the driver, or of the last: coming back to it, its clock has gone on.
    home: Option<runtime::Id>,
    /// A runtime that has been shut down, and dropped a driver before it ran.
    dead: Option<runtime::Id>,
}

/// What the driver adds to the metrics.
#[derive(Default)]
pub(crate) struct Figures {
    ticks: AtomicU64,
    wakeups: AtomicU64,
    panics: AtomicU64,
    last_lag: AtomicU64,
    max_lag: AtomicU64,
    /// Wheel time at the last turn.
    turned: AtomicU64,
}

impl Figures {
    fn turned(&self) -> Nanos {
        Nanos(self.turned.load(Ordering::Relaxed))
    }

    pub(crate) fn woke(&self) {
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn turned_to(&self, now: Nanos, clock: &Clock) {
        let before = self.turned.swap(now.0, Ordering::Relaxed);
        if clock.tick_at(now) > clock.tick_at(Nanos(before)) {
            self.ticks.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn lagged(&self, lag: Duration) {
        let lag = Nanos::from_duration(lag).0;
        self.last_lag.store(lag, Ordering::Relaxed);
        self.max_lag.fetch_max(lag, Ordering::Relaxed);
    }
}

impl Link {
    pub(crate) fn new(name: String, tick: Duration, handle: Option<Handle>) -> Link {
        Link {
            shards: OnceLock::new(),
            notify: Notify::new(),
            name,
            tick,
            handle,
            seat: Mutex::new(Seat {
                driver: 0,
                taken: false,
                epoch: Epoch::UNDRIVEN,
                clock: Link::undriven_clock(tick),
                stood: Nanos::ZERO,
                home: None,
                dead: None,
            }),
            runtime: Mutex::new(None),
            stillborn: AtomicU64::new(0),
            forsaken: AtomicBool::new(false),
            figures: Figures::default(),
        }
    }

    /// What a wheel goes by before its first driver: nothing is registered by it.
    pub(crate) fn undriven_clock(tick: Duration) -> Clock {
        Clock::new(
            Instant::now(),
            Nanos::ZERO,
            TickDuration::new(tick),
            Source::Pausable,
        )
    }

    pub(crate) fn connect(&self, shards: impl Iterator<Item = Weak<Shard>>) {
        self.shards.get_or_init(|| shards.collect());
    }

    pub(crate) fn add_metrics(&self, total: &mut Metrics) {
        let nanos = |figure: &AtomicU64| Duration::from_nanos(figure.load(Ordering::Relaxed));
        total.ticks = self.figures.ticks.load(Ordering::Relaxed);
        total.wakeups = self.figures.wakeups.load(Ordering::Relaxed);
        total.panics = self.figures.panics.load(Ordering::Relaxed);
        total.last_lag = nanos(&self.figures.last_lag);
        total.max_lag = nanos(&self.figures.max_lag);
    }

    /// The runtime that a driver is to be started on, or a scheduled task spawned on.
    ///
    /// # Panics
    ///
    /// Outside a runtime, when the builder was given none.
    #[track_caller]
    pub(crate) fn runtime(&self) -> Handle {
        match &self.handle {
            Some(handle) => handle.clone(),
            None => current_runtime(),
        }
    }

    /// The driver found that its clock reads something else than before.
    pub(crate) fn clock_reads(&self, source: Source) {
        lock(&self.seat).clock.source = source;
    }

    fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Puts a driver on the runtime that is found, unless there is one. `Err` when that runtime has been shut down.
    fn start_on(self: &Arc<Self>, find: impl FnOnce() -> Handle) -> Result<(), Refusal> {
        let (runtime, driver) = {
            let mut seat = lock(&self.seat);
            if seat.taken {
                return Ok(());
            }
            let runtime = find();
            if seat.dead == Some(runtime.id()) {
                return Err(Refusal::Shutdown);
            }
            let entered = runtime.enter();
            let (now, source) = (Instant::now(), Source::of(&runtime));
            // Panics, in Tokio's own words, where the runtime's timers are disabled.
            let mut interval = tokio::time::interval(self.tick);
            interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
            drop(entered);
            let both_real = seat.clock.source.is_real() && source.is_real();
            let same_clock = both_real || seat.home == Some(runtime.id());
            if seat.epoch == Epoch::UNDRIVEN || !same_clock {
                seat.clock = Clock::new(now, seat.stood, TickDuration::new(self.tick), source);
                seat.epoch = seat.epoch.next();
            }
            seat.clock.source = source;
            seat.home = Some(runtime.id());
            seat.taken = true;
            seat.driver += 1;
            *lock(&self.runtime) = Some(runtime.clone());
            let shards: Box<[_]> = self.shards().collect();
            for shard in &shards {
                shard.drive(seat.clock, seat.epoch);
            }
            (
                runtime,
                Driver::new(self.clone(), seat.driver, shards, seat.clock, interval),
            )
        };
        let number = driver.number();
        events::driver_started(&self.name, number);
        // With no lock held: a runtime that has been shut down drops the driver here and now.
        drop(runtime.spawn(driver.run()));
        let mut seat = lock(&self.seat);
        if self.stillborn.load(Ordering::Relaxed) != number {
            return Ok(());
        }
        seat.dead = Some(runtime.id());
        Err(Refusal::Shutdown)
    }

    /// Every handle is gone.
    pub(crate) fn forsake(&self) {
        self.forsaken.store(true, Ordering::Relaxed);
        self.shards().for_each(|shard| shard.forsake());
        self.notify.notify_one();
    }

    /// Ends the driver's work, if no shard has a timer left. A timer of a future not yet polled then starts another driver.
    pub(crate) fn retire(&self, shards: &[Arc<Shard>], wakers: &mut Wakers) -> bool {
        if !self.forsaken.load(Ordering::Relaxed) {
            return false;
        }
        let mut seat = lock(&self.seat);
        if shards.iter().all(|shard| shard.undrive_if_vacant(wakers)) {
            seat.taken = false;
            // Later than whatever the last visit went by, which may have read the clock after the turn began.
            seat.stood = seat.clock.nanos_of(Instant::now()).max(seat.stood);
            lock(&self.runtime).take();
        } else {
            shards
                .iter()
                .for_each(|shard| shard.drive(seat.clock, seat.epoch));
        }
        let retired = !seat.taken;
        drop(seat);
        self.wake(wakers);
        retired
    }

    /// Driver number `driver` was dropped before it ran.
    pub(crate) fn never_ran(&self, driver: u64) {
        self.stillborn.store(driver, Ordering::Relaxed);
    }

    /// Driver number `driver` has gone: unless another has come since, every pending future is to look for a new one.
    pub(crate) fn leave(&self, driver: u64) {
        let mut wakers = Wakers::default();
        {
            let mut seat = lock(&self.seat);
            if !seat.taken || seat.driver != driver {
                return;
            }
            seat.taken = false;
            let turned = self.figures.turned();
            let runtime = lock(&self.runtime).take();
            let in_context =
                Handle::try_current().is_ok_and(|here| runtime.is_some_and(|it| it.id() == here.id()));
            let stood = match (in_context, seat.clock.source.is_real()) {
                (true, _) => seat.clock.nanos_of(Instant::now()).max(turned),
                (false, true) => seat.clock.nanos_of(std::time::Instant::now().into()).max(turned),
                (false, false) => turned,
            };
            seat.stood = stood.max(seat.stood);
            for shard in self.shards() {
                shard.undrive(seat.stood, &mut wakers);
            }
        }
        self.wake(&mut wakers);
    }

    /// Wakes and drops what was taken out of shards, with no lock held, and survives whatever the wakers do.
    pub(crate) fn wake(&self, wakers: &mut Wakers) {
        self.outlive(wakers.due.drain(..), Waker::wake);
        self.outlive(wakers.spent.drain(..), drop);
    }

    fn outlive(&self, mut wakers: impl Iterator<Item = Waker>, act: impl Fn(Waker)) {
        while panics(|| wakers.by_ref().for_each(&act)) {
            self.figures.panics.fetch_add(1, Ordering::Relaxed);
            // A subscriber is nobody to lose the other wakers over.
            panics(|| events::waker_panicked(&self.name));
        }
    }
}

impl shard::Drive for Link {
    fn notify(&self) {
        self.notify.notify_one();
    }

    fn start(self: Arc<Self>) -> Result<(), Refusal> {
        let Some(handle) = &self.handle else {
            return self.start_on(current_runtime);
        };
        self.start_on(|| handle.clone())
            .or_else(|refusal| match Handle::try_current() {
                Ok(current) => self.start_on(|| current),
                Err(_) => Err(refusal),
            })
    }

    fn now(&self) -> Instant {
        let runtime = lock(&self.runtime).clone();
        let _entered = runtime.as_ref().or(self.handle.as_ref()).map(Handle::enter);
        Instant::now()
    }
}

fn panics(act: impl FnOnce()) -> bool {
    let outcome = catch_unwind(AssertUnwindSafe(act));
    // What a panic carries may panic when dropped.
    outcome.map_err(mem::forget).is_err()
}

/// # Panics
///
/// Outside a runtime, in Tokio's own words.
#[track_caller]
fn current_runtime() -> Handle {
    match Handle::try_current() {
        Ok(runtime) => runtime,
        Err(error) => {
            panic!(
                "{error}: call or poll this inside a runtime, or give the wheel one with `Builder::handle`"
            )
        }
    }
}
