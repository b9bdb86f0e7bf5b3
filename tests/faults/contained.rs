//! Contained faults: what panics, ends or comes in a burst costs no other task a timer.

use crate::support;

use std::{
    cell::Cell,
    fs,
    future::{Future, pending},
    hint,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker},
    thread,
};

use futures::StreamExt;
use tickwheel::{ScheduleError, SleepError, Wheel};
use tokio::time::{Duration, Instant};
use tokio_test::{assert_pending, assert_ready, assert_ready_eq, task};

use support::{
    SECOND, TICK, advance, alive_tasks, own_process::in_own_process, paused_runtime, register, register_for,
    settle, threaded_runtime,
};

/// A waker that panics when woken.
fn panicking_waker() -> Waker {
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("a waker's panic, part of the test");
        }
    }
    Waker::from(Arc::new(Panicking))
}

/// A future that panics when it is dropped before it completes.
struct PanicsWhenDropped;

impl Future for PanicsWhenDropped {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("a destructor's panic, part of the test");
        }
    }
}

/// Timers of one tick on either side of whatever goes wrong: all of them have to complete.
struct Neighbours(Vec<task::Spawn<tickwheel::Sleep>>);

impl Neighbours {
    fn new(wheel: &Wheel, delay: Duration) -> Neighbours {
        let mut sleeps: Vec<_> = (0..10).map(|_| task::spawn(wheel.sleep(delay))).collect();
        for sleep in &mut sleeps {
            assert_pending!(sleep.poll());
        }
        Neighbours(sleeps)
    }

