//! `Wheel`: a cloneable handle to a timing wheel.

pub(crate) mod builder;
pub(crate) mod global;
pub(crate) mod permits;
pub(crate) mod roster;
pub(crate) mod shutdown;

use std::{
    fmt,
    sync::{
        Arc, LazyLock, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::available_parallelism,
    time::Duration,
};

use tokio::{runtime::Handle, time::Instant};

use crate::{
    engine::{
        events, number, registry,
        shared::{Settings, Shared, WheelId, WheelRef},
    },
    wheel::{permits::Permits, roster::Stripe},
};

/// A handle to a hashed timing wheel for Tokio, on which timers are started.
///
/// Cloning a handle is cheap, and every clone refers to the same wheel. One wheel serves a whole process:
/// each runtime in which one of its timers is polled turns a part of its own, so that no runtime has to wait
/// for another. A wheel starts no task and has no tick until then.
///
/// Timers are precise to one tick, which is [`Builder::tick_duration`](crate::Builder::tick_duration) long,
/// and to their [slack](crate::Builder::slack).
///
/// # Examples
///
/// ```
/// use tickwheel::Wheel;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let wheel = Wheel::new();
/// let answer = wheel.timeout(Duration::from_secs(1), async { 42 }).await;
/// assert_eq!(answer, Ok(42));
/// # }
/// ```
#[derive(Clone)]
pub struct Wheel(Arc<Handles>);

/// A handle to a [`Wheel`] that does not keep it alive, for exporters of metrics.
///
/// # Examples
///
/// ```
/// let wheel = tickwheel::Wheel::new();
/// let weak = wheel.downgrade();
/// assert!(weak.upgrade().is_some());
/// drop(wheel);
/// assert!(weak.upgrade().is_none());
/// ```
#[derive(Clone)]
pub struct WeakWheel(Weak<Handles>);

/// The number of cores. Kept, because Linux has it read from files, which takes longer than beginning a
/// runtime.
static CORES: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, |cores| cores.get()));

/// The number of wheels alive, not counting the global one.
static WHEELS: AtomicUsize = AtomicUsize::new(0);
/// Above this number of wheels, a warning is logged once, as in Netty.
const MANY_WHEELS: usize = 64;
static WARNED: AtomicBool = AtomicBool::new(false);

/// What all handles of a wheel share, dropped with the last of them.
struct Handles {
    shared: Arc<Shared>,
    permits: Arc<Permits>,
    /// By the number of the thread on which a timer is made. There is one for each core.
    stripes: Box<[Stripe]>,
    /// Held during a shutdown, so that a concurrent second one waits and then finds nothing left to do.
    closing: Mutex<()>,
}

