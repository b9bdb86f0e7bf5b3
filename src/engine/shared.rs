//! `Shared`: the settings, the labels and the counters, which a wheel's engines share.

use std::{fmt, sync::OnceLock, time::Duration};

use tokio::{
    runtime::{Handle, Id},
    time::Instant,
};

use super::{
    clock::{self, Moment, Nanos, Reading, Slack},
    events,
    labels::Labels,
    lag::LagRecorder,
    sync::{Arc, AtomicBool, AtomicU64, Mutex, Ordering, fence_in_models, lock},
    test_clock::{Source, in_runtime, may_be_paused, may_be_paused_in},
};

/// The settings that a wheel is built with.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) name: Option<String>,
    pub(crate) tick_duration: Duration,
    /// Whether the driver waits on a timer of the kernel, where there is one, whatever the tick.
    pub(crate) kernel_timer: bool,
    /// `None` for the default slack.
    pub(crate) slack: Option<Duration>,
    pub(crate) ticks_per_wheel: usize,
    pub(crate) levels: usize,
    /// `None` for as many shards as the runtime has workers.
    pub(crate) shards: Option<usize>,
    /// The number of timers in each runtime for which its shards reserve memory.
    pub(crate) capacity: Option<usize>,
    pub(crate) max_pending: Option<usize>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            name: None,
            tick_duration: Duration::from_millis(1),
            kernel_timer: false,
            slack: None,
            ticks_per_wheel: 512,
            levels: 4,
            shards: None,
            capacity: None,
            max_pending: None,
        }
    }
}

impl Settings {
    /// Returns whether the driver waits on a timer of the kernel, where there is one. Tokio's is too coarse for
    /// ticks below a millisecond.
    pub(crate) fn has_kernel_timer(&self) -> bool {
        self.kernel_timer || self.tick_duration < Nanos::MILLISECOND.to_duration()
    }

    /// Returns the slack on the machine's clock.
    pub(crate) fn slack(&self) -> Slack {
        Source::Machine.slack(self.slack)
    }
}

/// Identifies a wheel in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WheelId(pub(in crate::engine) u64);

impl WheelId {
    /// The wheel of `tickwheel::time`.
    pub(crate) const GLOBAL: WheelId = WheelId(0);

    /// Returns an identity that no other wheel of this process has or will have.
    pub(crate) fn next() -> WheelId {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        WheelId(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// The wheel of a timer that is in no shard. The timers of the global wheel count no reference, and those of
/// another one count in a stripe, because all workers would share the count of the wheel.
#[derive(Clone)]
pub(crate) struct WheelRef(Option<Arc<Referent>>);

/// The wheel, for the references of one stripe.
struct Referent {
    wheel: WheelId,
    shared: Arc<Shared>,
}

impl WheelRef {
    pub(crate) const GLOBAL: WheelRef = WheelRef(None);

    /// Creates another reference to a wheel, with a count of its own.
    pub(crate) fn new(shared: &Arc<Shared>) -> WheelRef {
        let is_global = shared.wheel == WheelId::GLOBAL;
        let referent = || Referent {
            wheel: shared.wheel,
            shared: shared.clone(),
        };
        // The state of the global wheel is a static, so that its timers need no reference.
        WheelRef((!is_global).then(|| Arc::new(referent())))
    }

    #[inline]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        let own = self.0.as_ref().map(|referent| &referent.shared);
        own.unwrap_or_else(|| Shared::global())
    }

    #[inline]
    pub(crate) fn id(&self) -> WheelId {
        self.0.as_ref().map_or(WheelId::GLOBAL, |referent| referent.wheel)
    }

    /// Reads the clock from which a timer of this wheel would count here.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        let shared = self.0.as_ref().map(|referent| &referent.shared);
        Moment::of(shared.map_or_else(clock::runtime_now, |shared| shared.instant_now()))
    }

    /// Returns a moment that has passed as a reading of that clock, or reads it if `known_past` is
    /// [`Moment::ZERO`].
    #[inline]
    pub(in crate::engine) fn reading(&self, known_past: Moment) -> Reading {
        if known_past == Moment::ZERO {
            Reading::current(self.now())
        } else {
            Reading::earlier(known_past)
        }
    }

    /// Returns the runtime on which all timers of the wheel wait, if one was given to the builder and has not
    /// ended.
    pub(in crate::engine) fn builder_runtime(&self) -> Option<Id> {
        self.0.as_ref()?.shared.builder_runtime()
    }
}

impl fmt::Debug for WheelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WheelRef").field(&self.id()).finish()
    }
}

