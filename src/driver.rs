//! The one task that turns a wheel: it waits, visits the shards, and wakes what expired with no lock held.

use std::{
    future::{Future, poll_fn},
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{Arc, OnceLock, Weak},
    task::{Poll, Waker},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, Interval, MissedTickBehavior},
};

use crate::{
    clock::{self, Clock, Epoch},
    error::Refusal,
    metrics::Metrics,
    shard::{self, NEVER, Shard, Visit},
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock},
    timing_wheel::{Nanos, Tick, TickDuration},
};

/// Wakers taken under one lock.
const BATCH: usize = 256;

/// Lateness from which a Tokio interval counts a tick as missed.
const MISSED: Duration = Duration::from_millis(5);

/// Wakers woken before the driver yields to the runtime.
const WAKES_PER_YIELD: usize = 1024;

/// What shards and driver share: how to reach, start and replace the one from the other.
pub(crate) struct Link {
    shards: OnceLock<Box<[Weak<Shard>]>>,
    notify: Notify,
    tick: Duration,
    /// The runtime that the builder was given.
    handle: Option<Handle>,
    seat: Mutex<Seat>,
    /// The runtime that drives now: whose clock counts.
    runtime: Mutex<Option<Handle>>,
    /// Every handle of the wheel is gone.
    forsaken: AtomicBool,
    figures: Figures,
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
}

/// What the driver adds to the metrics.
#[derive(Default)]
struct Figures {
    ticks: AtomicU64,
    wakeups: AtomicU64,
    panics: AtomicU64,
    last_lag: AtomicU64,
    max_lag: AtomicU64,
    /// Wheel time at the last turn.
    turned: AtomicU64,
}

