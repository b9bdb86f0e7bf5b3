//! What does a `DelayQueue` cost beside tokio-util's: insert and remove, reset, insert to expiry, from a thousand values to a million? And a queue
//! that is far behind?

use std::{
    hint::black_box,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, measurement::WallTime};
use criterion::{criterion_group, criterion_main};
use fastrand::Rng;
use tickwheel_benches::work::Durations;
use tokio::runtime::{Builder, Runtime};

const SIZES: [usize; 3] = [1_000, 30_000, 1_000_000];

/// A round of work on a queue of so many values. Returns the time spent.
type Run = fn(&Runtime, usize) -> Duration;

/// The two queues have the same names, and no trait in common.
trait Queue: Default {
    type Key: Copy;

    fn insert(&mut self, value: u64, delay: Duration) -> Self::Key;
    fn remove(&mut self, key: &Self::Key) -> u64;
    fn reset(&mut self, key: &Self::Key, delay: Duration);
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<u64>>;
    /// Takes the next value, which is due, and inserts it again, due so much later than it was.
    fn follow_up(&mut self, cx: &mut Context<'_>, later: Duration) -> bool;
}

macro_rules! queue {
    ($queue:ty, $key:ty) => {
        impl Queue for $queue {
            type Key = $key;

            #[inline]
            fn insert(&mut self, value: u64, delay: Duration) -> $key {
                self.insert(value, delay)
            }

            #[inline]
            fn remove(&mut self, key: &$key) -> u64 {
                self.remove(key).into_inner()
            }

            #[inline]
            fn reset(&mut self, key: &$key, delay: Duration) {
                self.reset(key, delay);
            }

            #[inline]
            fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<u64>> {
                self.poll_expired(cx)
                    .map(|expired| Some(expired?.into_inner()))
            }

            #[inline]
            fn follow_up(&mut self, cx: &mut Context<'_>, later: Duration) -> bool {
                let Poll::Ready(Some(expired)) = self.poll_expired(cx) else {
                    return false;
                };
                let due = expired.deadline() + later;
                self.insert_at(expired.into_inner(), due);
                true
            }
        }
    };
}

queue!(tickwheel::DelayQueue<u64>, tickwheel::delay_queue::Key);
queue!(
    tokio_util::time::DelayQueue<u64>,
    tokio_util::time::delay_queue::Key
);

/// A queue of so many values, which a task waits for, and their keys in no order.
struct Held<Q: Queue> {
    queue: Q,
    keys: Vec<Q::Key>,
    random: Rng,
}

impl<Q: Queue> Held<Q> {
    fn new(values: usize) -> Held<Q> {
        let mut held = Held {
            queue: Q::default(),
            keys: Vec::with_capacity(values),
            random: Rng::with_seed(7),
        };
        for value in 0..values {
            let delay = held.delay();
            held.keys.push(held.queue.insert(value as u64, delay));
        }
        let mut cx = Context::from_waker(Waker::noop());
        assert!(held.queue.poll(&mut cx).is_pending());
        held
    }

    #[inline]
    fn delay(&mut self) -> Duration {
        Durations::Random.draw(&mut self.random)
    }

    /// One more value comes and goes.
    #[inline]
    fn insert_and_remove(&mut self) {
        let delay = self.delay();
        let key = self.queue.insert(0, delay);
        black_box(self.queue.remove(&key));
    }

    /// One of them, any, goes, and another comes.
    #[inline]
    fn replace(&mut self) {
        let which = self.random.usize(..self.keys.len());
        black_box(self.queue.remove(&self.keys[which]));
        let delay = self.delay();
        self.keys[which] = self.queue.insert(0, delay);
    }

