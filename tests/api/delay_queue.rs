//! `DelayQueue`: order, wake-ups, keys, distant deadlines, refusals by the wheel, and a comparison with a
//! simple model.

use crate::support;

use std::{
    collections::HashSet,
    fmt::Debug,
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use futures::StreamExt;
use proptest::prelude::*;
use tickwheel::{
    DelayQueue, Wheel,
    delay_queue::{Expired, Key},
};
use tokio::{
    task::{coop::unconstrained, yield_now},
    time::Instant,
};
use tokio_test::{assert_pending, assert_ready, task};

use support::{
    DAY, SECOND, TICK, advance, ms, paused_runtime, real_runtime, settle, threaded_runtime, within,
};

const fn send_sync_unpin<T: Send + Sync + Unpin + Debug>() {}
const _: () = send_sync_unpin::<DelayQueue<u8>>();
const _: () = send_sync_unpin::<Expired<u8>>();
const _: () = send_sync_unpin::<Key>();

const fn unpin_whatever_it_holds<T: Unpin>() {}
const _: () = unpin_whatever_it_holds::<DelayQueue<std::marker::PhantomPinned>>();

const YEAR: Duration = Duration::from_secs(365 * 86_400);

type Spawned<T> = task::Spawn<DelayQueue<T>>;

fn poll<T>(queue: &mut Spawned<T>) -> Poll<Option<Expired<T>>> {
    queue.enter(|cx, mut queue| queue.poll_expired(cx))
}

#[track_caller]
fn assert_next<T: PartialEq + Debug>(queue: &mut Spawned<T>, value: T) {
    let expired = assert_ready!(poll(queue)).expect("the queue is not empty");
    assert!(expired.deadline() <= Instant::now(), "early");
    assert_eq!(expired.into_inner(), value);
}

#[track_caller]
fn assert_empty<T: Debug>(queue: &mut Spawned<T>) {
    assert!(assert_ready!(poll(queue)).is_none());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_woken_by_an_insertion_before_all_others_and_by_no_other() {
    let mut queue = task::spawn(DelayQueue::on(&Wheel::new()));
    assert_empty(&mut queue);
    queue.insert("last", 3 * SECOND);
    assert!(queue.is_woken(), "it was empty");
    assert_pending!(poll(&mut queue));

    queue.insert("behind it", 3 * SECOND);
    assert!(!queue.is_woken());
    queue.insert("first", SECOND);
    assert!(queue.is_woken());
    assert_pending!(poll(&mut queue));

    // Not even when the first has just been removed.
    let before = queue.insert("before all", SECOND / 2);
    assert_pending!(poll(&mut queue));
    queue.remove(&before);
    queue.insert("far behind", DAY);
    assert!(!queue.is_woken());
    queue.insert("between them", SECOND / 2 + ms(100));
    assert!(queue.is_woken());
    assert_pending!(poll(&mut queue));

    advance(SECOND / 2).await;
    assert!(!queue.is_woken());
    for (value, after) in [
        ("between them", ms(100)),
        ("first", ms(400)),
        ("last", 2 * SECOND),
    ] {
        advance(after).await;
        assert!(queue.is_woken(), "{value}");
        assert_next(&mut queue, value);
        if value != "last" {
            assert_pending!(poll(&mut queue));
        }
    }
    assert_next(&mut queue, "behind it");
}

/// tokio #8274, #849.
#[tokio::test(start_paused = true)]
async fn a_reset_of_the_first_wakes_and_then_the_old_deadline_does_not() {
    let wheel = Wheel::new();
    let mut queue = task::spawn(DelayQueue::on(&wheel));
    let first = queue.insert("first", SECOND);
    let second = queue.insert("second", 2 * SECOND);
    assert_pending!(poll(&mut queue));

    queue.reset(&second, 3 * SECOND);
    assert!(!queue.is_woken(), "it was not the first, nor is it now");

    queue.reset(&first, 2 * SECOND);
    assert!(queue.is_woken());
    assert_pending!(poll(&mut queue));
    advance(SECOND + SECOND / 2).await;
    assert!(!queue.is_woken(), "the timer stayed behind");

    queue.reset(&second, ms(1));
    assert!(queue.is_woken(), "it is the first now");
    assert_pending!(poll(&mut queue));
    queue.reset_at(&second, Instant::now() - SECOND);
    assert!(queue.is_woken());
    assert_next(&mut queue, "second");
    assert_pending!(poll(&mut queue));
    assert_eq!(wheel.pending(), 1);

    advance(SECOND / 2).await;
    assert!(queue.is_woken());
    assert_next(&mut queue, "first");
    assert_empty(&mut queue);
    assert_eq!(wheel.pending(), 0, "an empty queue has no timer");
}

#[test]
fn a_timer_moves_later_without_a_wake_up_at_the_old_deadline() {
    real_runtime().block_on(async {
        let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
        let mut queue = task::spawn(DelayQueue::on(&wheel));
        let start = Instant::now();
        let key = queue.insert_at("foo", start + ms(60_000));
        assert_pending!(poll(&mut queue));
        for seconds in [1, 60] {
            queue.reset_at(&key, Instant::now() + ms(10));
            // A stall of the machine may have made it due.
            if poll(&mut queue).is_pending() {
                queue.reset_at(&key, start + SECOND * seconds * 60);
                assert_pending!(poll(&mut queue));
                wheel.sleep(ms(30)).await;
                assert!(!queue.is_woken());
            }
        }
        queue.insert_at("bar", start + ms(45));
        let mut queue = queue.into_inner();
        let expired = queue.next().await.unwrap();
        assert!(Instant::now() >= start + ms(45));
        assert_eq!(expired.into_inner(), "bar");
        assert_eq!(wheel.metrics().rejected, 0);
    });
}

#[tokio::test(start_paused = true)]
async fn it_has_one_timer_however_many_values_it_holds() {
    let wheel = Wheel::new();
    let mut queue = task::spawn(DelayQueue::on(&wheel));
    let keys: Vec<_> = (0..10_000)
        .map(|millis| queue.insert(millis, ms(100_000 + millis)))
        .collect();
    assert_eq!(wheel.pending(), 0, "nobody waits");
    assert_pending!(poll(&mut queue));
    assert_eq!(wheel.pending(), 1);
    for key in &keys[1..] {
        queue.reset(key, DAY);
    }
    assert_pending!(poll(&mut queue));
    assert_eq!(wheel.pending(), 1);
    drop(queue);
    assert_eq!(wheel.pending(), 0);
}

/// tokio #5536 and kube #1772: 2.2 years were the end, of delays and of uptime.
#[tokio::test(start_paused = true)]
async fn there_is_no_horizon() {
    let mut queue = task::spawn(DelayQueue::on(&Wheel::new()));
    queue.insert("at first", SECOND);
    advance(ms(1 << 36)).await;
    queue.insert("after 2.2 years", 10 * SECOND);
    let kube = queue.insert("in 3 years", 3 * YEAR);
    let now = Instant::now();
    assert_eq!(queue.deadline(&kube), now + 3 * YEAR);

    let most = queue.insert("overflow", Duration::MAX);
    assert_eq!(queue.deadline(&most), now + 30 * YEAR);
    let far: Vec<_> = [292, 293, 500]
        .map(|years| (queue.insert("far", years * YEAR), now + years * YEAR))
        .to_vec();
    for years in [1_000, 200_000_000] {
        let beyond = queue.insert("beyond", years * YEAR);
        assert!(queue.deadline(&beyond) > now + 500 * YEAR);
        queue.remove(&beyond);
    }
    queue.compact();
    for (key, deadline) in &far {
        assert_eq!(queue.deadline(key), *deadline);
    }

    assert_next(&mut queue, "at first");
    assert_pending!(poll(&mut queue));
    advance(10 * SECOND).await;
    assert!(queue.is_woken());
    assert_next(&mut queue, "after 2.2 years");
    assert_pending!(poll(&mut queue));
    advance(3 * YEAR).await;
    assert!(queue.is_woken());
    assert_next(&mut queue, "in 3 years");

    for (key, deadline) in far {
        queue.reset_at(&key, deadline + SECOND);
        assert_eq!(queue.deadline(&key), deadline + SECOND);
        let removed = queue.remove(&key);
        assert_eq!(removed.deadline(), deadline + SECOND);
    }
    queue.reset(&most, SECOND);
    advance(SECOND).await;
    assert_next(&mut queue, "overflow");
    assert_empty(&mut queue);
}

#[tokio::test(start_paused = true)]
async fn a_key_names_one_entry_for_ever() {
    let mut queue = DelayQueue::on(&Wheel::new());
    let mut other = DelayQueue::on(&Wheel::new());
    let stale = [
        {
            let key = queue.insert(0, SECOND);
            queue.remove(&key);
            key
        },
        {
            let key = queue.insert(0, Duration::ZERO);
            assert_eq!(queue.next().await.unwrap().key(), key);
            key
        },
        {
            let key = queue.insert(0, SECOND);
            queue.clear();
            key
        },
        other.insert(0, SECOND),
    ];
    // Whatever was in the cells that those had is somebody else now.
    let live: Vec<_> = (0..10).map(|value| queue.insert(value, SECOND)).collect();
    queue.remove(&live[0]);
    queue.remove(&live[4]);
    queue.compact();
    let late = queue.insert(10, SECOND);
    let len = queue.len();

    for key in stale.into_iter().chain([live[0], live[4]]) {
        assert!(queue.try_remove(&key).is_none());
        assert!(!queue.try_reset(&key, SECOND));
        assert!(!queue.try_reset_at(&key, Instant::now()));
        let uses: [fn(&mut DelayQueue<i32>, &Key); 4] = [
            |queue, key| {
                queue.remove(key);
            },
            |queue, key| queue.reset(key, SECOND),
            |queue, key| queue.reset_at(key, Instant::now()),
            |queue, key| {
                queue.deadline(key);
            },
        ];
        for use_it in uses {
            let panicked = catch_unwind(AssertUnwindSafe(|| use_it(&mut queue, &key))).unwrap_err();
            let message = panicked.downcast::<String>().unwrap();
            assert!(message.contains("invalid key: Key("), "{message}");
        }
    }
    assert_eq!(queue.len(), len);
    for value in [1, 2, 3, 5, 6, 7, 8, 9] {
        let removed = queue.remove(&live[value as usize]);
        assert_eq!(
            (removed.key(), removed.into_inner()),
            (live[value as usize], value)
        );
    }
    assert_eq!(queue.peek(), Some(late));
    assert_eq!(queue.remove(&late).into_inner(), 10);
    assert_eq!(other.len(), 1);

    let keys: HashSet<Key> = (0..5_000).map(|_| queue.insert(0, SECOND)).collect();
    let others: HashSet<Key> = (0..5_000).map(|_| other.insert(0, SECOND)).collect();
    assert_eq!((keys.len(), others.len()), (5_000, 5_000));
    assert!(keys.is_disjoint(&others));
}

#[tokio::test(start_paused = true)]
async fn memory_is_kept_until_it_is_asked_for() {
    let mut queue = DelayQueue::with_capacity(100);
    let capacity = queue.capacity();
    assert!(capacity >= 100);
    let keys: Vec<_> = (0..100).map(|value| queue.insert(value, SECOND)).collect();
    assert_eq!(queue.capacity(), capacity);
    queue.reserve(1_000);
    assert!(queue.capacity() >= 1_100);
    for key in &keys[..99] {
        queue.remove(key);
    }
    queue.shrink_to_fit();
    assert!(queue.capacity() >= 100, "the last one is where it was");
    queue.compact();
    assert_eq!(queue.capacity(), 1);
    assert_eq!(queue.next().await.unwrap().key(), keys[99]);
    queue.compact();
    assert_eq!(queue.capacity(), 0);

    let panicked = catch_unwind(AssertUnwindSafe(|| queue.reserve(usize::MAX)));
    assert!(panicked.is_err());
    queue.insert(0, SECOND);
    queue.clear();
    assert!(queue.is_empty() && queue.capacity() > 0);
}

#[test]
fn new_is_on_the_global_wheel_in_whichever_runtime_uses_it() {
    let mut queue = DelayQueue::new();
    // Outside of any runtime, as far as that goes.
    let key = queue.insert("foo", Duration::from_secs(3600));
    assert_eq!(queue.peek(), Some(key));
    assert!(queue.try_reset(&key, SECOND));
    assert_eq!(queue.expired(&mut Vec::new(), 1), 0);

    paused_runtime().block_on(async {
        let mut queue = task::spawn(DelayQueue::default());
        queue.insert("bar", SECOND);
        assert_pending!(poll(&mut queue));
    });
    real_runtime().block_on(async {
        let mut queue = task::spawn(queue);
        assert_pending!(poll(&mut queue));
        queue.reset(&key, Duration::ZERO);
        assert_eq!(queue.next().await.unwrap().into_inner(), "foo");
    });
}

#[test]
fn a_queue_that_outlives_the_paused_runtime_it_waited_on_goes_on_elsewhere() {
    for on_global in [true, false] {
        for next in [paused_runtime, real_runtime] {
            let mut queue = if on_global {
                DelayQueue::new()
            } else {
                DelayQueue::on(&Wheel::new())
            };
            paused_runtime().block_on(async {
                queue.insert("first", ms(30));
                queue.insert("second", ms(40));
                assert!(futures::poll!(queue.next()).is_pending());
                advance(ms(20)).await;
            });
            next().block_on(async {
                let start = Instant::now();
                assert_eq!(queue.next().await.unwrap().into_inner(), "first");
                assert!(start.elapsed() >= ms(10));
                assert_eq!(queue.next().await.unwrap().into_inner(), "second");
                assert!(queue.next().await.is_none());
            });
        }
    }
}

/// A million values that are due do not keep a task's neighbours waiting.
#[tokio::test(start_paused = true)]
async fn it_takes_part_in_the_budget() {
    let mut queue = DelayQueue::on(&Wheel::new());
    for value in 0..1_000 {
        queue.insert(value, Duration::ZERO);
    }
    let consumer = tokio::spawn(async move { while queue.next().await.is_some() {} });
    let neighbour = tokio::spawn(async {});
    neighbour.await.unwrap();
    assert!(!consumer.is_finished());
    consumer.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_that_had_waited_hears_when_another_takes_something() {
    let mut queue = DelayQueue::on(&Wheel::new());
    queue.insert(1, SECOND);
    queue.insert(2, DAY);
    let mut first = task::spawn(());
    let mut second = task::spawn(());
    assert!(first.enter(|cx, _| queue.poll_expired(cx)).is_pending());
    advance(SECOND).await;
    assert!(first.is_woken());
    assert!(first.enter(|cx, _| queue.poll_expired(cx)).is_ready());
    assert!(first.enter(|cx, _| queue.poll_expired(cx)).is_pending());

    let key = queue.insert(3, 2 * SECOND);
    assert!(first.enter(|cx, _| queue.poll_expired(cx)).is_pending());
    tokio::time::advance(2 * SECOND).await;
    settle().await;
    let expired = second.enter(|cx, _| queue.poll_expired(cx));
    assert_eq!(assert_ready!(expired).unwrap().key(), key);
    assert!(first.is_woken());
    assert!(!second.is_woken());
}

#[test]
fn a_value_that_panics_when_dropped_leaves_a_queue_that_works() {
    struct Bomb(bool);
    impl Drop for Bomb {
        fn drop(&mut self) {
            assert!(!self.0, "bomb");
        }
    }
    paused_runtime().block_on(async {
        let mut queue = DelayQueue::on(&Wheel::new());
        for armed in [false, true, false] {
            queue.insert(Bomb(armed), SECOND);
        }
        let panicked = catch_unwind(AssertUnwindSafe(|| queue.clear()));
        assert!(panicked.is_err());
        assert!(queue.is_empty());
        assert!(queue.next().await.is_none());
        let key = queue.insert(Bomb(false), SECOND);
        assert_eq!(queue.next().await.unwrap().key(), key);
    });
}

#[derive(Clone, Debug)]
enum Op {
    Insert(When),
    Remove(usize),
    Reset(usize, When),
    Clear,
    Compact,
    Poll,
    Expired(usize),
    Advance(u64),
}

/// Milliseconds, or microseconds, from now.
#[derive(Clone, Copy, Debug)]
enum When {
    Ahead(Duration),
    Past(Duration),
    /// The deadline of another value.
    As(usize),
}

fn when() -> impl Strategy<Value = When> {
    prop_oneof![
        3 => (0..50_u64).prop_map(|millis| When::Ahead(ms(millis))),
        2 => (0..100_000_u64).prop_map(|micros| When::Ahead(Duration::from_micros(micros))),
        1 => (0..100_000_u64).prop_map(|seconds| When::Ahead(SECOND * seconds as u32)),
        1 => (0..9_000_000_000_u64).prop_map(|seconds| When::Ahead(Duration::from_secs(seconds))),
        1 => (0..100_u64).prop_map(|millis| When::Past(ms(millis))),
        2 => any::<usize>().prop_map(When::As),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => when().prop_map(Op::Insert),
        3 => any::<usize>().prop_map(Op::Remove),
        4 => (any::<usize>(), when()).prop_map(|(which, when)| Op::Reset(which, when)),
        1 => Just(Op::Clear),
        1 => Just(Op::Compact),
        8 => Just(Op::Poll),
        1 => (0..5_usize).prop_map(Op::Expired),
        3 => (0..40_u64).prop_map(Op::Advance),
        1 => (0..200_000_u64).prop_map(Op::Advance),
    ]
}

/// A queue beside a list in which every step is plain.
struct Model {
    queue: Spawned<u64>,
    /// In the order in which they must come: by deadline, then by when they were set.
    values: Vec<Value>,
    gone: Vec<Key>,
    inserted: u64,
    /// Polled last, it found nothing, and nothing has happened since of which it must hear.
    waiting: bool,
}

#[derive(Clone, Copy)]
struct Value {
    deadline: Instant,
    number: u64,
    key: Key,
}

impl Model {
    fn at(&self, when: When) -> Instant {
        let now = Instant::now();
        match when {
            When::Ahead(duration) => now + duration,
            When::Past(duration) => now - duration,
            When::As(_) if self.values.is_empty() => now,
            When::As(which) => self.values[which % self.values.len()].deadline,
        }
    }

    fn put(&mut self, value: Value) {
        let place = self
            .values
            .partition_point(|other| other.deadline <= value.deadline);
        self.values.insert(place, value);
        self.must_be_woken_if(
            place == 0
                && self
                    .values
                    .get(1)
                    .is_none_or(|next| value.deadline < next.deadline),
        );
    }

    #[track_caller]
    fn must_be_woken_if(&mut self, happened: bool) {
        if self.waiting && happened {
            assert!(self.queue.is_woken(), "a wake-up is missing");
            self.waiting = false;
        }
    }

    #[track_caller]
    fn left(&mut self, expired: &Expired<u64>, value: Value) {
        assert_eq!(expired.key(), value.key);
        assert_eq!(*expired.get_ref(), value.number);
        assert_eq!(expired.deadline(), value.deadline);
        self.gone.push(value.key);
    }

    async fn step(&mut self, op: Op) {
        match op {
            Op::Insert(when) => {
                let deadline = self.at(when);
                let number = self.inserted;
                self.inserted += 1;
                let key = self.queue.insert_at(number, deadline);
                self.put(Value {
                    deadline,
                    number,
                    key,
                });
            }
            Op::Remove(which) if !self.values.is_empty() => {
                let value = self.values.remove(which % self.values.len());
                let removed = self.queue.remove(&value.key);
                self.left(&removed, value);
                self.must_be_woken_if(self.values.is_empty());
            }
            Op::Reset(which, when) if !self.values.is_empty() => {
                let which = which % self.values.len();
                let deadline = self.at(when);
                let value = self.values.remove(which);
                self.queue.reset_at(&value.key, deadline);
                let was_first = self
                    .values
                    .first()
                    .is_none_or(|next| value.deadline < next.deadline);
                self.must_be_woken_if(which == 0 && was_first);
                self.put(Value { deadline, ..value });
            }
            Op::Clear => {
                self.queue.clear();
                self.must_be_woken_if(!self.values.is_empty());
                self.gone.extend(self.values.drain(..).map(|value| value.key));
            }
            Op::Compact => {
                self.queue.compact();
                assert_eq!(self.queue.capacity(), self.values.len());
            }
            Op::Poll => {
                let now = Instant::now();
                match poll(&mut self.queue) {
                    Poll::Ready(Some(expired)) => {
                        let value = self.values.remove(0);
                        assert!(value.deadline <= now, "early");
                        self.left(&expired, value);
                        self.waiting = false;
                    }
                    Poll::Ready(None) => {
                        assert!(self.values.is_empty());
                        self.waiting = true;
                    }
                    Poll::Pending => {
                        let first = self.values.first().expect("an empty queue is at its end");
                        assert!(now < first.deadline + TICK, "late");
                        self.waiting = true;
                    }
                }
            }
            Op::Expired(limit) => {
                let now = Instant::now();
                let due = self
                    .values
                    .partition_point(|value| value.deadline <= now)
                    .min(limit);
                let mut expired = Vec::new();
                assert_eq!(self.queue.expired(&mut expired, limit), due);
                let values: Vec<_> = self.values.drain(..due).collect();
                for (expired, value) in expired.iter().zip(values) {
                    self.left(expired, value);
                }
                self.must_be_woken_if(due > 0 && self.values.is_empty());
            }
            Op::Advance(millis) => {
                advance(ms(millis)).await;
                let now = Instant::now();
                let late = self
                    .values
                    .first()
                    .is_some_and(|value| value.deadline + TICK <= now);
                self.must_be_woken_if(late);
            }
            Op::Remove(_) | Op::Reset(..) => {}
        }
        self.check();
    }

    fn check(&mut self) {
        assert_eq!(self.queue.len(), self.values.len());
        assert_eq!(self.queue.is_empty(), self.values.is_empty());
        assert_eq!(self.queue.peek(), self.values.first().map(|value| value.key));
        for value in &self.values {
            assert_eq!(self.queue.deadline(&value.key), value.deadline);
        }
        for key in self.gone.iter().rev().take(50) {
            assert!(!self.queue.try_reset(key, SECOND));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn it_does_as_the_model(ops in proptest::collection::vec(op(), 1..120), others in prop_oneof![4 => Just(0), 1 => Just(200)]) {
        paused_runtime().block_on(unconstrained(async {
            let mut model = Model {
                queue: task::spawn(DelayQueue::on(&Wheel::new())),
                values: Vec::new(),
                gone: Vec::new(),
                inserted: 0,
                waiting: false,
            };
            // More in one bucket than a poll looks at.
            for number in 0..others {
                model.step(Op::Insert(When::Ahead(Duration::from_micros(20_000_000 + number * 7919 % 1_000_000)))).await;
            }
            for op in ops {
                model.step(op).await;
            }
        }));
    }
}

/// One task waits; others insert, remove and reset under its feet. A wake-up that is missed hangs it.
#[test]
fn no_wake_up_is_missed_where_a_queue_is_shared() {
    const PRODUCERS: u64 = 3;
    const ROUNDS: u64 = 20_000;
    threaded_runtime(4).block_on(async {
        let wheel = Wheel::builder().tick_duration(ms(1)).build().unwrap();
        let queue = Arc::new(Mutex::new(DelayQueue::on(&wheel)));
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|producer| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut random = producer + 1;
                    let mut removed = 0;
                    for round in 0..ROUNDS {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let key = queue
                            .lock()
                            .unwrap()
                            .insert((), Duration::from_micros(random >> 51));
                        match random >> 32 & 3 {
                            0 => removed += u64::from(queue.lock().unwrap().try_remove(&key).is_some()),
                            1 => drop(
                                queue
                                    .lock()
                                    .unwrap()
                                    .try_reset(&key, Duration::from_micros(random >> 53)),
                            ),
                            2 => drop(
                                queue
                                    .lock()
                                    .unwrap()
                                    .try_reset(&key, Duration::from_micros(random >> 50)),
                            ),
                            _ => {}
                        }
                        if round % 100 == 0 {
                            yield_now().await;
                        }
                    }
                    removed
                })
            })
            .collect();
        let closed = Arc::new(AtomicBool::new(false));
        let consumer = tokio::spawn({
            let (queue, closed) = (queue.clone(), closed.clone());
            async move {
                let mut taken = 0;
                loop {
                    // Read before the poll, which then finds the last one.
                    let is_last = closed.load(Ordering::Acquire);
                    let next = poll_fn(|cx| queue.lock().unwrap().poll_expired(cx)).await;
                    match next {
                        Some(expired) => {
                            assert!(expired.deadline() <= Instant::now());
                            taken += 1;
                        }
                        None if is_last => return taken,
                        None => yield_now().await,
                    }
                }
            }
        });
        let mut removed = 0;
        for producer in producers {
            removed += producer.await.unwrap();
        }
        queue.lock().unwrap().insert((), ms(1));
        closed.store(true, Ordering::Release);
        assert_eq!(consumer.await.unwrap() + removed, PRODUCERS * ROUNDS + 1);
        assert_eq!(wheel.pending(), 0);
    });
}

#[test]
fn years_of_a_paused_clock_pass_one_deadline_at_a_time() {
    let passed = within(60 * SECOND, || {
        paused_runtime().block_on(async {
            let mut queue = DelayQueue::on(&Wheel::new());
            let start = Instant::now();
            for years in (1..=10).map(|times| 30 * times) {
                let key = queue.insert(years, Duration::MAX);
                assert_eq!(queue.deadline(&key), start + years * YEAR);
                assert_eq!(queue.next().await.map(Expired::into_inner), Some(years));
                assert!(Instant::now() < start + years * YEAR + TICK);
            }
            Instant::now() - start
        })
    });
    assert_eq!(passed, 300 * YEAR);
}

/// Each job that is taken late schedules a follow-up before the last of those that wait. With a list that is
/// sorted at each take, this takes hours.
#[tokio::test(start_paused = true)]
async fn an_overdue_queue_may_be_filled_in_any_order() {
    const JOBS: u64 = 20_000;
    let mut queue = DelayQueue::on(&Wheel::new());
    let start = Instant::now();
    for job in 0..JOBS {
        queue.insert_at(job, start + ms(job * 7919 % JOBS));
    }
    advance(DAY).await;
    let mut last = start;
    for _ in 0..5 * JOBS {
        let job = queue.next().await.unwrap();
        assert!(last <= job.deadline());
        last = job.deadline();
        queue.insert_at(job.into_inner(), last + SECOND);
        let (first, earlier) = (queue.peek(), queue.insert_at(0, last - ms(1)));
        assert_eq!(queue.peek(), Some(earlier));
        queue.reset_at(&earlier, last + DAY);
        queue.remove(&earlier);
        assert_eq!(queue.peek(), first);
    }
    assert_eq!(queue.expired(&mut Vec::new(), usize::MAX) as u64, JOBS);
}

/// Waits for all values of a queue, with pauses of its own between them, and says when each came.
macro_rules! log_of {
    ($queue:expr, $start:expr, $script:expr) => {{
        let (mut queue, start, script): (_, Instant, Vec<(i64, u64, bool)>) = ($queue, $start, $script);
        let mut log = Vec::new();
        for (number, &(due, pause, drain)) in script.iter().enumerate() {
            let shift = Duration::from_micros(due.unsigned_abs());
            match due {
                0 => queue.insert(number, Duration::ZERO),
                1.. if due % 2 == 0 => queue.insert(number, shift),
                1.. => queue.insert_at(number, Instant::now() + shift),
                _ => queue.insert_at(number, Instant::now() - shift),
            };
            tokio::time::sleep(Duration::from_micros(pause)).await;
            while drain {
                let Some(expired) = queue.next().await else {
                    break;
                };
                log.push((expired.into_inner(), Instant::now() - start));
            }
        }
        while let Some(expired) = queue.next().await {
            log.push((expired.into_inner(), Instant::now() - start));
        }
        log.sort();
        log
    }};
}

/// As tokio-util's own tests expect it: the test's future is polled before any task, so before the wheel's
/// turn.
#[tokio::test(start_paused = true)]
async fn a_test_that_has_slept_until_the_deadline_finds_the_queue_woken() {
    let mut queue = task::spawn(DelayQueue::new());
    queue.insert("foo", ms(600));
    assert_pending!(queue.poll_next());
    tokio::time::sleep(ms(600)).await;
    assert!(queue.is_woken());
    let expired = assert_ready!(queue.poll_next()).map(Expired::into_inner);
    assert_eq!(expired, Some("foo"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Beside tokio-util's queue, which shares each instant: on a clock that is stopped in mid-millisecond
    /// and moved by fractions.
    #[test]
    fn values_come_at_the_instants_of_tokio_utils(
        paused in 0..3_000_u64,
        advanced in 0..3_000_u64,
        script in proptest::collection::vec((-3_000..9_000_i64, 0..3_000_u64, any::<bool>()), 1..20),
    ) {
        let logs = real_runtime().block_on(async {
            std::thread::sleep(Duration::from_micros(paused));
            tokio::time::pause();
            advance(Duration::from_micros(advanced)).await;
            let start = Instant::now();
            let wheel = Wheel::new();
            let (ours, theirs) = (DelayQueue::on(&wheel), tokio_util::time::DelayQueue::new());
            let script = (script.clone(), script);
            tokio::join!(
                async { log_of!(ours, start, script.0) },
                async { log_of!(theirs, start, script.1) },
            )
        });
        prop_assert_eq!(logs.0, logs.1);
    }
}

/// More than any machine gives, and more than keys can name.
#[test]
fn memory_that_cannot_be_had_is_a_panic_that_names_the_number() {
    for capacity in [1 << 30, 1 << 36, 1 << 57, usize::MAX] {
        let made = catch_unwind(|| DelayQueue::<[u64; 1 << 10]>::with_capacity(capacity).capacity());
        let reserved = catch_unwind(|| {
            let mut queue = DelayQueue::<[u64; 1 << 10]>::new();
            queue.reserve(capacity);
            queue.capacity()
        });
        for refused in [made, reserved].map(Result::unwrap_err) {
            let message = refused.downcast_ref::<String>().expect("a message with a number");
            assert!(message.contains(&capacity.to_string()), "{message}");
        }
    }
}