/// The state that the engines of a wheel share.
pub(crate) struct Shared {
    pub(crate) wheel: WheelId,
    pub(crate) settings: Settings,
    pub(crate) labels: Labels,
    pub(crate) stats: Stats,
    builder_runtime: Option<BuilderRuntime>,
    /// The counts of engines that have ended.
    ended: Mutex<Tally>,
    /// Whether every handle of the wheel has been dropped, so that an engine without timers ends.
    has_no_handle: AtomicBool,
}

/// The runtime given to the builder, on which all timers of the wheel wait until it ends.
struct BuilderRuntime {
    id: Id,
    /// Whether a test controls its clock, which then has to be read there.
    may_be_paused: bool,
    has_ended: AtomicBool,
    /// Dropped when the runtime has ended, because it keeps the runtime's descriptors open.
    handle: Mutex<Option<Handle>>,
}

/// The global wheel, from its first use on.
static GLOBAL: OnceLock<Arc<Shared>> = OnceLock::new();

impl Shared {
    /// Returns the state that the engines of the global wheel share.
    pub(crate) fn global() -> &'static Arc<Shared> {
        GLOBAL.get_or_init(|| Arc::new(Shared::new(WheelId::GLOBAL, Settings::default(), None)))
    }

    /// Gives the global wheel its settings. Returns `false` if it has some already.
    pub(crate) fn set_global(settings: Settings) -> bool {
        let shared = Shared::new(WheelId::GLOBAL, settings, None);
        GLOBAL.set(Arc::new(shared)).is_ok()
    }

    pub(crate) fn new(wheel: WheelId, settings: Settings, builder_handle: Option<Handle>) -> Shared {
        Shared {
            wheel,
            settings,
            labels: Labels::default(),
            stats: Stats::default(),
            builder_runtime: builder_handle.map(|handle| BuilderRuntime {
                id: handle.id(),
                may_be_paused: may_be_paused_in(&handle),
                has_ended: AtomicBool::new(false),
                handle: Mutex::new(Some(handle)),
            }),
            ended: Mutex::default(),
            has_no_handle: AtomicBool::new(false),
        }
    }

    /// Returns the runtime on which all timers of the wheel wait, if one was given to the builder and has not
    /// ended.
    #[inline]
    pub(crate) fn builder_runtime(&self) -> Option<Id> {
        let given = self.builder_runtime.as_ref()?;
        (!given.has_ended.load(Ordering::Relaxed)).then_some(given.id)
    }

    /// Returns whether a timer of this wheel would wait on the caller's runtime, whose clock a test may pause.
    pub(crate) fn may_be_paused_here(&self) -> bool {
        may_be_paused() && self.builder_runtime().is_none()
    }

    /// Reads the clock from which a timer of this wheel would count here.
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        Moment::of(self.instant_now())
    }

    pub(crate) fn instant_now(&self) -> Instant {
        match &self.builder_runtime {
            Some(given) if !given.has_ended.load(Ordering::Relaxed) => {
                // The machine's clock is the same everywhere, and a runtime need not be entered to read it.
                if given.may_be_paused {
                    self.builder_runtime_now()
                } else {
                    clock::machine_now()
                }
            }
            _ => clock::runtime_now(),
        }
    }

    /// Reads the clock of the runtime that was given to the builder.
    #[cold]
    fn builder_runtime_now(&self) -> Instant {
        let there = |runtime: Handle| in_runtime(&runtime, clock::runtime_now);
        let now = self.builder_handle().and_then(there);
        now.unwrap_or_else(clock::runtime_now)
    }

    pub(crate) fn builder_handle(&self) -> Option<Handle> {
        lock(&self.builder_runtime.as_ref()?.handle).clone()
    }

    /// Makes each of the wheel's timers wait on the runtime that polls it, because the builder's runtime has
    /// ended.
    pub(crate) fn forget_builder_runtime(&self, runtime: Id) {
        if let Some(given) = self.builder_runtime.as_ref().filter(|given| given.id == runtime) {
            // The runtime's descriptors are open for as long as there is a handle. This one is dropped with no lock
            // held, because the last one drops the runtime's callbacks, which are code of the user's.
            let handle = lock(&given.handle).take();
            // Stored only now: a task whose timer has been bound to another runtime must not be spawned on this one.
            given.has_ended.store(true, Ordering::Relaxed);
            drop(handle);
        }
    }

    /// Adds the counts of an engine that has ended.
    pub(in crate::engine) fn add_ended(&self, tally: Tally) {
        lock(&self.ended).add(tally);
    }

    pub(in crate::engine) fn ended_tally(&self) -> Tally {
        *lock(&self.ended)
    }

    /// Records that every handle of the wheel has been dropped.
    pub(crate) fn forget_handles(&self) {
        self.has_no_handle.store(true, Ordering::SeqCst);
        fence_in_models();
    }

    pub(in crate::engine) fn has_no_handle(&self) -> bool {
        // Either this sees that the last handle has gone, or who then looks for pending timers sees the spare that was
        // left before.
        self.has_no_handle.load(Ordering::SeqCst)
    }

    /// Records a turn that came `lag` after its time.
    pub(in crate::engine) fn record_turn(&self, tick: Nanos, lag: Nanos) {
        let stats = &self.stats;
        stats.turns.fetch_add(1, Ordering::Relaxed);
        stats.last_lag.store(lag.0, Ordering::Relaxed);
        // A new maximum is rare, and a load is cheaper.
        if lag.0 > stats.max_lag.load(Ordering::Relaxed) {
            stats.max_lag.fetch_max(lag.0, Ordering::Relaxed);
        }
        stats.lags.record(lag.0);
        if lag > LATE.max(Nanos(tick.0.saturating_mul(4))) {
            events::driver_late(self.name(), lag.to_duration());
        }
    }

    /// The name of the wheel, for events.
    pub(in crate::engine) fn name(&self) -> &str {
        self.settings.name.as_deref().unwrap_or_default()
    }
}