    #[track_caller]
    fn assert_done(self) {
        for mut sleep in self.0 {
            assert!(sleep.is_woken(), "another's timer was lost");
            assert_ready!(sleep.poll());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panicking_task_is_reported_by_its_handle_and_by_nobody_else() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let before = Neighbours::new(&wheel, TICK);
    let literal = wheel.schedule(TICK, async { panic!("a literal") });
    let formatted = wheel.schedule(TICK, async { panic!("number {}", 7) });
    let other = wheel.schedule(TICK, async { panic_any(7) });
    let late = wheel.schedule(TICK, async {
        tokio::task::yield_now().await;
        panic!("later on")
    });
    let after = Neighbours::new(&wheel, TICK);
    advance(TICK).await;
    before.assert_done();
    after.assert_done();
    let panicked = |message: &str| Err(ScheduleError::Panicked(String::from(message)));
    assert_eq!(literal.await, panicked("a literal"));
    assert_eq!(formatted.await, panicked("number 7"));
    assert!(matches!(other.await, Err(ScheduleError::Panicked(_))));
    assert!(late.is_finished() && late.is_started() && !late.is_cancelled());
    assert_eq!(late.await, panicked("later on"));
    assert_eq!(wheel.metrics().panics, 0, "no waker panicked");
    wheel.sleep(TICK).await;
}

#[tokio::test(start_paused = true)]
async fn a_panicking_waker_is_counted_and_its_neighbours_are_woken() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let before = Neighbours::new(&wheel, TICK);
    let waker = panicking_waker();
    let mut cx = Context::from_waker(&waker);
    let mut sleep = wheel.sleep(TICK);
    assert_pending!(Pin::new(&mut sleep).poll(&mut cx));
    let mut timeout = Box::pin(wheel.timeout(TICK, pending::<()>()));
    assert_pending!(timeout.as_mut().poll(&mut cx));
    let after = Neighbours::new(&wheel, TICK);
    let later = Neighbours::new(&wheel, TICK * 2);
    advance(TICK).await;
    before.assert_done();
    after.assert_done();
    assert_eq!(wheel.metrics().panics, 2);
    // The futures themselves are none the worse.
    assert_ready!(Pin::new(&mut sleep).poll(&mut cx));
    assert!(timeout.as_mut().poll(&mut cx).is_ready());
    advance(TICK).await;
    later.assert_done();
}

#[tokio::test(start_paused = true)]
async fn a_panic_whose_payload_panics_when_dropped_is_survived() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("a payload's panic, part of the test");
        }
    }
    struct Panicking;
    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic_any(Payload);
        }
    }
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let mut sleep = wheel.sleep(TICK);
    let waker = Waker::from(Arc::new(Panicking));
    register_for(&waker, &mut sleep);
    let after = Neighbours::new(&wheel, TICK);
    advance(TICK).await;
    after.assert_done();
    assert_eq!(wheel.metrics().panics, 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_waker_of_a_handle_costs_no_other_task_its_start() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let waker = panicking_waker();
    let mut first = wheel.schedule(TICK, async { 1 });
    register_for(&waker, &mut first);
    let second = wheel.schedule(TICK, async { 2 });
    advance(TICK).await;
    assert_eq!(wheel.metrics().panics, 1);
    assert_eq!(first.await, Ok(1));
    assert_eq!(second.await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn panicking_wakers_keep_no_shutdown_from_handing_back_and_waking_the_rest() {
    let wheel = Wheel::new();
    let waker = panicking_waker();
    let mut cx = Context::from_waker(&waker);
    let mut handles: Vec<_> = (0..10).map(|_| wheel.schedule(SECOND, async {})).collect();
    for handle in handles.iter_mut().step_by(3) {
        assert_pending!(Pin::new(handle).poll(&mut cx));
    }
    let mut sleeps: Vec<_> = (0..10).map(|_| wheel.try_sleep(SECOND)).collect();
    for sleep in &mut sleeps {
        assert_pending!(Pin::new(sleep).poll(&mut cx));
    }
    let mut sound = task::spawn(wheel.try_sleep(SECOND));
    assert_pending!(sound.poll());
    let unprocessed = wheel.shutdown();
    assert_eq!(unprocessed.tasks.len(), 10);
    assert_eq!(wheel.metrics().panics, 14);
    assert!(sound.is_woken());
    assert_ready_eq!(sound.poll(), Err(SleepError::Shutdown));
    for handle in handles {
        assert_eq!(handle.await, Err(ScheduleError::Shutdown));
    }
}

/// A waker whose clone, drop or wake panics once it is told to.
mod raw {
    use super::*;

    thread_local! {
        pub(super) static CLONE_PANICS: Cell<bool> = const { Cell::new(false) };
        pub(super) static DROP_PANICS: Cell<bool> = const { Cell::new(false) };
    }

    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, |_| (), |_| (), drop);

    fn clone(data: *const ()) -> RawWaker {
        assert!(!CLONE_PANICS.get(), "a clone's panic, part of the test");
        RawWaker::new(data, &VTABLE)
    }

    fn drop(_: *const ()) {
        assert!(
            !DROP_PANICS.get() || thread::panicking(),
            "a drop's panic, part of the test"
        );
    }

    pub(super) fn waker() -> Waker {
        // SAFETY: the data is never looked at, and every function does nothing at all, or panics.
        unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) }
    }
}

/// A waker at an address of its own, whose clones are elsewhere, as those of a borrowed waker may be.
mod borrowed {
    use super::*;

    // Where the next clone is, and which one was dropped last.
    thread_local! {
        pub(super) static NEXT: Cell<usize> = const { Cell::new(0) };
        pub(super) static LAST_DROPPED: Cell<usize> = const { Cell::new(0) };
    }

    static VTABLE: RawWakerVTable = RawWakerVTable::new(
        |_| at(NEXT.get()),
        |_| (),
        |_| (),
        |data| LAST_DROPPED.set(data.addr()),
    );

    fn at(address: usize) -> RawWaker {
        RawWaker::new(std::ptr::without_provenance(address), &VTABLE)
    }

    pub(super) fn waker() -> Waker {
        // SAFETY: no function looks at what the data points to.
        unsafe { Waker::from_raw(at(8)) }
    }
}

