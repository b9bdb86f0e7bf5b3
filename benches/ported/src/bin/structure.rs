//! The bare timing wheel beside nexus-timer and bitwheel: the loops of nexus-timer's `perf_timer` and of
//! bitwheel's `insert`, and two of a turn's longest steps.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use bitwheel::timer::{BitWheel, Timer, TimerHandle};
use tickwheel_ported::{Work, each, most, row, row_in};

#[path = "."]
#[allow(dead_code, unused_imports)]
mod engine {
    #[path = "../../../../src/engine/timing_wheel/mod.rs"]
    pub mod timing_wheel;
}

use engine::timing_wheel::{Key, Tick, TimingWheel};

/// A wheel of `u64`, whose ticks are milliseconds after its beginning.
trait Wheel {
    type Handle;
    const NAME: &str;

    fn start() -> Self;
    fn schedule(&mut self, at: u64) -> Self::Handle;
    fn cancel(&mut self, handle: Self::Handle);
    /// Goes on to a tick. Takes at most `limit` timers out, and returns whether there may be more.
    fn poll(&mut self, now: u64, limit: usize, due: &mut Vec<u64>) -> bool;
}

impl Wheel for TimingWheel<u64> {
    type Handle = Key;
    const NAME: &str = "tickwheel";

    fn start() -> Self {
        TimingWheel::new(512, 4)
    }

    fn schedule(&mut self, at: u64) -> Key {
        self.insert(Tick(at), at)
    }

    fn cancel(&mut self, key: Key) {
        black_box(self.remove(key));
    }

    fn poll(&mut self, now: u64, limit: usize, due: &mut Vec<u64>) -> bool {
        self.advance(Tick(now), limit, due).more
    }
}

struct Nexus(nexus_timer::Wheel<u64>, Instant);

impl Wheel for Nexus {
    type Handle = nexus_timer::TimerHandle<u64>;
    const NAME: &str = "nexus-timer";

    fn start() -> Self {
        let now = Instant::now();
        Nexus(nexus_timer::Wheel::unbounded(4096, now), now)
    }

    fn schedule(&mut self, at: u64) -> Self::Handle {
        self.0.schedule(self.1 + Duration::from_millis(at), at)
    }

    fn cancel(&mut self, handle: Self::Handle) {
        black_box(self.0.cancel(handle));
    }

    fn poll(&mut self, now: u64, limit: usize, due: &mut Vec<u64>) -> bool {
        let now = self.1 + Duration::from_millis(now);
        self.0.poll_and_rebalance_with_limit(now, limit, due) == limit
    }
}

struct Unit;

impl Timer for Unit {
    type Context = ();

    fn fire(&mut self, (): &mut ()) {}
}

/// Bounded: a bucket takes eight timers, so it is in no row of a crowd.
struct Bits(Box<BitWheel<Unit, 4, 1, 64, 8>>, Instant);

impl Wheel for Bits {
    type Handle = TimerHandle;
    const NAME: &str = "bitwheel";

    fn start() -> Self {
        let now = Instant::now();
        Bits(BitWheel::boxed_with_epoch(now), now)
    }

    fn schedule(&mut self, at: u64) -> Self::Handle {
        let at = self.1 + Duration::from_millis(at);
        match self.0.insert(at, Unit) {
            Ok(handle) => handle,
            Err(_) => panic!("the bucket is full"),
        }
    }

    fn cancel(&mut self, handle: Self::Handle) {
        black_box(self.0.cancel(handle));
    }

    fn poll(&mut self, now: u64, _: usize, _: &mut Vec<u64>) -> bool {
        let now = self.1 + Duration::from_millis(now);
        black_box(self.0.poll(now, &mut ()));
        false
    }
}

const SAMPLES: usize = 50_000;
const CROWD: u64 = 100_000;

fn paired<W: Wheel + 'static>(beside: u64) -> Work<'static> {
    let mut wheel = W::start();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..beside {
        // Some handles must not be dropped without the wheel.
        std::mem::forget(wheel.schedule(random.u64(1_000..3_600_000)));
    }
    let work = move || {
        each(SAMPLES, || {
            for _ in 0..SAMPLES {
                let handle = wheel.schedule(black_box(50));
                wheel.cancel(handle);
            }
        })
    };
    (W::NAME, Box::new(work))
}