impl Figures {
    fn turned_to(&self, now: Nanos, clock: &Clock) {
        let before = self.turned.swap(now.0, Ordering::Relaxed);
        if clock.tick_at(now) > clock.tick_at(Nanos(before)) {
            self.ticks.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn lagged(&self, lag: Duration) {
        let lag = Nanos::from_duration(lag).0;
        self.last_lag.store(lag, Ordering::Relaxed);
        self.max_lag.fetch_max(lag, Ordering::Relaxed);
    }
}

impl Link {
    pub(crate) fn new(tick: Duration, handle: Option<Handle>) -> Link {
        Link {
            shards: OnceLock::new(),
            notify: Notify::new(),
            tick,
            handle,
            seat: Mutex::new(Seat {
                driver: 0,
                taken: false,
                epoch: Epoch::UNDRIVEN,
                clock: Link::undriven_clock(tick),
                stood: Nanos::ZERO,
            }),
            runtime: Mutex::new(None),
            forsaken: AtomicBool::new(false),
            figures: Figures::default(),
        }
    }

    /// What a wheel goes by before its first driver: nothing is registered by it.
    pub(crate) fn undriven_clock(tick: Duration) -> Clock {
        Clock::new(Instant::now(), Nanos::ZERO, TickDuration::new(tick), true)
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
    pub(crate) fn runtime(&self) -> Handle {
        self.handle.clone().unwrap_or_else(current_runtime)
    }

    fn shards(&self) -> impl Iterator<Item = Arc<Shard>> {
        self.shards.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Puts a driver on `runtime`, unless there is one. `Err` when that runtime has been shut down.
    fn start_on(self: &Arc<Self>, runtime: Handle) -> Result<(), Refusal> {
        let task = {
            let mut seat = lock(&self.seat);
            if seat.taken {
                return Ok(());
            }
            let entered = runtime.enter();
            let (now, real) = (Instant::now(), clock::is_real());
            // Panics, in Tokio's own words, where the runtime's timers are disabled.
            let mut interval = tokio::time::interval(self.tick);
            interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
            drop(entered);
            if seat.epoch == Epoch::UNDRIVEN || !(seat.clock.real && real) {
                seat.clock = Clock::new(now, seat.stood, TickDuration::new(self.tick), real);
                seat.epoch = seat.epoch.next();
            }
            seat.taken = true;
            seat.driver += 1;
            *lock(&self.runtime) = Some(runtime.clone());
            let shards: Box<[_]> = self.shards().collect();
            for shard in &shards {
                shard.drive(seat.clock, seat.epoch);
            }
            let guard = Guard {
                link: self.clone(),
                driver: seat.driver,
            };
            Driver {
                guard,
                shards,
                clock: seat.clock,
                interval,
                armed: None,
                wakers: Vec::new(),
            }
        };
        // With no lock held: a runtime that has been shut down drops the task, and with it the guard, here and now.
        if runtime.spawn(task.run()).is_finished() {
            return Err(Refusal::Shutdown);
        }
        Ok(())
    }

    /// Every handle is gone.
    pub(crate) fn forsake(&self) {
        self.forsaken.store(true, Ordering::Relaxed);
        self.shards().for_each(|shard| shard.forsake());
        self.notify.notify_one();
    }

    /// Ends the driver's work, if no shard has a timer left. A timer of a future not yet polled then starts another driver.
    fn retire(&self, shards: &[Arc<Shard>]) -> bool {
        let mut seat = lock(&self.seat);
        seat.taken = !shards.iter().all(|shard| shard.undrive_if_vacant());
        if seat.taken {
            shards
                .iter()
                .for_each(|shard| shard.drive(seat.clock, seat.epoch));
        } else {
            seat.stood = Nanos(self.figures.turned.load(Ordering::Relaxed));
            lock(&self.runtime).take();
        }
        !seat.taken
    }

    /// Driver number `driver` has gone: unless another has come since, every pending future is to look for a new one.
    fn leave(&self, driver: u64) {
        let mut wakers = Vec::new();
        {
            let mut seat = lock(&self.seat);
            if !seat.taken || seat.driver != driver {
                return;
            }
            seat.taken = false;
            let turned = Nanos(self.figures.turned.load(Ordering::Relaxed));
            let runtime = lock(&self.runtime).take();
            let in_context =
                Handle::try_current().is_ok_and(|here| runtime.is_some_and(|it| it.id() == here.id()));
            seat.stood = match (in_context, seat.clock.real) {
                (true, _) => seat.clock.nanos_of(Instant::now()).max(turned),
                (false, true) => seat.clock.nanos_of(std::time::Instant::now().into()).max(turned),
                (false, false) => turned,
            };
            for shard in self.shards() {
                shard.undrive(seat.stood, &mut wakers);
            }
        }
        self.wake(&mut wakers);
    }

    /// Wakes, with no lock held, and survives whatever the wakers do.
    pub(crate) fn wake(&self, wakers: &mut Vec<Waker>) {
        let mut due = wakers.drain(..);
        while let Err(panic) = catch_unwind(AssertUnwindSafe(|| due.by_ref().for_each(Waker::wake))) {
            self.figures.panics.fetch_add(1, Ordering::Relaxed);
            // What it carries may panic when dropped.
            mem::forget(panic);
        }
    }
}

impl shard::Driver for Link {
    fn notify(&self) {
        self.notify.notify_one();
    }

    fn start(self: Arc<Self>) -> Result<(), Refusal> {
        let Some(handle) = &self.handle else {
            return self.start_on(current_runtime());
        };
        self.start_on(handle.clone())
            .or_else(|refusal| match Handle::try_current() {
                Ok(current) => self.start_on(current),
                Err(_) => Err(refusal),
            })
    }

    fn now(&self) -> Instant {
        let runtime = lock(&self.runtime).clone();
        let _entered = runtime.as_ref().map(Handle::enter);
        Instant::now()
    }
}

/// # Panics
///
/// Outside a runtime, in Tokio's own words.
fn current_runtime() -> Handle {
    Handle::try_current().unwrap_or_else(|error| {
        panic!("{error}: poll the wheel's timers first inside a runtime, or give the wheel one with `Builder::handle`")
    })
}

/// The driver.
struct Driver {
    guard: Guard,
    shards: Box<[Arc<Shard>]>,
    clock: Clock,
    interval: Interval,
    /// The tick that the interval waits for, where that is known.
    armed: Option<Tick>,
    wakers: Vec<Waker>,
}

/// Tells the wheel when its driver goes, whatever the reason.
struct Guard {
    link: Arc<Link>,
    driver: u64,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.link.leave(self.driver);
    }
}

impl Driver {
    async fn run(mut self) {
        while let Some(wake_at) = self.turn().await {
            self.wait(wake_at).await;
            self.guard.link.figures.wakeups.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Visits every shard and wakes what is due. Returns when to come back; `None` when there is nothing
    /// left to drive for.
    async fn turn(&mut self) -> Option<Tick> {
        let link = &*self.guard.link;
        let real = clock::is_real();
        if real != self.clock.real {
            self.clock.real = real;
            lock(&link.seat).clock.real = real;
        }
        let now = self.clock.nanos_of(Instant::now());
        link.figures.turned_to(now, &self.clock);
        let mut wake_at = None;
        let mut woken = 0;
        for shard in &self.shards {
            loop {
                let visit = shard.visit(now, real, BATCH, &mut self.wakers);
                woken += self.wakers.len();
                link.wake(&mut self.wakers);
                if woken >= WAKES_PER_YIELD {
                    woken = 0;
                    tokio::task::yield_now().await;
                }
                match visit {
                    Visit::Unfinished => continue,
                    Visit::Finished { next } => wake_at = Some(next.min(wake_at.unwrap_or(NEVER))),
                    Visit::Shutdown => {}
                }
                break;
            }
        }
        if link.forsaken.load(Ordering::Relaxed) && link.retire(&self.shards) {
            None
        } else {
            wake_at
        }
    }

    /// Waits for the beginning of tick `wake_at`, or for a shard that wants to be visited earlier.
    async fn wait(&mut self, wake_at: Tick) {
        let mut notified = pin!(self.guard.link.notify.notified());
        if wake_at == NEVER {
            return notified.await;
        }
        if self.armed != Some(wake_at) {
            self.interval.reset_at(self.clock.instant_of(wake_at));
            self.armed = Some(wake_at);
        }
        let ticked = poll_fn(|cx| match notified.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => self.interval.poll_tick(cx).map(Some),
        });
        if let Some(planned) = ticked.await {
            let lag = Instant::now().saturating_duration_since(planned);
            self.guard.link.figures.lagged(lag);
            // A late interval skips; where to, it does not tell.
            self.armed = (lag < MISSED).then(|| wake_at.next());
        }
    }
}