/// The clone does not keep the task of the borrowed waker alive, so that another one may have its address later.
#[test]
fn a_waker_whose_clones_are_elsewhere_is_not_known_by_its_address() {
    let runtime = threaded_runtime(1);
    let _entered = runtime.enter();
    let wheel = Wheel::new();
    let mut sleep = wheel.sleep(SECOND * 3_600);
    for address in [16, 24, 32] {
        borrowed::NEXT.set(address);
        assert!(
            Pin::new(&mut sleep)
                .poll(&mut Context::from_waker(&borrowed::waker()))
                .is_pending()
        );
    }
    drop(sleep);
    assert_eq!(borrowed::LAST_DROPPED.get(), 32, "the entry had the last clone");
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_when_cloned_harms_its_own_poll_only() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let before = Neighbours::new(&wheel, TICK);
    let waker = raw::waker();
    let mut sleep = wheel.sleep(TICK);
    raw::CLONE_PANICS.set(true);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker))
    }));
    raw::CLONE_PANICS.set(false);
    assert!(polled.is_err());
    assert_eq!(wheel.pending(), 10);
    let after = Neighbours::new(&wheel, TICK);
    register_for(&waker, &mut sleep);
    advance(TICK).await;
    before.assert_done();
    after.assert_done();
    assert_ready!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)));
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_when_dropped_harms_its_own_future_only() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let before = Neighbours::new(&wheel, TICK);
    let waker = raw::waker();
    let mut sleep = wheel.sleep(TICK);
    register_for(&waker, &mut sleep);
    raw::DROP_PANICS.set(true);
    let dropped = catch_unwind(AssertUnwindSafe(|| drop(sleep)));
    raw::DROP_PANICS.set(false);
    assert!(dropped.is_err(), "the panic is for whoever drops the sleep");
    assert_eq!(wheel.pending(), 10, "the sleep has left the wheel all the same");
    let after = Neighbours::new(&wheel, TICK);
    advance(TICK).await;
    before.assert_done();
    after.assert_done();
    let metrics = wheel.metrics();
    assert_eq!(
        (metrics.registered, metrics.expired, metrics.cancelled),
        (21, 20, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_when_dropped_harms_no_timer_of_the_runtime_that_its_sleep_has_come_to() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let mut sleep = wheel.sleep(SECOND * 600);
    let waits_in_another = move || {
        let runtime = threaded_runtime(1);
        let _entered = runtime.enter();
        register(&mut sleep);
        sleep
    };
    let mut sleep = thread::spawn(waits_in_another).join().unwrap();
    sleep.reset_at(Instant::now() - SECOND);
    let neighbours = Neighbours::new(&wheel, TICK);
    let waker = raw::waker();
    raw::DROP_PANICS.set(true);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker))
    }));
    raw::DROP_PANICS.set(false);
    assert!(polled.is_err(), "the sleep is over, and its waker is not needed");
    drop(sleep);
    assert_eq!(wheel.pending(), 10);
    advance(TICK).await;
    neighbours.assert_done();
}

#[tokio::test(start_paused = true)]
async fn a_panicking_destructor_of_a_cancelled_task_is_its_cancellers() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let before = Neighbours::new(&wheel, TICK);
    let doomed = wheel.schedule(TICK, PanicsWhenDropped);
    let after = Neighbours::new(&wheel, TICK);
    assert!(catch_unwind(AssertUnwindSafe(|| doomed.cancel())).is_err());
    assert!(doomed.is_cancelled());
    assert!(!doomed.cancel());
    assert_eq!(wheel.pending(), 20);
    assert_eq!(doomed.await, Err(ScheduleError::Cancelled));
    advance(TICK).await;
    before.assert_done();
    after.assert_done();
    assert!(wheel.shutdown().tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panicking_destructor_of_a_dropped_timeout_is_its_droppers() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let before = Neighbours::new(&wheel, TICK);
    let mut timeout = Box::pin(wheel.timeout(SECOND, PanicsWhenDropped));
    assert_pending!(timeout.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    assert_eq!(wheel.pending(), 11);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(timeout))).is_err());
    assert_eq!(wheel.pending(), 10);
    advance(TICK).await;
    before.assert_done();
}