fn cancel<W: Wheel + 'static>() -> Work<'static> {
    let mut wheel = W::start();
    let work = move || {
        let handles: Vec<_> = (0..SAMPLES).map(|_| wheel.schedule(black_box(50))).collect();
        each(SAMPLES, || {
            handles.into_iter().for_each(|handle| wheel.cancel(handle))
        })
    };
    (W::NAME, Box::new(work))
}

/// Batches of a hundred that are due.
fn poll<W: Wheel + 'static>() -> Work<'static> {
    let (mut wheel, mut now) = (W::start(), 100);
    let work = move || {
        let mut due = Vec::with_capacity(100);
        each(SAMPLES, || {
            for _ in 0..SAMPLES / 100 {
                (0..100).for_each(|_| std::mem::forget(wheel.schedule(now)));
                now += 2;
                due.clear();
                wheel.poll(now, usize::MAX, &mut due);
                assert_eq!(black_box(&due).len(), 100);
            }
        })
    };
    (W::NAME, Box::new(work))
}

/// Delays of 100 to 499 ms, one after the other, all cancelled.
fn burst<W: Wheel + 'static>() -> Work<'static> {
    let mut wheel = W::start();
    let work = move || {
        let mut taken = 0.;
        for _ in 0..SAMPLES / 400 {
            let mut handles = Vec::with_capacity(400);
            taken += each(1, || {
                handles.extend((0..400).map(|after| wheel.schedule(black_box(100 + after))))
            });
            handles.into_iter().for_each(|handle| wheel.cancel(handle));
        }
        taken / (SAMPLES / 400 * 400) as f64
    };
    (W::NAME, Box::new(work))
}

/// The p99.9 of calls that take at most 256 timers, as a driver makes them, from `start` on.
fn calls<W: Wheel + 'static>(timers: u64, ticks: u64, at: fn(u64) -> u64) -> Work<'static> {
    let work = move || {
        let mut wheel = W::start();
        (0..timers).for_each(|timer| std::mem::forget(wheel.schedule(at(timer))));
        let (mut samples, mut due, mut expired) = (Vec::new(), Vec::with_capacity(256), 0);
        for now in 1..=ticks {
            loop {
                due.clear();
                let start = Instant::now();
                let more = wheel.poll(now, 256, &mut due);
                samples.push(start.elapsed().as_nanos() as u64);
                expired += due.len() as u64;
                if !more {
                    break;
                }
            }
        }
        assert_eq!(expired, timers);
        most(samples)
    };
    (W::NAME, Box::new(work))
}

fn main() {
    type Ours = TimingWheel<u64>;
    row(
        "schedule and cancel",
        vec![paired::<Ours>(0), paired::<Nexus>(0), paired::<Bits>(0)],
    );
    row(
        "schedule and cancel beside 100,000",
        vec![paired::<Ours>(CROWD), paired::<Nexus>(CROWD)],
    );
    row(
        "cancel, of 50,000 scheduled before",
        vec![cancel::<Ours>(), cancel::<Nexus>()],
    );
    row(
        "schedule and expire, 100 at once",
        vec![poll::<Ours>(), poll::<Nexus>()],
    );
    row(
        "schedule, delays of 100 to 499 ms",
        vec![burst::<Ours>(), burst::<Nexus>(), burst::<Bits>()],
    );
    row(
        "a call that takes up to 256, 100,000 due at one tick, p99.9",
        vec![
            calls::<Ours>(CROWD, 200, |_| 100),
            calls::<Nexus>(CROWD, 200, |_| 100),
        ],
    );
    row_in(
        1,
        "a call while a million timers of 20 to 30 s cascade and expire, p99.9",
        vec![
            calls::<Ours>(1_000_000, 31_000, |timer| 20_000 + timer * 7_919 % 10_000),
            calls::<Nexus>(1_000_000, 31_000, |timer| 20_000 + timer * 7_919 % 10_000),
        ],
    );
}
