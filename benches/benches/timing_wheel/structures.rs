//! The data structures under comparison: ours, and those that peers build on, without their clocks and threads. A tick is a millisecond.

use std::{
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use bitwheel::timer::{BitWheel, Timer, TimerHandle as BitHandle};
use fastrand::Rng;
use nexus_timer::{TimerHandle, Wheel as NexusWheel, WheelBuilder};
use tokio_util::time::{DelayQueue, delay_queue};

// Checked where it belongs.
#[allow(clippy::all, unused)]
#[path = "../../../src/engine/timing_wheel/mod.rs"]
mod timing_wheel;

use timing_wheel::{Key, Tick, TimingWheel};

const TICKS_PER_WHEEL: usize = 512;

/// What a bounded visit may do at most, where a structure knows bounds: the wheel's batch.
const BATCH: usize = 256;

/// A structure under test. A peer that has no such thing as a key gives out its numbers.
pub(crate) trait Structure {
    type Key;

    fn insert(&mut self, delay: u64) -> Self::Key;
    fn remove(&mut self, key: Self::Key);
    /// Moves a pending timer to so many ticks from now.
    fn reset(&mut self, key: Self::Key, delay: u64) -> Self::Key;
    /// Moves on by a tick; how many expired.
    fn advance(&mut self) -> usize;

    /// Goes to the next tick, of which each [`visit`](Structure::visit) does a part.
    fn begin(&mut self);
    /// Does a part of what the tick asks for, as short a one as the structure can; how many expired, and whether more is left.
    fn visit(&mut self) -> (usize, bool);
}

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) struct Ours {
    wheel: TimingWheel<Waker>,
    expired: Vec<Waker>,
    target: Tick,
}

impl Ours {
    pub(crate) fn new(levels: usize) -> Ours {
        Ours {
            wheel: TimingWheel::new(TICKS_PER_WHEEL, levels),
            expired: Vec::new(),
            target: Tick(0),
        }
    }

    /// Moves on by so many ticks at once.
    pub(crate) fn jump(&mut self, ticks: u64) -> usize {
        let now = Tick(self.wheel.now().0 + ticks);
        let advanced = self.wheel.advance(now, usize::MAX, &mut self.expired);
        self.expired.clear();
        advanced.expired
    }
}

impl Structure for Ours {
    type Key = Key;

    #[inline]
    fn insert(&mut self, delay: u64) -> Key {
        self.wheel
            .insert(Tick(self.wheel.now().0 + delay), Waker::noop().clone())
    }

    #[inline]
    fn remove(&mut self, key: Key) {
        drop(self.wheel.remove(key));
    }

    #[inline]
    fn reset(&mut self, key: Key, delay: u64) -> Key {
        let deadline = Tick(self.wheel.now().0 + delay);
        drop(self.wheel.reinsert(&key, deadline, Waker::noop().clone()));
        key
    }

    #[inline]
    fn advance(&mut self) -> usize {
        self.jump(1)
    }

    fn begin(&mut self) {
        self.target = Tick(self.wheel.now().0 + 1);
    }

    fn visit(&mut self) -> (usize, bool) {
        let advanced = self.wheel.advance(self.target, BATCH, &mut self.expired);
        self.expired.clear();
        (advanced.expired, advanced.more)
    }
}

/// nexus-timer's wheel as it comes: seven levels of 64. Its handles have to be given back; those of timers that expired are
/// not, here, which costs it nothing.
pub(crate) struct Nexus {
    wheel: NexusWheel<Waker>,
    origin: Instant,
    now: u64,
    expired: Vec<Waker>,
}

impl Default for Nexus {
    fn default() -> Nexus {
        let origin = Instant::now();
        let builder = WheelBuilder::new().max_rebalances_per_poll(BATCH);
        Nexus {
            wheel: builder
                .unbounded(4096)
                .build(origin)
                .expect("the settings are allowed"),
            origin,
            now: 0,
            expired: Vec::new(),
        }
    }
}

impl Nexus {
    #[inline]
    fn at(&self, tick: u64) -> Instant {
        self.origin + ms(tick)
    }
}

impl Structure for Nexus {
    type Key = TimerHandle<Waker>;

    #[inline]
    fn insert(&mut self, delay: u64) -> TimerHandle<Waker> {
        let deadline = self.at(self.now + delay);
        self.wheel.schedule(deadline, Waker::noop().clone())
    }

    #[inline]
    fn remove(&mut self, key: TimerHandle<Waker>) {
        drop(self.wheel.cancel(key));
    }

    #[inline]
    fn reset(&mut self, key: TimerHandle<Waker>, delay: u64) -> TimerHandle<Waker> {
        let deadline = self.at(self.now + delay);
        self.wheel.reschedule(key, deadline)
    }