#[tokio::test(start_paused = true)]
async fn a_panicking_destructor_of_a_refused_task_is_its_schedulers() {
    let wheel = Wheel::builder().shards(1).max_pending(1).build().unwrap();
    let mut occupant = wheel.try_sleep(SECOND);
    register(&mut occupant);
    let neighbours = Neighbours::new(&wheel, TICK);
    let scheduled = catch_unwind(AssertUnwindSafe(|| drop(wheel.schedule(TICK, PanicsWhenDropped))));
    assert!(scheduled.is_err());
    assert_eq!(wheel.metrics().rejected, 1);
    advance(TICK).await;
    neighbours.assert_done();
    drop(occupant);
    assert!(wheel.shutdown().tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panicking_destructor_of_a_task_handed_back_is_its_callers() {
    let wheel = Wheel::new();
    drop(wheel.schedule(TICK, PanicsWhenDropped));
    drop(wheel.schedule(TICK, async {}));
    let tasks = wheel.shutdown().tasks;
    assert_eq!(tasks.len(), 2);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(tasks))).is_err());
    assert!(wheel.shutdown().tasks.is_empty());
}

#[test]
fn panicking_destructors_and_wakers_do_not_keep_a_dropped_runtime_from_letting_go() {
    let wheel = Wheel::builder().shards(1).build().unwrap();
    let runtime = paused_runtime();
    let waker = panicking_waker();
    // Durations would count from two readings of the machine's clock, between which this thread may be
    // preempted. The second runtime's clock begins later.
    let due = Instant::now() + SECOND * 60;
    let (mut sleep, mut sound) = (wheel.sleep_until(due), task::spawn(wheel.sleep_until(due)));
    let (doomed, other) = runtime.block_on(async {
        register_for(&waker, &mut sleep);
        let doomed = wheel.schedule(SECOND, PanicsWhenDropped);
        let other = wheel.schedule(SECOND, async {});
        assert_pending!(sound.poll());
        settle().await;
        (doomed, other)
    });
    drop(runtime);
    assert!(sound.is_woken(), "to go on elsewhere");
    assert_eq!(wheel.metrics().panics, 2, "one waker's, one destructor's");
    assert_eq!(futures::executor::block_on(doomed), Err(ScheduleError::Cancelled));
    assert_eq!(futures::executor::block_on(other), Err(ScheduleError::Cancelled));
    paused_runtime().block_on(async {
        assert_pending!(sound.poll());
        sleep.await;
        settle().await;
        assert_ready!(sound.poll());
    });
}

#[tokio::test(start_paused = true)]
async fn every_handle_dropped_pending_timers_complete_and_then_the_driver_ends() {
    let wheel = Wheel::new();
    let done = Arc::new(AtomicUsize::new(0));
    let count = |done: &Arc<AtomicUsize>| {
        let done = done.clone();
        move || done.fetch_add(1, Ordering::Relaxed)
    };
    let (sleep, counted) = (wheel.sleep(SECOND), count(&done));
    tokio::spawn(async move {
        sleep.await;
        counted();
    });
    let (timeout, counted) = (wheel.timeout(SECOND * 2, pending::<()>()), count(&done));
    tokio::spawn(async move {
        assert!(timeout.await.is_err());
        counted();
    });
    let (interval, counted) = (wheel.interval(SECOND).take(4), count(&done));
    tokio::spawn(async move {
        assert_eq!(interval.count().await, 4);
        counted();
    });
    let (idle, counted) = (wheel.idle_timer(SECOND * 4), count(&done));
    tokio::spawn(async move {
        idle.await;
        counted();
    });
    let counted = count(&done);
    drop(wheel.schedule(SECOND * 5, async move { counted() }));
    let counted = count(&done);
    let series = wheel.periodic(SECOND * 6).spawn_at_fixed_rate(move || {
        counted();
        async {}
    });
    settle().await;
    drop(wheel);
    settle().await;
    assert_eq!(alive_tasks(), 6, "four spawned here, the series, and the driver");
    for (at, expected) in [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5), (6, 6)] {
        advance(SECOND).await;
        assert_eq!(done.load(Ordering::Relaxed), expected, "after {at} s");
    }
    assert_eq!(alive_tasks(), 2, "the series, and the driver it needs");
    series.stop();
    settle().await;
    assert_eq!(alive_tasks(), 0, "nobody is left, not even the driver");
}