impl Drop for Handles {
    fn drop(&mut self) {
        self.shared.forget_handles();
        for engine in registry::of_wheel(&self.shared) {
            engine.alarm.notify_if_no_handle(&self.shared);
        }
        WHEELS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Wheel {
    fn assemble(shared: Arc<Shared>) -> Wheel {
        if shared.wheel != WheelId::GLOBAL {
            let wheels = WHEELS.fetch_add(1, Ordering::Relaxed) + 1;
            if wheels > MANY_WHEELS && !WARNED.swap(true, Ordering::Relaxed) {
                events::too_many_wheels(wheels);
            }
        }
        let permits = Arc::new(Permits::new(shared.settings.max_pending));
        let stripes = 0..CORES.next_power_of_two();
        Wheel(Arc::new(Handles {
            stripes: stripes.map(|_| Stripe::new(&shared, &permits)).collect(),
            permits,
            closing: Mutex::new(()),
            shared,
        }))
    }

    /// Returns the name of the wheel, if [`Builder::name`](crate::Builder::name) gave it one.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().name("requests").build()?;
    /// assert_eq!(wheel.name(), Some("requests"));
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.settings().name.as_deref()
    }

    /// Returns the current instant on the clock by which this wheel's timers wait.
    ///
    /// That is the clock of the caller's runtime or, if the wheel was given a
    /// [`handle`](crate::Builder::handle), of that runtime. It differs from the machine's clock only where a
    /// test has paused Tokio's.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    /// use tokio::time::{Duration, Instant, advance};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let wheel = Wheel::new();
    /// let start = wheel.now();
    /// advance(Duration::from_secs(5)).await;
    /// assert_eq!(wheel.now() - start, Duration::from_secs(5));
    /// # }
    /// ```
    pub fn now(&self) -> Instant {
        self.shared().instant_now()
    }

    /// Creates a handle that does not keep the wheel alive.
    ///
    /// # Examples
    ///
    /// ```
    /// let weak = tickwheel::Wheel::global().downgrade();
    /// assert!(weak.upgrade().is_some(), "the global wheel lives as long as the process");
    /// ```
    pub fn downgrade(&self) -> WeakWheel {
        WeakWheel(Arc::downgrade(&self.0))
    }

    /// Returns the duration of a tick.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert_eq!(tickwheel::Wheel::new().tick_duration(), Duration::from_millis(1));
    /// ```
    pub fn tick_duration(&self) -> Duration {
        self.settings().tick_duration
    }

    /// Returns the greatest slack of a timer, by which it may be late beyond its tick: 100 ms unless
    /// [`Builder::slack`](crate::Builder::slack) was called.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// assert_eq!(tickwheel::Wheel::new().slack(), Duration::from_millis(100));
    /// ```
    pub fn slack(&self) -> Duration {
        self.settings().slack().most().to_duration()
    }

    /// Returns the number of buckets in one level, a power of two.
    ///
    /// If it is 2 and there is more than one level, each level has 4 buckets.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::builder().ticks_per_wheel(500).build()?;
    /// assert_eq!(wheel.ticks_per_wheel(), 512);
    /// # Ok::<(), tickwheel::BuildError>(())
    /// ```
    pub fn ticks_per_wheel(&self) -> usize {
        self.settings().ticks_per_wheel.max(2).next_power_of_two()
    }

    /// Returns the number of levels.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().levels(), 4);
    /// ```
    pub fn levels(&self) -> usize {
        self.settings().levels
    }

    /// Returns the limit on pending timers, if there is one.
    ///
    /// # Examples
    ///
    /// ```
    /// assert_eq!(tickwheel::Wheel::new().max_pending(), None);
    /// ```
    pub fn max_pending(&self) -> Option<usize> {
        self.settings().max_pending
    }

    /// Returns the number of pending timers.
    ///
    /// A timer that has expired is no longer pending, even if its future has not been polled since. Because
    /// the driver expires a timer a moment after its deadline, a timer that is due may still be counted right
    /// after `tokio::time::advance` on a paused clock, until the test yields or awaits the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let wheel = tickwheel::Wheel::new();
    /// let sleep = wheel.sleep(Duration::from_secs(60));
    /// assert_eq!(wheel.pending(), 0, "a timer is registered by its first poll");
    ///
    /// let sleeping = tokio::spawn(sleep);
    /// tokio::task::yield_now().await;
    /// assert_eq!(wheel.pending(), 1);
    ///
    /// tokio::time::advance(Duration::from_secs(60)).await;
    /// sleeping.await.unwrap(); // the driver has run
    /// assert_eq!(wheel.pending(), 0);
    /// # }
    /// ```
    pub fn pending(&self) -> usize {
        registry::usage(self.shared()).pending
    }

    /// Returns `true` if the wheel has been shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// let wheel = tickwheel::Wheel::new();
    /// assert!(!wheel.is_shutdown());
    /// wheel.shutdown();
    /// assert!(wheel.is_shutdown());
    /// ```
    pub fn is_shutdown(&self) -> bool {
        self.permits().is_shutdown()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    fn settings(&self) -> &Settings {
        &self.0.shared.settings
    }

    /// Returns a reference for a timer that this thread makes.
    #[inline]
    pub(crate) fn reference(&self) -> WheelRef {
        self.stripe().reference.clone()
    }

    /// Returns the runtime on which tasks of this wheel are spawned: that given to the builder, or the
    /// caller's.
    ///
    /// # Panics
    ///
    /// Panics outside a runtime, as `tokio::spawn` does, if none was given or it has ended.
    #[track_caller]
    pub(crate) fn runtime(&self) -> Handle {
        match registry::builder_handle(self.shared()) {
            Some(runtime) => runtime,
            None => Handle::current(),
        }
    }

    pub(crate) fn permits(&self) -> &Permits {
        &self.0.permits
    }

    /// Returns what is for the timers that this thread makes.
    #[inline]
    pub(crate) fn stripe(&self) -> &Stripe {
        &self.0.stripes[number::get() & (self.0.stripes.len() - 1)]
    }
}

impl WeakWheel {
    /// Returns a handle to the wheel, or `None` once all of its handles have been dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// let weak = tickwheel::Wheel::new().downgrade();
    /// assert!(weak.upgrade().is_none());
    /// ```
    pub fn upgrade(&self) -> Option<Wheel> {
        self.0.upgrade().map(Wheel)
    }

    /// Returns a number that no other wheel has while this handle or another one of the wheel lives. It is
    /// for tickwheel-exported, which counts a wheel once however often it is added.
    #[doc(hidden)]
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Returns `true` if both are of the same wheel, as [`Weak::ptr_eq`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tickwheel::Wheel;
    ///
    /// let wheel = Wheel::new();
    /// assert!(wheel.downgrade().ptr_eq(&wheel.clone().downgrade()));
    /// assert!(!wheel.downgrade().ptr_eq(&Wheel::new().downgrade()));
    /// ```
    pub fn ptr_eq(&self, other: &WeakWheel) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl fmt::Debug for WeakWheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakWheel").field(&self.upgrade()).finish()
    }
}

impl fmt::Debug for Wheel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wheel")
            .field("name", &self.name())
            .field("tick_duration", &self.tick_duration())
            .field("slack", &self.slack())
            .field("ticks_per_wheel", &self.ticks_per_wheel())
            .field("levels", &self.levels())
            .field("max_pending", &self.max_pending())
            .field("pending", &self.pending())
            .field("shutdown", &self.is_shutdown())
            .finish()
    }
}
