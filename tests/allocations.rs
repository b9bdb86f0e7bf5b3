//! The allocations of a timer, counted by the allocator itself.

mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    future::{Future, pending},
    pin::pin,
    task::{Context, Waker},
};

use tickwheel::Wheel;
use tokio::time::Instant;
use tokio_test::assert_pending;

use support::{SECOND, TICK, paused_runtime, settle};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// Counts what each thread allocates, so that tests do not count each other's.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

impl Counting {
    fn count(allocations: usize, bytes: isize) {
        // No counting in a thread that is going away.
        let _gone = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
        let _gone = LIVE.try_with(|live| live.set(live.get() + bytes));
    }
}

// SAFETY: all is left to the system's allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count(1, layout.size() as isize);
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::count(1, layout.size() as isize);
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        Counting::count(0, -(layout.size() as isize));
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::count(1, size as isize - layout.size() as isize);
        // SAFETY: the caller's promises are those asked for here.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// How many allocations `work` makes on this thread.
fn allocations(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

fn wheel() -> Wheel {
    Wheel::builder().shards(1).build().unwrap()
}

#[test]
fn the_counter_counts() {
    let mut kept = None;
    assert_eq!(allocations(|| kept = Some(Box::new(7))), 1);
    assert_eq!(allocations(|| drop(kept)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_task_is_one_allocation() {
    const TASKS: usize = 500;
    let wheel = wheel();
    let mut handles = Vec::with_capacity(TASKS);
    let mut schedule = |state: [u8; 200]| {
        let before = allocations(|| {
            for _ in 0..TASKS {
                handles.push(wheel.schedule(SECOND, async move { state.len() }));
            }
        });
        assert_eq!(wheel.pending(), TASKS);
        assert!(handles.drain(..).all(|handle| handle.cancel()));
        before
    };
    schedule([0; 200]);
    assert_eq!(schedule([0; 200]), TASKS);
    settle().await;
    assert_eq!(schedule([0; 200]), TASKS);
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_scheduled_task_allocates_nothing() {
    let wheel = wheel();
    let mut handles: Vec<_> = (0..500).map(|_| wheel.schedule(SECOND, async {})).collect();
    let cost = allocations(|| assert!(handles.drain(..).all(|handle| handle.cancel())));
    assert_eq!(cost, 0);
}

#[tokio::test(start_paused = true)]
async fn an_idle_timer_with_its_handles_is_one_allocation() {
    let wheel = wheel();
    let mut cx = Context::from_waker(Waker::noop());
    let mut idle_timers = || {
        for _ in 0..500 {
            let mut idle = pin!(wheel.idle_timer(SECOND));
            let handle = idle.handle();
            assert_pending!(idle.as_mut().poll(&mut cx));
            handle.touch();
            assert_pending!(idle.as_mut().poll(&mut cx));
        }
    };
    idle_timers();
    settle().await;
    assert_eq!(allocations(idle_timers), 500);
}

/// Timeouts of two shapes around pending futures, sleeps, and resets: all that a server does a million times.
fn pending_timers(wheel: &Wheel) {
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..500 {
        let mut timeout = pin!(wheel.timeout(SECOND, pending::<()>()));
        assert_pending!(timeout.as_mut().poll(&mut cx));
        assert_pending!(timeout.as_mut().poll(&mut cx));
        let mut timeout_at = pin!(wheel.timeout_at(Instant::now() + SECOND, pending::<()>()));
        assert_pending!(timeout_at.as_mut().poll(&mut cx));
        let mut sleep = pin!(wheel.sleep(SECOND));
        assert_pending!(sleep.as_mut().poll(&mut cx));
        sleep.reset_at(Instant::now() + SECOND * 2);
        assert_pending!(sleep.as_mut().poll(&mut cx));
        sleep.reset_at(Instant::now() + SECOND / 2);
        assert_pending!(sleep.as_mut().poll(&mut cx));
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_around_a_pending_future_allocates_nothing() {
    let wheel = wheel();
    let _others: Vec<_> = (0..10).map(|_| wheel.schedule(SECOND * 60, async {})).collect();
    pending_timers(&wheel);
    settle().await;
    assert_eq!(allocations(|| pending_timers(&wheel)), 0);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_in_an_otherwise_empty_wheel_allocates_nothing() {
    let wheel = wheel();
    pending_timers(&wheel);
    settle().await;
    assert_eq!(allocations(|| pending_timers(&wheel)), 0);
}

#[tokio::test]
async fn a_timeout_allocates_nothing_on_the_real_clock() {
    let wheel = wheel();
    let _others: Vec<_> = (0..10).map(|_| wheel.schedule(SECOND * 60, async {})).collect();
    pending_timers(&wheel);
    wheel.sleep(TICK).await;
    pending_timers(&wheel);
    assert_eq!(allocations(|| pending_timers(&wheel)), 0);
}

#[test]
fn a_timeout_around_a_ready_future_allocates_nothing_even_the_first_time() {
    let wheel = wheel();
    let mut cx = Context::from_waker(Waker::noop());
    let cost = allocations(|| {
        let timeout = pin!(wheel.timeout(SECOND, std::future::ready(7)));
        assert!(timeout.poll(&mut cx).is_ready());
    });
    assert_eq!(cost, 0);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_allocates_nothing_from_run_to_run() {
    let wheel = wheel();
    let series = wheel.periodic(SECOND).spawn_at_fixed_rate(|| async {});
    let sweep = wheel.periodic(SECOND).spawn_with_fixed_delay(|| async {});
    tokio::time::sleep(SECOND * 10).await;
    let before = ALLOCATIONS.get();
    tokio::time::sleep(SECOND * 100).await;
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(series.runs() >= 109 && sweep.runs() >= 109);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_scheduled_tasks_is_not_paid_for_ever() {
    const TASKS: usize = 100_000;
    let wheel = wheel();
    drop(wheel.schedule(TICK, async {}).await);
    for cancelled in [true, false] {
        let before = LIVE.get();
        let handles: Vec<_> = (0..TASKS).map(|_| wheel.schedule(SECOND, async {})).collect();
        assert!(LIVE.get() - before > 100 * TASKS as isize);
        if cancelled {
            assert!(handles.iter().all(|handle| handle.cancel()));
        } else {
            tokio::time::sleep(SECOND * 2).await;
            settle().await;
            assert!(handles.iter().all(|handle| handle.is_finished()));
        }
        drop(handles);
        settle().await;
        let left = LIVE.get() - before;
        assert!(
            left < 200_000,
            "{left} bytes are still held, cancelled: {cancelled}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_capacity_of_a_dropped_wheel_is_given_back() {
    const CAPACITY: usize = 1_000_000;
    for late in [false, true] {
        let before = LIVE.get();
        let wheel = Wheel::builder().shards(1).capacity(CAPACITY).build().unwrap();
        let mut sleep = wheel.sleep(SECOND);
        wheel.sleep(TICK).await;
        assert!(LIVE.get() - before > CAPACITY as isize * 16);
        if late {
            drop(wheel);
            // In a wheel without a handle, and what its thread keeps of that.
            (&mut sleep).await;
        } else {
            drop(sleep);
            drop(wheel);
        }
        settle().await;
        let kept = LIVE.get() - before;
        assert!(kept < 1 << 17, "{kept} bytes are kept");
    }
}

/// A thread remembers where the timers of its last wheels start, which must not keep the wheels themselves.
#[tokio::test(start_paused = true)]
async fn a_thread_keeps_nothing_large_of_wheels_that_are_gone() {
    const WHEELS: usize = 16;
    // What a wheel with a timeout under a label takes while it lives.
    const LABELS: isize = 16 << 10;
    let mut taken = 0;
    let before = LIVE.get();
    for _ in 0..WHEELS {
        let wheel = wheel();
        let mut timeout = pin!(wheel.labelled("request").timeout(SECOND, pending::<()>()));
        let mut cx = Context::from_waker(Waker::noop());
        assert_pending!(timeout.as_mut().poll(&mut cx));
        taken = LIVE.get() - before;
    }
    assert!(taken > LABELS, "a wheel takes {taken} bytes");
    settle().await;
    let kept = (LIVE.get() - before) / WHEELS as isize;
    assert!(kept < 2 << 10, "{kept} bytes are kept of each wheel");
}

#[test]
fn a_runtime_that_has_ended_is_recognized_without_an_allocation() {
    let ended = {
        let runtime = paused_runtime();
        runtime.handle().clone()
    };
    let _entered = ended.enter();
    drop(tickwheel::time::sleep(SECOND));
    let again = allocations(|| {
        drop(tickwheel::time::sleep(SECOND));
        drop(tickwheel::time::timeout(SECOND, pending::<()>()));
    });
    assert_eq!(again, 0);
}