/// Longer than a busy machine can keep a thread from running.
const LONG: Duration = Duration::from_secs(3_600);

/// Everything a runtime can take down with it: returns what is owned by futures that should not outlive it.
async fn fill(wheel: &Wheel, delay: Duration) -> Vec<Weak<()>> {
    let mut seen = Vec::new();
    let mut owned = || {
        let owned = Arc::new(());
        seen.push(Arc::downgrade(&owned));
        owned
    };
    let (sleep, o) = (wheel.sleep(delay), owned());
    tokio::spawn(async move { (sleep.await, drop(o)) });
    let (timeout, o) = (wheel.timeout(delay, pending::<()>()), owned());
    tokio::spawn(async move { (timeout.await, drop(o)) });
    let (mut interval, o) = (wheel.interval(delay), owned());
    tokio::spawn(async move {
        interval.tick().await;
        interval.tick().await;
        drop(o);
    });
    let (idle, o) = (wheel.idle_timer(delay), owned());
    tokio::spawn(async move { (idle.await, drop(o)) });
    let o = owned();
    drop(wheel.schedule(delay, async move {
        pending::<()>().await;
        drop(o);
    }));
    let o = owned();
    drop(wheel.schedule(Duration::ZERO, async move {
        pending::<()>().await;
        drop(o);
    }));
    let o = owned();
    drop(
        wheel
            .periodic(delay)
            .spawn_at_fixed_rate(move || std::future::ready(o.clone())),
    );
    let o = owned();
    drop(wheel.periodic(delay).spawn_with_fixed_delay(move || {
        let o = o.clone();
        async move {
            pending::<()>().await;
            drop(o);
        }
    }));
    seen
}

#[track_caller]
fn assert_gone(seen: &[Weak<()>]) {
    let left: Vec<_> = seen.iter().map(Weak::strong_count).collect();
    assert!(left.iter().all(|count| *count == 0), "still owned: {left:?}");
}

#[test]
fn a_runtime_dropped_with_timers_pending_leaves_nothing_behind_at_any_stage() {
    let wheel = Wheel::new();
    for steps in 0..12 {
        let runtime = paused_runtime();
        let seen = runtime.block_on(async {
            let seen = fill(&wheel, SECOND).await;
            for step in 0..steps {
                match step {
                    0..8 => tokio::task::yield_now().await,
                    _ => advance(SECOND / 2).await,
                }
            }
            seen
        });
        drop(runtime);
        assert_gone(&seen);
        assert_eq!(wheel.pending(), 0, "{steps} steps");
    }
    // And the wheel itself is as good as new.
    paused_runtime().block_on(async {
        wheel.sleep(SECOND).await;
        assert_eq!(wheel.schedule(SECOND, async { 7 }).await, Ok(7));
    });
    let metrics = wheel.metrics();
    assert_eq!(metrics.registered, metrics.expired + metrics.cancelled);
}

#[test]
fn a_multi_thread_runtime_dropped_with_timers_pending_leaves_nothing_behind() {
    for round in 0..50 {
        let wheel = Wheel::new();
        let runtime = threaded_runtime(2);
        let seen = runtime.block_on(fill(&wheel, LONG));
        if round % 2 == 0 {
            while wheel.pending() < 4 {
                thread::yield_now();
            }
        }
        drop(runtime);
        assert_gone(&seen);
        assert_eq!(wheel.pending(), 0);
    }
}

#[test]
fn a_runtime_shut_down_in_the_background_leaves_nothing_behind() {
    let wheel = Wheel::new();
    let runtime = threaded_runtime(1);
    let seen = runtime.block_on(fill(&wheel, LONG));
    runtime.shutdown_background();
    while seen.iter().any(|seen| seen.strong_count() > 0) {
        hint::spin_loop();
        thread::yield_now();
    }
    while wheel.pending() > 0 {
        thread::yield_now();
    }
}

