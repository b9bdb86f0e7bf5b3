//! What does the structure alone cost, without locks, clocks and futures: insert, remove, advance, cascade? And what does
//! `levels(1)`, Netty's wheel, beside `levels(4)`, Kafka's, when timers are far away?

use std::{hint::black_box, rc::Rc, task::Waker, time::Duration};

use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use criterion::{SamplingMode, measurement::WallTime};
use hierarchical_hash_wheel_timer::{IdOnlyTimerEntry, wheels::cancellable::QuadWheelWithOverflow};
use tickwheel_benches::Random;

// Checked where it belongs.
#[allow(clippy::all, unused)]
#[path = "../../src/timing_wheel/mod.rs"]
mod timing_wheel;

use timing_wheel::{Key, Tick, TimingWheel};

const TIMERS: usize = 100_000;
const TICKS_PER_WHEEL: usize = 512;
const ALL: usize = usize::MAX;

/// A structure under test. A peer that has no such thing as a key gives out its numbers.
trait Structure {
    type Key;

    fn insert(&mut self, delay: u64) -> Self::Key;
    fn remove(&mut self, key: Self::Key);
    /// Moves on by so many ticks; how many expired.
    fn advance(&mut self, ticks: u64) -> usize;
}

struct Ours {
    wheel: TimingWheel<Waker>,
    expired: Vec<Waker>,
}

impl Ours {
    fn new(levels: usize) -> Ours {
        Ours {
            wheel: TimingWheel::new(TICKS_PER_WHEEL, levels),
            expired: Vec::new(),
        }
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
        black_box(self.wheel.remove(key));
    }

    #[inline]
    fn advance(&mut self, ticks: u64) -> usize {
        let now = Tick(self.wheel.now().0 + ticks);
        let turn = self.wheel.advance(now, ALL, &mut self.expired);
        self.expired.clear();
        turn.expired
    }
}

/// hierarchical_hash_wheel_timer's, four levels of 256 and one unit a tick. A cancelled timer stays in its bucket until
/// its time comes.
#[derive(Default)]
struct Theirs {
    wheel: QuadWheelWithOverflow<IdOnlyTimerEntry<u64>>,
    next: u64,
}

impl Structure for Theirs {
    type Key = u64;

    #[inline]
    fn insert(&mut self, delay: u64) -> u64 {
        self.next += 1;
        let entry = IdOnlyTimerEntry::new(self.next, Duration::from_millis(delay));
        self.wheel.insert_ref(Rc::new(entry)).expect("it lies ahead");
        self.next
    }

    #[inline]
    fn remove(&mut self, key: u64) {
        self.wheel.cancel(&key).expect("it is pending");
    }

    #[inline]
    fn advance(&mut self, ticks: u64) -> usize {
        (0..ticks).map(|_| self.wheel.tick().len()).sum()
    }
}

/// Delays to draw from, in ticks.
#[derive(Clone, Copy)]
enum Distance {
    /// Within the finest level.
    Near,
    /// Within 40 minutes of 10 ms ticks: on the second level, or hundreds of rounds away.
    Far,
}

impl Distance {
    const fn most(self) -> u64 {
        match self {
            Distance::Near => 255,
            Distance::Far => 240_000,
        }
    }

    #[inline]
    fn draw(self, random: &mut Random) -> u64 {
        1 + random.below(self.most())
    }
}

fn filled<S: Structure>(mut structure: S, distance: Distance) -> (S, Vec<S::Key>) {
    let mut random = Random::default();
    let mut keys: Vec<S::Key> = (0..TIMERS)
        .map(|_| structure.insert(distance.draw(&mut random)))
        .collect();
    for last in (1..keys.len()).rev() {
        keys.swap(last, random.below(last as u64 + 1) as usize);
    }
    (structure, keys)
}