    fn advance(&mut self) -> usize {
        self.begin();
        let expired = self
            .wheel
            .poll_and_rebalance(self.at(self.now), &mut self.expired);
        self.expired.clear();
        expired
    }

    fn begin(&mut self) {
        self.now += 1;
    }

    fn visit(&mut self) -> (usize, bool) {
        let now = self.at(self.now);
        let expired = self
            .wheel
            .poll_and_rebalance_with_limit(now, BATCH, &mut self.expired);
        self.expired.clear();
        (expired, expired == BATCH)
    }
}

/// What a timer of bitwheel's does.
pub(crate) struct Wake(Waker);

impl Timer for Wake {
    type Context = Vec<Waker>;

    fn fire(&mut self, woken: &mut Vec<Waker>) {
        woken.push(self.0.clone());
    }
}

/// bitwheel's, with as many gears and as much room in a slot as the work needs: it has a fixed capacity, and no cascade, for a
/// timer of a coarser gear comes as precisely as that gear is. A timer is moved by cancelling it and starting another.
pub(crate) struct Bit<const GEARS: usize, const ROOM: usize> {
    wheel: Box<BitWheel<Wake, GEARS, 1, ROOM, 8>>,
    origin: Instant,
    now: u64,
    woken: Vec<Waker>,
}

impl<const GEARS: usize, const ROOM: usize> Default for Bit<GEARS, ROOM> {
    fn default() -> Self {
        let origin = Instant::now();
        Bit {
            wheel: BitWheel::boxed_with_epoch(origin),
            origin,
            now: 0,
            woken: Vec::new(),
        }
    }
}

impl<const GEARS: usize, const ROOM: usize> Structure for Bit<GEARS, ROOM> {
    type Key = BitHandle;

    #[inline]
    fn insert(&mut self, delay: u64) -> BitHandle {
        let deadline = self.origin + ms(self.now + delay);
        let inserted = self.wheel.insert(deadline, Wake(Waker::noop().clone()));
        inserted.unwrap_or_else(|_| panic!("there is room"))
    }

    #[inline]
    fn remove(&mut self, key: BitHandle) {
        drop(self.wheel.cancel(key));
    }

    #[inline]
    fn reset(&mut self, key: BitHandle, delay: u64) -> BitHandle {
        self.remove(key);
        self.insert(delay)
    }

    fn advance(&mut self) -> usize {
        self.begin();
        self.visit().0
    }

    fn begin(&mut self) {
        self.now += 1;
    }

    fn visit(&mut self) -> (usize, bool) {
        let expired = self.wheel.poll(self.origin + ms(self.now), &mut self.woken);
        self.woken.clear();
        (expired, false)
    }
}

/// tokio-util's queue on a clock that stands still; a visit gives out one timer.
pub(crate) struct Queue {
    queue: DelayQueue<Waker>,
    runtime: Rc<tokio::runtime::Runtime>,
}

impl Queue {
    pub(crate) fn new(runtime: &Rc<tokio::runtime::Runtime>) -> Queue {
        let _entered = runtime.enter();
        Queue {
            queue: DelayQueue::new(),
            runtime: runtime.clone(),
        }
    }
}

/// A runtime whose clock stands still.
pub(crate) fn paused() -> Rc<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    Rc::new(runtime.expect("the runtime starts"))
}

impl Structure for Queue {
    type Key = delay_queue::Key;

    #[inline]
    fn insert(&mut self, delay: u64) -> delay_queue::Key {
        let _entered = self.runtime.enter();
        self.queue.insert(Waker::noop().clone(), ms(delay))
    }

    #[inline]
    fn remove(&mut self, key: delay_queue::Key) {
        let _entered = self.runtime.enter();
        drop(self.queue.remove(&key));
    }

    #[inline]
    fn reset(&mut self, key: delay_queue::Key, delay: u64) -> delay_queue::Key {
        let _entered = self.runtime.enter();
        self.queue.reset(&key, ms(delay));
        key
    }

    fn advance(&mut self) -> usize {
        self.begin();
        std::iter::from_fn(|| Some(self.visit()).filter(|(expired, _)| *expired > 0)).count()
    }

    fn begin(&mut self) {
        self.runtime.block_on(tokio::time::advance(ms(1)));
    }

    fn visit(&mut self) -> (usize, bool) {
        let _entered = self.runtime.enter();
        let expired = self.queue.poll_expired(&mut Context::from_waker(Waker::noop()));
        match expired {
            Poll::Ready(Some(_)) => (1, true),
            Poll::Ready(None) | Poll::Pending => (0, false),
        }
    }
}

/// Delays to draw from, in ticks.
#[derive(Clone, Copy)]
pub(crate) struct Delays {
    pub least: u64,
    pub most: u64,
}

impl Delays {
    #[inline]
    pub(crate) fn draw(self, random: &mut Rng) -> u64 {
        self.least + random.u64(..=self.most - self.least)
    }
}
