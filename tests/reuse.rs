//! In a ticking shard, the next timeout of a task may take over the timer of the one cancelled before. That must not be observable in the
//! counters, the limit, the time at which a timeout elapses, or the task that is woken.
//!
//! All of it runs on the real clock, because a shard ticks only there.

mod support;

use std::{
    future::{Future, Pending, pending},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Barrier, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use tickwheel::{Sleep, Timeout, TimeoutError, Wheel, time::error::Elapsed};
use tokio::runtime::Runtime;

use support::{
    DAY, SECOND, alive_tasks, assert_adds_up, assert_arena_given_back, assert_at_rest, counting_waker,
    make_tick, ms, real_runtime, register_for, threaded_runtime, within,
};

type Waiting = Timeout<Pending<()>>;

fn wheel() -> Wheel {
    Wheel::builder().tick_duration(ms(2)).shards(1).build().unwrap()
}

/// A wheel of one shard, and the runtime that drives it, of which the threads of the test are no workers.
fn driven_elsewhere() -> (Runtime, Wheel) {
    let runtime = threaded_runtime(1);
    let wheel = Wheel::builder().handle(runtime.handle().clone()).shards(1);
    (runtime, wheel.build().unwrap())
}

/// A timeout that waits, for `waker`.
fn waiting(wheel: &Wheel, duration: Duration, waker: &Waker) -> Waiting {
    let mut timeout = wheel.timeout(duration, pending());
    register_for(waker, &mut timeout);
    timeout
}

/// Waits until it has come to that. Ten seconds are far longer than it may take.
async fn until(what: &str, has_come: impl Fn() -> bool) {
    let given_up = Instant::now() + 10 * SECOND;
    while !has_come() {
        assert!(Instant::now() < given_up, "not {what}");
        tokio::time::sleep(ms(1)).await;
    }
}

/// Waits until the waker has been woken so many times.
async fn until_woken(woken: &AtomicUsize, times: usize) {
    until("woken", || woken.load(Ordering::SeqCst) >= times).await;
}

/// Waits until nobody has any of these wakers.
async fn until_dropped(observers: &[Weak<impl Wake>]) {
    let gone = |observer: &Weak<_>| observer.strong_count() == 0;
    until("dropped", || observers.iter().all(gone)).await;
}

/// Polls each time that the waker has been woken, which may be for a timer that this one has taken over, until the outcome.
async fn outcome(timeout: &mut Waiting, waker: &Waker, woken: &AtomicUsize) -> Result<(), Elapsed> {
    let mut times = 1;
    loop {
        until_woken(woken, times).await;
        let mut cx = Context::from_waker(waker);
        if let Poll::Ready(outcome) = Pin::new(&mut *timeout).poll(&mut cx) {
            return outcome;
        }
        times += 1;
    }
}

/// Its entry has left the wheel, though the future did not look: there is nothing to take over.
#[test]
fn a_sleep_that_expired_unseen_leaves_nothing_to_the_next() {
    real_runtime().block_on(async {
        let wheel = wheel();
        let (waker, woken) = counting_waker();
        for expired in 1..=10 {
            let mut sleep = wheel.sleep(ms(20));
            register_for(&waker, &mut sleep);
            until_woken(&woken, expired).await;
        }
        assert_at_rest(&wheel);
    });
}

/// A timeout that is incoming has no deadline yet. A sleep cannot know whether it is due earlier.
#[test]
fn a_sleep_after_a_timeout_of_a_day_is_due_at_its_own_time() {
    real_runtime().block_on(async {
        let wheel = wheel();
        for _ in 0..20 {
            let _busy = make_tick(&wheel);
            let (waker, woken) = counting_waker();
            drop(waiting(&wheel, DAY, &waker));
            let mut sleep = wheel.sleep(ms(5));
            register_for(&waker, &mut sleep);
            until_woken(&woken, 1).await;
        }
    });
}

struct Nobody;

impl Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

/// A waker, and a way to see whether anybody still has it.
fn observed_waker() -> (Waker, Weak<Nobody>) {
    let nobody = Arc::new(Nobody);
    let observer = Arc::downgrade(&nobody);
    (Waker::from(nobody), observer)
}

#[test]
fn a_timeout_after_one_of_another_duration_counts_its_own() {
    real_runtime().block_on(async {
        for [former, own] in [[ms(5), ms(20)], [SECOND * 3600, ms(20)]] {
            let wheel = wheel();
            let _busy = make_tick(&wheel);
            let (waker, woken) = counting_waker();
            drop(waiting(&wheel, former, &waker));
            let start = Instant::now();
            let mut timeout = waiting(&wheel, own, &waker);
            assert!(outcome(&mut timeout, &waker, &woken).await.is_err());
            assert!(start.elapsed() >= own, "{:?} for {own:?}", start.elapsed());
        }
    });
}

#[test]
fn a_timeout_after_one_of_another_task_wakes_its_own() {
    real_runtime().block_on(async {
        let wheel = wheel();
        let _busy = make_tick(&wheel);
        let (former, former_woken) = counting_waker();
        let (waker, woken) = counting_waker();
        drop(waiting(&wheel, ms(10), &former));
        let mut timeout = waiting(&wheel, ms(10), &waker);
        assert!(outcome(&mut timeout, &waker, &woken).await.is_err());
        assert_eq!(former_woken.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_timeout_that_moved_to_another_task_leaves_nothing_to_the_first() {
    real_runtime().block_on(async {
        let wheel = wheel();
        let _busy = make_tick(&wheel);
        let (waker, woken) = counting_waker();
        let (other, other_woken) = counting_waker();
        let mut moved = waiting(&wheel, ms(10), &waker);
        register_for(&other, &mut moved);
        drop(moved);
        let mut timeout = waiting(&wheel, ms(10), &waker);
        assert!(outcome(&mut timeout, &waker, &woken).await.is_err());
        assert_eq!(other_woken.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn a_timeout_of_another_wheel_is_its_own() {
    real_runtime().block_on(async {
        let (one, other) = (wheel(), wheel());
        let _busy = (make_tick(&one), make_tick(&other));
        let (waker, woken) = counting_waker();
        drop(waiting(&one, ms(10), &waker));
        let mut timeout = waiting(&other, ms(10), &waker);
        one.shutdown();
        assert!(outcome(&mut timeout, &waker, &woken).await.is_err());
    });
}

#[test]
fn two_wheels_of_one_thread_keep_counters_of_their_own() {
    real_runtime().block_on(async {
        let wheels = [wheel(), wheel()];
        let busy = wheels.each_ref().map(make_tick);
        let mut cancelled = wheels.each_ref().map(|wheel| wheel.metrics().cancelled);
        for stay in (0..30).chain([1; 20]) {
            for (wheel, cancelled) in wheels.iter().zip(&mut cancelled) {
                for _ in 0..stay {
                    drop(waiting(wheel, SECOND, Waker::noop()));
                }
                *cancelled += stay;
            }
            for (n, wheel) in wheels.iter().enumerate() {
                let metrics = wheel.metrics();
                assert_eq!(
                    (metrics.cancelled, metrics.pending),
                    (cancelled[n], busy[n].len())
                );
                assert_adds_up(wheel);
            }
        }
    });
}

#[test]
fn a_thread_that_ends_leaves_nothing_behind() {
    real_runtime().block_on(async {
        let wheel = wheel();
        let busy = make_tick(&wheel);
        let mut observers = Vec::new();
        for _ in 0..20 {
            let (waker, observer) = observed_waker();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..3 {
                        drop(waiting(&wheel, SECOND, &waker));
                    }
                });
            });
            drop(waker);
            assert_adds_up(&wheel);
            assert_eq!(wheel.pending(), busy.len());
            observers.push(observer);
        }
        until_dropped(&observers).await;
        drop(busy);
        assert_at_rest(&wheel);
    });
}

#[test]
fn no_waker_outlives_a_shutdown_or_the_runtime() {
    for shutdown in [true, false] {
        let runtime = real_runtime();
        let wheel = wheel();
        let (waker, observer) = observed_waker();
        let busy = runtime.block_on(async {
            let busy = make_tick(&wheel);
            drop(waiting(&wheel, SECOND, &waker));
            drop(waker);
            busy
        });
        assert!(observer.strong_count() > 0);
        if shutdown {
            assert_eq!(wheel.shutdown().timers, busy.len());
        } else {
            drop(runtime);
            assert_eq!(wheel.pending(), busy.len());
        }
        assert_eq!(observer.strong_count(), 0);
        assert_adds_up(&wheel);
    }
}

#[test]
fn the_memory_of_a_burst_goes_back_though_one_of_it_is_kept_for_reuse() {
    for shutdown in [true, false] {
        let runtime = real_runtime();
        let wheel = Wheel::builder().tick_duration(SECOND).shards(1).build().unwrap();
        runtime.block_on(async {
            let burst: Vec<_> = (0..100_000)
                .map(|_| waiting(&wheel, SECOND * 100, Waker::noop()))
                .collect();
            assert!(wheel.metrics().arena_bytes > 1 << 20);
            drop(burst);
        });
        if shutdown {
            wheel.shutdown();
        }
        drop(runtime);
        assert_arena_given_back(&wheel);
    }
}

#[test]
fn under_a_limit_the_room_is_free_at_once() {
    real_runtime().block_on(async {
        let wheel = Wheel::builder().shards(1).max_pending(501).build().unwrap();
        let _busy = make_tick(&wheel);
        for _ in 0..10 {
            drop(waiting(&wheel, SECOND, Waker::noop()));
        }
        let _last = waiting(&wheel, SECOND, Waker::noop());
        let mut refused = wheel.try_timeout(SECOND, pending::<()>());
        let polled = Pin::new(&mut refused).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(
            polled,
            std::task::Poll::Ready(Err(TimeoutError::AtCapacity { limit: 501 }))
        );
        assert_eq!(wheel.metrics().rejected, 1);
    });
}

/// Woken, it ends its own timeout, and leaves one for reuse that another waker waits for.
struct SetsAside(Mutex<Option<[Waiting; 2]>>, Mutex<Option<Waker>>);

impl Wake for SetsAside {
    fn wake(self: Arc<Self>) {
        let [own, mut other] = self.0.lock().unwrap().take().unwrap();
        let waker = self.1.lock().unwrap().take().unwrap();
        drop(own);
        register_for(&waker, &mut other);
    }
}

/// Dropped, it polls another timeout of the wheel.
struct PollsWhenDropped(Option<Waiting>);

impl Wake for PollsWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PollsWhenDropped {
    fn drop(&mut self) {
        if let Some(timeout) = &mut self.0 {
            register_for(Waker::noop(), timeout);
        }
    }
}

#[test]
fn a_waker_that_uses_the_wheel_when_it_is_dropped_may() {
    within(SECOND * 60, || {
        real_runtime().block_on(async {
            let wheel = wheel();
            let busy = make_tick(&wheel);
            let last = wheel.timeout(SECOND, pending());
            let waker = Waker::from(Arc::new(PollsWhenDropped(Some(last))));
            let other = wheel.timeout(SECOND, pending());
            let mut own = wheel.timeout(ms(1), pending());
            let first = Arc::new(SetsAside(Mutex::default(), Mutex::new(Some(waker))));
            register_for(&Waker::from(first.clone()), &mut own);
            *first.0.lock().unwrap() = Some([own, other]);
            let dropped = Arc::downgrade(&first);
            drop((busy, first, wheel));
            until_dropped(&[dropped]).await;
        });
    });
}

/// The waker of the timer that was kept is dropped in the middle of the next registration.
#[test]
fn a_waker_that_panics_as_it_is_dropped_costs_the_next_timer_nothing() {
    struct Bomb;
    impl Wake for Bomb {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a waker's own");
        }
    }
    real_runtime().block_on(async {
        let wheel = wheel();
        for busy in [false, true] {
            let _busy = busy.then(|| make_tick(&wheel));
            let before = wheel.pending();
            drop(waiting(&wheel, DAY, &Waker::from(Arc::new(Bomb))));
            let (waker, _) = counting_waker();
            let next: Pin<Box<dyn Future<Output = bool>>> = match busy {
                true => Box::pin(async { wheel.timeout(DAY / 2, pending::<()>()).await.is_ok() }),
                false => Box::pin(async { wheel.try_sleep(DAY / 2).await.is_ok() }),
            };
            let register = AssertUnwindSafe(|| {
                let mut next = next;
                register_for(&waker, &mut next);
            });
            // Whether it panics depends on what the thread kept before.
            let _ = catch_unwind(register);
            assert_eq!(wheel.pending(), before, "a cell is lost");
        }
    });
}

/// Each of its timeouts takes the one before over and reads the clock. Ticks of ten seconds, so that hundreds fall into one.
#[test]
fn a_task_that_starts_hundreds_of_timeouts_in_a_tick_makes_its_shard_tick() {
    let wheel = Wheel::builder()
        .tick_duration(SECOND * 10)
        .shards(1)
        .build()
        .unwrap();
    real_runtime().block_on(async {
        let (waker, _) = counting_waker();
        // Of a timeout in a shard that ticks, only the delay is known.
        let ticks = || format!("{:?}", waiting(&wheel, SECOND * 1_000, &waker)).contains("delay");
        assert!(!ticks(), "a quiet shard dozes");
        for _ in 0..300 {
            drop(waiting(&wheel, SECOND * 1_000, &waker));
        }
        assert!(ticks());
    });
}

/// In a quiet shard, a timer with a later deadline is not taken over.
#[test]
fn a_timer_after_a_longer_one_of_its_task_is_on_time() {
    let wheel = wheel();
    real_runtime().block_on(async {
        for _ in 0..3 {
            let (waker, woken) = counting_waker();
            let mut long = wheel.sleep(SECOND * 86_400);
            register_for(&waker, &mut long);
            drop(long);
            let mut sleep = wheel.sleep(ms(20));
            register_for(&waker, &mut sleep);
            until_woken(&woken, 1).await;
            sleep.await;

            let (waker, woken) = counting_waker();
            drop(waiting(&wheel, SECOND * 86_400, &waker));
            let mut timeout = waiting(&wheel, ms(20), &waker);
            until_woken(&woken, 1).await;
            assert!(outcome(&mut timeout, &waker, &woken).await.is_err());
        }
    });
}

async fn task_waker() -> Waker {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let waker = std::future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let _ = sender.send(waker);
        pending::<()>().await;
    });
    receiver.await.unwrap()
}

/// In a shard that ticks, a sleep that was given up is followed by a timeout: two timers, not three.
#[test]
fn a_timeout_after_a_sleep_of_the_same_task_is_counted_once() {
    real_runtime().block_on(async {
        let wheel = Wheel::builder().tick_duration(SECOND).shards(1).build().unwrap();
        let _busy = make_tick(&wheel);
        tokio::task::yield_now().await;
        let waker = task_waker().await;
        let before = wheel.metrics();
        for n in 1..=50 {
            let mut sleep = wheel.sleep(SECOND * 100);
            register_for(&waker, &mut sleep);
            drop(sleep);
            let mut timeout = wheel.timeout(SECOND * 100, pending::<()>());
            register_for(&waker, &mut timeout);
            drop(timeout);
            let metrics = wheel.metrics();
            assert_eq!(metrics.registered - before.registered, 2 * n);
            assert_eq!(metrics.cancelled - before.cancelled, 2 * n);
        }
    });
}

/// The waker of a timer kept for reuse is dropped as the driver retires. Here that starts the next driver.
#[test]
fn a_driver_that_ends_leaves_the_next_one_alone() {
    /// Polls a sleep when it is dropped.
    struct Polls(Mutex<Sleep>, Waker);
    impl Wake for Polls {
        fn wake(self: Arc<Self>) {}
    }
    impl Drop for Polls {
        fn drop(&mut self) {
            register_for(&self.1, self.0.get_mut().unwrap());
            let sleep = std::mem::replace(self.0.get_mut().unwrap(), Wheel::new().sleep(SECOND));
            STARTED.lock().unwrap().replace(sleep);
        }
    }
    static STARTED: Mutex<Option<Sleep>> = Mutex::new(None);

    real_runtime().block_on(async {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        let (waker, woken) = counting_waker();
        let start = Instant::now();
        let polls = Waker::from(Arc::new(Polls(Mutex::new(wheel.sleep(ms(300))), waker)));
        let mut kept = wheel.sleep(SECOND * 60);
        register_for(&polls, &mut kept);
        drop((polls, kept));
        assert!(
            STARTED.lock().unwrap().is_none(),
            "the timer was not kept, and this test sees nothing"
        );
        drop(wheel);
        // The driver stays a moment for the next timer.
        let mut started = None;
        while started.is_none() {
            assert!(start.elapsed() < SECOND * 60, "the driver has not retired");
            tokio::time::sleep(ms(1)).await;
            started = STARTED.lock().unwrap().take();
        }
        let sleep = started.unwrap();
        assert_eq!(
            woken.load(Ordering::SeqCst),
            0,
            "it has a driver, and need not look for one"
        );
        sleep.await;
        assert!(start.elapsed() >= ms(300));
    });
}

/// Such a timer is not pending, so the driver of a wheel without a handle does not wait for its deadline.
#[test]
fn a_timer_kept_for_reuse_keeps_no_driver() {
    real_runtime().block_on(async {
        let wheel = wheel();
        let (waker, _) = counting_waker();
        let last = waiting(&wheel, DAY, &waker);
        drop(waiting(&wheel, DAY, &waker));
        drop(wheel);
        tokio::time::sleep(ms(10)).await;
        assert_eq!(alive_tasks(), 1, "the driver of the last timer");
        drop(last);
        until("without a driver", || alive_tasks() == 0).await;
    });
}

/// One of them is kept for reuse, with its waker, in a shard that dozes. The driver comes for it once.
#[test]
fn of_a_burst_of_sleeps_given_up_neither_the_memory_nor_a_waker_is_kept_until_their_deadline() {
    real_runtime().block_on(async {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        let (waker, observer) = observed_waker();
        let burst: Vec<_> = (0..100_000)
            .map(|_| {
                let mut sleep = wheel.sleep(DAY);
                register_for(&waker, &mut sleep);
                sleep
            })
            .collect();
        tokio::time::sleep(ms(20)).await;
        let before = wheel.metrics();
        assert!(before.arena_bytes > 1 << 20);
        drop((burst, waker));
        assert_eq!(wheel.pending(), 0);
        until_dropped(&[observer]).await;
        until("given back", || wheel.metrics().arena_bytes <= 1 << 20).await;
        tokio::time::sleep(SECOND).await;
        assert_eq!(wheel.metrics().wakeups, before.wakeups + 1);
    });
}

/// Each of its timeouts is cancelled by a thread that does nothing more.
#[test]
fn a_parked_thread_keeps_no_waker() {
    let (_runtime, wheel) = driven_elsewhere();
    let (used, seen) = (Barrier::new(9), Barrier::new(9));
    std::thread::scope(|scope| {
        let observers: Vec<_> = (0..8)
            .map(|_| {
                let (waker, observer) = observed_waker();
                let (wheel, used, seen) = (&wheel, &used, &seen);
                scope.spawn(move || {
                    for _ in 0..3 {
                        drop(waiting(wheel, DAY, &waker));
                    }
                    drop(waker);
                    used.wait();
                    seen.wait();
                });
                observer
            })
            .collect();
        used.wait();
        let given_up = Instant::now() + 10 * SECOND;
        let kept = |observer: &Weak<_>| observer.strong_count() > 0;
        while observers.iter().any(kept) && Instant::now() < given_up {
            std::thread::sleep(ms(10));
        }
        let any_is_kept = observers.iter().any(kept);
        seen.wait();
        assert!(!any_is_kept);
    });
}

/// Those of a busy shard that have lasted for longer than a cadence fit no slot.
#[test]
fn the_count_of_cancelled_timeouts_never_goes_back() {
    let (_runtime, wheel) = driven_elsewhere();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut before = 0;
            while !is_over.load(Ordering::Relaxed) {
                let cancelled = wheel.metrics().cancelled;
                assert!(cancelled >= before, "{before} were cancelled, then {cancelled}");
                before = cancelled;
            }
        });
        let (waker, _) = counting_waker();
        for _ in 0..5 {
            let lasting: Vec<_> = (0..10_000).map(|_| waiting(&wheel, DAY, &waker)).collect();
            std::thread::sleep(SECOND / 2);
            // This opens a slot, and leaves it empty.
            drop(waiting(&wheel, DAY, &waker));
            let _taken = waiting(&wheel, DAY, &waker);
            lasting.into_iter().rev().for_each(drop);
        }
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = reader.join() {
            std::panic::resume_unwind(panic);
        }
    });
}