fn for_each<R>(group: &mut BenchmarkGroup<'_, WallTime>, run: R)
where
    R: Fn(&mut BenchmarkGroup<'_, WallTime>, &str, Which),
{
    run(group, "levels(4)", Which::Ours(4));
    run(group, "levels(1)", Which::Ours(1));
    run(group, "hierarchical_hash_wheel_timer", Which::Theirs);
}

#[derive(Clone, Copy)]
enum Which {
    Ours(usize),
    Theirs,
}

/// Runs a generic function with the structure meant.
macro_rules! with {
    ($which:expr, $function:ident($($argument:expr),*)) => {
        match $which {
            Which::Ours(levels) => $function(|| Ours::new(levels), $($argument),*),
            Which::Theirs => $function(Theirs::default, $($argument),*),
        }
    };
}

/// One more timer, started and cancelled beside 100,000; a tick for every thousand, so that a peer can clear up.
fn churn<S: Structure>(new: impl Fn() -> S, group: &mut BenchmarkGroup<'_, WallTime>, name: &str) {
    let (mut structure, _keys) = filled(new(), Distance::Far);
    let mut random = Random::default();
    let mut count = 0;
    group.bench_function(name, |b| {
        b.iter(|| {
            let key = structure.insert(Distance::Far.draw(&mut random));
            structure.remove(black_box(key));
            count += 1;
            if count % 1_000 == 0 {
                structure.advance(1);
            }
        });
    });
}

/// 100,000 timers started.
fn insert<S: Structure>(
    new: impl Fn() -> S,
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    distance: Distance,
) {
    group.bench_function(name, |b| {
        b.iter_batched(
            &new,
            |structure| filled_in_order(structure, distance),
            BatchSize::PerIteration,
        );
    });
}

fn filled_in_order<S: Structure>(mut structure: S, distance: Distance) -> S {
    let mut random = Random::default();
    for _ in 0..TIMERS {
        black_box(structure.insert(distance.draw(&mut random)));
    }
    structure
}

/// 100,000 timers cancelled, in random order.
fn remove<S: Structure>(
    new: impl Fn() -> S,
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    distance: Distance,
) {
    group.bench_function(name, |b| {
        b.iter_batched(
            || filled(new(), distance),
            |(mut structure, keys)| {
                keys.into_iter().for_each(|key| structure.remove(key));
                structure
            },
            BatchSize::PerIteration,
        );
    });
}

/// 100,000 timers to their end, tick by tick.
fn advance<S: Structure>(
    new: impl Fn() -> S,
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    distance: Distance,
) {
    group.bench_function(name, |b| {
        b.iter_batched(
            || filled_in_order(new(), distance),
            |mut structure| {
                let expired: usize = (0..distance.most()).map(|_| structure.advance(1)).sum();
                assert_eq!(expired, TIMERS);
                structure
            },
            BatchSize::PerIteration,
        );
    });
}

fn structure(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel-churn");
    for_each(&mut group, |group, name, which| with!(which, churn(group, name)));
    group.finish();

    let each = |c: &mut Criterion, name: &str, run: fn(&mut BenchmarkGroup<'_, WallTime>, &str, Which)| {
        let mut group = c.benchmark_group(name);
        group
            .sampling_mode(SamplingMode::Flat)
            .sample_size(10)
            .throughput(Throughput::Elements(TIMERS as u64));
        for_each(&mut group, run);
    };
    each(c, "wheel-insert", |group, name, which| {
        with!(which, insert(group, name, Distance::Far))
    });
    each(c, "wheel-remove", |group, name, which| {
        with!(which, remove(group, name, Distance::Far))
    });
    each(c, "wheel-advance-near", |group, name, which| {
        with!(which, advance(group, name, Distance::Near));
    });
    each(c, "wheel-advance-far", |group, name, which| {
        with!(which, advance(group, name, Distance::Far));
    });
}

/// A jump over a million empty ticks, and one over a single tick.
fn jump(c: &mut Criterion) {
    let mut group = c.benchmark_group("wheel-jump");
    for ticks in [1, 1_000_000] {
        group.bench_function(format!("levels(4)/{ticks}"), |b| {
            let mut ours = Ours::new(4);
            let _far = ours.insert(1 << 40);
            b.iter(|| ours.advance(black_box(ticks)));
        });
    }
}

criterion_group!(benches, structure, jump);
criterion_main!(benches);