/// How many timers were registered, expired and were cancelled. The other timers are pending. These counts
/// are exact while no timer changes, none ever decreases, and no two workers share one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) registered: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Tally) {
        self.registered += other.registered;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
    }
}

/// The counters of drivers, which no timer's path touches.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) turns: AtomicU64,
    pub(crate) cascaded: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) last_lag: AtomicU64,
    pub(crate) max_lag: AtomicU64,
    pub(crate) lags: LagRecorder,
}

/// A turn that is later than this and than four ticks is reported to `tracing`.
const LATE: Nanos = Nanos(40_000_000);

#[cfg(all(test, not(tickwheel_loom)))]
mod tests {
    use std::task::Waker;

    use super::{super::timer::Timer, *};

    /// As many wheels as a process may have made in years, each of which is a wheel of its own.
    #[tokio::test]
    async fn two_wheels_whose_numbers_differ_by_a_power_of_two_are_not_one() {
        let wheels = [0, 1 << 31, 1 << 32, 1 << 63].map(|more| {
            let wheel = WheelId(more + 5);
            WheelRef::new(&Arc::new(Shared::new(wheel, Settings::default(), None)))
        });
        let timers = wheels.each_ref().map(|wheel| {
            let mut timer = Timer::after_first_poll(wheel.clone(), Duration::from_secs(9));
            assert!(timer.poll(Waker::noop()).is_pending());
            timer
        });
        for wheel in &wheels {
            assert_eq!(super::super::registry::usage(wheel.shared()).pending, 1);
        }
        drop(timers);
    }
}