    /// One of them, any, is heard of.
    #[inline]
    fn reset(&mut self) {
        let which = self.random.usize(..self.keys.len());
        self.queue.reset(&self.keys[which], Duration::from_secs(900));
    }
}

/// So many values are inserted, and taken once all are due; what is not measured is the time in between.
fn insert_to_expiry<Q: Queue>(runtime: &Runtime, values: usize) -> Duration {
    const SPAN: Duration = Duration::from_millis(50);
    runtime.block_on(tokio::task::unconstrained(async {
        let mut random = Rng::with_seed(7);
        let mut queue = Q::default();
        let start = Instant::now();
        for value in 0..values as u64 {
            queue.insert(
                value,
                Duration::from_micros(1_000 + random.u64(..SPAN.as_micros() as u64)),
            );
        }
        let mut spent = start.elapsed();
        thread::sleep(SPAN + Duration::from_millis(20));

        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = 0;
        let mut start = Instant::now();
        loop {
            match queue.poll(&mut cx) {
                Poll::Ready(Some(value)) => {
                    black_box(value);
                    taken += 1;
                }
                Poll::Ready(None) => break,
                // For tokio-util's, the runtime has to look at its timers once.
                Poll::Pending => {
                    spent += start.elapsed();
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    start = Instant::now();
                }
            }
        }
        spent += start.elapsed();
        assert_eq!(taken, values);
        spent
    }))
}

/// So many overdue jobs, in no order, each of which schedules a follow-up that is overdue too, five times.
fn overdue<Q: Queue>(runtime: &Runtime, jobs: usize) -> Duration {
    const LATER: Duration = Duration::from_millis(10);
    runtime.block_on(tokio::task::unconstrained(async {
        let mut random = Rng::with_seed(7);
        let mut queue = Q::default();
        for job in 0..jobs as u64 {
            queue.insert(job, Duration::from_micros(random.u64(1_000..11_000)));
        }
        tokio::time::sleep(LATER * 7).await;
        let mut cx = Context::from_waker(Waker::noop());
        let start = Instant::now();
        for _ in 0..5 * jobs {
            assert!(queue.follow_up(&mut cx, LATER));
        }
        start.elapsed()
    }))
}

fn measure<Q: Queue>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    work: fn(&mut Held<Q>),
    runtime: &Runtime,
) {
    for size in SIZES {
        let _entered = runtime.enter();
        let mut held = None;
        group.bench_function(BenchmarkId::new(name, size), |b| {
            let held = held.get_or_insert_with(|| Held::new(size));
            b.iter(|| work(held));
        });
    }
}

fn delay_queue(c: &mut Criterion) {
    type Ours = tickwheel::DelayQueue<u64>;
    type Theirs = tokio_util::time::DelayQueue<u64>;
    let runtime = Builder::new_current_thread().enable_time().build().unwrap();

    let mut each = |name: &str, ours: fn(&mut Held<Ours>), theirs: fn(&mut Held<Theirs>)| {
        let mut group = c.benchmark_group(name);
        measure(&mut group, "tickwheel", ours, &runtime);
        measure(&mut group, "tokio-util", theirs, &runtime);
    };
    each(
        "queue-insert-remove",
        Held::insert_and_remove,
        Held::insert_and_remove,
    );
    each("queue-replace", Held::replace, Held::replace);
    each("queue-reset", Held::reset, Held::reset);

    let mut whole = |name: &str, runs: [Run; 2], sizes: &[usize], taken_each: usize| {
        let mut group = c.benchmark_group(name);
        group.sample_size(10);
        for &size in sizes {
            for (name, run) in ["tickwheel", "tokio-util"].into_iter().zip(runs) {
                group.bench_function(BenchmarkId::new(name, size), |b| {
                    // Of one value.
                    b.iter_custom(|times| {
                        let taken = (size * taken_each) as u64;
                        let rounds = times.div_ceil(taken);
                        let spent: Duration = (0..rounds).map(|_| run(&runtime, size)).sum();
                        spent.mul_f64(times as f64 / (rounds * taken) as f64)
                    });
                });
            }
        }
    };
    whole(
        "queue-insert-to-expiry",
        [insert_to_expiry::<Ours>, insert_to_expiry::<Theirs>],
        &SIZES,
        1,
    );
    whole(
        "queue-overdue",
        [overdue::<Ours>, overdue::<Theirs>],
        &[20_000],
        5,
    );
}

criterion_group!(benches, delay_queue);
criterion_main!(benches);