#[test]
fn handles_of_a_dropped_runtimes_tasks_resolve_wherever_they_are_awaited() {
    let wheel = Wheel::new();
    let runtime = paused_runtime();
    let (waiting, running, series) = runtime.block_on(async {
        let waiting = wheel.schedule(SECOND, async {});
        let running = wheel.schedule(TICK, pending::<()>());
        let series = wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {});
        advance(TICK).await;
        assert!(running.is_started());
        (waiting, running, series)
    });
    drop(runtime);
    assert!(waiting.is_finished() && running.is_finished() && series.is_finished());
    assert_eq!(
        futures::executor::block_on(waiting),
        Err(ScheduleError::Cancelled)
    );
    assert_eq!(
        futures::executor::block_on(running),
        Err(ScheduleError::Cancelled)
    );
    assert_eq!(futures::executor::block_on(series), Err(ScheduleError::Cancelled));
}

/// Resident bytes of this process.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// In a process of its own, after as many wheels as an allocator needs to settle.
#[cfg(target_os = "linux")]
#[track_caller]
fn assert_memory_stays_flat<T: Fn()>(test: T, use_up: impl Fn(usize)) {
    if !in_own_process(test, "") {
        return;
    }
    use_up(300);
    let before = resident();
    use_up(2_000);
    let grown = resident().saturating_sub(before);
    // What an allocator may keep: half a kilobyte of each wheel.
    assert!(grown < 1 << 20, "grown by {grown} bytes");
}

#[cfg(target_os = "linux")]
#[test]
fn wheels_made_and_dropped_by_the_thousand_leave_resident_memory_flat() {
    let test = wheels_made_and_dropped_by_the_thousand_leave_resident_memory_flat;
    assert_memory_stays_flat(test, |wheels| {
        paused_runtime().block_on(async {
            for _ in 0..wheels {
                let wheel = Wheel::builder().shards(4).ticks_per_wheel(512).build().unwrap();
                let mut dropped = task::spawn(wheel.sleep(SECOND));
                assert_pending!(dropped.poll());
                let cancelled = wheel.schedule(SECOND, async {});
                drop(wheel.schedule(TICK, async {}));
                wheel.sleep(TICK).await;
                cancelled.cancel();
            }
            settle().await;
            assert_eq!(alive_tasks(), 0, "every driver has ended");
        });
    });
}

#[cfg(target_os = "linux")]
#[test]
fn wheels_shut_down_and_runtimes_dropped_under_them_leave_resident_memory_flat() {
    let test = wheels_shut_down_and_runtimes_dropped_under_them_leave_resident_memory_flat;
    assert_memory_stays_flat(test, |wheels| {
        for round in 0..wheels {
            let runtime = paused_runtime();
            let wheel = Wheel::builder().shards(4).ticks_per_wheel(512).build().unwrap();
            runtime.block_on(fill(&wheel, SECOND));
            if round % 2 == 0 {
                drop(wheel.shutdown());
            }
        }
    });
}

#[tokio::test(start_paused = true)]
async fn memory_is_given_back_after_a_burst_however_it_ends() {
    const BURST: usize = 100_000;
    for ends in [
        "expired",
        "shut down",
        "from the first to the last",
        "from the last to the first",
    ] {
        let wheel = Wheel::builder().shards(1).build().unwrap();
        let mut sleeps: Vec<_> = (0..BURST).map(|_| wheel.sleep(SECOND)).collect();
        sleeps.iter_mut().for_each(register);
        let full = wheel.metrics().arena_bytes;
        assert!(full >= BURST * 16, "{full} bytes for {BURST} timers");
        if ends == "expired" {
            advance(SECOND).await;
            while wheel.pending() > 0 {
                settle().await;
            }
        }
        if ends == "shut down" {
            wheel.shutdown();
        }
        if ends == "from the last to the first" {
            sleeps.reverse();
        }
        drop(sleeps);
        let empty = wheel.metrics().arena_bytes;
        assert!(
            empty * 20 < full,
            "{ends}: {empty} of {full} bytes are still held"
        );
        wheel.sleep(TICK).await;
    }
}
